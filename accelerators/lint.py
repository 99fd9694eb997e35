"""Linter of accelerators: finds contradictions between methods, capabilities and declaration file without a device.

The rules read source code and call only members that answer without a device.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import VOCABULARY, find_capability
from conformance.accelerators.declaration import ClaimSource, Declaration, State
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.derivation import DTYPE_METHODS, NO_ANSWER, ask, from_methods, listed_dtypes
from conformance.accelerators.interface import MEMBERS, Accelerator, Member
from conformance.accelerators.proxy import has_member, members_of
from conformance.accelerators.spec import AcceleratorSpec
from conformance.base.errors import SetupError


class LintSeverity(Enum):
    """Severity of a lint finding, the most severe first. ``conformance lint`` ends with 1 if there is an error."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class LintRule:
    """One rule: its stable id, its summary for the documentation, and its usual severity."""

    id: str
    summary: str
    severity: LintSeverity


#: All rules by id. ``L01`` has the same meaning in every release.
LINT_RULES: Mapping[str, LintRule] = {
    rule.id: rule
    for rule in (
        LintRule("L01", "a dtype is listed, and its is_*_supported() is False", LintSeverity.ERROR),
        LintRule("L02", "is_*_supported() is True, and the dtype is not listed", LintSeverity.ERROR),
        LintRule("L03", "a result has the wrong type (None instead of False, …)", LintSeverity.ERROR),
        LintRule("L04", "a method that should ask the device returns a constant", LintSeverity.NOTE),
        LintRule("L05", "a member does nothing, but has to do something", LintSeverity.ERROR),
        LintRule("L06", "names or order of arguments differ from the interface's", LintSeverity.ERROR),
        LintRule("L07", "some graph members are implemented, others are not", LintSeverity.ERROR),
        LintRule("L08", "Event is None, and use_host_timers() is False", LintSeverity.ERROR),
        LintRule("L09", "Stream is None, but current_stream() returns a stream", LintSeverity.ERROR),
        LintRule("L10", "a member is missing", LintSeverity.ERROR),
        LintRule("L11", "two sources make different claims for one cell", LintSeverity.WARNING),
        LintRule("L12", "operations are complete when their call returns, but are not in order", LintSeverity.WARNING),
        LintRule("L13", "the visible-devices variable is missing, or belongs to another vendor", LintSeverity.WARNING),
        LintRule("L14", "get_op_builder and create_op_builder disagree", LintSeverity.ERROR),
        LintRule("L15", "some capabilities are neither claimed nor denied", LintSeverity.NOTE),
        LintRule("L16", "the accelerator cannot be built without a device", LintSeverity.NOTE),
    )
}


@dataclass(frozen=True)
class LintFinding:
    """One finding: the id of its rule, its severity, and a sentence with the facts."""

    id: str
    severity: LintSeverity
    sentence: str

    def __str__(self) -> str:
        return f"{self.id} {self.severity.value}: {self.sentence}"


Findings: TypeAlias = Iterator[LintFinding]

_BOOLEANS = ("is_bf16_supported", "is_fp16_supported", "is_fp64_supported", "is_triton_supported")
_FLAGS = ("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure")
#: Members that may do nothing, because a device may have nothing to do for them.
_MAY_BE_EMPTY = frozenset(
    {
        "empty_cache",
        "range_push",
        "range_pop",
        "Stream",
        "Event",
        "current_stream",
        "default_stream",
        "unpin_memory",
        "create_graph",
        "replay_graph",
        "capture_to_graph",
        "synchronize",
        "set_device",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
        "reset_peak_memory_stats",
        "register_host_memory",
        "unregister_host_memory",
        "communication_backend_name",
    }
)
_GRAPH_MEMBERS = ("create_graph", "capture_to_graph", "replay_graph")
#: The name of a builder that no accelerator has.
_NO_BUILDER = "ConformanceAsksForABuilderThatNobodyHas"


def _finding(id: str, sentence: str) -> LintFinding:
    return LintFinding(id, LINT_RULES[id].severity, sentence)


def lint(spec: AcceleratorSpec, file: Path | None = None) -> list[LintFinding]:
    """Return every contradiction in an accelerator's own statements, the most severe first."""
    static = spec.static_declaration
    found: list[LintFinding] = []
    claimed = static
    try:
        accelerator = spec.unloaded()
    except SetupError as error:
        found.append(_finding("L16", f"its methods were not called: {str(error).splitlines()[0]}"))
    else:
        found += [finding for check in _CHECKS for finding in check(accelerator)]
        answers = _answers(accelerator)
        found += _between_sources(answers, static, file)
        claimed = answers.overridden_by(static)
    if file is not None:
        claimed = claimed.overridden_by(read_declaration(file, ClaimSource.FILE))
    found += _undeclared(claimed)
    order = list(LintSeverity)
    return sorted(found, key=lambda finding: (order.index(finding.severity), finding.id, finding.sentence))


