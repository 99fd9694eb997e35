"""A device that is right, and has CUDA's habits."""
