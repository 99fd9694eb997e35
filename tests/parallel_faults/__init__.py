"""Faults of communication and engines that only a parallel training shows, each with the case that has to go red."""