# --- sources against each other -------------------------------------------------------------------------------------


def _answers(accelerator: Any) -> Declaration:
    """Return the claims of the methods; without a device only positive ones, since a False may mean "not here"."""
    answers = from_methods(accelerator)
    if ask(accelerator, "is_available") is True:
        return answers
    return Declaration.of((cell, claim) for cell, claim in answers.cells.items() if claim.state is State.SUPPORTED)


def _between_sources(methods: Declaration, static: Declaration, file: Path | None) -> Findings:
    """Find claims of a stronger source that contradict those of a weaker one."""
    sources = [(ClaimSource.METHODS, methods), (ClaimSource.CAPABILITIES, static)]
    if file is not None:
        sources.append((ClaimSource.FILE, read_declaration(file, ClaimSource.FILE)))
    for position, (later_name, later) in enumerate(sources):
        for earlier_name, earlier in sources[:position]:
            yield from _contradictions(earlier_name.value, earlier, later_name.value, later)


def _contradictions(earlier_name: str, earlier: Declaration, later_name: str, later: Declaration) -> Findings:
    """Find cells that two sources declare differently."""
    for cell, claim in earlier.cells.items():
        other = later.cells.get(cell)
        if other is not None and other.state is not claim.state:
            yield _finding(
                "L11",
                f"{cell} is {claim.state.value} by its {earlier_name} and {other.state.value} by its {later_name}; "
                f"claims of its {later_name} win",
            )


def _undeclared(claimed: Declaration) -> Findings:
    """Find capabilities that are not declared at all. The core needs no declaration."""
    declared = {cell.subject for cell in claimed.cells}
    silent = sorted(name for name in VOCABULARY if name not in declared and not find_capability(name).core)
    if silent:
        yield _finding("L15", f"{len(silent)} capabilities are undeclared: {', '.join(silent)}")


# --- answers --------------------------------------------------------------------------------------------------------


def _dtypes(accelerator: Any) -> Findings:
    """Find contradictions between ``supported_dtypes()`` and the methods of single dtypes."""
    listed = listed_dtypes(accelerator)
    for dtype, method in DTYPE_METHODS.items():
        answer = ask(accelerator, method)
        if dtype in listed and answer is not NO_ANSWER and not answer:
            yield _finding("L01", f"supported_dtypes() lists {dtype}, but {method}() returns {answer!r}")
        # is_fp64_supported() is True by default, so True does not contradict the list.
        if listed and dtype not in listed and answer is True and dtype != "float64":
            yield _finding("L02", f"{method}() returns True, but supported_dtypes() does not list {dtype}")


def _types(accelerator: Any) -> Findings:
    """Find answers of a wrong type."""
    for method in (*_BOOLEANS, *_FLAGS):
        answer = ask(accelerator, method)
        if answer is not NO_ANSWER and not isinstance(answer, bool):
            yield _finding("L03", f"{method}() returns {answer!r}, which is not a bool")
    answer = ask(accelerator, "supported_dtypes")
    if answer is not NO_ANSWER and not isinstance(answer, list):
        yield _finding("L03", f"supported_dtypes() returns {answer!r}, which is not a list")


def _timers(accelerator: Any) -> Findings:
    """Find classes of events and streams that contradict the methods beside them."""
    if ask(accelerator, "Event") is None and ask(accelerator, "use_host_timers") is False:
        yield _finding("L08", "Event is None, but use_host_timers() is False: there is no way to measure time")
    if ask(accelerator, "Stream") is None and ask(accelerator, "current_stream") not in (None, NO_ANSWER):
        yield _finding("L09", "Stream is None, but current_stream() returns a stream")


def _order(accelerator: Any) -> Findings:
    """Find a device that is synchronous and yet does not order dependent operations."""
    synchronous, ordered = (ask(accelerator, flag) for flag in ("is_synchronized_device", "resolves_data_dependency"))
    if synchronous is True and ordered is False:
        yield _finding(
            "L12",
            "is_synchronized_device() is True, but resolves_data_dependency() is False: operations that are complete "
            "when their call returns are in order",
        )


def _visibility(accelerator: Any) -> Findings:
    """Find a visibility variable that is missing or belongs to another vendor."""
    variables = ask(accelerator, "visible_devices_envs")
    if variables is NO_ANSWER:
        return
    if not isinstance(variables, list) or not variables:
        yield _finding("L13", f"visible_devices_envs() returns {variables!r}; name a variable")
        return
    name = ask(accelerator, "device_name")
    others = [builtin(other) for other in builtin_names()]
    own = {other.visible_devices for other in others if name == (other.device_type or other.name)}
    if name is NO_ANSWER or own & set(variables):
        return
    for other in (other for other in others if other.visible_devices in variables and not other.device_type):
        yield _finding("L13", f"visible_devices_envs() names {other.visible_devices}, the variable of {other.name}")


