"""Text of a declaration for ``--capabilities``, and a check that no existing file is overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.accelerators.claims import parse_cell
from conformance.accelerators.declaration import Claim, Declaration, Detail, State
from conformance.accelerators.declaration_file import dump
from conformance.base.errors import DeclarationError, UsageError
from conformance.reports.model import DeclaredCell
from conformance.reports.plain_text import one_line


def declaration_of_cells(cells: Iterable[DeclaredCell]) -> Declaration:
    """Return the declaration that a report's rows describe.

    A report is untrusted: raise DeclarationError for a row that is not a valid claim.
    """
    return Declaration.of((parse_cell(row.cell), _claim(row)) for row in cells)


def _claim(row: DeclaredCell) -> Claim:
    """Return the claim of a report's row. Raises ``DeclarationError``: the report may come from a stranger."""
    try:
        return Claim(State(row.state), Detail(row.detail) if row.detail else None, row.reason)
    except ValueError:
        claim = one_line(f"{row.cell} is declared {row.state} {row.detail}", 200)
        raise DeclarationError(f"the report cannot be corrected: {claim}, which is not a valid claim.") from None


def toml(cells: Iterable[DeclaredCell]) -> str:
    return dump(declaration_of_cells(cells))


def comment(line: str = "") -> str:
    """Return the text as one line of a comment. It may quote an untrusted report, so line breaks are removed."""
    return f"# {one_line(line)}" if line.strip() else "#"


def indented(line: str) -> str:
    return f"#   {one_line(line)}"


def check_target(path: Path | None, *, force: bool) -> None:
    """Raise UsageError if the file exists, because a user may have edited it, unless ``force`` is set."""
    if path is not None and path.exists() and not force:
        raise UsageError(f"{path} exists and is not overwritten. Choose another name, or add --force.")
