"""An operator that is registered for the device while a case runs: y = 2 x + 1, also in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

NAMESPACE = "conformance_case"


@dataclass
class Registered:
    """The operators, and the device types of the tensors that their kernels got."""

    seen: list[str] = field(default_factory=list)

    @property
    def scaled(self) -> Any:
        return getattr(torch.ops, NAMESPACE).scaled.default

    @property
    def scale_(self) -> Any:
        return getattr(torch.ops, NAMESPACE).scale_.default


@contextmanager
def registered(*device_types: str) -> Iterator[Registered]:
    """Register ``scaled(x)`` and ``scale_(x)`` for these device types, with fake kernels and a derivative."""
    found = Registered()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        found.seen.append(x.device.type)
        return x * 2 + 1

    def scale_(x: torch.Tensor) -> None:
        found.seen.append(x.device.type)
        x.mul_(2).add_(1)

    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        library.define("scaled(Tensor x) -> Tensor")
        library.define("scale_(Tensor(a!) x) -> ()")
        for name, kernel in (("scaled", scaled), ("scale_", scale_)):
            for device_type in device_types:
                torch.library.impl(f"{NAMESPACE}::{name}", device_type, kernel, lib=library)
        torch.library.register_fake(f"{NAMESPACE}::scaled", torch.empty_like, lib=library)
        torch.library.register_fake(f"{NAMESPACE}::scale_", lambda x: None, lib=library)
        torch.library.register_autograd(f"{NAMESPACE}::scaled", lambda context, gradient: gradient * 2, lib=library)
        yield found
