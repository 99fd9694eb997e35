"""Runs every fault on two forked ranks, and each case without a fault: ``python -m tests.parallel_faults.run [PART]``.

Prints one JSON object with the outcome of every fault whose name contains PART, and of every case that they name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from conformance.plan.bundled import bundled_cases
from conformance.suites.workloads.parallel import models

#: Seconds after which a rank is ended: its partner has failed, and it waits in a collective. The second number is for
#: faults that are known to end so.
_PATIENCE, _SHORT = 180, 45


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in models.IMPORTS:
        importlib.import_module(name)
    import torch

    from tests.parallel_faults.exact import EXACT_FAULTS, EXACT_UNDER_DEEPSPEED
    from tests.parallel_faults.faults import FAULTS, UNDER_DEEPSPEED

    torch.set_num_threads(1)
    more = (*UNDER_DEEPSPEED, *EXACT_UNDER_DEEPSPEED) if importlib.util.find_spec("deepspeed") else ()
    faults = (*FAULTS, *EXACT_FAULTS, *more)
    chosen = [fault for fault in faults if part in fault.name]
    known = {planned.case.id: planned for planned in bundled_cases(["workloads"])}
    sound = {case: outcome(known[case], None) for case in dict.fromkeys(fault.case for fault in chosen)}
    found = {
        fault.name: outcome(known[fault.case], fault.plant, _SHORT if fault.hangs else _PATIENCE) for fault in chosen
    }
    print(json.dumps({
        "sound": sound,
        "faults": found,
        "killed": sorted(fault.name for fault in chosen if fault.is_found(found[fault.name])),
    }, indent=1))  # fmt: skip


def outcome(planned: Any, plant: Any, patience: int = _PATIENCE) -> str:
    """Return ``passed``, or the first error of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(planned, plant, rank, Path(folder), patience) for rank in range(2)]
        for pid in pids:
            os.waitpid(pid, 0)
        ends = [Path(folder, f"end-{rank}") for rank in range(2)]
        said = [pickle.loads(end.read_bytes()) if end.exists() else "no end" for end in ends]
    wrong = [text for text in said if text.startswith("AssertionError")]
    return "; ".join(wrong) or next((text for text in said if text != "passed"), "passed")


def exact_references() -> None:
    """Make the references of all exact families."""
    from conformance.suites.workloads.exact import families, injected, ranks, reference

    for family in (*families.families().values(), ranks.decoder(2), ranks.decoder(4), injected.family_of()):
        reference.reference(family, family.steps)
        reference.reference(family, family.steps, proven=False)  # that of all ranks but the first


def _fork(planned: Any, plant: Any, rank: int, folder: Path, patience: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(patience)
    os.dup2(2, 1)  # libraries print, and the output of this program is JSON
    try:
        end = _body(planned, plant, rank, folder)
    except BaseException as error:
        end = f"{type(error).__name__}: {error}"
        if not isinstance(error, AssertionError):
            end += "".join(traceback.format_exc()[-600:])
    Path(folder, f"end-{rank}").write_bytes(pickle.dumps(end))
    os._exit(0)


def _body(planned: Any, plant: Any, rank: int, folder: Path) -> str:
    import torch
    import torch.distributed as dist

    from conformance.accelerators.registry import resolve
    from conformance.judging.checker import Checker

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    family = planned.case.subject.split(".")[0]
    # The oracle is right: it is made before the fault.
    for layers in () if family == "exact" else (models.QUICK_LAYERS, 2 * models.QUICK_LAYERS):
        models.quick_reference("mixtral" if family == "mixtral" else "llama", layers)
    if family == "exact":
        exact_references()
    else:
        models.reference("llama")
    if plant:
        plant()
    own = {
        "check": Checker(), "device": torch.device("cpu"), "case": planned.case, "rank": rank, "world_size": 2,
        "group": dist.group.WORLD, "shared_dir": shared, "accelerator": resolve("cpu").load(),
    }  # fmt: skip
    names = planned.function.__code__.co_varnames[: planned.function.__code__.co_argcount]
    planned.function(**{name: own[name] for name in names})
    return "passed"


if __name__ == "__main__":
    main()
