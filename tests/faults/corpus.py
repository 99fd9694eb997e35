"""Calls of overloads that PyTorch's own databases make on the CPU: what the public API reaches, with arguments.

The databases are ``op_db`` with backward, ``module_db``, ``optim_db`` and those of foreach. The calls are found under a
dispatch mode, and kept in a file in the user's cache folder: they depend on torch alone, not on the suite.
"""

from __future__ import annotations

import itertools
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import encoding
from .overloads import bound

#: Changes when this file finds or keeps other calls.
_VERSION = 3
#: Calls of one overload that are kept, and elements of their tensors.
_KEPT, _ELEMENTS = 8, 1 << 13
#: Samples of an operator in one dtype.
_SAMPLES = 6
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)


@dataclass(frozen=True)
class Sample:
    """A call of an operator in ``op_db``, by name and number, whose backward has a derivative rule."""

    operator: str
    dtype: torch.dtype
    number: int


@dataclass
class Corpus:
    """``calls``: by overload, the encoded values of some calls. ``nodes``: by derivative rule, samples and inputs."""

    calls: dict[str, list[list[Any]]] = field(default_factory=dict)
    nodes: dict[str, list[Sample]] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)


def path() -> Path:
    """Return the file of the corpus for this torch."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "accelerator-conformance" / f"fault-corpus-{torch.__version__}-{_VERSION}.pickle"


def read() -> Corpus | None:
    """Return the kept corpus, or None."""
    try:
        return pickle.loads(path().read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError):
        return None


def find() -> None:
    """Find all calls and keep them. This runs backward passes: do it in a process that forks no others."""
    capture = _Capture()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in (_operators, _modules, _optimizers, _foreach):
            work(capture)
    path().parent.mkdir(parents=True, exist_ok=True)
    temporary = path().with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps(capture.corpus))
    temporary.replace(path())


class _Capture(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.corpus = Corpus()
        self._signatures: dict[str, set[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        if name.startswith("aten::"):
            self._keep(name, bound(list(func._schema.arguments), args, kwargs))
        return func(*args, **kwargs)

    def _keep(self, name: str, values: list[Any]) -> None:
        calls, known = self.corpus.calls.setdefault(name, []), self._signatures.setdefault(name, set())
        signature = tuple(_signature(value) for value in values)
        if len(calls) >= _KEPT or signature in known:
            return
        try:
            encoded = encoding.encode(values)
            pickle.dumps(encoded)
        except Exception:  # a generator, a storage, or a tensor that is too large or of another layout
            return
        if encoding.elements(encoded) <= _ELEMENTS:
            known.add(signature)
            calls.append(encoded)

    def graph_of(self, outputs: Any, sample: Sample) -> None:
        """Keep the derivative rules behind the outputs."""
        waiting = [tensor.grad_fn for tensor in encoding.tensors_of(outputs) if tensor.grad_fn is not None]
        seen = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            inputs = sum(next_node is not None for next_node, _ in node.next_functions)
            waiting += [next_node for next_node, _ in node.next_functions if next_node is not None]
            if inputs and node.name() != "torch::autograd::AccumulateGrad":
                samples = self.corpus.nodes.setdefault(node.name(), [])
                if inputs > self.corpus.inputs.get(node.name(), 0):
                    samples.clear()
                    self.corpus.inputs[node.name()] = inputs
                if inputs == self.corpus.inputs[node.name()] and len(samples) < 4 and sample not in samples:
                    samples.append(sample)


def _signature(value: Any) -> Any:
    """Return what makes two arguments alike: a tensor's dtype, rank and layout; a number's value."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), min(value.dim(), 2), value.is_contiguous()
    if isinstance(value, (list, tuple)):
        return tuple(_signature(item) for item in value[:2]) if any(map(torch.is_tensor, value)) else "list"
    return repr(value) if isinstance(value, (bool, str, type(None))) else type(value).__name__


def samples(info: Any, dtype: torch.dtype, *, trains: bool) -> list[Any]:
    """Return an operator's first small samples of a dtype, the same every time."""
    torch.manual_seed(0)
    generated = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=trains), _SAMPLES * 3)
    every = list(generated)
    return every[:: max(1, len(every) // _SAMPLES)][:_SAMPLES]


def database() -> dict[str, Any]:
    """Return PyTorch's operators by their full names."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name: info for info in op_db}


def _quietly(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of ``work``, or None where the CPU refuses."""
    try:
        return work(*args, **kwargs)
    except Exception:
        return None


def _operators(capture: _Capture) -> None:
    for name, info in database().items():
        supported = [dtype for dtype in _DTYPES if dtype in info.dtypes]
        for dtype in supported:
            trains = info.supports_autograd and dtype in (torch.float32, torch.complex64)
            for number, sample in enumerate(_quietly(samples, info, dtype, trains=trains) or []):
                _quietly(_operator, capture, info, sample, Sample(name, dtype, number), trains)


def _operator(capture: _Capture, info: Any, sample: Any, where: Sample, trains: bool) -> None:
    with capture:
        result = info.op(sample.input, *sample.args, **sample.kwargs)
    outputs = [tensor for tensor in encoding.tensors_of(result) if tensor.requires_grad] if trains else []
    if outputs:
        capture.graph_of(outputs, where)
        with capture:
            torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    if not trains or where.number == 0:
        for form in _other_forms(info, sample):
            with capture:
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


def _modules(capture: _Capture) -> None:
    from torch.testing._internal.common_modules import module_db

    for info, training in itertools.product(module_db, (True, False)):
        made = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for module_input in itertools.islice(made, 4):
            _quietly(_module, capture, info, module_input, training)


def _module(capture: _Capture, info: Any, module_input: Any, training: bool) -> None:
    given, forward = module_input.constructor_input, module_input.forward_input
    module = info.module_cls(*given.args, **given.kwargs).train(training)
    with capture:
        outputs = [t for t in encoding.tensors_of(module(*forward.args, **forward.kwargs)) if t.requires_grad]
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])


def _optimizers(capture: _Capture) -> None:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for option in info.optim_inputs_func("cpu"):
            for extra in ({}, {"foreach": True}, {"fused": True}, {"foreach": False}):
                _quietly(_optimizer, capture, info, {**option.kwargs, **extra})


def _optimizer(capture: _Capture, info: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    parameters = [torch.randn(3, 4, requires_grad=True), torch.randn(5, requires_grad=True)]
    optimizer = info.optim_cls(parameters, **options)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    with capture:
        optimizer.step(lambda: torch.tensor(1.0))
        optimizer.step(lambda: torch.tensor(1.0))


def _foreach(capture: _Capture) -> None:
    from torch.testing._internal import common_methods_invocations as databases

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    every = itertools.chain.from_iterable(getattr(databases, f"foreach_{kind}_op_db", []) for kind in kinds)
    for info in every:
        for dtype in (torch.float32, torch.int64):
            for sample in _foreach_samples(info, dtype):
                for form in (info.method_variant, info.inplace_variant):
                    if form is not None:
                        _quietly(_foreach_call, capture, form, sample)


def _foreach_samples(info: Any, dtype: torch.dtype) -> Iterable[Any]:
    made = lambda: list(itertools.islice(info.sample_inputs("cpu", dtype, noncontiguous=False), 8))  # noqa: E731
    return _quietly(made) or []


def _foreach_call(capture: _Capture, form: Any, sample: Any) -> None:
    lists = [tensor.clone() for tensor in sample.input]
    with capture, torch.no_grad():
        form(lists, *sample.args, **sample.kwargs)
