"""Defects of runtimes in jobs of a launcher: slots, exit statuses, bound memory, and hosts that join late."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.defects.catalogue.collectives import before
from tests.defects.catalogue.worlds import DEATHS
from tests.defects.faults import Fault, Where
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import accelerator, replaced

JOBS = "jobs of a launcher"
#: Number of the system call that sets the memory policy of a thread.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def launched(name: str, family: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    what = Fault(name, family, precedent, Where.DEVICE, caught_by, context=context)
    return Mutant(what, (f"{caught_by.partition('.')[0]}.*",), (caught_by,), how=How.PYTEST)


def _counts_hidden_devices(old: Any) -> Any:
    """A runtime that counts all devices of the machine where its launcher was given some of them."""
    return lambda self: 2 if "PET_NPROC_PER_NODE" in os.environ else old(self)


def _ends_with_0(old: Any) -> Any:
    """A runtime that ends the process itself, with 0."""

    def call(self: Any, *args: Any) -> Any:
        if "JOB_ACCELERATOR" in os.environ:
            atexit.register(os._exit, 0)
        return old(self, *args)

    return call


def _takes_any_memory(old: Any) -> Any:
    """A runtime that sets the memory policy of its process back to the default."""

    def call(self: Any, *args: Any) -> Any:
        if "JOB_ACCELERATOR" in os.environ:
            ctypes.CDLL(None).syscall(_SET_MEMPOLICY[platform.machine()], 0, None, 0)
        return old(self, *args)

    return call


def _nothing_of_a_late_host(file: str) -> Any:
    """A sum to which the last rank adds nothing after a host has joined late, which a file in its folder tells."""

    def call(tensor: Any, *_: Any) -> None:
        is_last = os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
        if is_last and Path(sys.argv[0]).with_name(file).exists():
            tensor.zero_()

    return call


MUTANTS = (
    launched("a runtime counts devices that its launcher hides", "device count lies",
             "DeepSpeed launcher: slots from CUDA_VISIBLE_DEVICES", "launcher.slots[second]",
             accelerator(device_count=_counts_hidden_devices)),
    launched("a runtime ends a failed rank with 0", JOBS, "DeepSpeed launcher: the status of a failed rank",
             "launcher.status", accelerator(set_device=_ends_with_0)),
    launched("a runtime takes memory of any node", JOBS, "DeepSpeed launcher: --bind_cores_to_rank", "launcher.numa",
             accelerator(set_device=_takes_any_memory)),
    launched("a host that joins late adds nothing", DEATHS, "DeepSpeed elasticity: the fewest nodes",
             "elasticity.too_few", replaced(dist, all_reduce=before(_nothing_of_a_late_host("joined")))),
    launched("a host that returns adds nothing", DEATHS, "DeepSpeed elasticity: nodes that return",
             "elasticity.returns.host", replaced(dist, all_reduce=before(_nothing_of_a_late_host("shrunk")))),
)  # fmt: skip
