"""Script that reproduces the failure of an operator cell with torch and the vendor's package alone.

The case runs again, on PyTorch's CPU if the message of the failure names the sample, and else on the device. The call
that failed is recorded with copies of its arguments, and written as Python.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from conformance.errors import ConformanceError, UsageError

if TYPE_CHECKING:
    import torch

    from conformance.case import Case
    from conformance.reports.model import CaseRecord, Report

#: Elements that a script holds at most; PyTorch's database has few samples that are larger.
_MOST_ELEMENTS = 20_000


@dataclass(frozen=True)
class Call:
    """One call of the operator under test: the function, its sample, and the keywords of the variant."""

    function: Any
    sample: Any
    extra: dict[str, Any]
    cotangents: tuple[Any, ...] = ()


def script(case: Case, report: Report | None, accelerator: str = "") -> str:
    """Return the script for the case's failure in the report, or for its first sample without a report.

    ``accelerator`` replaces the one of the report, which is used only if it is a registered name.
    Raises UsageError for a case that has no script.
    """
    record = next((found for found in report.cases if found.id == case.id), None) if report else None
    if case.area != "operators" or case.dtype is None:
        repro = f"; run it with: {record.repro}" if record and record.repro else ""
        raise UsageError(f"{case.id} has no script: only cells of operators with a dtype have one{repro}")
    seed = report.run.invocation.seed if report else 0
    spec = accelerator or (_registered(report.accelerator.spec) if report else "cpu")
    call = _failing_call(case, record, seed, spec)
    return _Text(case, call, *_vendor(spec, report)).text(record)


def _registered(spec: str) -> str:
    """Return the report's accelerator; UsageError for a module, which the report's author could choose to be run."""
    from conformance.accelerators.registry import names

    if spec in names() or spec.partition(":")[0] in ("deepspeed", "torch"):
        return spec
    raise UsageError(
        f"the report names the accelerator {spec or '(none)'}, which is not a registered name, and no module is "
        "imported because a report names it.\n  name it yourself, if you trust it: --accelerator NAME"
    )


def _failing_call(case: Case, record: CaseRecord | None, seed: int, spec: str) -> Call:
    calls, _ = _calls(case, seed, "cpu")
    if record is None or record.outcome.value != "fail":
        return calls[0]
    if call := _named(calls, record.message):
        return call
    return _failing_on_device(case, record, seed, spec)


def _failing_on_device(case: Case, record: CaseRecord, seed: int, spec: str) -> Call:
    """Return the last call before the failure, found by running the case on the device."""
    if record.reason.value in ("crash", "hang", "poisoned"):
        raise UsageError(f"{case.id} has no script: it ended as {record.reason.value}; run it with: {record.repro}")
    try:
        calls, error = _calls(case, seed, spec)
    except ConformanceError as reason:
        raise UsageError(
            f"{case.id} has no script here: the report does not name the sample that failed, and accelerator "
            f"'{spec}' is not usable on this machine ({str(reason).splitlines()[0]}); repeat the command where it is"
        ) from None
    if record.reason.value == "fallback" and calls:
        return calls[0]  # the first calls are the ones that are watched
    if error is None or not calls:
        raise UsageError(f"{case.id} has no script: it did not fail again on this machine")
    return calls[-1]


def _calls(case: Case, seed: int, spec: str) -> tuple[list[Call], Exception | None]:
    """Run the case on an accelerator; return the calls of the operator under test, and how the case ended."""
    import torch

    from conformance.accelerators.registry import resolve
    from conformance.case import seed_of
    from conformance.checker import Checker
    from conformance.process.state import seed_everything
    from conformance.suites.operators import cell, execution

    accelerator = resolve(spec).load()
    device = torch.device(accelerator.current_device_name())
    recorder = _Recorder(execution.execute, execution.gradients)
    seed_everything(seed_of(case.id, seed), accelerator)
    with (
        mock.patch.object(execution, "execute", recorder.execute),
        mock.patch.object(execution, "gradients", recorder.gradients),
    ):
        try:
            cell.run(case, device, Checker())
        except Exception as error:  # noqa: BLE001 - the case may fail in any way; that is what is looked for
            return recorder.calls, error
    return recorder.calls, None


class _Recorder:
    """Recorder of calls on the device's side. The host's generator ends where it would with a device of its own."""

    def __init__(self, execute: Any, gradients: Any) -> None:
        self._execute, self._gradients = execute, gradients
        self.calls: list[Call] = []

    def execute(self, function: Any, sample: Any, **extra: Any) -> Any:
        import torch

        # Before the call, which may change its arguments.
        self.calls.append(Call(function, _on_host(sample), _copied(extra)))
        state = torch.get_rng_state()
        try:
            return self._execute(function, sample, **extra)
        finally:
            torch.set_rng_state(state)

    def gradients(self, outputs: Any, inputs: Any, cotangents: Any) -> Any:
        kept = tuple(cotangent.detach().cpu() for cotangent in cotangents)
        self.calls[-1] = replace(self.calls[-1], cotangents=kept)
        return self._gradients(outputs, inputs, cotangents)


def _on_host(sample: Any) -> Any:
    return sample.with_arguments(_copied(sample.arguments))


def _copied(value: Any) -> Any:
    """Return a copy with all tensors on the host."""
    import torch

    from conformance.numerics.transfer import copied
    from conformance.numerics.trees import mapped

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
            return leaf
        return leaf.detach().cpu().requires_grad_(leaf.requires_grad)

    return copied(mapped(value, moved), torch.device("cpu"))


def _named(calls: list[Call], message: str) -> Call | None:
    """Return the call that the message names, or None."""
    of_sample = [call for call in calls if message.startswith(str(call.sample))]
    if not of_sample:
        return None
    label = message.removeprefix(str(of_sample[0].sample)).split(":", 1)[0]
    if "out=" in label:
        given = [call for call in of_sample if call.extra]
        return given[1 if "wrong-size" in label else -1 if "integer" in label else 0] if given else None
    plain = [call for call in of_sample if not call.extra]
    in_place = [call for call in plain if call.function is not plain[0].function]
    if in_place and ("in-place" in label or "in place" in label):
        return in_place[0]
    with_gaps = [call for call in plain if not all(tensor.is_contiguous() for tensor in call.sample.tensors)]
    return with_gaps[0] if with_gaps and "non-contiguous" in label else plain[0]


def _vendor(spec: str, report: Report | None) -> tuple[str, str]:
    """Return the name of the device, and the package to import; empty if torch itself has the device."""
    from conformance.accelerators.registry import resolve

    device = report.accelerator.device if report else "cpu"
    try:
        return device or "cpu", str(getattr(resolve(spec).unloaded(), "package", "") or "")
    except ConformanceError:
        return device or "cpu", ""


class _Text:
    """The script's text. Tensors become variables of a function that runs on a given device."""

    def __init__(self, case: Case, call: Call, device: str, package: str) -> None:
        self._case, self._call, self._device, self._package = case, call, device, package
        self._names: dict[int, str] = {}
        self._lines: list[str] = []

    def text(self, record: CaseRecord | None) -> str:
        """Return the script; its first comment is the message of the failure."""
        from conformance.reports.plain_text import one_line

        failure = f"{record.reason.value}: {record.message}" if record and record.message else "first sample"
        about = textwrap.fill(
            one_line(f"{self._case.id} on {self._device}: {failure}"), 110, initial_indent="# ", subsequent_indent="# "
        )
        body = "\n".join(self._body())
        numbers = ["from math import inf, nan", ""] if "inf" in body or "nan" in body else []
        package = [f"import {self._package}"] if self._package else []
        head = "\n".join([about, *numbers, "import torch", *package])
        watched = record is not None and record.reason.value == "fallback"
        end = (_RUN + (_PROFILED if watched else _COMPARED)).format(device=self._device)
        return f"{head}\n\n\ndef run(device):\n{textwrap.indent(body, '    ')}\n\n\n{end}"

    def _body(self) -> Iterator[str]:
        call = self._call
        stays = {id(call.sample.tensors[position]) for position in call.sample.on_host}
        arguments = [self._expression(value, stays) for value in (call.sample.input, *call.sample.args)]
        keywords = {**call.sample.kwargs, **call.extra}
        arguments += [f"{name}={self._expression(value, stays)}" for name, value in keywords.items()]
        function = _function(call.function, self._case)
        yield "torch.manual_seed(0)"
        if function is None:
            yield f"# {self._case.payload} is a function of PyTorch's own tests."
            yield "from torch.testing._internal.common_methods_invocations import op_db"
            yield f"info = next(info for info in op_db if info.full_name == {self._case.payload!r})"
            function = "info.op"
        yield from self._lines
        called = f"{function}({', '.join(arguments)})"
        if not call.cotangents:
            yield f"return {called}"
            return
        self._lines.clear()
        cotangents = ", ".join(self._expression(cotangent, set()) for cotangent in call.cotangents)
        inputs = ", ".join(self._names[id(t)] for t in call.sample.tensors if t.requires_grad)
        yield from self._lines
        yield f"result = {called}"
        yield "outputs = [result] if isinstance(result, torch.Tensor) else result"
        yield "outputs = [output for output in outputs if output.requires_grad]"
        yield f"gradients = torch.autograd.grad(outputs, [{inputs}], [{cotangents}], allow_unused=True)"
        yield "return result, gradients"

    def _expression(self, value: Any, stays: set[int]) -> str:
        import torch

        expression = functools.partial(self._expression, stays=stays)
        if isinstance(value, torch.Tensor):
            return self._variable(value, "" if id(value) in stays else ".to(device)")
        if type(value) is list:
            return f"[{', '.join(map(expression, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(expression, value))}{',' if len(value) == 1 else ''})"
        if type(value) is dict:
            return "{" + ", ".join(f"{key!r}: {expression(item)}" for key, item in value.items()) + "}"
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return "device"
        if isinstance(value, torch.Generator):
            return f"torch.Generator(device).manual_seed({value.initial_seed()})"
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        kinds = (bool, int, float, complex, str, slice, type(None), type(...), torch.dtype, torch.memory_format)
        if isinstance(value, (*kinds, torch.layout)):
            return repr(value)
        raise UsageError(f"{self._case.id} has no script: an argument is a {type(value).__name__}")

    def _variable(self, tensor: torch.Tensor, move: str) -> str:
        """Return the name of the variable for a tensor; its definition is added to the lines."""
        if id(tensor) not in self._names:
            name = self._names[id(tensor)] = f"t{len(self._names)}"
            value = f"{name} = {_literal(tensor, move, self._case)}"
            self._lines.append(textwrap.fill(value, 110, subsequent_indent="    ", break_long_words=False))
        return self._names[id(tensor)]


