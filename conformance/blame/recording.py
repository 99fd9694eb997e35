"""Recording of a run: every call that reaches PyTorch's dispatcher below autograd, in order."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from conformance.numerics.trees import PLAIN_TYPES, leaves, mapped, tensors
from conformance.suites.calls.kernels import bound, outputs_of, per_kernel

from .collectives import COLLECTIVES, Meeting, meeting
from .collectives import given as given_to
from .collectives import written as written_by
from .memory import Constant, Memories, Place

#: Types of tensors that answer no calls themselves.
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
#: Types of devices for which a tensor has a flag, such as ``is_cpu``.
_FLAGGED = frozenset({"cpu", "cuda", "meta"})
#: Namespaces whose calls compute nothing: marks of the profiler, and what prints.
_SILENT = frozenset({"profiler", "debugprims"})


class _Absent:
    """Custom operator of another process that this one does not have."""

    is_view, tags = False, frozenset[Any]()

    def __init__(self, name: str) -> None:
        self._name = name
        self.namespace, self.__name__, _ = name.split(".")
        self.overloadpacket = self

    def __str__(self) -> str:
        return self._name


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
    kept: list[torch.Tensor] | None = None  # results of a custom operator, which another process may not have
    is_view: bool = False
    meeting: Any = None  # of a collective: collectives.Meeting
    read: list[Place | Constant] = field(default_factory=list)  # what a collective reads

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with the function by its name, so that a process can send them to another."""
        return {**self.__dict__, "function": str(self.function)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the function again."""
        self.__dict__.update(state)
        space, packet, overload = state["function"].split(".")
        try:
            self.function = getattr(getattr(getattr(torch.ops, space), packet), overload)
        except AttributeError:
            self.function, self.constants = _Absent(state["function"]), self.kept

    @property
    def name(self) -> str:
        """Return the overload's name, such as ``aten.add.Tensor``."""
        return str(self.function)

    def places(self) -> Iterator[Place]:
        """Yield all places that the call reads or writes."""
        for leaf in (*leaves((self.args, self.kwargs)), *self.read, *self.results):
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
        # A device's name is made anew each time that it is asked for.
        flag = f"is_{device_type}"
        self._is_on_device = operator.attrgetter(flag) if device_type in _FLAGGED else self._is_of_type

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
        if not isinstance(func, torch._ops.OpOverload) or (kernel := _kernel(func)).namespace in _SILENT:
            return func(*args, **kwargs)
        given = tensors(args)
        if kwargs:
            given += tensors(kwargs)
        on_device, special, is_on_device = False, [], self._is_on_device
        for tensor in given:
            if type(tensor) not in _ORDINARY:
                special.append(tensor)
            if is_on_device(tensor):
                on_device = True
        if special:
            if any(_is_wrapper(tensor) and not self._is_own(tensor) for tensor in special):
                return NotImplemented
            if any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in special):
                return func(*args, **kwargs)  # a compiler looks at shapes
        return self._recorded(kernel, args, kwargs, given, on_device or self._makes_on_device(given, kwargs))

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is of the class that this device gives to all its tensors, as one in Python may."""
        return tensor.device.type == self._type and type(tensor) is self._own_class

    @functools.cached_property
    def _own_class(self) -> type[torch.Tensor]:
        return type(torch.empty(0, device=self._type))

    def _recorded(self, kernel: _Kernel, args: Any, kwargs: Any, given: list[torch.Tensor], on_device: bool) -> Any:
        func, memories = kernel.function, self.trace.memories
        if kernel.namespace in COLLECTIVES:
            if (met := meeting(func, args, kwargs)) is not None:
                return self._met(met, func, args, kwargs)
            if func is not torch.ops._c10d_functional.wait_tensor.default:
                for tensor in given:
                    memories.forget(tensor)  # a message may write it, at some time
                return func(*args, **kwargs)
        if not on_device and not any(memories.is_known(tensor) for tensor in given):
            return func(*args, **kwargs)  # a call of the host on what no device has computed
        step = Step(
            len(self.trace.steps),
            func,
            tuple([arg if type(arg) in PLAIN_TYPES else mapped(arg, self._place) for arg in args]),
            mapped(kwargs, self._place) if kwargs else {},
            *self._where(),
            is_view=kernel.is_view,
        )
        self.trace.steps.append(step)

        if self._look and on_device:
            result = self._look(step, args, kwargs, functools.partial(func, *args, **kwargs))
        else:
            result = func(*args, **kwargs)
        outputs = outputs_of(func, args, kwargs, result)
        step.results = [memories.place(output, new=True) for output in outputs]
        if not outputs:
            step.number_result = result
        if kernel.may_draw and self._type != "meta" and is_drawn(step):
            step.constants = [output.detach().to("cpu", copy=True) for output in outputs]
        return result

    def _met(self, met: Meeting, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a collective, and record what it reads and writes; its other arguments belong to this process."""
        memories = self.trace.memories
        read = [memories.place(tensor) for tensor in given_to(func, args, kwargs)]
        step = Step(len(self.trace.steps), func, (), {}, *self._where(), meeting=met, read=read)
        self.trace.steps.append(step)

        run = functools.partial(func, *args, **kwargs)
        result = self._look(step, args, kwargs, run) if self._look else run()
        step.results = [memories.place(tensor, new=True) for tensor in written_by(func, args, kwargs, result)]
        return result

    def _place(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")  # a replay is on the host, and another process may not know the device's name
        return self.trace.memories.place(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _is_of_type(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._type

    def _makes_on_device(self, given: Sequence[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if kwargs.get("device") is None:
            return self._type == "cpu" and not given  # the default device
        return torch.device(kwargs["device"]).type == self._type

    def _where(self) -> tuple[str, bool]:
        parents = self._modules.parents
        innermost = ""
        if len(parents) > 1 and (innermost := max(parents, key=len)) == "Global":  # it is always there
            innermost = max(parents - {"Global"}, key=len)
        return innermost, bool(self._modules.is_bw)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What the recorder asks of a kernel. ``may_draw``: with some arguments it draws random numbers."""

    function: Any
    namespace: str
    is_view: bool
    may_draw: bool


@per_kernel
def _kernel(func: Any) -> _Kernel:
    return _Kernel(func, str(func.namespace), bool(func.is_view), torch.Tag.nondeterministic_seeded in func.tags)


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that answers calls itself, such as DTensor."""
    kind = type(tensor)
    if kind in _ORDINARY or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def is_drawn(step: Step) -> bool:
    """Return whether a call draws random numbers. A kernel that drops nothing, with its rate 0, draws none."""
    if not _kernel(step.function).may_draw:
        return False
    rates = ("p", "dropout_p", "dropout")
    return not any(bound(step.function, step.args, step.kwargs).get(name, 1) == 0 for name in rates)
