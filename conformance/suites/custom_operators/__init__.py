"""Cases of operators that a vendor or a user registers with torch.library for the device."""
