"""Bridge to PyTorch's own device tests: exports a declaration for them, audits their skip lists, and runs them."""
