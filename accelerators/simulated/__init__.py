"""A simulated accelerator: a real PyTorch out-of-tree device (PrivateUse1) with everything a CPU has not.

Nothing is imported or built here. ``start(face)`` in ``engine`` builds the core once per machine and registers the
device under the face's names; ``torch_sim`` does that for the product's own face, ``sim``.
"""
