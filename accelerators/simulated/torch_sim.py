"""Importing this starts the product's own face, ``sim``, as importing a vendor's package does."""

from __future__ import annotations

from conformance.accelerators.simulated.engine import start
from conformance.accelerators.simulated.face import Face

FACE = Face().from_environment()

start(FACE)
