"""The ``check`` fixture: comparisons that are counted, and numbers that go into the report."""

from __future__ import annotations

from typing import Any

Number = float | int | str


class Checker:
    """Counts what a case compared. A generated case that compared nothing has verified nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.metrics: dict[str, Number] = {}

    def that(self, condition: object, message: str) -> None:
        """Count one comparison; fail with ``message`` unless ``condition`` holds."""
        self.count += 1
        if not condition:
            raise AssertionError(message)

    def equal(self, actual: Any, expected: Any, message: str) -> None:
        """Count one comparison of values with ``==``, or of tensors bit for bit (NaN equals NaN)."""
        self.that(_same(actual, expected), f"{message}: {_brief(actual)} is not {_brief(expected)}")

    def metric(self, name: str, value: Number) -> None:
        """Keep a flat number or short string for the report."""
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"metric {name!r} must be a number or a string, not {type(value).__name__}")
        self.metrics[name] = value


def _same(actual: Any, expected: Any) -> bool:
    if not (hasattr(actual, "untyped_storage") and hasattr(expected, "untyped_storage")):
        return bool(actual == expected)
    import torch

    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    left, right = (t.detach().cpu().contiguous().flatten().view(torch.uint8) for t in (actual, expected))
    return torch.equal(left, right)


def _brief(value: Any) -> str:
    if hasattr(value, "untyped_storage"):
        shown = value.detach().flatten()[:8].tolist()
        return f"{value.dtype} {tuple(value.shape)} {shown}{' …' if value.numel() > 8 else ''}"
    return repr(value)
