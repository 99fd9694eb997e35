"""Capability probes: one short check of every capability, whether it is declared or not."""
