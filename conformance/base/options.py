"""The options of a run: one table, one row for each.

What the command line accepts, ``RunOptions``, the lines that repeat a failure, what the gate reads from a report's
command line, and the tables of README and docs follow from it. A new option is a new row.

pytest loads this module at every start in every project, so it imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, NamedTuple


class Value(Enum):
    """Kind of an option's value: how the words of the command line are read."""

    TEXT = auto()
    FLAG = auto()
    NAME = auto()  # one of the known names
    NAMES = auto()  # known names; commas separate several
    CASES = auto()
    CASE_FILES = auto()
    FILE = auto()
    FOLDER = auto()
    REPORTS = auto()
    SHARD = auto()
    SECONDS = auto()
    SEED = auto()
    ENDPOINT = auto()
    ANSWERS = auto()


class Group(Enum):
    """What an option is for; the README lists the options by it."""

    SELECT = "Select cases"
    RUN = "Run"
    JUDGE = "Judge"


class Option(NamedTuple):
    """Option of ``pytest --accelerator=NAME``.

    ``help`` is for ``--help``, ``docs`` is Markdown for docs/running.md, and ``page`` describes the file that is the
    value. ``field`` is the member of RunOptions, empty if another option's member has the value. ``repeats``: it may be
    given several times. ``narrows``: it leaves planned cases out, so a run with it judges no profile. ``fact`` is the
    member of a run's header that has the value; ``judged``: the gate compares the two. ``repro`` is the place among the
    options of a line that repeats a failure, 0 if it is not in it. No option is redacted by name: every word of a
    command line loses its folders.
    """

    name: str
    value: Value
    group: Group
    help: str
    docs: str
    metavar: str = ""
    default: str | None = None
    field: str = ""
    repeats: bool = False
    narrows: bool = False
    fact: str = ""
    judged: bool = False
    repro: int = 0
    page: str = ""

    @property
    def dest(self) -> str:
        """Return the name by which pytest keeps the value."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def title(self) -> str:
        """Return the option's name in words, for messages."""
        return self.dest.replace("_", " ")


