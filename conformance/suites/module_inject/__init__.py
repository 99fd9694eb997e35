"""Kernel injection cases: an injected model computes the same results and reports which implementation ran."""
