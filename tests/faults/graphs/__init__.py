"""Faults in compiled code: nodes of the graphs that PyTorch hands to a compiler compute something else."""