OPTIONS: Final = (
    Option(
        "--accelerator",
        Value.TEXT,
        Group.RUN,
        metavar="NAME",
        help=(
            "Run the conformance suite on this accelerator: a built-in name, an entry point of the group "
            "conformance.accelerators, module:Class, deepspeed:NAME, torch:TYPE, or auto. Without a path, run the "
            "bundled suites; with paths, run those tests with the suite's fixtures."
        ),
        docs=(
            "the accelerator under test: a built-in name, an entry point of group `conformance.accelerators`, "
            "`module:OBJECT`, `deepspeed:NAME`, `torch:TYPE`, or `auto`. Without this option the plugin does nothing"
        ),
        field="accelerator",
    ),
    Option(
        "--capabilities",
        Value.FILE,
        Group.JUDGE,
        metavar="FILE",
        help="TOML declaration that overrides the accelerator's own.",
        docs="a TOML declaration that overrides the accelerator's own claims: [declarations](declarations.md)",
        field="capabilities",
        repro=1,
        page="docs/declarations.md",
    ),
    Option(
        "--profile",
        Value.NAME,
        Group.SELECT,
        metavar="NAME",
        help="Run only the cases of a profile: core, standard, inference, training, distributed or full.",
        docs=(
            "only the cases of a [profile](verdicts.md#profiles): `core`, `standard`, `inference`, `training`, "
            "`distributed` or `full`"
        ),
        field="profile",
        fact="profile",
        judged=True,
    ),
    Option(
        "--area",
        Value.NAMES,
        Group.SELECT,
        metavar="AREA",
        help="Run only these areas (repeat the option, or use commas).",
        docs="only the cases of these [areas](areas.md); repeat the option, or separate areas by commas",
        field="areas",
        repeats=True,
        narrows=True,
    ),
    Option(
        "--tier",
        Value.NAME,
        Group.SELECT,
        metavar="TIER",
        help="Run only the cases of a tier: unit, workload or deep. Without this, unit and workload.",
        docs=(
            "only the cases of one tier. A `unit` case tests one behaviour. A `workload` trains or runs a model. A "
            "`deep` case gives an operator many more inputs: [the deep tier](#the-deep-tier). Without this option, "
            "unit cases and workloads run"
        ),
        field="tier",
        narrows=True,
    ),
    Option(
        "--dtype",
        Value.NAMES,
        Group.SELECT,
        metavar="DTYPE",
        help="Run only the cases of these dtypes (repeat, or use commas).",
        docs="only the cases of these dtypes; repeat the option, or separate dtypes by commas",
        field="dtypes",
        repeats=True,
        narrows=True,
    ),
    Option(
        "--case",
        Value.CASES,
        Group.SELECT,
        metavar="ID",
        help="Run only the cases with this id (repeat); * matches any text. A failure prints its case's id.",
        docs=(
            "only these cases; repeat the option for several. `*` matches any text. Every other character, including a "
            "bracket, matches only itself. Behind the full id of an operator's case, fields in braces "
            "[select single calls](#one-call-of-an-operator)"
        ),
        field="cases",
        repeats=True,
        narrows=True,
    ),
    Option(
        "--case-file",
        Value.CASE_FILES,
        Group.SELECT,
        metavar="FILE",
        help="Run only the cases in a file, with one id per line, as for --case.",
        docs="only the cases in this file. Each line is an id as for `--case`. A comment begins with `#`",
        repeats=True,
        narrows=True,
    ),
    Option(
        "--strictness",
        Value.NAME,
        Group.JUDGE,
        metavar="LEVEL",
        default="ci",
        help=(
            "bring-up: differences between declaration and observation are notes; ci (default): a false claim fails, "
            "and a working capability that is declared unsupported is a note; certify: every difference and every "
            "undeclared capability fails."
        ),
        docs=(
            "`bring-up`, `ci` (default) or `certify`. It decides which differences between declaration and device are "
            "failures: [strictness](verdicts.md#strictness)"
        ),
        field="strictness",
        fact="strictness",
        judged=True,
        repro=3,
    ),
    Option(
        "--waivers",
        Value.FILE,
        Group.JUDGE,
        metavar="FILE",
        help=(
            "TOML file of known failures. A case that fails as its waiver says is skipped as waived; a waived case "
            "that passes fails."
        ),
        docs=(
            "a TOML file of known failures: [waivers](gate.md#waivers). A case that fails as its waiver says is "
            "skipped as `waived`. If it passes, it is a failure, `waiver-stale`"
        ),
        field="waivers",
        page="docs/gate.md",
    ),
    Option(
        "--resume",
        Value.FLAG,
        Group.RUN,
        help="Continue an interrupted run from its journal; cases that have a verdict do not run again.",
        docs="continue the journal of an interrupted run",
        field="resume",
    ),
    Option(
        "--shard",
        Value.SHARD,
        Group.SELECT,
        metavar="K/N",
        help="Run part K of N; the parts are disjoint and the same on every machine.",
        docs="only part K of N parts: [shards](#resume-and-shard)",
        field="shard",
        narrows=True,
    ),
    Option(
        "--time-budget",
        Value.SECONDS,
        Group.RUN,
        metavar="SECONDS",
        help="Stop probing undeclared cells after this time; the rest is reported as not probed.",
        docs=(
            "stop probing undeclared [cells](declarations.md#cells) after this time, for all workers "
            "together. The report shows the other cells as not probed"
        ),
        field="time_budget",
    ),
    Option(
        "--rank-isolation",
        Value.NAME,
        Group.RUN,
        metavar="WORD",
        default="reuse",
        help=(
            "Processes for the ranks of distributed cases. reuse (default): warm processes; fork: fresh processes for "
            "each case; exec: new interpreters. A case that needs more isolation gets it."
        ),
        docs=(
            "how the processes of ranks start: `reuse` (default), `fork` or `exec`, see [cases on "
            "ranks](writing-cases.md#cases-on-ranks)"
        ),
        field="rank_isolation",
        fact="rank_isolation",
        repro=4,
    ),
    Option(
        "--ranks-from",
        Value.ENDPOINT,
        Group.RUN,
        metavar="HOST:PORT",
        help=(
            "Run distributed cases on the ranks of torchrun … -m conformance.ranks, on any number of hosts. HOST and "
            "PORT are its --master-addr and --master-port."
        ),
        docs=(
            "use the ranks that torchrun has started, on any number of hosts: [ranks on several "
            "hosts](#ranks-on-several-hosts)"
        ),
        field="ranks_from",
    ),
    Option(
        "--shared-dir",
        Value.FOLDER,
        Group.RUN,
        metavar="DIR",
        help=(
            "Folder that all hosts of --ranks-from share, such as one on NFS. Cases whose ranks exchange files work in "
            "it. Without it they are skipped where the hosts share no temporary folder."
        ),
        docs="a folder that all hosts of `--ranks-from` share: [ranks on several hosts](#ranks-on-several-hosts)",
        field="shared_dir",
    ),
    Option(
        "--conformance-seed",
        Value.SEED,
        Group.RUN,
        metavar="N",
        default="0",
        help="Base seed; the seed of a case is derived from it and the case's id.",
        docs="base seed (default 0). The seed of a case is derived from it and from the case's id",
        field="seed",
        fact="seed",
        judged=True,
        repro=2,
    ),
    Option(
        "--challenge",
        Value.TEXT,
        Group.JUDGE,
        metavar="NONCE",
        help=(
            "Nonce from the reviewer; all seeds are derived from it. Cases keep a few of their results, which "
            "conformance challenge computes again."
        ),
        docs=(
            "a nonce from the reviewer of the report. All seeds are derived from it. The report then contains some "
            "results of operator and kernel cases: [challenges](gate.md#challenges)"
        ),
        field="challenge",
        fact="challenge",
        judged=True,
    ),
    Option(
        "--challenge-answers",
        Value.ANSWERS,
        Group.JUDGE,
        metavar="FILE",
        help="Judge these answers instead of the device's; conformance challenge uses it.",
        docs="judge the results in this file, not the results of this device. `conformance challenge` sets this option",
        field="answers",
        page="docs/gate.md",
    ),
    Option(
        "--conformance-report",
        Value.REPORTS,
        Group.RUN,
        metavar="DIR",
        default="conformance-report",
        help="Folder for reports, with a folder for each accelerator (default: conformance-report).",
        docs="folder for reports (default `conformance-report`), with one folder per accelerator",
        field="report",
    ),
)

#: Every option by its name.
BY_NAME: Final = {option.name: option for option in OPTIONS}


def runs_the_suite(typed: Iterable[str], addopts: Iterable[str]) -> bool:
    """Tell whether a command line without paths runs the bundled suites.

    ``addopts`` with ``--accelerator`` names the device for a project's own tests, so ``pytest`` alone runs these.
    """
    return any(map(_names_accelerator, typed)) or not any(map(_names_accelerator, addopts))


def _names_accelerator(word: str) -> bool:
    return word.partition("=")[0] == "--accelerator"
