"""Layers on several ranks, micro-batches one after the other: the numbers of one process."""
