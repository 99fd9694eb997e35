"""Tests of the output of ranks: its head and tail are kept in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conformance.ranks.output import Output, tagged


@pytest.fixture
def pipe() -> Iterator[tuple[Output, int]]:
    read, write = os.pipe()
    output = Output(read)
    yield output, write
    output.close()
    os.close(write)


def test_short_output_is_kept_as_it_is(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    os.write(write, b"one\ntwo \xff\n")
    output.drain()

    assert output.text() == "one\ntwo \N{REPLACEMENT CHARACTER}\n"


def test_the_middle_of_long_output_is_counted_and_left_out(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    for number in range(100_000):
        os.write(write, b"line %d\n" % number)
        if number % 1000 == 0:
            output.drain()
    output.drain()

    text = output.text()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 99998\nline 99999\n")
    assert "of 100000 lines" in text
    assert len(text) < 40_000
    assert all(line.startswith(("line ", "…")) for line in text.splitlines())


def test_nothing_is_left_for_the_next_case(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    os.write(write, b"old\n")
    output.drain()
    output.clear()
    os.write(write, b"new\n")
    output.drain()

    assert output.text() == "new\n"


def test_tags() -> None:
    assert tagged(3, "a\n\nb") == "[rank 3] a\n[rank 3] \n[rank 3] b"
