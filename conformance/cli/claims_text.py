"""A declaration of a report as text that ``--capabilities`` reads, and as a file that nobody loses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.accelerators.claims import parse_cell
from conformance.accelerators.declaration import Claim, Declaration, Detail, State
from conformance.accelerators.declaration_file import dump
from conformance.errors import DeclarationError, UsageError
from conformance.reports.model import DeclaredCell
from conformance.reports.plain_text import one_line


def declaration_of_cells(cells: Iterable[DeclaredCell]) -> Declaration:
    """The declaration that a report's rows describe. A report is untrusted: an odd row is a DeclarationError."""
    return Declaration.of((parse_cell(row.cell), _claim(row)) for row in cells)


def _claim(row: DeclaredCell) -> Claim:
    try:
        return Claim(State(row.state), Detail(row.detail) if row.detail else None, row.reason)
    except ValueError:
        what = one_line(f"{row.cell} is declared {row.state} {row.detail}", 200)
        raise DeclarationError(f"the report cannot be corrected: {what}, which no declaration can say.") from None


def toml(cells: Iterable[DeclaredCell]) -> str:
    return dump(declaration_of_cells(cells))


def comment(line: str = "") -> str:
    """One line of a comment. What it quotes may come from an untrusted report."""
    return f"# {one_line(line)}" if line.strip() else "#"


def indented(line: str) -> str:
    return f"#   {one_line(line)}"


def check_target(path: Path | None, *, force: bool) -> None:
    """Raise UsageError if writing there would lose a file that somebody may have edited."""
    if path is not None and path.exists() and not force:
        raise UsageError(f"{path} exists and is not overwritten. Choose another name, or add --force.")
