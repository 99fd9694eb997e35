"""Collectives suite: every rank gets the right values, and reduced values have the same bits on all ranks."""
