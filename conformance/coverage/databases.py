"""Runs PyTorch's own databases on the CPU: ``op_db`` with backward, ``module_db``, ``optim_db`` and those of foreach.

What they reach is the measure of the public API.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Samples of an operator in one dtype.
_SAMPLES = 6
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)


@dataclass(frozen=True)
class Sample:
    """A call of an operator in ``op_db``, by name and number, whose backward has a derivative rule."""

    operator: str
    dtype: torch.dtype
    number: int


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every call of the databases, and the graph of each differentiated call."""

    def graph_of(self, outputs: Any, sample: Sample) -> None:
        """Keep what the graph behind the outputs tells."""


def run(watch: Watch) -> None:
    """Make the calls of all databases under ``watch``. This runs backward passes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in (_operators, _modules, _optimizers, _foreach):
            work(watch)


def rules_of(outputs: Iterable[torch.Tensor]) -> Iterator[tuple[str, int]]:
    """Yield the derivative rules of the graph behind the outputs, with their numbers of differentiable inputs."""
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        following = [next_node for next_node, _ in node.next_functions if next_node is not None]
        waiting += following
        if following and node.name() != "torch::autograd::AccumulateGrad":
            yield node.name(), len(following)


def samples(info: Any, dtype: torch.dtype, *, trains: bool) -> list[Any]:
    """Return an operator's first small samples of a dtype, the same every time."""
    torch.manual_seed(0)
    generated = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=trains), _SAMPLES * 3)
    every = list(generated)
    return every[:: max(1, len(every) // _SAMPLES)][:_SAMPLES]


def database() -> dict[str, Any]:
    """Return PyTorch's operators by their full names."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.full_name: info for info in op_db}


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def _quietly(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of ``work``, or None where the CPU refuses."""
    try:
        return work(*args, **kwargs)
    except Exception:  # noqa: BLE001 - a sample that the CPU refuses says nothing
        return None


def _operators(watch: Watch) -> None:
    for name, info in database().items():
        supported = [dtype for dtype in _DTYPES if dtype in info.dtypes]
        for dtype in supported:
            trains = info.supports_autograd and dtype in (torch.float32, torch.complex64)
            for number, sample in enumerate(_quietly(samples, info, dtype, trains=trains) or []):
                _quietly(_operator, watch, info, sample, Sample(name, dtype, number), trains)


def _operator(watch: Watch, info: Any, sample: Any, where: Sample, trains: bool) -> None:
    """Call an operator with a sample, differentiate it, and call its in-place and ``out=`` forms."""
    with watch:
        result = info.op(sample.input, *sample.args, **sample.kwargs)
    outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad] if trains else []
    if outputs:
        watch.graph_of(outputs, where)
        with watch:
            torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    if not trains or where.number == 0:
        for form in _other_forms(info, sample):
            with watch:
                _quietly(form)


def _other_forms(info: Any, sample: Any) -> Iterator[Callable[[], Any]]:
    """Yield the in-place and the ``out=`` call of a sample."""
    with torch.no_grad():
        if info.inplace_variant and isinstance(sample.input, torch.Tensor):
            copy = sample.input.detach().clone()
            yield lambda: info.inplace_variant(copy, *sample.args, **sample.kwargs)
        if info.supports_out:
            out = _quietly(lambda: info.op(sample.input, *sample.args, **sample.kwargs))
            if isinstance(out, torch.Tensor):
                yield lambda: info.op(sample.input, *sample.args, **sample.kwargs, out=torch.empty_like(out))


def _modules(watch: Watch) -> None:
    from torch.testing._internal.common_modules import module_db

    for info, training in itertools.product(module_db, (True, False)):
        made = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for module_input in itertools.islice(made, 4):
            _quietly(_module, watch, info, module_input, training)


def _module(watch: Watch, info: Any, module_input: Any, training: bool) -> None:
    given, forward = module_input.constructor_input, module_input.forward_input
    module = info.module_cls(*given.args, **given.kwargs).train(training)
    with watch:
        outputs = [t for t in tensors_of(module(*forward.args, **forward.kwargs)) if t.requires_grad]
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])


def _optimizers(watch: Watch) -> None:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for option in info.optim_inputs_func("cpu"):
            for extra in ({}, {"foreach": True}, {"fused": True}, {"foreach": False}):
                _quietly(_optimizer, watch, info, {**option.kwargs, **extra})


def _optimizer(watch: Watch, info: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    parameters = [torch.randn(3, 4, requires_grad=True), torch.randn(5, requires_grad=True)]
    optimizer = info.optim_cls(parameters, **options)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    with watch:
        optimizer.step(lambda: torch.tensor(1.0))
        optimizer.step(lambda: torch.tensor(1.0))


def _foreach(watch: Watch) -> None:
    from torch.testing._internal import common_methods_invocations as known

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    every = itertools.chain.from_iterable(getattr(known, f"foreach_{kind}_op_db", []) for kind in kinds)
    for info in every:
        for dtype in (torch.float32, torch.int64):
            for sample in _foreach_samples(info, dtype):
                for form in (info.method_variant, info.inplace_variant):
                    if form is not None:
                        _quietly(_foreach_call, watch, form, sample)


def _foreach_samples(info: Any, dtype: torch.dtype) -> Iterable[Any]:
    made = lambda: list(itertools.islice(info.sample_inputs("cpu", dtype, noncontiguous=False), 8))  # noqa: E731
    return _quietly(made) or []


def _foreach_call(watch: Watch, form: Any, sample: Any) -> None:
    lists = [tensor.clone() for tensor in sample.input]
    with watch, torch.no_grad():
        form(lists, *sample.args, **sample.kwargs)
