"""Injection of kernels into a model's modules, with the portable reference where the accelerator has no kernel.

The reference computes in each of these cases:

- There is no builder, or its ``load()`` raises or returns None.
- The kernel's name is missing, or raises when it is called because no kernel is behind it.
- The kernel has another signature, or does not take the dtype.

``told()`` names the implementation that computed each kernel and dtype, and the reason. Any error that does not mean
"there is no such kernel" is raised to the caller; the reference is not tried then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from conformance.base.errors import SetupError
from conformance.kernels.arguments import every_tensor
from conformance.kernels.implementation import Choice, Implementation, choice_behind
from conformance.kernels.specification import KernelSpecification
from conformance.kernels.specifications import specification

#: Texts by which builders and unregistered operators say that there is no kernel: parts of RuntimeErrors' messages.
_ABSENT = ("is not available", "not implemented", "not registered", "_OpNamespace")
#: Errors of a builder that cannot load.
_UNLOADABLE = (NotImplementedError, ValueError, ImportError, RuntimeError, OSError, AttributeError, SetupError)


class BuilderSource(Protocol):
    """Source of operator builders: the part of an accelerator that injection uses."""

    def create_op_builder(self, class_name: str) -> Any:
        """Return a builder of that class, or None; its ``load()`` returns an object with the kernels."""


@dataclass(frozen=True)
class LastImplementation:
    """Implementation that computed one kernel in one dtype in its last call, and the reason for it."""

    kernel: str
    dtype: str
    implementation: Implementation
    reason: str


class InjectedKernel:
    """Kernel of an accelerator, with the portable reference as its fallback. It has the specification's signature."""

    def __init__(self, kernel: KernelSpecification, found: Mapping[str, Callable[..., Any]], missing: str) -> None:
        self.kernel, self._found, self._missing = kernel, found, missing
        self._last: dict[str, Choice] = {}

    def __call__(self, *arguments: Any) -> Any:
        dtype = _dtype_of(arguments)
        function, reason = self._function(dtype)
        if function is not None:
            try:
                result = function(*arguments)
            except (NotImplementedError, RuntimeError, AttributeError) as error:
                if not _says_absent(error):
                    raise
                reason = _one_line(error)
            else:
                # Noted after the call: only then is it certain that the function has computed.
                self._last[dtype] = choice_behind(function)
                return result
        return self._call_reference(dtype, reason, arguments)

    def told(self) -> Iterator[LastImplementation]:
        """Yield the last implementation for each dtype that the kernel was called with."""
        for dtype, choice in self._last.items():
            yield LastImplementation(self.kernel.name, dtype, choice.implementation, choice.reason)

    def _function(self, dtype: str) -> tuple[Callable[..., Any] | None, str]:
        """Return the accelerator's function for ``dtype``, or ``None`` and the reason."""
        name = self.kernel.attribute_for(dtype)
        function = self._found.get(name)
        if function is None:
            return None, self._missing or f"{self.kernel.builder} loads no {name}"
        return (None, f"{name} takes other arguments") if _differs(function, self.kernel) else (function, "")

    def _call_reference(self, dtype: str, reason: str, arguments: tuple[Any, ...]) -> Any:
        """Compute with the portable reference, and note the reason for the report."""
        if self.kernel.reference is None:
            raise NotImplementedError(f"{self.kernel.name} has no portable reference, and {reason}")
        # The reference itself checks nothing.
        self.kernel.validate(self.kernel.bound(arguments, {}))
        result = self.kernel.reference(*arguments)
        self._last[dtype] = Choice(
            Implementation.REFERENCE, f"PyTorch's operators; {reason}", self.kernel.reference, lacks=reason
        )
        return result


