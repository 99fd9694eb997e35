"""Program that torchrun starts, one process for each rank: ``torchrun … -m conformance.ranks``."""

from __future__ import annotations

from conformance.ranks.remote_agent import main

main()
