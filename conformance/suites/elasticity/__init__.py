"""Elasticity cases: jobs that continue after a rank or a host has died."""
