"""Training engine cases: training on several ranks with torch.distributed agrees with one device."""
