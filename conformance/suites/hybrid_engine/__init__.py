"""Hybrid engine cases: training and generation use one set of weights in turns, without other side effects."""
