"""Launcher cases: the numbers of launched ranks, the devices that they see, and the end of a job."""