class Injector:
    """Kernels of one accelerator. Each is looked up once."""

    def __init__(self, accelerator: BuilderSource) -> None:
        self._accelerator = accelerator
        self._kernels: dict[str, InjectedKernel] = {}
        self._loaded: dict[str, tuple[Any, str]] = {}

    def kernel(self, name: str) -> InjectedKernel:
        """Return the kernel of the specification ``name``. Raises UnknownName, with suggestions, if there is none."""
        if name not in self._kernels:
            kernel = specification(name)
            functions, missing = self._load(kernel.builder)
            found = {attribute: getattr(functions, attribute, None) for attribute in kernel.attributes}
            callables = {attribute: value for attribute, value in found.items() if callable(value)}
            self._kernels[name] = InjectedKernel(kernel, callables, missing)
        return self._kernels[name]

    def companion(self, kernel: str, name: str) -> Callable[..., Any]:
        """Return the function ``name`` of the builder of ``kernel`` (as for its workspace), or this project's own.

        If the accelerator has the kernel, the returned function calls both.
        """
        spec = specification(kernel)
        own: Callable[..., Any] = spec.companions[name]
        found = getattr(self._load(spec.builder)[0], name, None)
        # Without the kernel itself, the accelerator's workspace would never be read.
        if not callable(found) or not self.kernel(kernel)._found:
            return own
        return _with_portable(found, own)

    def told(self) -> list[LastImplementation]:
        """Return the last implementation for every kernel and dtype that was called."""
        return [row for kernel in self._kernels.values() for row in kernel.told()]

    def _load(self, builder: str) -> tuple[Any, str]:
        if builder not in self._loaded:
            self._loaded[builder] = _loaded(self._accelerator, builder)
        return self._loaded[builder]


def _loaded(accelerator: BuilderSource, name: str) -> tuple[Any, str]:
    """Return the object that the builder loads and "", or None and the reason why there is none."""
    try:
        builder = accelerator.create_op_builder(name)
    except _UNLOADABLE as error:
        return None, f"asking for {name} raises {_one_line(error)}"
    if builder is None:
        return None, f"there is no {name}"
    try:
        functions = builder.load()
    except _UNLOADABLE as error:
        return None, f"{name}.load() raises {_one_line(error)}"
    return functions, "" if functions is not None else f"{name}.load() gives None"


