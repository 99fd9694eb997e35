"""Leaves, which every room may import: errors, names, the rule of claims, and the cache folder."""
