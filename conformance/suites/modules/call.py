"""One call of a module: how it is made and what it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from conformance.numerics.transfer import copied_with_memory, memory_behind
from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls.passes import PLAIN
from conformance.suites.parameters import spread

HOST = torch.device("cpu")
#: Standard deviation of a parameter or a buffer that a module makes constant.
_SPREAD = 0.1


@dataclass(frozen=True)
class ModuleCall:
    """Constructor of a module with its arguments, and the arguments of one forward, in float64 on the host.

    ``backward`` lays the gradients of its results out in memory.
    """

    kind: Callable[..., nn.Module]
    given: tuple[Any, ...]
    options: dict[str, Any]
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    label: str = ""
    backward: Callable[[torch.Tensor], torch.Tensor] = PLAIN.arrange

    def made(self, dtype: torch.dtype) -> nn.Module:
        """Return the module in float64 on the host, with parameters that ``dtype`` can represent."""
        module = self.kind(*self.given, **self.options).double()
        if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters()) or _is_lazy(
            module
        ):
            # A lazy module draws its parameters at the first call; copies have to share them.
            with torch.no_grad():
                module(*copy.deepcopy(self.inputs), **copy.deepcopy(self.named))
            module.double()
        for part in module.modules():
            _drop_nothing(part, module)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    if tensor.numel() > 1:
                        spread(tensor, _SPREAD)
                    tensor.copy_(tensor.to(dtype).double())
        return module

    def rounded(self, dtype: torch.dtype) -> ModuleCall:
        """Return this call with inputs that ``dtype`` can represent, still in float64."""
        return self._with(lambda tensor: tensor.to(dtype).double())

    def arranged(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ModuleCall:
        """Return this call with another memory layout of the floating-point inputs."""
        return self._with(change)

    def arranged_in_turn(self, changes: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> ModuleCall:
        """Return this call with a memory layout for each of the inputs of floating point."""
        left = iter(changes)
        return self._with(lambda tensor: next(left)(tensor))

    def on(
        self, device: torch.device, dtype: torch.dtype
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Return copies of the inputs, and those that require a gradient."""
        memo: dict[int, torch.Tensor] = {}

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return dtype if leaf is torch.float64 else leaf
            if id(leaf) not in memo:
                memo[id(leaf)] = _moved(leaf, device, dtype)
            return memo[id(leaf)]

        inputs, named = mapped(self.inputs, moved), mapped(self.named, moved)
        return inputs, named, [tensor for tensor in memo.values() if tensor.requires_grad]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the inputs."""
        return tensors([self.inputs, self.named])

    @property
    def floating(self) -> list[torch.Tensor]:
        """Return the different tensors of floating point among the inputs."""
        return list({id(tensor): tensor for tensor in self.tensors if tensor.is_floating_point()}.values())

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ModuleCall:
        memo: dict[int, torch.Tensor] = {}

        def changed(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            if id(leaf) not in memo:
                memo[id(leaf)] = change(leaf.detach()).detach().requires_grad_(leaf.requires_grad)
            return memo[id(leaf)]

        return replace(self, inputs=mapped(self.inputs, changed), named=mapped(self.named, changed))


def _moved(leaf: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy with the strides and the offset of ``leaf``, and with the memory between its elements."""
    memory = memory_behind(leaf.detach()).to(dtype if leaf.is_floating_point() else leaf.dtype)
    view = memory.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
    return copied_with_memory(view, device).detach().requires_grad_(leaf.requires_grad)


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.lazy.LazyModuleMixin)


def _drop_nothing(part: nn.Module, whole: nn.Module) -> None:
    """Set the dropout of a layer inside a larger module to 0: the values of the module can then be compared."""
    if part is whole and isinstance(part, nn.modules.dropout._DropoutNd):
        return
    if isinstance(part, nn.modules.dropout._DropoutNd):
        part.p = 0.0
    elif isinstance(getattr(part, "dropout", None), float):
        part.dropout = 0.0  # type: ignore[assignment]  # a module that has such a number
