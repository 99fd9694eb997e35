"""What a comparison looks at."""

from __future__ import annotations

from enum import Enum


class Aspect(Enum):
    """What a comparison looks at: how near the numbers of a script's two runs must be depends on it."""

    NUMBERS = "numbers"
    BITS = "bits"
    #: Results that are zero or infinite as a whole.
    LOST = "lost"
    STRIDES = "strides"
    OTHER = "other"
