"""Selection and loading in a process of its own: the defect is put into the child, before its program runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from conformance.suites.accelerator import processes
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant

LADDER = "DeepSpeed chooses by a ladder of imports in an order; a package that answers for CUDA wins or loses by it"
CONTEXT = "torch.cuda in a forked process: 'cannot re-initialize CUDA'; libraries that start the device when imported"

SECOND_OBJECT = """
from conformance.accelerators import selection
import conformance.accelerators
def get_accelerator():
    return selection._chosen[0] if selection._chosen else selection._choose(os.environ.get("DS_ACCELERATOR") or "auto")
conformance.accelerators.get_accelerator = get_accelerator
"""
UNKNOWN_IS_CPU = """
from conformance.accelerators import registry, selection
from conformance.base.errors import UnknownName
def forgiving(spec, known=registry.resolve):
    try: return known(spec)
    except UnknownName: return known("cpu")
selection.resolve = forgiving
"""
MISSING_IS_CPU = """
from conformance.accelerators import selection
from conformance.accelerators.registry import resolve
from conformance.base.errors import SetupError
def choose(spec, choose=selection._choose):
    try: return choose(spec)
    except ValueError as error:
        if isinstance(error.__cause__, SetupError): return resolve("cpu").load()
        raise
selection._choose = choose
"""
NOT_AVAILABLE = """
from conformance.accelerators import selection
class Absent:
    def __init__(self, real): self.real = real
    def __getattr__(self, name): return getattr(self.real, name)
    def is_available(self): return False
def choose(spec, choose=selection._choose): return Absent(choose(spec)) if spec == "auto" else choose(spec)
selection._choose = choose
"""
TAKES_ANYTHING = """
from conformance.accelerators import selection
selection.require_accelerator = lambda thing, who: None
"""
NO_DEVICE_AFTER_A_FORK = """
from conformance.accelerators.torch_accelerator import TorchAccelerator
def refuse(self, index): raise RuntimeError("cannot start the device again in a forked process")
os.register_at_fork(after_in_child=lambda: setattr(TorchAccelerator, "set_device", refuse))
"""
ONE_LESS = """
from conformance.accelerators.torch_accelerator import TorchAccelerator
def fewer(self, count=TorchAccelerator.device_count): return max(1, count(self) - 1)
TorchAccelerator.device_count = fewer
"""
CHANGES_MODES = """
import torch
from conformance.accelerators.torch_accelerator import TorchAccelerator
def load(self, load=TorchAccelerator.load):
    torch.use_deterministic_algorithms(True)
    return load(self)
TorchAccelerator.load = load
"""


def in_children(program: str) -> Callable[[], AbstractContextManager[Any]]:
    """The processes that cases start run ``program`` first."""
    return lambda: mock.patch.object(processes, "_PREAMBLE", processes._PREAMBLE + program)


def child(name: str, case: str, program: str, precedent: str = LADDER) -> Mutant:
    fault = Fault(name, "selection", precedent, Where.DEVICE, case, context=in_children(program))
    return Mutant(fault, also_run=("accelerator.selection.*", "accelerator.environment.import_keeps_it"))


MUTANTS = (
    child("each get_accelerator() gives another object", "accelerator.selection.override", SECOND_OBJECT),
    child("an unknown name is taken for the CPU", "accelerator.selection.unknown_name", UNKNOWN_IS_CPU),
    child("a missing package is taken for the CPU", "accelerator.selection.missing_package", MISSING_IS_CPU),
    child("detection finds what is not available", "accelerator.selection.detection", NOT_AVAILABLE),
    child("set_accelerator takes anything", "accelerator.selection.replaced", TAKES_ANYTHING),
    child("no device after a fork", "accelerator.selection.fork_after_import", NO_DEVICE_AFTER_A_FORK, CONTEXT),
    child("another process sees fewer devices", "accelerator.selection.other_process", ONE_LESS,
          "DeepSpeed #5464: two ranks on one card"),
    child("loading turns determinism on", "accelerator.environment.import_keeps_it", CHANGES_MODES,
          "an accelerator's import that sets torch's global modes changes every program that only looks for devices"),
)  # fmt: skip
