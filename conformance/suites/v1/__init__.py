"""What engines build on files and locked memory: states and parameters that leave the device and come back."""
