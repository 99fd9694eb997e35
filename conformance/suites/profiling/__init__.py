"""Profiling cases: recorded operations, operation counts, times and memory agree with the work that was done."""
