"""Kernels put into a model's modules: each asks the accelerator's builder, and takes the portable reference where that
has none.

The reference is reached whatever keeps the kernel away: no builder, a builder whose ``load()`` raises or gives None,
a name that is missing, one that is there with no kernel behind it (it raises when it is called), one with another
signature, a dtype that it does not take. Who computed, and why, is told per kernel and dtype. An error that says
anything else than "there is no such kernel" is the caller's: nothing is tried again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from conformance.errors import SetupError
from conformance.kernels.arguments import every_tensor
from conformance.kernels.implementation import Choice, Implementation, choice_behind
from conformance.kernels.specification import KernelSpecification
from conformance.kernels.specifications import specification

#: How builders, and operators that nobody registered, say that there is no kernel; as parts of RuntimeErrors.
_ABSENT = ("is not available", "not implemented", "not registered", "_OpNamespace")
_UNLOADABLE = (NotImplementedError, ValueError, ImportError, RuntimeError, OSError, AttributeError, SetupError)


class Builds(Protocol):
    """What is asked of an accelerator."""

    def create_op_builder(self, class_name: str) -> Any: ...


@dataclass(frozen=True)
class Told:
    """Who computed one kernel in one dtype, the last time it was called."""

    kernel: str
    dtype: str
    implementation: Implementation
    reason: str


class InjectedKernel:
    """One kernel of an accelerator, with the portable reference behind it. Called as its specification says."""

    def __init__(self, kernel: KernelSpecification, found: Mapping[str, Callable[..., Any]], missing: str) -> None:
        self.kernel, self._found, self._missing = kernel, found, missing
        self._told: dict[str, Choice] = {}

    def __call__(self, *arguments: Any) -> Any:
        dtype = _dtype_of(arguments)
        function, reason = self._function(dtype)
        if function is not None:
            try:
                result = function(*arguments)
            except (NotImplementedError, RuntimeError, AttributeError) as error:
                if not _says_absent(error):
                    raise
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            else:
                self._told[dtype] = choice_behind(function)
                return result
        return self._portably(dtype, reason, arguments)

    def told(self) -> Iterator[Told]:
        """Of each dtype that it was called with."""
        for dtype, choice in self._told.items():
            yield Told(self.kernel.name, dtype, choice.implementation, choice.reason)

    def _function(self, dtype: str) -> tuple[Callable[..., Any] | None, str]:
        name = self.kernel.attribute_for(dtype)
        function = self._found.get(name)
        if function is None:
            return None, self._missing or f"{self.kernel.builder} loads no {name}"
        return (None, f"{name} takes other arguments") if _differs(function, self.kernel) else (function, "")

    def _portably(self, dtype: str, reason: str, arguments: tuple[Any, ...]) -> Any:
        if self.kernel.reference is None:
            raise NotImplementedError(f"{self.kernel.name} has no portable reference, and {reason}")
        self.kernel.validate(self.kernel.bound(arguments, {}))
        result = self.kernel.reference(*arguments)
        self._told[dtype] = Choice(
            Implementation.REFERENCE, f"PyTorch's operators; {reason}", self.kernel.reference, lacks=reason
        )
        return result


class Injector:
    """The kernels of one accelerator, each found once."""

    def __init__(self, accelerator: Builds) -> None:
        self._accelerator = accelerator
        self._kernels: dict[str, InjectedKernel] = {}
        self._loaded: dict[str, tuple[Any, str]] = {}

    def kernel(self, name: str) -> InjectedKernel:
        """The kernel of that specification; an unknown name is an error with suggestions."""
        if name not in self._kernels:
            one = specification(name)
            functions, missing = self._load(one.builder)
            found = {attribute: getattr(functions, attribute, None) for attribute in one.attributes}
            there = {attribute: value for attribute, value in found.items() if callable(value)}
            self._kernels[name] = InjectedKernel(one, there, missing)
        return self._kernels[name]

    def companion(self, kernel: str, name: str) -> Callable[..., Any]:
        """What a kernel's builder offers beside it (to allocate a workspace), or this project's own."""
        one = specification(kernel)
        found = getattr(self._load(one.builder)[0], name, None)
        if not callable(found) or not self.kernel(kernel)._found:
            own: Callable[..., Any] = one.companions[name]
            return own
        return _with_portable(found, one.companions[name])

    def told(self) -> list[Told]:
        """Who computed, for every kernel and dtype that was called."""
        return [row for one in self._kernels.values() for row in one.told()]

    def _load(self, builder: str) -> tuple[Any, str]:
        if builder not in self._loaded:
            self._loaded[builder] = _loaded(self._accelerator, builder)
        return self._loaded[builder]


def _loaded(accelerator: Builds, name: str) -> tuple[Any, str]:
    """What the builder loads, or None and why."""
    try:
        builder = accelerator.create_op_builder(name)
    except _UNLOADABLE as error:
        return None, f"asking for {name} raises {_told_error(error)}"
    if builder is None:
        return None, f"there is no {name}"
    try:
        functions = builder.load()
    except _UNLOADABLE as error:
        return None, f"{name}.load() raises {_told_error(error)}"
    return functions, "" if functions is not None else f"{name}.load() gives None"


def _with_portable(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Both: the accelerator's attention may refuse some calls, which then need this project's workspace."""

    def both(*arguments: Any) -> Any:
        answer = ours(*arguments)
        if theirs is ours:
            return answer
        try:
            return theirs(*arguments)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            if not _says_absent(error):
                raise
            return answer

    return both


