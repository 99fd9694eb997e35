"""Kernel specifications: signature, semantics, oracle, error budget and samples of one entry point.

Implementations are checked against the specification, never against each other. kernels/README.md explains how to write
a specification.
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

#: DeepSpeed's abbreviations for dtypes, used as suffixes of entry points.
WORDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: A call's arguments by name, in the order of the signature. A value may be a list of tensors, or a list of such lists.
Arguments = dict[str, Any]


class TensorLocation(Enum):
    """Memory that holds a kernel's tensors: the accelerator's or the host's."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True)
class Expected:
    """Oracle result for one tensor.

    ``value`` has the result's shape. Its dtype is float64, or an integer dtype, which is then compared exactly.
    ``scale`` is the sum of the magnitudes of the terms that are added up; it matters where terms cancel. Without it,
    the magnitude of the value is used. ``allowed`` gives absolute errors, which replace the budget. ``dtype`` is the
    required dtype of a returned tensor; None accepts any.
    """

    value: Tensor
    scale: Tensor | None = None
    allowed: Tensor | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class ErrorBudget:
    """Error bound for each element: how far a result r may be from the exact value o.

        |r - o| <= rounding * u * |o|  +  conditioning * u_acc * scale  +  floor

    u is the unit roundoff of the result's dtype. u_acc is the unit roundoff of float32 (of float64 for float64
    results). floor is the smallest normal number (for float16: two subnormal steps). ``source`` justifies the two
    factors.
    """

    rounding: float
    conditioning: float
    source: str


@dataclass(frozen=True)
class KernelSample:
    """Arguments of one call of a kernel.

    ``make`` returns the arguments on the host. It draws all random numbers from the given generator, so that the same
    seed gives the same arguments. ``dtypes`` limits the sample to some of the kernel's dtypes; empty means all.
    """

    name: str
    make: Callable[[torch.Generator, torch.dtype], Arguments]
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Invalid call. The kernel must raise an error that names ``argument``, before it modifies anything.

    ``spoil`` gets the arguments of the kernel's first sample, on their device, and returns the invalid arguments.
    """

    name: str
    argument: str
    spoil: Callable[[Arguments], Arguments]


@dataclass(frozen=True)
class Property:
    """Relation between several calls: a round trip, a repeated step, decoding token by token.

    ``run(functions, device, dtype, generator)`` calls the functions that the builder loaded. It yields each observation
    as ``(description, tensor, Expected)``. The name is part of the case's id.
    """

    name: str
    run: Callable[[Any, torch.device, torch.dtype, torch.Generator], Iterable[tuple[str, Tensor, Expected]]]


def needs_no_trial(device_type: str) -> None:
    """Accept every device: an implementation that loads also runs."""


@dataclass(frozen=True)
class Native:
    """Compiled implementation of this project, for some device types and dtypes.

    ``load`` builds it at first use and returns a function with the kernel's signature. It raises SetupError where the
    build fails. ``what`` describes the implementation in the report. ``devices`` and ``dtypes`` limit it; no dtypes
    mean all. If ``needs`` names a capability, the implementation is only for accelerators that declare it, and
    ``devices`` is empty. ``trial`` gets the device type after ``load`` and raises SetupError if the code does not run
    there.
    """

    load: Callable[[], Callable[..., Any]]
    what: str
    devices: frozenset[str] = frozenset({"cpu"})
    dtypes: frozenset[str] = frozenset()
    needs: Capability | None = None
    trial: Callable[[str], None] = needs_no_trial


def accepts_all(arguments: Arguments) -> None:
    """Accept all arguments."""


def no_session(functions: Any, arguments: Arguments) -> AbstractContextManager[None]:
    """Return a context manager that sets nothing up."""
    return nullcontext()


@dataclass(frozen=True)
class KernelSpecification:
    """Specification of one entry point of an operator builder.

    ``name`` is unique and part of case ids. ``builder`` is the class name of the operator builder. ``attribute`` is the
    name of the function in the loaded object, if it differs from ``name``; ``{dtype}`` in it stands for DeepSpeed's
    abbreviation of each dtype: ``softmax_{dtype}``.

    ``reference`` is the portable implementation by PyTorch's operators, on the device of the tensors. DeepSpeed's
    Python code calls exactly its signature, by position. Its docstring defines the semantics and cites their source.
    It is None if no portable implementation exists.

    ``oracle`` computes the results in float64 on the host, from the formula and independently of the reference. Its
    keys are paths: ``tensor_lists[1][0]`` for a changed argument, ``result`` or ``result[0]`` for a returned tensor.
    ``changes`` lists the paths, or prefixes of paths, of the arguments that are modified in place. All other arguments
    must keep their bits, except those in ``scratch``, which are working memory of the kernel.

    ``validate`` raises (see ``arguments.wrong``) before anything is modified. ``dtypes`` and ``mode`` form the cells
    ``kernels.<name>[<dtype>-<mode>]`` under which accelerators claim the kernel; samples get the dtype.
    ``companions`` are further attributes of the loaded object: constants, or functions that set something up.
    ``session`` returns a context manager that is entered around a sample. ``location`` is HOST for kernels that work on
    host memory, whatever the accelerator is.
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
    #: Parameter names, if all of them can be given by position; else empty.
    _parameters: tuple[str, ...] = field(init=False, compare=False, default=())

    def __post_init__(self) -> None:
        declared = self.reference or (self.companions.get(self.name) if self.name in self.companions else None)
        if declared is None:
            raise ValueError(
                f"kernel {self.name!r}: a reference, or a companion of its name, gives the signature; add one"
            )
        if unknown := set(self.dtypes) - set(DTYPES):
            raise ValueError(f"kernel {self.name!r}: unknown dtypes {sorted(unknown)}; known: {sorted(DTYPES)}")
        names = [sample.name for sample in self.samples]
        names += [refusal.name for refusal in self.refusals] + [relation.name for relation in self.properties]
        if len(set(names)) < len(names):
            raise ValueError(f"kernel {self.name!r}: two samples, refusals or properties have the same name")
        # The dataclass is frozen, so derived fields cannot be assigned in the usual way.
        object.__setattr__(self, "signature", inspect.signature(declared))
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        if all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds):
            object.__setattr__(self, "_parameters", tuple(self.signature.parameters))

    @property
    def doc(self) -> str:
        """Return the semantics and their source: the docstring of the reference."""
        return inspect.getdoc(self.reference or self.companions[self.name]) or ""

    def attribute_for(self, dtype: str) -> str:
        """Return the name of the function in the loaded object, for tensors of that dtype."""
        return (self.attribute or self.name).replace("{dtype}", WORDS.get(dtype, dtype))

    @property
    def attributes(self) -> dict[str, str]:
        """Return the names of all functions in the loaded object, each with its dtype (empty: for all dtypes)."""
        if "{dtype}" not in self.attribute:
            return {self.attribute or self.name: ""}
        return {self.attribute_for(dtype): dtype for dtype in self.dtypes}

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return a call's arguments by name, with defaults filled in. Raises TypeError as a Python call does."""
        # Signature.bind is slow, and optimizers call by position a thousand times a second.
        if args and not kwargs and len(args) == len(self._parameters):
            return dict(zip(self._parameters, args, strict=True))
        call = self.signature.bind(*args, **kwargs)
        call.apply_defaults()
        return dict(call.arguments)

    def is_changed(self, path: str) -> bool:
        """Return whether the argument at that path is modified in place."""
        return any(path == start or path.startswith((f"{start}[", f"{start}.")) for start in self.changes)
