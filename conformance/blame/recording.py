"""Recording of a run: every call that reaches PyTorch's dispatcher below autograd, in order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from conformance.numerics.budgets import load_table
from conformance.numerics.trees import leaves, mapped, tensors

from .memory import Constant, Memories, Place

#: Namespaces whose calls compute nothing: marks of the profiler, and what prints.
_SILENT = frozenset({"profiler", "debugprims"})
#: Namespaces of collectives. Their results depend on other ranks.
COLLECTIVES = frozenset({"c10d", "_c10d_functional", "c10d_functional"})


@functools.cache
def named(what: str) -> frozenset[str]:
    """Return a list of operators.toml."""
    return frozenset(load_table(__file__, "operators.toml")[what])


def base_name(function: Any) -> str:
    """Return the name of an overload without namespace and overload: ``add`` of ``aten.add.Tensor``."""
    return str(function.overloadpacket.__name__)


@dataclass
class Step:
    """One call of a run.

    ``args`` and ``kwargs`` have a Place for each tensor. ``results`` are the Places of what it returned and wrote, in
    the order of ``outputs_of``. ``constants`` has copies of results that a replay cannot compute. ``module`` is the
    innermost module that was running.
    """

    number: int
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: str = ""
    is_backward: bool = False
    results: list[Place | Constant] = field(default_factory=list)
    number_result: Any = None  # what a call returned that is no tensor, such as a number
    constants: list[torch.Tensor] | None = None
    on_device: bool = True
    is_view: bool = False
    error: str = ""

    @property
    def name(self) -> str:
        """Return the overload's name, such as ``aten.add.Tensor``."""
        return str(self.function)

    def places(self) -> Iterator[Place]:
        """Yield all places that the call reads or writes."""
        for leaf in (*leaves((self.args, self.kwargs)), *self.results):
            if isinstance(leaf, Place):
                yield leaf


@dataclass
class Trace:
    """Calls of one run, and its memories. ``ends`` are what the program returned, with their names."""

    steps: list[Step] = field(default_factory=list)
    memories: Memories = field(default_factory=Memories)
    ends: list[tuple[str, Place | Constant | Step]] = field(default_factory=list)


#: What looks at a call: gets the step, its arguments and keywords as they are, and runs the call by the last argument.
Look = Callable[[Step, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Record all calls while this mode is on. ``look``, if given, makes each call on devices of a type."""

    def __init__(self, device_type: str, look: Look | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace, self._look, self._modules = Trace(), look, ModuleTracker()
        self._type = device_type

    def __enter__(self) -> Recorder:
        self._modules.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._modules.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call and record it. A tensor subclass splits its calls into others first."""
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or func.namespace in _SILENT:
            return func(*args, **kwargs)
        given = tensors((args, kwargs))
        if any(_is_wrapper(tensor) for tensor in given):
            return NotImplemented
        if any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in given):
            return func(*args, **kwargs)  # a compiler looks at shapes
        return self._recorded(func, args, kwargs, given)

    def _recorded(self, func: Any, args: Any, kwargs: Any, given: Sequence[torch.Tensor]) -> Any:
        memories = self.trace.memories
        on_device = any(tensor.device.type == self._type for tensor in given) or self._makes_on_device(given, kwargs)
        if not on_device and not any(memories.is_known(tensor) for tensor in given):
            return func(*args, **kwargs)  # a call of the host on what no device has computed
        step = Step(
            len(self.trace.steps),
            func,
            mapped(args, self._place),
            mapped(kwargs, self._place),
            *self._where(),
            on_device=on_device,
            is_view=func.is_view,
        )
        self.trace.steps.append(step)

        def run() -> Any:
            try:
                return func(*args, **kwargs)
            except Exception as error:
                step.error = f"{type(error).__name__}: {error}"
                raise

        result = self._look(step, args, kwargs, run) if self._look and on_device else run()
        outputs = outputs_of(func, args, kwargs, result)
        step.results = [memories.place(output, new=True) for output in outputs]
        if not outputs:
            step.number_result = result
        if is_drawn(step):
            step.constants = [output.detach().to("cpu", copy=True) for output in outputs]
        return result

    def _place(self, leaf: Any) -> Any:
        return self.trace.memories.place(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _makes_on_device(self, given: Sequence[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if kwargs.get("device") is None:
            return self._type == "cpu" and not given  # the default device
        return torch.device(kwargs["device"]).type == self._type

    def _where(self) -> tuple[str, bool]:
        parents = self._modules.parents - {"Global"}
        return max(parents, key=len, default=""), bool(self._modules.is_bw)


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that answers calls itself, such as DTensor."""
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter) or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def outputs_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """Return the tensors that a call has written, in the order of its schema, and then those that it has made."""
    written: list[torch.Tensor] = []
    unsaid = load_table(__file__, "operators.toml")["writes"].get(base_name(func), ())
    for position, argument in enumerate(func._schema.arguments):
        if argument.name not in unsaid and (argument.alias_info is None or not argument.alias_info.is_write):
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written += tensors(value)
    known = {id(tensor) for tensor in written}
    return written + [tensor for tensor in tensors(result) if id(tensor) not in known]


def is_drawn(step: Step) -> bool:
    """Return whether a call draws random numbers. A kernel that drops nothing, with its rate 0, draws none."""
    if torch.Tag.nondeterministic_seeded not in step.function.tags:
        return False
    rates = ("p", "dropout_p", "dropout")
    return not any(bound(step.function, step.args, step.kwargs).get(name, 1) == 0 for name in rates)


def bound(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by their names, defaults included."""
    found = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found