def _builders(accelerator: Any) -> Findings:
    """Find op builders of which ``get_op_builder`` and ``create_op_builder`` disagree."""
    found = _call(accelerator, "get_op_builder", _NO_BUILDER)
    made = _call(accelerator, "create_op_builder", _NO_BUILDER)
    if NO_ANSWER in (found, made) or (found is None and made is None):
        return
    if not isinstance(found, type) or type(made) is not found:
        yield _finding(
            "L14",
            f"for an unknown name get_op_builder() returns {_short(found)} and create_op_builder() {_short(made)}",
        )


def _call(accelerator: Any, method: str, *arguments: Any) -> Any:
    """Return the answer of ``method``, or ``NO_ANSWER`` for any exception."""
    try:
        return getattr(accelerator, method)(*arguments)
    except Exception:  # noqa: BLE001 - the member's own case gives the verdict
        return NO_ANSWER


def _short(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else "None" if value is None else f"a {type(value).__name__}"


# --- source code ----------------------------------------------------------------------------------------------------


def _missing(accelerator: Any) -> Findings:
    """Find members of the interface that the accelerator lacks."""
    present = members_of(accelerator)
    for member in MEMBERS:
        if member.name not in present:
            missing = _finding("L10", f"{member.name} is missing")
            # An accelerator for an older DeepSpeed correctly lacks members that newer base classes implement.
            yield replace(missing, severity=LintSeverity.WARNING) if member.optional else missing


def _signatures(accelerator: Any) -> Findings:
    """Find methods whose parameters differ from the interface. Additional ones at the end are allowed."""
    for member in MEMBERS:
        function = _function(accelerator, member.name)
        if member.signature is None or not inspect.isfunction(function):
            continue
        expected, actual = (_parameters(s) for s in (member.signature, inspect.signature(function)))
        if actual[: len(expected)] != expected and "**" not in actual:
            yield _finding(
                "L06",
                f"{member.name}({', '.join(actual)}) should be {member.name}({', '.join(expected)}): "
                "calls with keyword arguments fail",
            )


def _parameters(signature: inspect.Signature) -> list[str]:
    catch_all = inspect.Parameter.VAR_KEYWORD
    names = ["**" if parameter.kind is catch_all else name for name, parameter in signature.parameters.items()]
    return [name for name in names if name != "self"]


def _constants(accelerator: Any) -> Findings:
    """Find methods about the device that always return the same bool."""
    for method in _BOOLEANS:
        constant = _constant(_function(accelerator, method))
        if constant in ("True", "False"):
            yield _finding("L04", f"{method}() returns the constant {constant} without asking a device")


def _stubs(accelerator: Any) -> Findings:
    for member in MEMBERS:
        if member.name not in _MAY_BE_EMPTY and _is_stub(accelerator, member):
            yield _finding("L05", f"{member.name} does nothing and returns None")


def _is_stub(accelerator: Any, member: Member) -> bool:
    return _constant(_function(accelerator, member.name)) in ("None", "nothing")


def _graphs(accelerator: Any) -> Findings:
    """Find graphs of which only capture or only replay is implemented."""
    present = [name for name in _GRAPH_MEMBERS if has_member(accelerator, name)]
    empty = {name: _constant(_function(accelerator, name)) in ("None", "nothing") for name in present}
    if not {"create_graph", "replay_graph"} <= empty.keys():
        return
    if empty["create_graph"] != empty["replay_graph"]:
        real, stub = sorted(("create_graph", "replay_graph"), key=lambda name: empty[name])
        yield _finding("L07", f"{real}() is implemented, but {stub}() does nothing: implement both or neither")


def _function(accelerator: Any, name: str) -> Any:
    """Return the function of a method or property, or None if the class inherits it from our interface."""
    try:
        static = inspect.getattr_static(accelerator, name)
    except AttributeError:
        return None
    function = static.fget if isinstance(static, property) else static
    inherited = getattr(Accelerator, name, None)
    return None if function in (inherited, getattr(inherited, "fget", NO_ANSWER)) else function


def _constant(function: Any) -> str:
    """Return ``True``, ``False``, ``None`` or ``nothing`` if the function only does that, else an empty string."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ""
    (definition,) = tree.body
    if not isinstance(definition, ast.FunctionDef):
        return ""
    body = [statement for statement in definition.body if not _is_docstring(statement)]
    if not body or (len(body) == 1 and isinstance(body[0], ast.Pass)):
        return "nothing"
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return ""
    value = body[0].value
    return "nothing" if value is None else str(value.value) if isinstance(value, ast.Constant) else ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


_CHECKS: tuple[Callable[[Any], Findings], ...] = (
    _dtypes,
    _types,
    _constants,
    _stubs,
    _signatures,
    _graphs,
    _timers,
    _missing,
    _order,
    _visibility,
    _builders,
)
