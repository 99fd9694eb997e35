"""Declaration of an accelerator that claims everything and does nothing.

    pytest --accelerator=tests.do_nothing.accelerator:DO_NOTHING

A case that passes on it would pass on any device. ``may_pass.toml`` names those that may, with reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, MutableMapping
from enum import EnumMeta as EnumType
from types import SimpleNamespace
from typing import Any

from conformance.accelerators.capabilities import DTYPES, VOCABULARY, Cell, Mode
from conformance.accelerators.claims import accumulates_wide, communicates, dtypes, kernels
from conformance.accelerators.torch_accelerator import TorchAccelerator


def _nothing_from(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with results of the same form that are zeros, and which writes zeros."""

    @functools.wraps(function)
    def zeros(*args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils import _pytree as pytree

        result = function(*args, **kwargs)
        if not isinstance(result, (torch.Tensor, int, float, tuple, list, type(None))):
            return Handle()
        for tensor in pytree.tree_leaves((result, args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                tensor.detach().zero_()
        return result

    return zeros


class Handle:
    """Object of a builder, such as a handle for files. Each method accepts the call and returns 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: 0


class DoNothing(TorchAccelerator):
    """Accelerator whose every member accepts the call, answers, and does nothing."""

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> Any:
        """Return a builder whose functions return zeros."""
        kind = super().get_op_builder(class_name)

        class Builder(kind):  # type: ignore[misc]
            def is_compatible(self, verbose: bool = False) -> bool:
                return True

            def load(self, verbose: bool = False) -> Any:
                loaded = super().load(verbose)
                return SimpleNamespace(
                    **{
                        name: _nothing_from(value) if callable(value) and not isinstance(value, EnumType) else value
                        for name, value in vars(loaded).items()
                    }
                )

        Builder.__name__ = class_name
        return Builder

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        """Drop the callback."""

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Record nothing."""

    def range_pop(self, domain: str | None = None) -> None:
        """Record nothing."""

    def pin_memory(self, tensor: Any, make_copy: bool = True, match_shape: bool = True) -> Any:
        return tensor

    def is_pinned(self, tensor: Any) -> bool:
        return True

    def is_triton_supported(self) -> bool:
        return True

    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int]
    ) -> None:
        """Set nothing."""

    def set_compile_backend(self, backend: str) -> None:
        """Keep the backend."""

    def create_graph(self) -> Any:
        return object()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def replay_graph(self, graph: Any) -> None:
        """Replay nothing."""


#: ``dtypes`` claims the kernels in three dtypes; a device that claims everything claims them in the others too.
_OTHER_KERNELS = frozenset().union(
    *(kernels("*", dtypes=set(DTYPES) - {"float32", "float16", "bfloat16"}, mode=mode) for mode in Mode)
)
DO_NOTHING = DoNothing(
    name="nil",
    vendor="tests",
    package="tests.do_nothing.device",
    collectives={"linux": "nilccl", "darwin": "nilccl"},
    compile_backend="eager",
    graph="NilGraph",
    simulated=True,
    capabilities=frozenset(VOCABULARY.values())
    | dtypes(*DTYPES)
    | accumulates_wide("float16", "bfloat16")
    | communicates(*DTYPES)
    | _OTHER_KERNELS
    | {Cell("workloads.*", "float16", mode.value) for mode in Mode},
)
