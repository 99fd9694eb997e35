"""Measurements side by side with a peer; see README.md in this folder."""
