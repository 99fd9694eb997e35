"""Training on several ranks with torch.distributed's engines gives what one device gives."""
