"""Kernels put into modules: the model computes what it computed, and says who did it."""