def _with_portable(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls both, and returns the result of ``theirs`` if that is there.

    Both workspaces are needed: the accelerator's attention may refuse some calls, which the reference then computes.
    """

    def both(*arguments: Any) -> Any:
        """Call both, so that the reference's state follows; return the accelerator's result if there is one."""
        result = ours(*arguments)
        if theirs is ours:
            return result
        try:
            return theirs(*arguments)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            if not _says_absent(error):
                raise
            return result

    return both


def _dtype_of(arguments: Iterable[Any]) -> str:
    first = next((tensor for tensor in every_tensor(arguments) if tensor.is_floating_point()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")


def _differs(function: Callable[..., Any], kernel: KernelSpecification) -> bool:
    """Return True if ``function`` cannot be called with as many arguments as the specification has."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False  # compiled functions may have no signature to read
    try:
        signature.bind(*kernel.signature.parameters)
    except TypeError:
        return True
    return False


def _says_absent(error: Exception) -> bool:
    # Vendors raise RuntimeError for a missing kernel too, so its text decides.
    return isinstance(error, NotImplementedError) or any(part in str(error) for part in _ABSENT)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# --- modules ----------------------------------------------------------------------------------------------------------


class InjectedLayerNorm(nn.Module):
    """LayerNorm over the last dimension by the accelerator's kernel, with the original's parameters."""

    def __init__(self, original: nn.LayerNorm, injector: Injector) -> None:
        super().__init__()
        self.weight, self.bias, self.epsilon = original.weight, original.bias, original.eps
        self._kernel = injector.kernel("layer_norm")

    def forward(self, source: Tensor) -> Any:
        return self._kernel(source.contiguous(), self.weight, self.bias, self.epsilon)


class InjectedRMSNorm(nn.Module):
    """RMSNorm over the last dimension by the accelerator's kernel, with the original's parameters."""

    def __init__(self, original: nn.RMSNorm, injector: Injector) -> None:
        super().__init__()
        self.weight, self.epsilon = original.weight, original.eps
        self._kernel = injector.kernel("rms_norm")

    def forward(self, source: Tensor) -> Any:
        # torch.nn.RMSNorm takes the input's machine epsilon for None.
        epsilon = torch.finfo(source.dtype).eps if self.epsilon is None else self.epsilon
        return self._kernel(source.contiguous(), self.weight, epsilon)


class InjectedLinear(nn.Module):
    """Linear layer by the accelerator's ``vector_matmul``, or by ``linear_layer`` if there is a bias."""

    def __init__(self, original: nn.Linear, injector: Injector) -> None:
        super().__init__()
        self.weight = original.weight
        self.bias: Tensor | None = original.bias
        self._kernel = injector.kernel("vector_matmul" if self.bias is None else "linear_layer")

    def forward(self, source: Tensor) -> Any:
        """Return the layer's outputs, with all leading dimensions taken as tokens."""
        tokens = source.reshape(1, -1, source.shape[-1])
        # transposed_mode is True: nn.Linear stores its weight as (outputs, inputs). rope_theta (10000.0) has no effect.
        if self.bias is None:
            # The kernel takes scales of int8 weights, which a dense weight has not.
            scale = source.new_zeros(1)
            found = self._kernel(tokens, self.weight, False, scale, False, True)
        else:
            found = self._kernel(tokens, self.weight, self.bias, True, False, 1, True, 10000.0)
        return found.reshape(*source.shape[:-1], self.weight.shape[0])


#: ``rule(original, injector)`` returns the module that replaces ``original``, or None to keep it.
Rule = Callable[[Any, Injector], nn.Module | None]


def _layer_norm(original: nn.LayerNorm, injector: Injector) -> nn.Module | None:
    # The kernel normalizes one dimension, and needs both a weight and a bias.
    supported = len(original.normalized_shape) == 1 and original.elementwise_affine and original.bias is not None
    return InjectedLayerNorm(original, injector) if supported else None


def _rms_norm(original: nn.RMSNorm, injector: Injector) -> nn.Module | None:
    supported = len(original.normalized_shape) == 1 and original.elementwise_affine
    return InjectedRMSNorm(original, injector) if supported else None


RULES: Mapping[type[nn.Module], Rule] = {
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Linear: InjectedLinear,
}


@dataclass
class Injection:
    """Model whose modules call kernels. Use it for inference only: kernels have no gradients."""

    model: nn.Module
    injector: Injector
    #: The original modules, by path.
    originals: dict[str, nn.Module] = field(default_factory=dict)

    def told(self) -> list[LastImplementation]:
        """Return the last implementation for every kernel and dtype that was called."""
        return self.injector.told()

    def restore(self) -> None:
        """Put the original modules back."""
        for path, original in self.originals.items():
            _put(self.model, path, original)
        self.originals.clear()


def inject(
    model: nn.Module, accelerator: BuilderSource, rules: Mapping[type[nn.Module], Rule] | None = None
) -> Injection:
    """Replace every module of ``model`` that has a rule for its exact type, outer modules first.

    ``rules`` are looked up before ``RULES``. Modules inside a replaced module are left to its rule.
    """
    injection = Injection(model, Injector(accelerator))
    known = {**RULES, **(rules or {})}
    # A list, because modules are replaced while the loop runs.
    for path, module in list(model.named_modules()):
        inside = any(path.startswith(f"{outer}.") for outer in injection.originals)
        rule = known.get(type(module))
        if not path or inside or rule is None:  # the model itself has the empty path, and no parent to put a module in
            continue
        replacement = rule(module, injection.injector)
        if replacement is not None:
            injection.originals[path] = module
            _put(model, path, replacement)
    return injection


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
