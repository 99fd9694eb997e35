"""Launcher cases: the identity of launched ranks, the devices they see, and how a job ends."""
