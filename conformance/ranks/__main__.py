"""``torchrun … -m conformance.ranks``: what torchrun starts in place of a program, one process for each rank."""

from __future__ import annotations

from conformance.ranks.remote_agent import main

main()
