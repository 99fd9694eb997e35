"""Options of a run: the command line, validated and immutable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from conformance.base.errors import UnknownName, UsageError
from conformance.base.options import OPTIONS, Option, Value
from conformance.plan.case import Isolation, Tier
from conformance.reports.calls import split

if TYPE_CHECKING:
    import pytest

    #: What stands on the command line, by the names of the options.
    Typed = Mapping[str, Any]


class Strictness(Enum):
    """Level at which differences between declaration and observation fail a case."""

    BRING_UP = "bring-up"
    CI = "ci"
    CERTIFY = "certify"


@dataclass(frozen=True)
class RunOptions:
    """Validated options of a run."""

    accelerator: str
    capabilities: Path | None = None
    profile: str | None = None
    areas: tuple[str, ...] = ()
    tier: str | None = None
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    #: Selectors of single calls, by the id of their case.
    calls: Mapping[str, str] = field(default_factory=dict)
    strictness: Strictness = Strictness.CI
    waivers: Path | None = None
    resume: bool = False
    shard: tuple[int, int] | None = None
    time_budget: float | None = None
    seed: int = 0
    #: The reviewer's nonce, from which the seed is derived, and a file with another run's answers to judge.
    challenge: str = ""
    answers: Path | None = None
    rank_isolation: Isolation = Isolation.REUSE
    ranks_from: str | None = None
    shared_dir: Path | None = None
    report: Path = Path("conformance-report")


def read_options(config: pytest.Config) -> RunOptions:
    """Return the validated options of the command line; UsageError with the next step if one is wrong."""
    typed = {option.name: config.getoption(option.dest) for option in OPTIONS}
    typed["-n"] = config.getoption("numprocesses")
    values = {option.field: _READERS[option.value](option, typed) for option in OPTIONS if option.field}
    # A selector of calls stands behind the id of its case.
    values["cases"], values["calls"] = values["cases"]
    return RunOptions(**values)


def _known(option: Option) -> Iterable[str]:
    """Return the names that an option accepts."""
    from conformance.plan.bundled import area_names
    from conformance.reports.profiles import PROFILES

    names: dict[str, Callable[[], Iterable[str]]] = {
        "profile": lambda: PROFILES,
        "areas": area_names,
        "tier": lambda: [tier.value for tier in Tier],
        "dtypes": _dtype_names,
        "strictness": lambda: [level.value for level in Strictness],
        "rank_isolation": lambda: [isolation.value for isolation in Isolation],
    }
    return names[option.field]()


def _name(option: Option, typed: Typed) -> Any:
    """Return a known name, as a member of its enum if it has one."""
    name = _one_of(option.title, typed[option.name], _known(option))
    kinds = {"strictness": Strictness, "rank_isolation": Isolation}
    return kinds[option.field](name) if option.field in kinds else name


#: How a value of each kind is read from what was typed.
_READERS: Final[dict[Value, Callable[[Option, Mapping[str, Any]], Any]]] = {
    Value.TEXT: lambda option, typed: typed[option.name] or "",
    Value.FLAG: lambda option, typed: bool(typed[option.name]),
    Value.NAME: _name,
    Value.NAMES: lambda option, typed: _many_of(option.title, typed[option.name], _known(option)),
    Value.CASES: lambda option, typed: _cases(typed[option.name] or (), typed["--case-file"] or ()),
    Value.FILE: lambda option, typed: _file(option.name, typed[option.name], option.page),
    Value.FOLDER: lambda option, typed: _folder(option.name, typed[option.name]),
    Value.REPORTS: lambda option, typed: Path(str(typed[option.name])).absolute(),
    Value.SHARD: lambda option, typed: _shard(typed[option.name]),
    Value.SECONDS: lambda option, typed: _number(option.name, typed[option.name]),
    Value.SEED: lambda option, typed: _seed(typed["--challenge"], typed[option.name]),
    Value.ENDPOINT: lambda option, typed: _endpoint(typed[option.name], typed["-n"]),
    Value.ANSWERS: lambda option, typed: _answers(option, typed[option.name], typed["--challenge"]),
}


def _endpoint(value: str | None, workers: int | None) -> str | None:
    """Return the endpoint of ``--ranks-from`` after a check. It excludes workers."""
    if value is None:
        return None
    from conformance.ranks.rendezvous import parsed

    # Only checked here: the pool parses it again.
    parsed(value)
    if workers:
        raise UsageError("--ranks-from needs a run in one process: leave out -n, or give -n0.")
    return value


def _dtype_names() -> tuple[str, ...]:
    from conformance.accelerators.capabilities import DTYPES

    return DTYPES


def _one_of(kind: str, value: str | None, known: Iterable[str]) -> str | None:
    if value is not None and value not in (names := list(known)):
        raise UnknownName(kind, value, names)
    return value


def _many_of(kind: str, values: list[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a repeatable option, split at commas, without repetitions."""
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    for name in names:
        _one_of(kind, name, known)
    return tuple(dict.fromkeys(names))


