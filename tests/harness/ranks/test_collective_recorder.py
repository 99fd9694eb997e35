"""Tests of the collective recorder: records read as written, and mismatches reported only with proof."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from conformance.ranks.collective_recorder import CollectiveRecord, CollectiveRecorder, prove_mismatch

SUM = CollectiveRecord("n", "all_reduce", "default", 3, 4, "float32", inside=True)


@pytest.fixture
def recorder() -> Iterator[CollectiveRecorder]:
    descriptor = os.memfd_create("recorder")
    yield CollectiveRecorder(descriptor)
    os.close(descriptor)


def test_an_empty_one_is_nowhere(recorder: CollectiveRecorder) -> None:
    assert str(recorder.read()) == "nowhere"


def test_calls_are_counted_for_each_group_and_round(recorder: CollectiveRecorder) -> None:
    recorder.begin("n")
    for group in ("default", "default", "other"):
        recorder.enter("all_reduce", group, torch.ones(2, 2), point_to_point=False)
    assert str(recorder.read()) == "all_reduce #1 float32[4] of group other"
    assert recorder.read().inside
    recorder.leave()
    assert not recorder.read().inside
    recorder.enter("barrier", "default", None, point_to_point=False)
    assert str(recorder.read()) == "barrier #3"

    recorder.begin("m")
    recorder.stage("in the body")

    assert recorder.read() == CollectiveRecord("m", "in the body")


def test_another_mapping_of_the_file_reads_the_same() -> None:
    descriptor = os.memfd_create("recorder")
    writer, reader = CollectiveRecorder(descriptor), CollectiveRecorder(descriptor)

    writer.begin("n")
    writer.enter("broadcast", "default", None, point_to_point=False)

    assert reader.read() == writer.read() == CollectiveRecord("n", "broadcast", "default", 1, inside=True)


@pytest.mark.parametrize(
    ("standing", "left", "proof"),
    [
        (
            {0: SUM, 1: replace(SUM, stage="barrier", elements=None)},
            {},
            "rank 0 is in all_reduce #3 float32[4], rank 1",
        ),
        ({0: SUM, 1: replace(SUM, elements=5)}, {}, "rank 1 in all_reduce #3 float32[5]"),
        ({0: SUM}, {1: replace(SUM, sequence=2, inside=False)}, "rank 1 has ended its body after all_reduce #2"),
        ({0: SUM}, {1: CollectiveRecord("n", "in the body")}, "rank 1 has ended its body"),
        # Alike, or in step: nothing is wrong yet.
        ({0: SUM, 1: SUM}, {}, None),
        ({0: SUM, 1: replace(SUM, sequence=4, stage="barrier")}, {}, None),
        ({0: SUM}, {1: replace(SUM, inside=False)}, None),
        # Sizes of gathers may differ by rank.
        ({0: replace(SUM, stage="gather"), 1: replace(SUM, stage="gather", elements=5)}, {}, None),
        # Whoever computes, or talks to one other rank, may still come.
        ({0: SUM, 1: replace(SUM, inside=False)}, {}, None),
        ({0: SUM, 1: CollectiveRecord("n", "in the body")}, {}, None),
        ({0: SUM, 1: replace(SUM, stage="recv", point_to_point=True)}, {}, None),
        # A rank that has left last used another group: what it did in this one is not known.
        ({0: SUM}, {1: replace(SUM, group="other", sequence=1)}, None),
        ({}, {0: SUM}, None),
    ],
)
def test_only_certain_mismatches_are_claimed(
    standing: dict[int, CollectiveRecord], left: dict[int, CollectiveRecord], proof: str | None
) -> None:
    found = prove_mismatch(standing, left)

    assert found is None if proof is None else proof in (found or "")
