"""Plan: the list of the cases, read from PyTorch's database."""
