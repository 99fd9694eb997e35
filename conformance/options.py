"""The command-line options and their help. Read at every pytest start-up, so nothing is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    (
        "--accelerator",
        {
            "metavar": "NAME",
            "help": "Run the conformance suite against this accelerator: a built-in name, an entry point of group "
            "conformance.accelerators, module:Class, deepspeed:NAME, torch:TYPE, or auto. Without a path the bundled "
            "suites run; with paths, those tests run with the suite's fixtures.",
        },
    ),
    ("--capabilities", {"metavar": "FILE", "help": "A TOML declaration that overrides the accelerator's own claims."}),
    (
        "--profile",
        {"metavar": "NAME", "help": "Run only what a profile needs: core, inference, training, distributed, full."},
    ),
    (
        "--area",
        {"metavar": "AREA", "action": "append", "help": "Run only these areas (repeat, or separate by commas)."},
    ),
    ("--tier", {"metavar": "TIER", "help": "Run only one tier: unit or workload."}),
    ("--dtype", {"metavar": "DTYPE", "action": "append", "help": "Run only cases of these dtypes (repeat or commas)."}),
    (
        "--case",
        {
            "metavar": "ID",
            "action": "append",
            "help": "Run only these cases; * matches any text. Failures print theirs.",
        },
    ),
    (
        "--case-file",
        {"metavar": "FILE", "action": "append", "help": "Run only the cases that a file names, one a line, as --case."},
    ),
    (
        "--strictness",
        {
            "metavar": "LEVEL",
            "default": "ci",
            "help": "bring-up: differences between declaration and observation are notes; ci (default): a false claim "
            "fails, a modest one is a note; certify: every difference and every silence fails.",
        },
    ),
    (
        "--waivers",
        {
            "metavar": "FILE",
            "help": "Known failures, as TOML: a case that fails as its waiver says is skipped as waived, and one that "
            "passes fails.",
        },
    ),
    (
        "--resume",
        {
            "action": "store_true",
            "default": False,
            "help": "Continue the journal of an interrupted run; nothing that has a verdict runs again.",
        },
    ),
    (
        "--shard",
        {"metavar": "K/N", "help": "Run the K-th of N parts; parts are disjoint and the same on every machine."},
    ),
    (
        "--time-budget",
        {
            "metavar": "SECONDS",
            "help": "Stop probing undeclared cells after this long; they are then reported as not probed.",
        },
    ),
    (
        "--rank-isolation",
        {
            "metavar": "WORD",
            "default": "reuse",
            "help": "Where ranks of distributed cases come from: reuse (default): warm ones; fork: fresh ones for each "
            "case; exec: interpreters of their own. A case that asks for more gets more.",
        },
    ),
    (
        "--ranks-from",
        {
            "metavar": "HOST:PORT",
            "help": "Take the ranks of distributed cases from torchrun … -m conformance.ranks, on any number of hosts; "
            "the address is that of its --master-addr and --master-port.",
        },
    ),
    (
        "--conformance-seed",
        {"metavar": "N", "default": "0", "help": "Base seed; each case's seed is derived from it and its id."},
    ),
    (
        "--challenge",
        {
            "metavar": "NONCE",
            "help": "A word from whoever will judge the report: it gives the seeds, and cases keep a few values of "
            "what they computed, for conformance challenge to compute again.",
        },
    ),
    (
        "--challenge-answers",
        {"metavar": "FILE", "help": "Judge these answers in place of this device's; conformance challenge does that."},
    ),
    (
        "--conformance-report",
        {
            "metavar": "DIR",
            "default": "conformance-report",
            "help": "Where reports go; one folder per accelerator (default: conformance-report).",
        },
    ),
)


def add_first_option(parser: pytest.Parser) -> None:
    """``--accelerator``, which every run knows."""
    _add(parser, *_OPTIONS[:1])


def add_other_options(parser: pytest.Parser) -> None:
    """Those that mean something only beside ``--accelerator``."""
    _add(parser, *_OPTIONS[1:])


def _add(parser: pytest.Parser, *options: tuple[str, dict[str, object]]) -> None:
    group = parser.getgroup("conformance", "accelerator conformance")
    for name, settings in options:
        group.addoption(name, **settings)
