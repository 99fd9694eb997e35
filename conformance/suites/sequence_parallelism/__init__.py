"""Sequence parallelism cases: attention over sequences that are sharded over ranks agrees with one device."""
