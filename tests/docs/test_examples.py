"""The examples work: declarations are read, accelerators resolve, and cases get the verdicts on their page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.accelerators.declaration_file import parse_declaration
from conformance.accelerators.lint import LintSeverity, lint
from conformance.accelerators.registry import resolve
from conformance.base.errors import SetupError
from tests.acceptance.running import run

from .pages import DOCS, README, Block, blocks, rows, section, text

DECLARATIONS, NEW, CASES = DOCS / "declarations.md", DOCS / "new-accelerator.md", DOCS / "writing-cases.md"
TOML = blocks(text(DECLARATIONS), "toml")


def write(folder: Path, block: Block) -> str:
    """Write the block to the file that it names, and return the name of the module."""
    assert block.name.endswith(".py"), f"a block begins with '# FILE.py', this one with '{block.name}'"
    (folder / block.name).write_text(block.body, encoding="utf-8")
    return block.name.removesuffix(".py")


def block_with(page: Path, words: str) -> Block:
    """Return the Python block of a page that has these words."""
    return next(block for block in blocks(text(page), "python") if words in block.body)


@pytest.mark.parametrize("block", TOML, ids=range(len(TOML)))
def test_a_declaration_is_read(block: Block) -> None:
    assert parse_declaration(block.body, file=str(DECLARATIONS)).cells


def test_claims_in_python_are_claims() -> None:
    (block,) = blocks(text(DECLARATIONS), "python")

    exec(compile(block.body, str(DECLARATIONS), "exec"), {})


@pytest.mark.parametrize("page", [README, NEW], ids=lambda page: page.name)
def test_the_declared_accelerator_resolves_and_is_without_contradiction(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write(tmp_path, block_with(page, 'package="torch_acme"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)

    subject = resolve(f"{module}:ACME")

    findings = lint(subject)
    assert subject.name == "acme"
    assert [finding for finding in findings if finding.severity is not LintSeverity.NOTE] == []
    assert page is README or all(f"\n{finding}\n" in text(page) for finding in findings)
    with pytest.raises(SetupError, match="'acme' needs the package torch_acme, which is not installed here") as said:
        subject.preflight()
    assert page is README or f"ERROR: {str(said.value).splitlines()[0]}" in text(page)


def test_the_accelerator_in_the_readme_is_short() -> None:
    (block,) = blocks(text(README), "python")

    assert len(block.body.splitlines()) <= 20


def test_a_class_of_ones_own_is_a_subject(tmp_path: Path) -> None:
    module = write(tmp_path, block_with(NEW, "class OwnAccelerator"))
    spec = f"{module}:OwnAccelerator"
    assert f"--accelerator={spec}" in text(NEW)

    finished = run(
        f"--accelerator={spec}",
        "--case",
        "operators.abs[float32-inference]",
        "-n0",
        cwd=tmp_path,
        name=spec.replace(":", "-"),
    )

    assert finished.status == 0, finished.output
    assert finished.verdicts == {"operators.abs[float32-inference]": ("pass", "native")}


def test_cases_of_ones_own_end_as_the_page_says(tmp_path: Path) -> None:
    files = [write(tmp_path, block) + ".py" for block in blocks(text(CASES), "python")]
    table = rows(section(text(CASES), "How the end of a body is judged"))
    expected = {row[0].strip("`"): tuple(row[1].replace("`", "").split(": ")) for row in table if "`acme." in row[0]}

    finished = run("--accelerator=cpu", *files, "-n0", cwd=tmp_path)

    assert finished.verdicts == expected, finished.output
    assert finished.status == 0, finished.output
