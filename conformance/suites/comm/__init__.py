"""Collectives: every rank gets the right values, and where ranks must agree they agree bit for bit."""
