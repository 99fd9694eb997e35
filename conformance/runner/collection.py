"""Collection: case families become pytest items, which are filtered, ordered, and written to the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.accelerators.declaration import Declaration, State
from conformance.base.errors import ConformanceError, UnknownName
from conformance.plan.bundled import family_of, make_manifest
from conformance.plan.case import Case
from conformance.plan.costs import is_compiled, measured
from conformance.plan.known_cases import known_elsewhere
from conformance.plan.run_options import RunOptions
from conformance.plan.selection import matches, selector
from conformance.reports.json_files import write_json

#: Name of the marker of every case.
MARKER = "conformance"


def case_of(item: pytest.Item) -> Case | None:
    """Return the case that an item runs, or None for a plain test."""
    spec = getattr(item, "callspec", None)
    case = spec.params.get("case") if spec else None
    return case if isinstance(case, Case) else None


class Collection:
    """Hooks that expand case families, and order the cases. The result is the same on every worker."""

    def __init__(
        self,
        options: RunOptions,
        static: Declaration,
        done: frozenset[str],
        manifest: Path | None,
        error: Path | None = None,
    ) -> None:
        self.options, self.static, self.done, self.manifest_path = options, static, done, manifest
        #: Where a worker leaves the sentence about a wrong plan for the controller.
        self._error_path = error
        self._selected = selector(options)
        self.planned: list[tuple[Case, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a case family with those of its cases that the options select."""
        family = family_of(metafunc.function)
        if family is None:
            return
        if not any(mark.name == MARKER for mark in getattr(metafunc.function, "pytestmark", [])):
            getattr(pytest.mark, MARKER)(metafunc.function)  # its items take the marks of the function, for -m
        chosen = [case for case in family.expand() if self._selected(case.planned)]
        if "case" not in metafunc.fixturenames:
            metafunc.fixturenames.append("case")
        names = ("case", *family.axis_names)
        rows = [(case, *(value for _, value in case.axes[: len(family.axis_names)])) for case in chosen]
        metafunc.parametrize(names, rows, ids=[case.id for case in chosen])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put dear cases first and probes last, and drop what stands for an empty selection."""
        # pytest leaves one item to skip for an empty parameter set; here it only means that no case was selected.
        items[:] = [item for item in items if case_of(item) or family_of(getattr(item, "function", None)) is None]
        chosen = {item: case for item in items if (case := case_of(item))}
        compiled = {case.id for case in chosen.values() if is_compiled(case.planned.requires)}
        ranks = measured().ranks((case.id for case in chosen.values()), compiled)
        last = max(ranks.values(), default=None)  # for a test that is no case
        items.sort(key=lambda item: (self._is_probe(item), ranks[chosen[item].id] if item in chosen else last))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note and write the plan, then drop the cases that a resumed journal has ended."""
        # Not in pytest_collection_modifyitems: --lf and other plugins leave items out around any hook there.
        self.planned = [(case, item.nodeid) for item in session.items if (case := case_of(item))]
        try:
            _reject_repeated_cases(session.items)
            if self.planned and self.manifest_path:
                write_json(self.manifest_path, make_manifest(self.planned))
        except ConformanceError as error:
            if self._error_path is None:
                raise pytest.UsageError(str(error)) from None
            self._error_path.write_text(str(error))
            session.items.clear()
            return
        # After the manifest is written: the plan of a resumed run is still the whole plan.
        session.items[:] = [item for item in session.items if not ((case := case_of(item)) and case.id in self.done)]

    def _is_probe(self, item: pytest.Item) -> bool:
        """Tell whether the item checks a cell that is not declared supported, as far as is known without a device."""
        case = case_of(item)
        if case is None or not case.adaptive:
            return False
        return self.static.claim(case.requires[0], in_reference=case.in_reference).state is not State.SUPPORTED


def _reject_repeated_cases(items: Sequence[pytest.Item]) -> None:
    """Raise for a case with the mark ``flaky``, by which other plugins repeat a failed test until it passes."""
    for item in items:
        if (case := case_of(item)) and item.get_closest_marker("flaky"):
            raise ConformanceError(
                f"case {case.id!r} has the mark flaky, which repeats a failed test until it passes; a case gets one "
                "verdict. Take the mark away from the case, its class and its module."
            )


def reject_unknown_cases(options: RunOptions, ids: Sequence[str]) -> None:
    """Raise for a ``--case`` that matches no planned case, with suggestions."""
    planned = frozenset(ids)
    for pattern in options.cases:
        if (
            pattern not in planned
            and not any(matches(pattern, id) for id in ids)
            and (error := _unknown_case(pattern, options))
        ):
            raise error


def reject_mistyped_cases(patterns: Sequence[str]) -> None:
    """Raise for a ``--case`` that matches no case of the suite, before workers start."""
    if not patterns:
        return
    ids = [planned.id for planned in known_elsewhere()]
    known = frozenset(ids)
    for pattern in patterns:
        if pattern not in known and not any(matches(pattern, id) for id in ids):
            raise UnknownCase(pattern, ids)


def _unknown_case(pattern: str, options: RunOptions) -> ConformanceError | None:
    """Return the error for a pattern that selects no case: excluded by our other options, or unknown.

    None, if an option of pytest such as ``--lf`` or ``-k`` leaves the case out: that is what was asked for.
    """
    known = [planned.id for planned in known_elsewhere()]
    if not any(matches(pattern, id) for id in known):
        return UnknownCase(pattern, known)
    narrowing = {
        "--area": options.areas,
        "--tier": options.tier,
        "--dtype": options.dtypes,
        "--profile": options.profile,
        "--shard": options.shard,
    }
    given = [name for name, value in narrowing.items() if value]
    return ConformanceError(f"case '{pattern}' exists, but {' or '.join(given)} leaves it out.") if given else None


class UnknownCase(UnknownName):
    """An id that no case has. The message shows only similar ids, because there are thousands."""

    def __init__(self, pattern: str, known: Sequence[str]) -> None:
        import difflib

        subject = pattern.split("[", 1)[0]
        same = [id for id in known if id.split("[", 1)[0] == subject]
        if same and "[" not in pattern:
            same = [f"{pattern}[*]", *same]
        close = same or difflib.get_close_matches(pattern, known, n=5, cutoff=0.6)
        ConformanceError.__init__(
            self,
            f"case '{pattern}' is not among the {len(known)} cases of the suite.\n"
            + (f"  did you mean {', '.join(close[:5])}?\n" if close else "")
            + "  see: conformance list",
        )
