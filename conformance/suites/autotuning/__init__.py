"""Autotuning cases: measured memory, running out of memory, and trials that do not influence each other."""
