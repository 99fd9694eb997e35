"""Text from a report does nothing where it is shown."""

from __future__ import annotations

import pytest

from conformance.reports.plain_text import markdown, one_line, plain, without_folders


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain – text × 3", "plain – text × 3"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\x00b\x08c\x7f\x9bd", "abcd"),
        ("left\u202eright\u200b", "leftright"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("over\rwritten", "overwritten"),
    ],
)
def test_plain(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_one_line_is_cut_with_an_ellipsis() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_markdown_shows_what_it_is_given() -> None:
    shown = markdown("<img src=x onerror=y> | [a](b) `c` *d* _e_ & #f\n- g")

    assert shown == r"&lt;img src=x onerror=y&gt; \| \[a\]\(b\) \`c\` \*d\* \_e\_ &amp; \#f - g"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at /home/alice/src/x.py:3", "at …/x.py:3"),
        ("/tmp/x.py", "…/x.py"),
        ("ratio 3/4 and a/b/c.py", "ratio 3/4 and a/b/c.py"),
        ("C:\\Users\\alice\\x.py", "…/x.py"),
        ("--out=/srv/alice/out", "--out=…/out"),
        ('File "/opt/a b/c.py"', 'File "…/c.py"'),
        ("./here/x.py ~/there/x.py", "./here/x.py ~/there/x.py"),
    ],
)
def test_absolute_paths_lose_their_folders(text: str, expected: str) -> None:
    assert without_folders(text) == expected


def test_a_long_line_of_slashes_does_not_take_long() -> None:
    assert without_folders("/a" * 50_000).endswith("a")