def _dtype_of(arguments: Iterable[Any]) -> str:
    first = next((one for one in every_tensor(arguments) if one.is_floating_point()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")


def _differs(function: Callable[..., Any], kernel: KernelSpecification) -> bool:
    """Whether it cannot be called with as many arguments. Compiled functions do not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*kernel.signature.parameters)
    except TypeError:
        return True
    return False


def _says_absent(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or any(part in str(error) for part in _ABSENT)


def _told_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# --- modules ----------------------------------------------------------------------------------------------------------


class InjectedLayerNorm(nn.Module):
    """LayerNorm of the last dimension by the accelerator's kernel, with the original's parameters."""

    def __init__(self, original: nn.LayerNorm, injector: Injector) -> None:
        super().__init__()
        self.weight, self.bias, self.epsilon = original.weight, original.bias, original.eps
        self._kernel = injector.kernel("layer_norm")

    def forward(self, source: Tensor) -> Any:
        return self._kernel(source.contiguous(), self.weight, self.bias, self.epsilon)


class InjectedRMSNorm(nn.Module):
    """RMSNorm of the last dimension by the accelerator's kernel."""

    def __init__(self, original: nn.RMSNorm, injector: Injector) -> None:
        super().__init__()
        self.weight, self.epsilon = original.weight, original.eps
        self._kernel = injector.kernel("rms_norm")

    def forward(self, source: Tensor) -> Any:
        epsilon = torch.finfo(source.dtype).eps if self.epsilon is None else self.epsilon
        return self._kernel(source.contiguous(), self.weight, epsilon)


class InjectedLinear(nn.Module):
    """A product, and its bias, by the accelerator's ``vector_matmul`` or ``linear_layer``."""

    def __init__(self, original: nn.Linear, injector: Injector) -> None:
        super().__init__()
        self.weight = original.weight
        self.bias: Tensor | None = original.bias
        self._kernel = injector.kernel("vector_matmul" if self.bias is None else "linear_layer")

    def forward(self, source: Tensor) -> Any:
        tokens = source.reshape(1, -1, source.shape[-1])
        if self.bias is None:
            scale = source.new_zeros(1)
            found = self._kernel(tokens, self.weight, False, scale, False, True)
        else:
            found = self._kernel(tokens, self.weight, self.bias, True, False, 1, True, 10000.0)
        return found.reshape(*source.shape[:-1], self.weight.shape[0])


#: ``rule(original, injector)`` gives the module to put in its place, or None to leave it.
Rule = Callable[[Any, Injector], nn.Module | None]


def _layer_norm(original: nn.LayerNorm, injector: Injector) -> nn.Module | None:
    plain = len(original.normalized_shape) == 1 and original.elementwise_affine and original.bias is not None
    return InjectedLayerNorm(original, injector) if plain else None


def _rms_norm(original: nn.RMSNorm, injector: Injector) -> nn.Module | None:
    plain = len(original.normalized_shape) == 1 and original.elementwise_affine
    return InjectedRMSNorm(original, injector) if plain else None


RULES: Mapping[type[nn.Module], Rule] = {
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Linear: InjectedLinear,
}


@dataclass
class Injection:
    """A model whose modules call kernels. For inference: kernels have no gradients."""

    model: nn.Module
    injector: Injector
    #: The original modules, by path.
    originals: dict[str, nn.Module] = field(default_factory=dict)

    def told(self) -> list[Told]:
        return self.injector.told()

    def restore(self) -> None:
        """Put the original modules back."""
        for path, original in self.originals.items():
            _put(self.model, path, original)
        self.originals.clear()


def inject(model: nn.Module, accelerator: Builds, rules: Mapping[type[nn.Module], Rule] | None = None) -> Injection:
    """Replace the model's modules for which there is a rule, by exact type, from the outside in.

    ``rules`` are looked up before ``RULES``; what lies inside a replaced module is its rule's business.
    """
    injection = Injection(model, Injector(accelerator))
    known = {**RULES, **(rules or {})}
    for path, module in list(model.named_modules()):
        inside = any(path.startswith(f"{outer}.") for outer in injection.originals)
        rule = known.get(type(module))
        if not path or inside or rule is None:
            continue
        other = rule(module, injection.injector)
        if other is not None:
            injection.originals[path] = module
            _put(model, path, other)
    return injection


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
