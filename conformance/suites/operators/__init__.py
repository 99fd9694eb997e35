"""Operator suite: every operator of the installed torch, compared with the host and a float64 oracle."""
