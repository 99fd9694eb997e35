"""Calls of operators: the value, how it is made on both sides, and PyTorch's samples of it."""
