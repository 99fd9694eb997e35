"""Mixtures of experts: who is sent where, and that what comes back is what was sent."""
