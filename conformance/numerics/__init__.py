"""Numerics: element-by-element comparison of device results with host and oracle, with error budgets as data."""
