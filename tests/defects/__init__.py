"""Accelerators with one defect each, and what the suite says about them."""
