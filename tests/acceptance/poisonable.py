"""An accelerator whose device can be made unusable: every later synchronize() fails, until the process ends."""

from conformance.accelerators.registry import resolve

BROKEN = []


class Poisonable:
    """The CPU, with a sticky device error as CUDA has them."""

    def __init__(self):
        self._cpu = resolve("cpu").load()

    def __getattr__(self, name):
        return getattr(self._cpu, name)

    def synchronize(self, device_index=None):
        if BROKEN:
            raise RuntimeError("an illegal memory access was encountered")
