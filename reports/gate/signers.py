"""Signer files: which principal may sign for which accelerators. The reviewer keeps the file; no report changes it.

A file is a list of ``[[signer]]`` tables with ``principal`` and ``accelerators``, which may contain ``*``.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from conformance.base.errors import JournalError
from conformance.reports.gate.evidence import SignatureCheck
from conformance.reports.json_files import read_capped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Room for some thousand signers.
_MAX_BYTES: Final = 512 * 1024
#: Dots in a line. Python's TOML reader takes quadratic time for a key of many parts.
_MOST_DOTS: Final = 300


def bound(check: SignatureCheck, path: Path) -> SignatureCheck:
    """Return the check of a signature with the accelerators that its principals may sign for.

    Raises JournalError if the file is unreadable.
    """
    signers = check.principals or (check.principal,)
    found = dict.fromkeys(name for signer in signers for name in accelerators_of(signer, path))
    return replace(check, accelerators=tuple(found))


def accelerators_of(principal: str, path: Path) -> tuple[str, ...]:
    """Return patterns of the accelerators that the principal may sign for; JournalError if the file is unreadable."""
    tables = read_signers(path)
    return tuple(name for pattern, names in tables if fnmatch.fnmatchcase(principal, pattern) for name in names)


def may_sign(check: SignatureCheck, accelerator: str) -> bool:
    """Return whether the principals may sign for the accelerator. Without a file of signers everybody may."""
    patterns = check.accelerators
    return patterns is None or any(fnmatch.fnmatchcase(accelerator, pattern) for pattern in patterns)


def read_signers(path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the tables of a file as pairs: the pattern of a principal, and the patterns of its accelerators."""
    try:
        text = read_capped(path, _MAX_BYTES).decode("utf-8-sig")
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {_MOST_DOTS} dots")
        value = tomllib.loads(text)
    except UnicodeDecodeError:
        raise JournalError(f"{path} is not valid TOML: it is not UTF-8 text.") from None
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{path} is not valid TOML: {error}.") from None
    tables = value.get("signer", [])
    if set(value) - {"signer"} or not isinstance(tables, list):
        raise JournalError(f"{path} is not a signer file: write [[signer]] tables with principal and accelerators.")
    return tuple(_table(table, number, path) for number, table in enumerate(tables, 1))


def _table(table: Any, number: int, path: Path) -> tuple[str, tuple[str, ...]]:
    if isinstance(table, Mapping) and set(table) == {"principal", "accelerators"}:
        principal, names = table["principal"], table["accelerators"]
        if isinstance(principal, str) and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return principal, tuple(names)
    raise JournalError(f'{path}: signer {number} needs principal = "NAME" and accelerators = ["NAME"].')
