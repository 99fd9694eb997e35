"""A simulated accelerator: a real PyTorch out-of-tree device (PrivateUse1) with the features that a CPU lacks.

Importing this package imports and builds nothing. ``start(profile)`` in ``simulator`` builds the C++ core once per
machine and registers the device under the names in the profile. ``torch_sim`` does that for the built-in device
``sim``.
"""
