"""Workloads: small models that learn from real data, on the device and on the host in the same run."""
