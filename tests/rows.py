"""Checks of each row of a list, as one test: it goes through all rows and prints every fault in one failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Row = TypeVar("Row")


def every_row(
    rows: Iterable[Row] | Callable[[], Iterable[Row]], name: Callable[[Row], str] = str
) -> Callable[[Callable[[Row], None]], Callable[[], None]]:
    """Make one test of a function that checks a row; ``rows`` may be a function that is called when the test runs."""

    def decorate(check: Callable[[Row], None]) -> Callable[[], None]:
        # Pytest must not see the argument of the check, so functools.wraps would be wrong.
        def test() -> None:
            chosen = list(rows() if callable(rows) else rows)
            assert chosen, "the list is empty"
            faults = [fault for row in chosen for fault in _faults(check, row, name)]
            assert not faults, f"{len(faults)} of {len(chosen)} rows are wrong\n" + "\n".join(faults)

        test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
        test.__module__ = check.__module__
        return test

    return decorate


def _faults(check: Callable[[Row], None], row: Row, name: Callable[[Row], str]) -> list[str]:
    try:
        check(row)
    except Exception as error:  # whatever a row raises is its fault
        return [f"{name(row)}: {type(error).__name__}: {error}"]
    return []
