"""Compressed communication cases: sign bits, all-reduce with error feedback, one-bit optimizers and small weights."""
