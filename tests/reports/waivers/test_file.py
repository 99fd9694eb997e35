"""Waiver files: what is read, what is refused, and edits that leave the rest as it was."""

from __future__ import annotations

from datetime import date

import pytest

from conformance.base.errors import JournalError
from conformance.reports.verdict import Reason
from conformance.reports.waivers.editing import added, removed, table
from conformance.reports.waivers.file import parse_waivers
from conformance.reports.waivers.model import WaiverKind
from tests.reports.gate.world import toml, waiver

TEXT = """\
# Known failures of acme.

# first: rounding
[[waiver]]
cases = "a.b[*]"
verdict = "wrong"
kind = "bug"
ticket = "T-1"
reason = "rounds"
owner = "ada"
expires = 2026-07-01

# second
[[waiver]]
cases = [
    "c.d",
    "c.e",
]
verdict = "crash"
kind = "flaky"
ticket = "T-2"
reason = "crashes"
owner = "eve"
expires = "2026-08-01"
device = "Acme *"
"""


def parsed(text: str) -> tuple[object, ...]:
    return parse_waivers(text.encode(), "w.toml")


def test_waivers_are_read() -> None:
    first, second = parse_waivers(TEXT.encode(), "w.toml")

    assert (first.cases, first.verdict, first.kind) == (("a.b[*]",), Reason.WRONG, WaiverKind.BUG)
    assert (second.expires, second.device, second.line) == (date(2026, 8, 1), "Acme *", 14)
    assert first.covers("a.b[float32]")
    assert not first.covers("a.bb[float32]")
    assert first.is_expired(date(2026, 7, 2))
    assert not first.is_expired(date(2026, 7, 1))
    assert parsed("") == ()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('verdict = "wrong"', 'verdict = "bad"', r"waiver 1\.verdict must be one of"),
        ('kind = "bug"', 'kind = "sad"', r"waiver 1\.kind must be one of hardware, not-yet, bug, flaky"),
        ('owner = "ada"\n', "", "waiver 1 lacks the key 'owner'"),
        ('owner = "ada"', 'owner = "ada"\nowners = 2', "waiver 1 has an unknown key 'owners'"),
        ("expires = 2026-07-01", 'expires = "soon"', "expires must be a day such as 2026-12-31, not 'soon'"),
        ("expires = 2026-07-01", "expires = 2026-07-01T00:00:00Z", r"waiver 1\.expires must be a string"),
        ('cases = "a.b[*]"', "cases = []", "waiver 1 names no case"),
        ("[[waiver]]", "[waiver]", "with two brackets|is not valid TOML"),
        ("[[waiver]]", "[[waivers]]", "has an unknown key 'waivers'"),
        ('ticket = "T-1"', 'ticket = "T-1', "is not valid TOML"),
        ('cases = "a.b[*]"', "cases = " + "[" * 5000, "nested too deeply|not valid TOML"),
        ('cases = "a.b[*]"', ".".join("a" * 400) + " = 1", "more than 300 dots"),
    ],
)
def test_a_broken_file_is_one_sentence(old: str, new: str, sentence: str) -> None:
    with pytest.raises(JournalError, match=sentence) as caught:
        parsed(TEXT.replace(old, new))

    assert "\n" not in str(caught.value)


def test_what_is_added_is_read_back_and_the_rest_stays() -> None:
    hostile = waiver('x["\\', "y\x1b[31m", ticket='"""', reason="line\nbreak\x00", owner="é", device="A*")

    text = added(TEXT, hostile)

    again = parse_waivers(text.encode(), "w.toml")[-1]
    assert text.startswith(TEXT)
    assert (again.cases, again.ticket, again.reason, again.owner, again.device) == (
        ('x["\\', "y"),
        '"""',
        "line break",
        "é",
        "A*",
    )
    assert added("", hostile) == table(hostile)
    assert parsed(added("# no line end", hostile))


def test_a_waiver_goes_with_its_comment_and_nothing_else_does() -> None:
    first, second = parse_waivers(TEXT.encode(), "w.toml")

    assert removed(TEXT, [second]) == TEXT[: TEXT.index("# second")]
    assert removed(TEXT, [first]) == "# Known failures of acme.\n\n" + TEXT[TEXT.index("# second") :]
    assert removed(TEXT, []) == TEXT


def test_a_file_that_is_written_oddly_is_not_edited() -> None:
    rest = 'verdict = "wrong", kind = "bug", ticket = "t", reason = "r", owner = "o", expires = 2026-07-01'
    odd = f'waiver = [{{cases = "a", {rest}}}]'
    (one,) = parse_waivers(odd.encode(), "w.toml")

    with pytest.raises(JournalError, match="edit it by hand"):
        removed(odd, [one])


def test_the_tests_own_writer_writes_what_is_read() -> None:
    assert parse_waivers(toml(waiver("a"), waiver("b")).encode(), "w.toml")[1].cases == ("b",)
