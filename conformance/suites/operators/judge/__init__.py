"""Judges: a cell's results against the host, the oracle and the promises of the meta function."""
