"""Families of inputs under one loop, and what they share."""
