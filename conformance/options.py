"""Command-line options: their help, and their validated, frozen form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import pytest


class Strictness(Enum):
    """How differences between declaration and observation count."""

    BRING_UP = "bring-up"
    CI = "ci"
    CERTIFY = "certify"


@dataclass(frozen=True)
class RunOptions:
    """What one run was asked to do."""

    accelerator: str
    capabilities: Path | None = None
    profile: str | None = None
    areas: tuple[str, ...] = ()
    tier: str | None = None
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    strictness: Strictness = Strictness.CI
    resume: bool = False
    shard: tuple[int, int] | None = None
    time_budget: float | None = None
    seed: int = 0
    report: Path = Path("conformance-report")


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
        "--strictness",
        {
            "metavar": "LEVEL",
            "default": "ci",
            "help": "bring-up: differences between declaration and observation are notes; ci (default): a false claim "
            "fails, a modest one is a note; certify: every difference and every silence fails.",
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
        "--conformance-seed",
        {"metavar": "N", "default": "0", "help": "Base seed; each case's seed is derived from it and its id."},
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


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "accelerator conformance")
    for name, settings in _OPTIONS:
        group.addoption(name, **settings)


def read_options(config: pytest.Config) -> RunOptions:
    """Validate the command line to the greatest extent; raises UsageError with the next step."""
    from conformance.plan import area_names
    from conformance.reports.profiles import PROFILES

    get = config.getoption
    return RunOptions(
        accelerator=str(get("accelerator")),
        capabilities=_file(get("capabilities")),
        profile=_one_of("profile", get("profile"), PROFILES),
        areas=_many_of("area", get("area"), area_names()),
        tier=_one_of("tier", get("tier"), ("unit", "workload")),
        dtypes=_many_of("dtype", get("dtype"), _dtype_names()),
        cases=tuple(get("case") or ()),
        strictness=Strictness(_one_of("strictness", get("strictness"), [s.value for s in Strictness])),
        resume=bool(get("resume")),
        shard=_shard(get("shard")),
        time_budget=_number("--time-budget", get("time_budget")),
        seed=_whole("--conformance-seed", get("conformance_seed")),
        report=Path(str(get("conformance_report"))).absolute(),
    )


def _dtype_names() -> tuple[str, ...]:
    from conformance.accelerators.capabilities import DTYPES

    return DTYPES


def _one_of(kind: str, value: str | None, known: Iterable[str]) -> str | None:
    if value is not None and value not in (names := list(known)):
        raise UnknownName(kind, value, names)
    return value


def _many_of(kind: str, values: list[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    for name in names:
        _one_of(kind, name, known)
    return tuple(dict.fromkeys(names))


def _file(value: str | None) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.is_file():
        raise UsageError(f"--capabilities: there is no file {value}. Write one, or see docs/declarations.md.")
    return path.absolute()


def _shard(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", value)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {value}: expected K/N with 1 ≤ K ≤ N, such as 2/8.")
    return int(match[1]), int(match[2])


def _number(name: str, value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        raise UsageError(f"{name} {value}: expected a number of seconds, such as 60.") from None


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} {value}: expected a whole number, such as 0.") from None
