"""Runs every exact case of the plan: ``python -m tests.exact.every_case [PATTERN] --how order [--accelerator sim]``.

The cases are those that the suite collects; a new one is among them without a list. Each runs in processes that are
forked here, under a condition. Prints a line of JSON for each: how it ended, and how many calls were changed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pickle
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from conformance.accelerators.registry import resolve
from conformance.plan.bundled import BundledCase, bundled_cases
from conformance.plan.selection import matches
from tests.exact import other_kernels

EXACT = "workloads.exact.*"
#: Seconds after which a rank is ended.
_PATIENCE = 240
#: What a process does before the case, by the name of the condition.
CONDITIONS: dict[str, Callable[[], None]] = {
    "usual": lambda: None,
    "threads": lambda: _threads(3),
    "order": other_kernels.install,
    "wrong": lambda: other_kernels.install(1.0),
}


def _threads(number: int) -> None:
    import torch

    torch.set_num_threads(number)


@dataclass(frozen=True)
class Ended:
    """End of a case: ``passed``, or what the ranks said. ``changed`` counts the calls that a condition has changed."""

    said: str
    changed: dict[str, int]
    seconds: float = 0.0


def exact_cases(pattern: str = EXACT, accelerator: str = "cpu") -> list[BundledCase]:
    """Return the planned exact cases that match and that an accelerator claims, without those of an absent library."""
    claims = resolve(accelerator).static_declaration
    installed = importlib.util.find_spec("deepspeed") is not None
    return [
        planned for planned in bundled_cases(["workloads"])
        if matches(EXACT, planned.case.id) and matches(pattern, planned.case.id)
        and all(claims.supports(cell) for cell in planned.case.requires)
        and (installed or "deepspeed" not in planned.case.subject)
    ]  # fmt: skip


def prepare(chosen: list[BundledCase], references: bool) -> None:
    """Import what the cases need, and make all references, once and before a condition changes what operators do."""
    import torch

    from conformance.suites.workloads.exact import residues
    from conformance.suites.workloads.exact.families import families
    from conformance.suites.workloads.exact.reference import reference
    from conformance.suites.workloads.test_exact import NARROW
    from tests.parallel_faults.run import exact_references

    torch.set_num_threads(1)
    for planned in chosen:
        module = importlib.import_module(planned.function.__module__)
        for name in getattr(module, "RANK_IMPORTS", ()):
            importlib.import_module(name)
    if not references:
        return
    exact_references()
    for name in {name for names in NARROW.values() for name in names}:
        reference(replace(families()[name], steps=1), 1)
    residues.from_integers()
    residues.from_gradients()


def ended(planned: BundledCase, condition: str, accelerator: str) -> Ended:
    """Run a case under a condition on as many forked processes as it has ranks."""
    size = planned.case.world_size or 1
    with tempfile.TemporaryDirectory() as name:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                _child(planned, condition, accelerator, rank, Path(name))
            pids.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        files = [Path(name, f"end-{rank}") for rank in range(size)]
        ends = [
            pickle.loads(each.read_bytes()) if each.exists() else (f"no end, exit status {status}", {}, 0.0)
            for each, status in zip(files, statuses, strict=True)
        ]
    said = [text for text, _, _ in ends if text != "passed"]
    wrong = [text for text in said if text.startswith("AssertionError")]
    counted: dict[str, int] = {}
    for _, changed, _ in ends:
        for key, number in changed.items():
            counted[key] = counted.get(key, 0) + number
    return Ended("; ".join(wrong or said) or "passed", counted, sum(seconds for _, _, seconds in ends))


def _child(planned: BundledCase, condition: str, accelerator: str, rank: int, folder: Path) -> None:
    signal.alarm(_PATIENCE)
    os.dup2(2, 1)  # libraries print, and the output of this program is JSON
    try:
        CONDITIONS[condition]()
        _body(planned, accelerator, rank, folder)
        end = "passed"
    except BaseException as error:
        end = f"{type(error).__name__}: {error}"
        if not isinstance(error, AssertionError):
            end += "".join(traceback.format_exc()[-900:])
    seconds = sum(os.times()[:4])
    (folder / f"end-{rank}").write_bytes(pickle.dumps((end, other_kernels.COUNTED, seconds)))
    os._exit(0)


def _body(planned: BundledCase, name: str, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    from conformance.judging.checker import Checker

    # As in a run of the suite: each process of a compiler's pool would import torch.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    size = planned.case.world_size
    resolved = resolve(name)
    accelerator = resolved.load()
    if size:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(size))
        dist.init_process_group(
            accelerator.communication_backend_name(), init_method=f"file://{folder}/store", rank=rank, world_size=size
        )
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    own: dict[str, Callable[[], Any]] = {
        "check": Checker, "case": lambda: planned.case, "rank": lambda: rank, "world_size": lambda: size,
        "device": lambda: torch.empty(0, device=accelerator.current_device_name()).device,
        "group": lambda: dist.group.WORLD, "shared_dir": lambda: shared, "tmp_path": lambda: shared,
        "accelerator": lambda: accelerator, "declaration": lambda: resolved.declaration(accelerator),
    }  # fmt: skip
    names = planned.function.__code__.co_varnames[: planned.function.__code__.co_argcount]
    planned.function(**{each: own[each]() for each in names})


def main(words: list[str] | None = None) -> None:
    """Print how every case ended under a condition."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pattern", nargs="*", default=[EXACT])
    parser.add_argument("--how", choices=CONDITIONS, default="usual")
    parser.add_argument("--accelerator", default="cpu")
    given = parser.parse_args(words)
    chosen = [planned for pattern in given.pattern for planned in exact_cases(pattern, given.accelerator)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The first backward pass of a process counts its devices: a fork could not add another one, and makes its own.
        prepare(chosen, references=given.accelerator == "cpu")
        for planned in chosen:
            found = ended(planned, given.how, given.accelerator)
            print(json.dumps({"case": planned.case.id, **asdict(found)}), flush=True)


if __name__ == "__main__":
    main()
