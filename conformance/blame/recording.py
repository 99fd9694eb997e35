"""Recording of a run: every call that reaches PyTorch's dispatcher below autograd, in order."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from conformance.numerics.trees import PLAIN_TYPES, leaves, mapped, tensors
from conformance.suites.calls.kernels import bound, outputs_of, per_kernel, written_of

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
#: Objects that a recording keeps for each that the program keeps, about. Python looks for garbage when so many more are
#: there, and thus as often as without a recording.
_OBJECTS = 10


class _Absent:
    """Custom operator of another process that this one does not have."""

    is_view, tags = False, frozenset[Any]()

    def __init__(self, name: str) -> None:
        self._name = name
        self.namespace, self.__name__, _ = name.split(".")
        self.overloadpacket = self

    def __str__(self) -> str:
        return self._name


@dataclass(slots=True)
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
    results: Sequence[Place | Constant] = ()
    number_result: Any = None  # what a call returned that is no tensor, such as a number
    constants: list[torch.Tensor] | None = None
    kept: list[torch.Tensor] | None = None  # results of a custom operator, which another process may not have
    is_view: bool = False
    meeting: Any = None  # of a collective: collectives.Meeting
    read: Sequence[Place | Constant] = ()  # what a collective reads

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with the function by its name, so that a process can send them to another."""
        return {name: getattr(self, name) for name in self.__slots__} | {"function": str(self.function)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the function again."""
        for name, value in state.items():
            setattr(self, name, value)
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


class _Modules(ModuleTracker):
    """Names of the modules that run. Most of them get and give one tensor: a hook of it takes half the time."""

    def _fw_pre_hook(self, module: torch.nn.Module, given: Any) -> None:
        name = self._get_mod_name(module)  # type: ignore[no-untyped-call]
        self.parents.add(name)
        self._when_graded(given, self._get_pop_fn(name, True))  # type: ignore[no-untyped-call]

    def _fw_post_hook(self, module: torch.nn.Module, _given: Any, result: Any) -> None:
        name = self._get_mod_name(module)  # type: ignore[no-untyped-call]
        self.parents.discard(name)
        self._when_graded(result, self._get_append_fn(name, True))  # type: ignore[no-untyped-call]

    def _when_graded(self, value: Any, act: Callable[..., None]) -> None:
        found = [tensor for tensor in tensors(value) if tensor.requires_grad]
        if len(found) == 1:
            self._hooks.append(found[0].register_hook(act))  # type: ignore[no-untyped-call]
        elif found:
            self._hooks.append(register_multi_grad_hook(found, act))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Record all calls while this mode is on. ``look``, if given, makes each call on devices of a type."""

    def __init__(self, device_type: str, look: Look | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace, self._look, self._modules = Trace(), look, _Modules()
        self._type, self._parents, self._module = device_type, {"Global"}, ""
        # A device's name is made anew each time that it is asked for.
        flag = f"is_{device_type}"
        self._is_on_device = operator.attrgetter(flag) if device_type in _FLAGGED else self._is_of_type

    def __enter__(self) -> Recorder:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(_OBJECTS * self._thresholds[0], *self._thresholds[1:])
        self._modules.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._modules.__exit__(*error)  # type: ignore[no-untyped-call]
        gc.set_threshold(*self._thresholds)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call and record it. A tensor subclass splits its calls into others first."""
        kwargs = kwargs or {}
        kernel = _kernel(func)
        if kernel.is_silent:
            return func(*args, **kwargs)
        if types:  # of tensors that answer calls themselves
            given = tensors((args, kwargs))
            if any(_is_wrapper(tensor) and not self._is_own(tensor) for tensor in given):
                return NotImplemented
            if any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in given):
                return func(*args, **kwargs)  # a compiler looks at shapes
        return self._recorded(kernel, args, kwargs)

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is of the class that this device gives to all its tensors, as one in Python may."""
        return tensor.device.type == self._type and type(tensor) is self._own_class

    @functools.cached_property
    def _own_class(self) -> type[torch.Tensor]:
        return type(torch.empty(0, device=self._type))

    def _recorded(self, kernel: _Kernel, args: Any, kwargs: Any) -> Any:
        func, memories = kernel.function, self.trace.memories
        place = memories.place
        if kernel.is_collective:
            if (met := meeting(func, args, kwargs)) is not None:
                return self._met(met, func, args, kwargs)
            if func is not torch.ops._c10d_functional.wait_tensor.default:
                for tensor in tensors((args, kwargs)):
                    memories.forget(tensor)  # a message may write it, at some time
                return func(*args, **kwargs)
        on_device = self._is_of_device(args, kwargs)
        if not on_device and not any(map(memories.is_known, tensors((args, kwargs)))):
            return func(*args, **kwargs)  # a call of the host on what no device has computed
        step = Step(
            len(self.trace.steps),
            func,
            tuple([place(arg) if type(arg) is torch.Tensor else self._placed(arg) for arg in args]),
            mapped(kwargs, self._place) if kwargs else kwargs,
            self._innermost(),
            _is_backward(),
            is_view=kernel.is_view,
        )
        self.trace.steps.append(step)

        if self._look and on_device:
            result = self._look(step, args, kwargs, functools.partial(func, *args, **kwargs))
        else:
            result = func(*args, **kwargs)
        if type(result) is torch.Tensor and not kernel.writes:  # most calls
            outputs = [result]
            step.results = [place(result, new=True)]
        else:
            outputs = outputs_of(func, args, kwargs, result)
            step.results = [place(output, new=True) for output in outputs]
            if not outputs:
                step.number_result = result
        if kernel.may_draw and self._type != "meta" and is_drawn(step):
            step.constants = [output.detach().to("cpu", copy=True) for output in outputs]
        return result

    def _met(self, met: Meeting, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a collective, and record what it reads and writes; its other arguments belong to this process."""
        memories = self.trace.memories
        read = [memories.place(tensor) for tensor in given_to(func, args, kwargs)]
        step = Step(len(self.trace.steps), func, (), {}, self._innermost(), _is_backward(), meeting=met, read=read)
        self.trace.steps.append(step)

        run = functools.partial(func, *args, **kwargs)
        result = self._look(step, args, kwargs, run) if self._look else run()
        step.results = [memories.place(tensor, new=True) for tensor in written_by(func, args, kwargs, result)]
        return result

    def _placed(self, arg: Any) -> Any:
        """Return an argument with places for tensors."""
        if type(arg) in PLAIN_TYPES or (type(arg) is list and PLAIN_TYPES.issuperset(map(type, arg))):
            return arg
        return mapped(arg, self._place)

    def _place(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")  # a replay is on the host, and another process may not know the device's name
        return self.trace.memories.place(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _is_of_type(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._type

    def _is_of_device(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Return whether a call gets a tensor of the device, or makes one there."""
        if args and type(args[0]) in _ORDINARY and self._is_on_device(args[0]):  # most calls
            return True
        given = tensors((args, kwargs))
        return any(map(self._is_on_device, given)) or self._makes_on_device(given, kwargs)

    def _makes_on_device(self, given: Sequence[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if kwargs.get("device") is None:
            return self._type == "cpu" and not given  # the default device
        return torch.device(kwargs["device"]).type == self._type

    def _innermost(self) -> str:
        """Return the innermost module that is running."""
        parents = self._modules.parents
        if parents != self._parents:
            self._parents = set(parents)
            self._module = max(parents - {"Global"}, key=len, default="")  # "Global" is always there
        return self._module


def _is_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What the recorder asks of a kernel. ``may_draw``: it draws random numbers, unless one of its ``rates`` is 0."""

    function: Any
    is_silent: bool = False
    is_collective: bool = False
    is_view: bool = False
    writes: bool = False
    may_draw: bool = False
    rates: tuple[str, ...] = ()


@per_kernel
def _kernel(func: Any) -> _Kernel:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace in _SILENT:
        return _Kernel(func, is_silent=True)
    return _Kernel(
        func,
        is_collective=func.namespace in COLLECTIVES,
        is_view=bool(func.is_view),
        writes=bool(written_of(func)),
        may_draw=torch.Tag.nondeterministic_seeded in func.tags,
        rates=tuple(one.name for one in func._schema.arguments if one.name in ("p", "dropout_p", "dropout")),
    )


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that answers calls itself, such as DTensor."""
    kind = type(tensor)
    if kind in _ORDINARY or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def is_drawn(step: Step) -> bool:
    """Return whether a call draws random numbers. A kernel that drops nothing, with its rate 0, draws none."""
    kernel = _kernel(step.function)
    if not kernel.may_draw or not kernel.rates:
        return kernel.may_draw
    names = bound(step.function, step.args, step.kwargs)
    return all(names[name] != 0 for name in kernel.rates)
