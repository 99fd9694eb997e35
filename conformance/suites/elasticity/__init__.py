"""Elasticity cases: jobs continue after a rank or a host has died."""
