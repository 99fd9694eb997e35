"""Faults of time and order (T), of state (S) and of collectives (K), each from two rows of tables."""
