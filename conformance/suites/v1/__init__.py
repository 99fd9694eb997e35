"""Offload to files and locked memory, ZeRO levels, half precision, hooks and function transforms."""
