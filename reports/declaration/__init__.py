"""Declarations of accelerators: corrected by a run, written with few claims, and made from probes."""
