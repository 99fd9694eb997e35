"""Registers the device ``mojo``: importing the package alone does not."""

import torch_mojo_backend

torch_mojo_backend.register_mojo_devices()
