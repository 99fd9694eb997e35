"""Families that compare by themselves: refusals, derivatives, kernels behind an operator, random numbers."""
