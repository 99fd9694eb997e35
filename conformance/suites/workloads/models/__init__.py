"""The architectures the workloads train: small, but built of the parts real models are built of."""
