"""Stands in for the vendor's package of kernels. ``torch_supa_ext.deepspeed`` registers them."""
