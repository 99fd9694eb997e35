"""Tests of the bridge to PyTorch's own device tests."""
