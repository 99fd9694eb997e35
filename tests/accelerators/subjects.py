"""Subjects for these tests: accelerators that are complete, incomplete, broken, or none at all."""

from __future__ import annotations

import abc

import torch

from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

DECLARED = TorchAccelerator(
    name="declared",
    vendor="tests",
    module="torch.cpu",
    device_type="cpu",
    is_host=True,
    randomness=HostGenerator(),
    capabilities=TORCH_BASE | dtypes("float32"),
)


class Duck:
    """Has some members and no base class."""

    capabilities = frozenset({"rng", "ranges"})

    def device_name(self, device_index=None):
        return "cpu"

    def is_bf16_supported(self):
        return None

    def is_fp16_supported(self):
        return False

    def supported_dtypes(self):
        return [torch.float32, torch.float16]

    def Stream(self):
        raise RuntimeError("no driver")


class _Base(abc.ABC):
    @abc.abstractmethod
    def device_name(self, device_index=None): ...

    @abc.abstractmethod
    def synchronize(self, device_index=None): ...


class Abstract(_Base):
    """Leaves an abstract member of its base class open."""

    def device_name(self, device_index=None):
        return "cpu"


class NeedsArgument:
    def __init__(self, device):
        self.device = device

    def device_name(self, device_index=None):
        return "cpu"


class Explodes:
    def __init__(self):
        raise RuntimeError("no driver\nsecond line")

    def device_name(self, device_index=None):
        return "cpu"


class Nameless:
    def synchronize(self, device_index=None):
        return None


class BadlyDeclared(Duck):
    capabilities = frozenset({"rng.staet"})


class Stranger:
    """Has nothing of an accelerator."""


def function():
    return None


NUMBER = 3
