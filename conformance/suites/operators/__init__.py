"""Operators: every operator of the installed torch, cell by cell, against the host and a float64 oracle."""
