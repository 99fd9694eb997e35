"""Offload cases: states and parameters move to files or page-locked memory, and back without a change."""
