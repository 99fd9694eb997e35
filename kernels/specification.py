"""A kernel as a specification: what is called, what it means, how exact it has to be, and what to try it with.

Implementations are checked against the specification, never against each other. docs/kernels.md says how to write one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import DTYPES, Capability, Mode

#: DeepSpeed's words for dtypes, at the end of names.
WORDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: A call's arguments by name, in the order of the signature. Lists of tensors, and lists of lists, are possible.
Arguments = dict[str, Any]


class TensorLocation(Enum):
    """Where a kernel's tensors live."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True)
class Expected:
    """The oracle's answer for one tensor.

    ``value`` is float64 (or an integer dtype, which is then compared exactly) and has the result's shape. ``scale`` is
    the sum of the magnitudes of the terms that make it up, where these may cancel; the value's own magnitude without
    it. ``allowed`` replaces the budget by absolute errors. ``dtype`` is that of a returned tensor, if it matters.
    """

    value: Tensor
    scale: Tensor | None = None
    allowed: Tensor | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class ErrorBudget:
    """How far a result r may be from the exact value o, element by element:

        |r - o| <= rounding * u * |o|  +  conditioning * u_acc * scale  +  floor

    with u the unit roundoff of the result's dtype, u_acc that of float32 (float64 for float64), floor the smallest
    normal number (float16: two subnormal steps). ``source`` says where the two numbers come from.
    """

    rounding: float
    conditioning: float
    source: str


@dataclass(frozen=True)
class KernelSample:
    """One call. ``make`` gives its arguments on the host, the same each time: it draws from the generator it is given.

    ``dtypes`` limits the sample to some of the kernel's dtypes; none means all.
    """

    name: str
    make: Callable[[torch.Generator, torch.dtype], Arguments]
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A call that has to be refused with an error that names ``argument``, before anything is modified.

    ``spoil`` gets the arguments of the kernel's first sample, on their device, and returns those to call with.
    """

    name: str
    argument: str
    spoil: Callable[[Arguments], Arguments]


@dataclass(frozen=True)
class Property:
    """What holds between several calls (a round trip, a repeated step, decoding token by token).

    ``run(functions, device, dtype, generator)`` calls what the builder loaded and yields what it saw, as
    ``(what, tensor, Expected)``. The name is part of the case's id.
    """

    name: str
    run: Callable[[Any, torch.device, torch.dtype, torch.Generator], Iterable[tuple[str, Tensor, Expected]]]


def needs_no_trial(device_type: str) -> None:
    """What loads also runs."""


@dataclass(frozen=True)
class Native:
    """This project's own compiled implementation, for tensors on some types of device and in some dtypes.

    ``load`` builds it at first use and returns the function, with the kernel's signature; it raises SetupError, with
    a sentence, where that cannot be done. Where it ``needs`` a capability it is for the devices whose accelerator
    declares that, and for no others: ``devices`` is empty then. ``trial`` gets the device's type after ``load``, and
    raises SetupError where such code does not run on it.
    """

    load: Callable[[], Callable[..., Any]]
    what: str
    devices: frozenset[str] = frozenset({"cpu"})
    dtypes: frozenset[str] = frozenset()
    needs: Capability | None = None
    trial: Callable[[str], None] = needs_no_trial


def accepts_all(arguments: Arguments) -> None:
    """Nothing is refused."""


def no_session(functions: Any, arguments: Arguments) -> AbstractContextManager[None]:
    """Nothing has to be set up around a call."""
    return nullcontext()


@dataclass(frozen=True)
class KernelSpecification:
    """One entry point of an operator builder.

    ``name`` is unique, and part of ids. ``attribute`` is the name in what the builder named ``builder`` loads, where
    that is another; ``{dtype}`` in it stands for DeepSpeed's word for each dtype: ``softmax_{dtype}``. ``reference`` is
    the portable implementation by PyTorch's operators, on whatever device the tensors are; its signature is the exact
    one that DeepSpeed's Python code calls, by position, and its docstring the semantics with their source. None where
    there is no portable one.
    ``oracle`` computes the same in float64 from the formula, on the host and on its own, and answers by path: changed
    arguments as ``tensor_lists[1][0]``, what is returned as ``result`` or ``result[0]``. ``changes`` are the paths,
    or beginnings of paths, of the arguments that are modified in place: all others must keep their bits, but those in
    ``scratch``, whose content is the kernel's own.

    ``validate`` raises (see ``arguments.wrong``) before anything is modified. ``dtypes`` and ``mode`` make the cells
    ``kernels.<name>[<dtype>-<mode>]`` under which accelerators claim it; the dtype is handed to the samples.
    ``companions`` are what else the builder's object offers: constants, or functions that set something up, which
    ``session`` calls around a sample. ``location`` HOST is for kernels
    that work on host memory whatever the accelerator.
    """

    name: str
    builder: str
    mode: Mode
    dtypes: tuple[str, ...]
    samples: tuple[KernelSample, ...]
    oracle: Callable[[Arguments], Mapping[str, Expected]]
    budget: ErrorBudget
    reference: Callable[..., Any] | None
    changes: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    validate: Callable[[Arguments], None] = accepts_all
    refusals: tuple[Refusal, ...] = ()
    properties: tuple[Property, ...] = ()
    native: tuple[Native, ...] = ()
    location: TensorLocation = TensorLocation.DEVICE
    attribute: str = ""
    companions: Mapping[str, Any] = field(default_factory=dict)
    session: Callable[[Any, Arguments], AbstractContextManager[None]] = no_session
    signature: inspect.Signature = field(init=False, compare=False)
    _places: tuple[str, ...] = field(init=False, compare=False, default=())

    def __post_init__(self) -> None:
        declared = self.reference or (self.companions.get(self.name) if self.name in self.companions else None)
        if declared is None:
            raise ValueError(f"kernel {self.name!r}: a reference, or a companion of its name, gives the signature")
        if unknown := set(self.dtypes) - set(DTYPES):
            raise ValueError(f"kernel {self.name!r}: unknown dtypes {sorted(unknown)}")
        names = [one.name for one in self.samples]
        names += [one.name for one in self.refusals] + [one.name for one in self.properties]
        if len(set(names)) < len(names):
            raise ValueError(f"kernel {self.name!r}: two samples, refusals or properties have one name")
        object.__setattr__(self, "signature", inspect.signature(declared))
        kinds = [one.kind for one in self.signature.parameters.values()]
        if all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds):
            object.__setattr__(self, "_places", tuple(self.signature.parameters))

    @property
    def doc(self) -> str:
        """The semantics, with their source."""
        return inspect.getdoc(self.reference or self.companions[self.name]) or ""

    def attribute_for(self, dtype: str) -> str:
        """The name in what the builder loads, for tensors of that dtype."""
        return (self.attribute or self.name).replace("{dtype}", WORDS.get(dtype, dtype))

    @property
    def attributes(self) -> dict[str, str]:
        """All such names; each with the dtype that it is for, or an empty text if it is for all."""
        if "{dtype}" not in self.attribute:
            return {self.attribute or self.name: ""}
        return {self.attribute_for(dtype): dtype for dtype in self.dtypes}

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """A call's arguments by name, defaults filled in; TypeError as Python raises it."""
        if args and not kwargs and len(args) == len(self._places):
            return dict(zip(self._places, args, strict=True))  # as optimizers call, a thousand times a second
        call = self.signature.bind(*args, **kwargs)
        call.apply_defaults()
        return dict(call.arguments)

    def is_changed(self, path: str) -> bool:
        """Whether the argument at that path is modified in place."""
        return any(path == start or path.startswith((f"{start}[", f"{start}.")) for start in self.changes)
