"""Hybrid engine cases: one set of weights is trained and generates in turns, with no other side effects."""
