"""Contradictions that can be found without a device: between what the methods say, the capabilities, and the file.

    L01  a dtype is listed, and its is_*_supported() is False            error
    L02  is_*_supported() is True, and the dtype is not listed           error
    L03  an answer has the wrong type (None instead of False, …)         error
    L04  a question about the device is answered by a constant           note
    L05  a member does nothing, where doing nothing is wrong             error
    L06  arguments are named or ordered unlike the interface's           error
    L07  some of the graph members are real, others are not              error
    L08  Event is None, and use_host_timers() is False                   error
    L09  Stream is None, and a stream is current all the same            error
    L10  a member is missing                                             error
    L11  two sources claim different things of one cell                  warning
    L12  operations finish in their call, but are not in order           warning
    L13  the visible-devices variable is missing or another vendor's     warning
    L14  get_op_builder and create_op_builder disagree                   error
    L15  some capabilities are neither claimed nor denied                note
    L16  the accelerator cannot be built without a device                note

Rules read source code and ask only members that answer without a device.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import VOCABULARY, find_capability
from conformance.accelerators.declaration import ClaimSource, Declaration, State
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.derivation import DTYPE_METHODS, SILENCE, ask, from_methods, listed_dtypes
from conformance.accelerators.interface import MEMBERS, Accelerator, Member
from conformance.accelerators.proxy import has_member, members_of
from conformance.accelerators.spec import AcceleratorSpec
from conformance.errors import SetupError


class LintSeverity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class LintFinding:
    """One finding. ``id`` is stable: ``L01`` means the same in every release."""

    id: str
    severity: LintSeverity
    sentence: str

    def __str__(self) -> str:
        return f"{self.id} {self.severity.value}: {self.sentence}"


Findings: TypeAlias = Iterator[LintFinding]

_BOOLEANS = ("is_bf16_supported", "is_fp16_supported", "is_fp64_supported", "is_triton_supported")
_FLAGS = ("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure")
#: Members that may do nothing: where there is nothing to do, that is the whole of their meaning.
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
_NO_BUILDER = "ConformanceAsksForABuilderThatNobodyHas"


def lint(spec: AcceleratorSpec, file: Path | None = None) -> list[LintFinding]:
    """Every contradiction in what the subject says of itself, most severe first."""
    static = spec.static_declaration
    found = [*_silent(static)]
    try:
        accelerator = spec.unloaded()
    except SetupError as error:
        found.append(LintFinding("L16", LintSeverity.NOTE, f"its methods were not asked: {str(error).splitlines()[0]}"))
    else:
        found += [finding for rule in _RULES for finding in rule(accelerator)]
        found += _between_sources(_answers(accelerator), static, file)
    order = list(LintSeverity)
    return sorted(found, key=lambda finding: (order.index(finding.severity), finding.id, finding.sentence))


# --- sources against each other -------------------------------------------------------------------------------------


def _answers(accelerator: Any) -> Declaration:
    """The methods' claims; without a device only the positive ones, because then a no may mean "not here"."""
    answers = from_methods(accelerator)
    if ask(accelerator, "is_available") is True:
        return answers
    return Declaration.of((cell, claim) for cell, claim in answers.cells.items() if claim.state is State.SUPPORTED)


def _between_sources(methods: Declaration, static: Declaration, file: Path | None) -> Findings:
    sources = [(ClaimSource.METHODS, methods), (ClaimSource.CAPABILITIES, static)]
    if file is not None:
        sources.append((ClaimSource.FILE, read_declaration(file, ClaimSource.FILE)))
    for position, (later_name, later) in enumerate(sources):
        for earlier_name, earlier in sources[:position]:
            yield from _contradictions(earlier_name.value, earlier, later_name.value, later)


def _contradictions(earlier_name: str, earlier: Declaration, later_name: str, later: Declaration) -> Findings:
    for cell, claim in earlier.cells.items():
        other = later.cells.get(cell)
        if other is not None and other.state is not claim.state:
            yield LintFinding(
                "L11",
                LintSeverity.WARNING,
                f"{cell} is {claim.state.value} by its {earlier_name} and {other.state.value} by its {later_name}; "
                f"the {later_name} win",
            )


def _silent(static: Declaration) -> Findings:
    spoken = {cell.subject for cell in static.cells}
    silent = sorted(name for name in VOCABULARY if name not in spoken and not find_capability(name).core)
    if silent:
        yield LintFinding("L15", LintSeverity.NOTE, f"{len(silent)} capabilities are undeclared: {', '.join(silent)}")


# --- answers --------------------------------------------------------------------------------------------------------


def _dtypes(accelerator: Any) -> Findings:
    listed = listed_dtypes(accelerator)
    for dtype, method in DTYPE_METHODS.items():
        answer = ask(accelerator, method)
        if dtype in listed and answer is not SILENCE and not answer:
            yield LintFinding(
                "L01", LintSeverity.ERROR, f"supported_dtypes() lists {dtype}, but {method}() answers {answer!r}"
            )
        # is_fp64_supported() is True for everybody by default, so its yes says nothing of the list.
        if listed and dtype not in listed and answer is True and dtype != "float64":
            yield LintFinding(
                "L02", LintSeverity.ERROR, f"{method}() answers True, but supported_dtypes() does not list {dtype}"
            )


def _types(accelerator: Any) -> Findings:
    for method in (*_BOOLEANS, *_FLAGS):
        answer = ask(accelerator, method)
        if answer is not SILENCE and not isinstance(answer, bool):
            yield LintFinding("L03", LintSeverity.ERROR, f"{method}() answers {answer!r}, which is no bool")
    answer = ask(accelerator, "supported_dtypes")
    if answer is not SILENCE and not isinstance(answer, list):
        yield LintFinding("L03", LintSeverity.ERROR, f"supported_dtypes() answers {answer!r}, which is no list")


