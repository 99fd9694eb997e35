"""Defects that end, block or spoil the process they happen in. They go through a real pytest run."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import Capabilities, lacks
from conformance.reports.verdict import Reason
from tests.defects.faults import Fault, Where
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import accelerator, constant

CASE = "operators.erfinv[float32-inference]"
#: Cases beside it, which must be judged in spite of what it does.
INNOCENT = ("operators.erf[float32-inference]", "operators.erfc[float32-inference]", "operators.exp[float32-inference]")


def ending(name: str, family: str, reason: Reason, do: Any, claims: Capabilities = frozenset(), caught_by: str = CASE,
           run: tuple[str, ...] = (CASE, *INNOCENT)) -> Mutant:  # fmt: skip
    precedent = "DeepSpeed #4048, #4115: collectives that hang; its test runner ends with the first hang"
    what = Fault(name, family, precedent, Where.OPERATOR, caught_by, operators={"aten::erfinv": do})
    return Mutant(what, (), run, claims, reason=reason, how=How.PYTEST)


def _sleeps(call: Any, args: Any) -> Any:
    time.sleep(10_000)


def _spins(call: Any, args: Any) -> Any:
    while True:
        pass


def _aborts(call: Any, args: Any) -> Any:
    os.abort()


def _exits(call: Any, args: Any) -> Any:
    os._exit(0)


def _leaves(call: Any, args: Any) -> Any:
    sys.exit(0)


def _touches_nothing(call: Any, args: Any) -> Any:
    ctypes.string_at(0)


def _is_killed(call: Any, args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _poisons(call: Any, args: Any) -> Any:
    """From now on sums are wrong."""
    from conformance.accelerators.simulated.simulator import started
    from tests.defects.faults import scaled

    started().core.set_around("aten::sum", scaled(2.0))
    return call(args)


INVISIBLE = Mutant(
    Fault("the visible devices are ignored", "device count lies", "DeepSpeed #5464: two ranks on one card",
          Where.DEVICE, "capabilities.device.visibility", context=accelerator(device_count=constant(2))),
    ("accelerator.environment.visible_count", "launcher.devices"),
    ("accelerator.environment.visible_count", "launcher.devices"),
    how=How.PYTEST,
)  # fmt: skip


def _unbinds(old: Any) -> Any:
    """A runtime that takes all cores for its threads, the first one too."""

    def call(self: Any, index: int | None = None) -> Any:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        return old(self, index)

    return call


def _asks_its_parent(old: Any) -> Any:
    """What it needs is in a variable that pytest's processes have, and that nobody exports."""
    return lambda self: old(self) if "PYTEST_VERSION" in os.environ else 0


def launched(name: str, family: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    what = Fault(name, family, precedent, Where.DEVICE, caught_by, context=context)
    return Mutant(what, ("launcher.*",), (caught_by, "launcher.failure"), how=How.PYTEST)


NO = lacks(Cell("operators.erfinv", "float32", "inference"), "the declaration says so")
MUTANTS = (
    INVISIBLE,
    launched("a runtime takes all cores", "set_device ignored", "DeepSpeed launcher: ranks bound to cores",
             "launcher.binding", accelerator(device_name=_unbinds)),
    launched("a runtime wants what is not exported", "device count lies",
             "DeepSpeed launcher: variables for other ranks", "launcher.exports",
             accelerator(device_count=_asks_its_parent)),
    ending("an operator never returns", "hang", Reason.HANG, _sleeps),
    ending("an operator spins", "hang", Reason.HANG, _spins),
    ending("an operator aborts", "abort", Reason.CRASH, _aborts),
    ending("an operator ends the process with 0", "exit(0)", Reason.CRASH, _exits),
    ending("an operator reads address 0", "abort", Reason.CRASH, _touches_nothing),
    ending("an operator's process is killed", "abort", Reason.CRASH, _is_killed),
    ending("an operator raises SystemExit", "exit(0)", Reason.RAISED, _leaves),
    ending("the device is unusable afterwards", "poison after case N", Reason.POISONED, _poisons),
    ending("a refused operator aborts", "unclean refusal", Reason.UNSAFE, _aborts, NO),
    ending("a refused operator hangs", "unclean refusal", Reason.UNSAFE, _spins, NO),
)  # fmt: skip
