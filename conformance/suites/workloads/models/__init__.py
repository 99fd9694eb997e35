"""Model architectures of the workloads: small, but built of the parts of real models."""