def _timers(accelerator: Any) -> Findings:
    if ask(accelerator, "Event") is None and ask(accelerator, "use_host_timers") is False:
        yield LintFinding(
            "L08",
            LintSeverity.ERROR,
            "Event is None, but use_host_timers() is False: nothing is left to measure time with",
        )
    if ask(accelerator, "Stream") is None and ask(accelerator, "current_stream") not in (None, SILENCE):
        yield LintFinding("L09", LintSeverity.ERROR, "Stream is None, but current_stream() answers a stream")


def _order(accelerator: Any) -> Findings:
    synchronous, ordered = (ask(accelerator, flag) for flag in ("is_synchronized_device", "resolves_data_dependency"))
    if synchronous is True and ordered is False:
        yield LintFinding(
            "L12",
            LintSeverity.WARNING,
            "is_synchronized_device() is True and resolves_data_dependency() False: what is complete is in order",
        )


def _visibility(accelerator: Any) -> Findings:
    variables = ask(accelerator, "visible_devices_envs")
    if variables is SILENCE:
        return
    if not isinstance(variables, list) or not variables:
        yield LintFinding("L13", LintSeverity.WARNING, f"visible_devices_envs() answers {variables!r}; name a variable")
        return
    name = ask(accelerator, "device_name")
    others = [builtin(other) for other in builtin_names()]
    own = {other.visible_devices for other in others if name == (other.device_type or other.name)}
    if name is SILENCE or own & set(variables):
        return
    for other in (other for other in others if other.visible_devices in variables and not other.device_type):
        sentence = f"visible_devices_envs() names {other.visible_devices}, which is {other.name}'s"
        yield LintFinding("L13", LintSeverity.WARNING, sentence)


def _builders(accelerator: Any) -> Findings:
    found = _call(accelerator, "get_op_builder", _NO_BUILDER)
    made = _call(accelerator, "create_op_builder", _NO_BUILDER)
    if SILENCE in (found, made) or (found is None and made is None):
        return
    if not isinstance(found, type) or type(made) is not found:
        yield LintFinding(
            "L14",
            LintSeverity.ERROR,
            f"for an unknown name get_op_builder() answers {_short(found)} and create_op_builder() {_short(made)}",
        )


def _call(accelerator: Any, method: str, *arguments: Any) -> Any:
    try:
        return getattr(accelerator, method)(*arguments)
    except Exception:  # noqa: BLE001 - a member that raises is a verdict of its case
        return SILENCE


def _short(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else "None" if value is None else f"a {type(value).__name__}"


# --- source code ----------------------------------------------------------------------------------------------------


def _missing(accelerator: Any) -> Findings:
    present = members_of(accelerator)
    for member in MEMBERS:
        if member.name not in present:
            severity = LintSeverity.WARNING if member.optional else LintSeverity.ERROR
            yield LintFinding("L10", severity, f"{member.name} is missing")


def _signatures(accelerator: Any) -> Findings:
    for member in MEMBERS:
        function = _function(accelerator, member.name)
        if member.signature is None or not inspect.isfunction(function):
            continue
        expected, actual = (_parameters(s) for s in (member.signature, inspect.signature(function)))
        if actual[: len(expected)] != expected and "**" not in actual:
            yield LintFinding(
                "L06",
                LintSeverity.ERROR,
                f"{member.name}({', '.join(actual)}) should be {member.name}({', '.join(expected)}): "
                "calls by keyword break",
            )


def _parameters(signature: inspect.Signature) -> list[str]:
    catch_all = inspect.Parameter.VAR_KEYWORD
    names = ["**" if parameter.kind is catch_all else name for name, parameter in signature.parameters.items()]
    return [name for name in names if name != "self"]


def _constants(accelerator: Any) -> Findings:
    for method in _BOOLEANS:
        constant = _constant(_function(accelerator, method))
        if constant in ("True", "False"):
            yield LintFinding("L04", LintSeverity.NOTE, f"{method}() is the constant {constant}; no device is asked")


def _stubs(accelerator: Any) -> Findings:
    for member in MEMBERS:
        if member.name not in _MAY_BE_EMPTY and _is_stub(accelerator, member):
            yield LintFinding("L05", LintSeverity.ERROR, f"{member.name} does nothing and answers None")


def _is_stub(accelerator: Any, member: Member) -> bool:
    return _constant(_function(accelerator, member.name)) in ("None", "nothing")


def _graphs(accelerator: Any) -> Findings:
    present = [name for name in _GRAPH_MEMBERS if has_member(accelerator, name)]
    empty = {name: _constant(_function(accelerator, name)) in ("None", "nothing") for name in present}
    if not {"create_graph", "replay_graph"} <= empty.keys():
        return
    if empty["create_graph"] != empty["replay_graph"]:
        real, stub = sorted(("create_graph", "replay_graph"), key=lambda name: empty[name])
        yield LintFinding(
            "L07", LintSeverity.ERROR, f"{real}() is real, but {stub}() does nothing: graphs are all or none"
        )


def _function(accelerator: Any, name: str) -> Any:
    """The function behind a method or property of the accelerator's own class; None for what it inherits from ours."""
    try:
        static = inspect.getattr_static(accelerator, name)
    except AttributeError:
        return None
    function = static.fget if isinstance(static, property) else static
    inherited = getattr(Accelerator, name, None)
    return None if function in (inherited, getattr(inherited, "fget", SILENCE)) else function


def _constant(function: Any) -> str:
    """``True``, ``False``, ``None`` or ``nothing`` if that is all a function's body comes to; else an empty string."""
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


_RULES: tuple[Callable[[Any], Findings], ...] = (
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
