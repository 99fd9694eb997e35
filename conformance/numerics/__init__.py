"""Numerics: elementwise comparison of device results with the host, under an error budget that is data."""