def _literal(tensor: torch.Tensor, move: str, case: Case) -> str:
    """Return an expression that makes a tensor with the same numbers and strides."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UsageError(f"{case.id} has no script: an argument has the layout {tensor.layout}")
    needs_grad = ".requires_grad_()" if tensor.requires_grad else ""
    dense = tensor.detach().resolve_conj().resolve_neg()
    shape, memory = tuple(dense.shape), dense.reshape(-1)
    form = "" if dense.dim() == 1 else f".reshape({shape})"
    if not dense.is_contiguous() and dense.numel():
        length = (
            1
            + dense.storage_offset()
            + sum((size - 1) * step for size, step in zip(shape, dense.stride(), strict=True))
        )
        memory, form = dense.as_strided((length,), (1,), 0), ""
        needs_grad = f".as_strided({shape}, {dense.stride()}, {dense.storage_offset()}){needs_grad}"
    if memory.numel() > _MOST_ELEMENTS:
        raise UsageError(f"{case.id} has no script: its sample has {memory.numel()} numbers")
    if memory.is_complex():
        made = f"torch.complex({_numbers(memory.real)}, {_numbers(memory.imag)})"
    else:
        made = _numbers(memory)
    return f"{made}{form}{move}{needs_grad}"


def _numbers(vector: torch.Tensor) -> str:
    import torch

    if vector.is_floating_point():
        # The shortest text that gives the same number again in this dtype.
        exact = vector.float() if vector.dtype is not torch.float64 else vector
        texts = [str(number) for number in exact.numpy()]
    else:
        texts = [str(number) for number in vector.tolist()]
    return f"torch.tensor([{', '.join(texts)}], dtype={vector.dtype})"


def _function(function: Any, case: Case) -> str | None:
    """Return the expression that names the function in torch, or None if only PyTorch's tests have it."""
    import torch

    names = [torch.overrides.resolve_name(function), f"torch.{case.payload}", f"torch.ops.{function}"]
    for name in filter(None, names):
        try:
            found = eval(name, {"torch": torch})  # noqa: S307 - the names are torch's own
        except (AttributeError, SyntaxError, RuntimeError):
            continue
        if found is function:
            return str(name)
    return None


_RUN = """torch.set_printoptions(precision=9)
results = []
for device in ("cpu", {device!r}):
    try:
        results.append(run(device))
        print(f"{{device}}: {{results[-1]}}")
    except Exception as error:
        print(f"{{device}}: {{type(error).__name__}}: {{error}}")
"""
_COMPARED = """if len(results) == 2:
    expected, found = results
    if isinstance(found, torch.Tensor):
        print(f"strides {{found.stride()}}, on cpu {{expected.stride()}}")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, check_device=False)
"""
_PROFILED = """with torch.profiler.profile(record_shapes=True) as profile:
    run({device!r})
print(profile.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total"))
"""
