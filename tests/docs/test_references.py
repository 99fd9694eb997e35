"""Names in the documentation exist, and everything that exists is named there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from conformance.accelerators import lint
from conformance.accelerators.capabilities import DTYPES, VOCABULARY
from conformance.accelerators.registry import names
from conformance.base.errors import ConformanceError
from conformance.base.options import OPTIONS
from conformance.cli.main import Parser, commands, find_command
from conformance.numerics.budgets import OpClass, budget_of
from conformance.plan.bundled import area_names
from conformance.plan.run_options import Strictness
from conformance.reports.profiles import PROFILES
from conformance.reports.totals import ExitStatus
from conformance.runner.controller import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE
from tests.instruments import BY_NAME
from tests.rows import every_row

from . import known_gaps
from .pages import DOCS, README, ROOT, anchors, links, pages, rows, section, text

OURS = {option.name for option in OPTIONS}
#: Options in the documentation that belong to other programs.
OTHERS = {
    "--junitxml",
    "--pdb",
    "--co",
    "--trace",
    "--depth",
    "--pairs",
    "--deep",
    "--strict",
    "--verdict",
    "--kind",
    "--ticket",
    "--reason",
    "--owner",
    "--again",
    "--write",
    "--deselect",
    "--durations",
    "--tb",
    "--lf",
    "--ff",
    "--sw",
    "--maxfail",
    # of its plugins pytest-split, pytest-forked, pytest-repeat and pytest-rerunfailures
    "--splits",
    "--group",
    "--forked",
    "--reruns",
    "--mutant",
    # those of the tests
    "--part",
    "--turn",
    "--seconds",
    # that of blame's instrument
    "--strangers",
    # those of the generated faults
    "--draws",
    "--family",
    "--narrow",
    "--keep",
    "--measured",
    "--of-profile",
    # that of conformance coverage
    # the benchmarks' and pip's
    "--record",
    "--small",
    "--without-peer",
    "--deepspeed",
    "--deepspeed-tests",
    "--peer-python",
    "--no-deps",
    # torchrun's
    "--nnodes",
    "--node-rank",
    "--nproc-per-node",
    "--master-addr",
    "--master-port",
}


def of_commands() -> set[str]:
    """Return the options of all commands of ``conformance``."""
    found: set[str] = set()
    for name in commands():
        parser = Parser(prog=name)
        find_command(name).add_arguments(parser)
        found.update(parser._option_string_actions)
    return found


@every_row(pages, name=lambda page: page.name)
def test_every_option_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text(page)))

    unknown = named - OURS - OTHERS - of_commands()
    assert not unknown, f"unknown options: {sorted(unknown)}"


@every_row(pages, name=lambda page: page.name)
def test_every_command_that_is_shown_can_be_typed(page: Path) -> None:
    """The parser of the command accepts each ``conformance …`` line of a block."""
    lines = re.findall(r"^(?: {4}|\$ )?conformance ((?:\\\n|[^\n#])+)", text(page), re.MULTILINE)
    for line in lines:
        name, *words = shlex.split(line.replace("\\\n", " "))
        if not words:
            continue
        parser = Parser(prog=name)
        find_command(name).add_arguments(parser)
        parser.parse_args(words)


def test_exit_statuses_are_those_of_the_code() -> None:
    table = rows(section(text(DOCS / "verdicts.md"), "Exit statuses"))
    said = {int(row[0]): row[1] for row in table if row[0].isdigit()}

    assert set(said) == {*map(int, ExitStatus), EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE}
    assert "nothing verified" in said[ExitStatus.NOTHING_VERIFIED]
    assert "accounted" in said[ExitStatus.UNACCOUNTED]
    assert ConformanceError.exit_status == EXIT_USAGE


def test_strictness_levels_and_profiles_are_those_of_the_code() -> None:
    page = text(DOCS / "verdicts.md")
    levels = [row[0].split("`")[1] for row in rows(section(page, "Strictness")) if row[0].startswith("`")]

    assert levels == [level.value for level in Strictness]
    assert all(f"`{name}`" in section(page, "What counts") for name in PROFILES)


def test_the_table_of_lint_findings_is_the_linters() -> None:
    rules = [(rule.id, rule.summary, rule.severity.value) for rule in lint.LINT_RULES.values()]
    table = [row for row in rows(section(text(DOCS / "declarations.md"), "Lint")) if row[0].startswith("L")]

    assert [(id, sentence.replace("`", ""), severity) for id, sentence, severity in table] == rules


def test_the_table_of_budgets_is_the_data() -> None:
    table = {row[0].split(" ")[0]: row[1:] for row in rows(section(text(DOCS / "numerics.md"), "Budgets"))}

    for op_class in OpClass:
        budget = budget_of(op_class)
        numbers = [float(cell) for cell in table[op_class.value]]
        assert numbers == [budget.rounding, budget.conditioning, budget.length, budget.host], op_class


def test_built_in_accelerators_dtypes_core_and_commands_are_named() -> None:
    declarations, readme = text(DOCS / "declarations.md"), text(README)

    assert [name for name in names() if f"`{name}`" not in readme] == []
    assert [name for name in DTYPES if f"`{name}`" not in declarations] == []
    assert [name for name, known in VOCABULARY.items() if known.core and f"`{name}`" not in declarations] == []
    assert [name for name in commands() if f"`{name}`" not in readme.replace("`conformance doctor`", "`doctor`")] == []


def test_capabilities_in_prose_exist() -> None:
    cells = re.findall(r"`([a-z][a-z.-]+)\[[^\]…]+\]`", text(DOCS / "declarations.md"))

    assert cells
    assert {
        name for name in cells if name.split(".")[0] not in ("operators", "workloads", "kernels", "subject")
    } <= set(VOCABULARY)


ENVIRONMENTS = set(re.findall(r"^\[testenv:([\w-]+)\]", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE))


def test_contributing_names_every_environment_of_tox() -> None:
    named = re.findall(r"tox run -e ([\w,-]+)", text(ROOT / "CONTRIBUTING.md"))

    assert {name for names in named for name in names.split(",")} == ENVIRONMENTS
    assert len(ENVIRONMENTS) <= 9, "an instrument needs no environment of its own: see tests/instruments.py"


def texts_with_commands() -> list[Path]:
    """Return the pages and all programs in which a command of tox may stand."""
    folders = ("tests", "benchmarks", "conformance", "accelerators", "kernels", "docs")
    programs = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SOURCES]
    return [*pages(), *programs, ROOT / "tox.ini", ROOT / ".ci" / "run", ROOT / ".ci" / "nightly"]


#: Endings of files with commands in comments and messages.
SOURCES = (".py", ".toml", ".sh", ".yml")


@every_row(texts_with_commands, name=lambda path: str(path.relative_to(ROOT)))
def test_every_environment_and_every_instrument_that_is_named_exists(path: Path) -> None:
    content = text(path)
    environments = re.findall(r"tox run -e ([a-z][\w-]*(?:,[\w-]+)*)", content)
    named = re.findall(r"(?:run -e instrument --|-m tests\.instruments) ([a-z][\w-]*)", content)

    assert set(",".join(environments).split(",")) <= {*ENVIRONMENTS, ""}
    assert set(named) <= {*BY_NAME, "nightly"}


def test_the_commands_are_exactly_these() -> None:
    for command in ("pip install tox && tox run -e conformance", "pip install tox && tox run -e tests"):
        assert f"\n{command}\n" in text(README)
    assert "pip install tox && tox run -e tests" in text(ROOT / ".ci" / "run")


@every_row(sorted(DOCS.glob("*.md")), name=lambda page: page.name)
def test_each_page_starts_with_a_command(page: Path) -> None:
    lines = text(page).splitlines()

    assert lines[0].startswith("# ")
    assert re.match(r" {4}(pytest|conformance|tox|python) ", lines[2]), lines[2]


@every_row(pages, name=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(text(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(text(target)), link


@every_row(pages, name=lambda page: page.name)
def test_no_machine_stands_in_the_text(page: Path) -> None:
    paths = re.findall(r"(?<![\w.~-])/(?:home|root|work|tmp|usr|opt|Users)/\S*", text(page))
    registries = re.findall(r"\S*(?:--index-url|--extra-index|/simple/)\S*", text(page))

    assert paths + registries == []


@every_row(sorted((ROOT / "changelog").glob("*.md")), name=lambda file: file.name)
def test_changelog_fragments_are_named_as_agreed(file: Path) -> None:
    if file.name != "README.md":
        assert re.fullmatch(r"\d+\.(feature|change|fix|removal)(\.\d+)?\.md", file.name)
        assert text(file).strip()


def test_the_changelog_of_the_first_version_is_short() -> None:
    (first,) = re.findall(r"^## 0\.1\.0.*?(?=^## |\Z)", text(ROOT / "CHANGELOG.md"), re.MULTILINE | re.DOTALL)

    assert len(first.splitlines()) <= 25


def test_the_readme_is_short_and_shows_a_terminal_first() -> None:
    lines = text(README).splitlines()

    assert len(lines) <= 150
    assert any(line.startswith("$ pytest --accelerator=cpu") for line in lines[:30])
    assert {"pip install tox && tox run -e conformance", "pip install tox && tox run -e tests"} <= set(lines[:30])


def test_known_gaps_name_areas_and_kernels_that_no_case_covers() -> None:
    generated = known_gaps.current()

    assert known_gaps.DEEPSPEED_AREAS - set(area_names()) == {"sequence"}
    assert "without an area here: `sequence`." in generated
    assert known_gaps.unused_kernels() == []
    assert "no case uses: none." in generated
