"""Conformance suite for AI accelerators. Importing this package imports nothing else."""
