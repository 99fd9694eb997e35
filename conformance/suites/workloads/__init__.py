"""Workloads: small models learn from real data, on the device and on the host in the same run."""
