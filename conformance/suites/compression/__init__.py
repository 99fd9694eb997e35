"""Compression cases: sign bits, all-reduce with error feedback, one-bit optimizers and weights of few bits."""