def _file(option: str, value: str | None, page: str) -> Path | None:
    """Return the absolute path of an existing file; ``page`` of the docs describes the file."""
    if value is None:
        return None
    path = Path(value)
    if not path.is_file():
        raise UsageError(f"{option}: there is no file {value}. Correct the path; {page} describes the file.")
    # Absolute, because a test may change the working directory before the file is read.
    return path.absolute()


def _folder(option: str, value: str | None) -> Path | None:
    if value is None:
        return None
    if not os.access(value, os.W_OK | os.X_OK) or not Path(value).is_dir():
        raise UsageError(f"{option}: {value} is no folder that can be written. Create it on storage of all hosts.")
    return Path(value).absolute()


def _cases(typed: Iterable[str], files: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return ids and patterns of cases, those of the command line first, without duplicates, and selectors by id.

    UsageError for a selector of calls behind something else than the id of an operator's case.
    """
    cases, calls = [], {}
    for pattern in (*typed, *(pattern for file in files for pattern in _listed(file))):
        id, selector = split(pattern)
        cases.append(id)
        if not selector and "{" not in pattern:
            continue
        if not selector or "*" in id or not id.startswith("operators."):
            raise UsageError(
                f"--case {pattern}: calls are selected behind the full id of an operator's case, such as "
                "'operators.add[float32-inference]{form=out,arrangement=offset}'. A failure's repro line has one."
            )
        calls[id] = selector
    return tuple(dict.fromkeys(cases)), calls


def _listed(file: str) -> list[str]:
    """Return the lines of a case file without empty lines and comments; UsageError if none is left."""
    try:
        lines = [line.partition(" #")[0].strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"--case-file {file}: the file cannot be read: {reason}.") from None
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not patterns:
        raise UsageError(
            f"--case-file {file}: the file names no case. Write one id per line; conformance list prints all ids."
        )
    return patterns


def _shard(value: str | None) -> tuple[int, int] | None:
    """Return K and N of ``--shard K/N``, counted from 1."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", value)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {value}: expected K/N with 1 ≤ K ≤ N, such as 2/8.")
    return int(match[1]), int(match[2])


def _number(name: str, value: str | None) -> float | None:
    """Return an optional number of seconds."""
    try:
        return None if value is None else float(value)
    except ValueError:
        raise UsageError(f"{name} {value}: expected a number of seconds, such as 60.") from None


def _seed(challenge: str | None, seed: str) -> int:
    """Return the base seed: from the challenge, or from the option."""
    from conformance.reports.challenge import checked_nonce, seed_of_challenge

    if challenge is None:
        number = _whole("--conformance-seed", seed)
        if number < 0:
            raise UsageError(f"--conformance-seed {seed}: expected a number from 0, such as 1.")
        return number
    if seed != "0":
        raise UsageError("--challenge and --conformance-seed cannot be used together: the challenge gives the seed.")
    return seed_of_challenge(checked_nonce(challenge))


def _answers(option: Option, value: str | None, challenge: str | None) -> Path | None:
    if value is not None and challenge is None:
        raise UsageError("--challenge-answers needs --challenge: give the nonce that the answers belong to.")
    return _file(option.name, value, option.page)


def _whole(name: str, value: str) -> int:
    """Return a whole number."""
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} {value}: expected a whole number, such as 0.") from None
