"""Declaration of torchax for the run of strangers. Importing it enables torchax for all tensors of device ``jax``."""

import torchax

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes


class Torchax:
    """The methods that every accelerator has, over torchax' environment."""

    capabilities = frozenset(one for one in VOCABULARY.values() if one.core) | dtypes("float32")

    def __init__(self) -> None:
        # torchax takes every call of torch from here on, also those of modules that are imported later.

        torchax.enable_globally()

    def device_name(self, device_index=None):
        return "jax"

    def current_device_name(self):
        return "jax"

    def device_count(self):
        return 1

    def is_available(self):
        return True

    def synchronize(self, device_index=None):
        import jax

        jax.effects_barrier()

    def manual_seed(self, seed):
        torchax.default_env().manual_seed(seed)

    def manual_seed_all(self, seed):
        self.manual_seed(seed)
