"""Workloads whose every product and sum is exact, so that any order of the additions gives the same bits."""
