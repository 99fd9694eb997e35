"""Mixture-of-experts cases: routers, dropping, dispatch, grouped products, and experts on several ranks."""
