"""Offload cases: states and parameters that move to files and to page-locked memory, and back."""
