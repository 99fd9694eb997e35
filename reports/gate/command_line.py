"""Command line of a run: options are read by the table of options, and compared with those that a run may have."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.options import BY_NAME, OPTIONS, Value
from conformance.reports import redaction
from conformance.reports.model import RECORDS_STACK, Report
from conformance.reports.plain_text import one_line

#: Options of pytest and pytest-xdist that change neither which cases run nor how they are judged: with a value, and
#: without one. Every other word of a command line is refused.
_WITH_VALUE: Final = frozenset(
    [
        "-n",
        "--numprocesses",
        "--maxprocesses",
        "--dist",
        "--max-worker-restart",
        "--maxschedchunk",
        "--tb",
        "-r",
        "--show-capture",
        "--capture",
        "--color",
        "--code-highlight",
        "--durations",
        "--durations-min",
        "--verbosity",
        "--junitxml",
        "--junit-xml",
        "--junit-prefix",
        "--basetemp",
        "--log-file",
        "--log-level",
        "--log-cli-level",
        "-W",
        "--pythonwarnings",
        "--cov",
        "--cov-report",
        "--cov-config",
    ]
)
_ALONE: Final = frozenset(
    [
        "--verbose",
        "--quiet",
        "--no-header",
        "--no-summary",
        "--showlocals",
        "--disable-warnings",
        "--disable-pytest-warnings",
        "--full-trace",
        "--xfail-tb",
        "--no-showlocals",
        "--cov-append",
        "--no-cov",
        "--strict-markers",
        "--strict-config",
    ]
)
#: Short options without a value, which may stand together; and those with a value that may stand behind them.
_SHORT: Final = re.compile(r"-[qvsl]+")
_SHORT_WITH_VALUE: Final = re.compile(r"-[nrW].+", re.DOTALL)
#: Plugins may be switched off, but not this one.
_BLOCKED: Final = re.compile(r"no:(?!conformance|accelerator)[\w.-]+")
#: Options that a run has only where a command of this project sets them.
_OURS_ALONE: Final = frozenset({"--challenge-answers"})


def typed(argv: Sequence[str], *options: str) -> str | None:
    """Return the last value of an option, by one of its spellings, or None. ``-n4`` is a spelling of ``-n 4``."""
    found = None
    for word, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        for option in options:
            if word == option:
                found = following
            elif word.startswith(f"{option}="):
                found = word.partition("=")[2]
            elif not option.startswith("--") and word.startswith(option):
                found = word.removeprefix(option)
    return found


def words_of(report: Report) -> tuple[str, ...]:
    """Return every word that the run was started with: those of pytest's settings too, where the report has them."""
    variables = report.environment.variables
    added = [str(variables.get(name, "")) for name in ("addopts", "PYTEST_ADDOPTS")]
    return (*itertools.chain.from_iterable(map(_split, added)), *report.run.invocation.argv)


def is_known(report: Report) -> bool:
    """Return whether the words are all that the run was started with: older reports do not have pytest's settings."""
    return report.schema >= RECORDS_STACK


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def foreign_words(argv: Sequence[str]) -> list[str]:
    """Return the words that no run that can be judged has, each once. Selections are left to their own check."""
    return list(dict.fromkeys(_foreign(list(argv))))


def _foreign(words: list[str]) -> Iterator[str]:
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if word == "-p" or name in ("-p", "--plugin") or (word.startswith("-p") and not word.startswith("--")):
            value = word[2:].removeprefix("=") or (words.pop(0) if words else "")
            if not _BLOCKED.fullmatch(value):
                yield f"-p {value}".strip()
        elif name in redaction.SELECTING or word[:2] in ("-k", "-m"):
            # Its value may stand alone.
            if not equals and words and not words[0].startswith("-"):
                words.pop(0)
        elif name in _OURS_ALONE or not _is_allowed(name, equals, word):
            yield word
            if name in BY_NAME and not equals and words:
                words.pop(0)
        elif not equals and _takes_a_value(name) and words:
            words.pop(0)


def _is_allowed(name: str, equals: str, word: str) -> bool:
    if name in BY_NAME:
        return not (equals and BY_NAME[name].value is Value.FLAG)
    if name in _WITH_VALUE or (name in _ALONE and not equals):
        return True
    return bool(_SHORT.fullmatch(word) or _SHORT_WITH_VALUE.fullmatch(word))


def _takes_a_value(name: str) -> bool:
    return name in _WITH_VALUE or (name in BY_NAME and BY_NAME[name].value is not Value.FLAG)


def contradictions(report: Report) -> Iterator[str]:
    """Yield what the command line says of the run's facts, and the file does not, as sentences.

    An option that was not typed has its default, if the report has all words that the run was started with.
    """
    run, words = report.run, words_of(report)
    facts = {
        "profile": run.profile or "",
        "strictness": run.strictness,
        "challenge": run.invocation.challenge,
        "seed": str(run.invocation.seed),
    }
    for option in (option for option in OPTIONS if option.judged):
        asked, said = typed(words, option.name), facts[option.fact]
        shown = one_line(said, 40) or "(none)"
        if asked is not None:
            if asked != said:
                yield f"The run was typed with {option.name} {one_line(asked, 40)}, and the file says {shown}."
        # The seed of a challenge is another check's.
        elif is_known(report) and said != (option.default or "") and not (option.fact == "seed" and facts["challenge"]):
            yield f"The run was typed without {option.name}, and the file says {shown}."
    if is_known(report) and not typed(words, "--accelerator"):
        yield "The run was typed without --accelerator, and no run of this suite begins without it."
