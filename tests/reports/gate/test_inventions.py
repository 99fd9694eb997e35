"""Forgeries that were invented before the rules were read: refused, or answered by something else than one file."""

from __future__ import annotations

import pytest

from .honest import honest_manifest, judged, mended, rules_of
from .inventions import INVENTIONS, UNSEEN, held
from .test_strangers import failing


@pytest.mark.parametrize("name", INVENTIONS)
def test_an_invention_is_refused_or_cannot_be_seen_in_one_file(name: str) -> None:
    honest_looking = held(failing())
    forged = INVENTIONS[name](honest_looking)
    assert forged != honest_looking

    refused = rules_of(judged(mended(forged), honest_manifest()))

    assert bool(refused) is (name not in UNSEEN), refused


def test_most_inventions_are_seen() -> None:
    assert {*UNSEEN} <= {*INVENTIONS}
    assert len(INVENTIONS) - len(UNSEEN) >= 80
