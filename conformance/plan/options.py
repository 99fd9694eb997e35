"""Command-line options and their help texts.

pytest loads this module at every start in every project, so it imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    (
        "--accelerator",
        {
            "metavar": "NAME",
            "help": "Run the conformance suite on this accelerator: a built-in name, an entry point of the group "
            "conformance.accelerators, module:Class, deepspeed:NAME, torch:TYPE, or auto. Without a path, run the "
            "bundled suites; with paths, run those tests with the suite's fixtures.",
        },
    ),
    ("--capabilities", {"metavar": "FILE", "help": "TOML declaration that overrides the accelerator's own."}),
    (
        "--profile",
        {
            "metavar": "NAME",
            "help": "Run only the cases of a profile: core, standard, inference, training, distributed or full.",
        },
    ),
    (
        "--area",
        {"metavar": "AREA", "action": "append", "help": "Run only these areas (repeat the option, or use commas)."},
    ),
    (
        "--tier",
        {
            "metavar": "TIER",
            "help": "Run only the cases of a tier: unit, workload or deep. Without this, unit and workload.",
        },
    ),
    (
        "--dtype",
        {"metavar": "DTYPE", "action": "append", "help": "Run only the cases of these dtypes (repeat, or use commas)."},
    ),
    (
        "--case",
        {
            "metavar": "ID",
            "action": "append",
            "help": "Run only the cases with this id (repeat); * matches any text. A failure prints its case's id.",
        },
    ),
    (
        "--case-file",
        {
            "metavar": "FILE",
            "action": "append",
            "help": "Run only the cases in a file, with one id per line, as for --case.",
        },
    ),
    (
        "--strictness",
        {
            "metavar": "LEVEL",
            "default": "ci",
            "help": "bring-up: differences between declaration and observation are notes; ci (default): a false claim "
            "fails, and a working capability that is declared unsupported is a note; certify: every difference and "
            "every undeclared capability fails.",
        },
    ),
    (
        "--waivers",
        {
            "metavar": "FILE",
            "help": "TOML file of known failures. A case that fails as its waiver says is skipped as waived; a waived "
            "case that passes fails.",
        },
    ),
    (
        "--resume",
        {
            "action": "store_true",
            "default": False,
            "help": "Continue an interrupted run from its journal; cases that have a verdict do not run again.",
        },
    ),
    (
        "--shard",
        {"metavar": "K/N", "help": "Run part K of N; the parts are disjoint and the same on every machine."},
    ),
    (
        "--time-budget",
        {
            "metavar": "SECONDS",
            "help": "Stop probing undeclared cells after this time; the rest is reported as not probed.",
        },
    ),
    (
        "--rank-isolation",
        {
            "metavar": "WORD",
            "default": "reuse",
            "help": "Processes for the ranks of distributed cases. reuse (default): warm processes; fork: fresh "
            "processes for each case; exec: new interpreters. A case that needs more isolation gets it.",
        },
    ),
    (
        "--ranks-from",
        {
            "metavar": "HOST:PORT",
            "help": "Run distributed cases on the ranks of torchrun … -m conformance.ranks, on any number of hosts. "
            "HOST and PORT are its --master-addr and --master-port.",
        },
    ),
    (
        "--shared-dir",
        {
            "metavar": "DIR",
            "help": "Folder that all hosts of --ranks-from share, such as one on NFS. Cases whose ranks "
            "exchange files work in it. Without it they are skipped where the hosts share no temporary folder.",
        },
    ),
    (
        "--conformance-seed",
        {"metavar": "N", "default": "0", "help": "Base seed; the seed of a case is derived from it and the case's id."},
    ),
    (
        "--challenge",
        {
            "metavar": "NONCE",
            "help": "Nonce from the reviewer; all seeds are derived from it. Cases keep a few of their results, which "
            "conformance challenge computes again.",
        },
    ),
    (
        "--challenge-answers",
        {
            "metavar": "FILE",
            "help": "Judge these answers instead of the device's; conformance challenge uses it.",
        },
    ),
    (
        "--conformance-report",
        {
            "metavar": "DIR",
            "default": "conformance-report",
            "help": "Folder for reports, with a folder for each accelerator (default: conformance-report).",
        },
    ),
)


def add_first_option(parser: pytest.Parser) -> None:
    """Add ``--accelerator``, which exists in every pytest run."""
    _add(parser, *_OPTIONS[:1])


def add_other_options(parser: pytest.Parser) -> None:
    """Add the options that have a meaning only with ``--accelerator``."""
    _add(parser, *_OPTIONS[1:])


def _add(parser: pytest.Parser, *options: tuple[str, dict[str, object]]) -> None:
    group = parser.getgroup("conformance", "accelerator conformance")
    for name, settings in options:
        group.addoption(name, **settings)
