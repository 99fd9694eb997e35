"""Mixture-of-experts cases: gating, dispatch to experts, grouped products, and expert parallelism."""
