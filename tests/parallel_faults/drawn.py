"""Faults of engines and collectives drawn by a seed: ``python -m tests.parallel_faults.drawn --seed S [--count 60]``.

Each draw has a seam below an engine, a change, the ranks that it hits, and the number of the call from which on the
change is made once, as soon as it changes a bit. The processes of the ranks record the truth: the step, and for DDP the
parameter and the element. A fault is found if the exact training is red, and has its place right if the first
difference is in the step of the fault, on a rank that was hit, and, for DDP, at the element. With ``--twins N``, the
first N faults are planted below the tolerant case of the same engine too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.parallel_faults.faults import LLAMA
from tests.parallel_faults.seams import NAMES_RANK, RANKS, SEAMS, Drawn, Spoiler, count_steps, draws

#: Seconds for the training of one fault.
PATIENCE = 60


def _auto_tp(check: Any, device: torch.device) -> None:
    from conformance.accelerators.registry import resolve
    from conformance.suites.workloads.exact import injected

    injected.check_auto_tp(check, resolve("cpu").load(), device)


def _others() -> dict[str, Callable[[Any, torch.device], None]]:
    """Return the trainings that are neither a family's under an engine nor a layout's, by subject."""
    from conformance.suites.workloads.exact import context, rank_ways, ranks
    from conformance.suites.workloads.exact.families import families

    known = families()
    return {
        "ep": ranks.check_experts,
        "cp ring": lambda check, device: context.check_context(check, "ring", device),
        "cp gather": lambda check, device: context.check_context(check, "gather", device),
        "compiled ddp": lambda check, device: rank_ways.check_compiled_engine(check, "ddp", known["bent"], device),
        "compiled fsdp2": lambda check, device: rank_ways.check_compiled_engine(check, "fsdp2", known["bent"], device),
        "offloaded fsdp2": lambda check, device: rank_ways.check_offloaded_shards(check, known["bags"], device),
        "offloaded ddp": lambda check, device: rank_ways.check_offloaded_activations(check, known["squares"], device),
        "autotp": _auto_tp,
    }


def _trained(fault: Drawn, folder: Path) -> None:
    """Train the exact workload of a fault."""
    from conformance.judging.checker import Checker
    from conformance.suites.workloads.exact import ranks
    from conformance.suites.workloads.exact.families import families

    check, device, subject = Checker(), torch.device("cpu"), fault.subject
    if subject in families():
        engine = "ddp" if fault.seam.startswith("ddp") else "fsdp2"
        ranks.check_engine(check, engine, families()[subject], ranks.ENGINES[engine], device)
    elif subject in _others():
        _others()[subject](check, device)
    elif " as " in subject:
        before, after = subject.split(" as ")
        ranks.check_resumed(check, before, after, RANKS, folder / "saved", device)
    else:
        ranks.check_layout(check, subject, RANKS, device)


def _run(body: Callable[[Path], Any], fault: Drawn | None) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Run a body on forked ranks with a fault. Return the outcome, the truths, and each rank's end."""
    with tempfile.TemporaryDirectory() as name:
        folder, pids = Path(name), []
        (folder / "saved").mkdir()
        for rank in range(RANKS):
            pid = os.fork()
            if not pid:
                _child(body, fault, folder, rank)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        ends = [folder / f"end-{rank}" for rank in range(RANKS)]
        said = [pickle.loads(end.read_bytes()) if end.exists() else "no end" for end in ends]
        truths = [json.loads(path.read_text()) for path in sorted(folder.glob("truth-*"))]
    wrong = [text for text in said if text.startswith("AssertionError")]
    return "; ".join(wrong) or next((text for text in said if text != "passed"), "passed"), truths, said


def _child(body: Callable[[Path], Any], fault: Drawn | None, folder: Path, rank: int) -> None:
    signal.alarm(PATIENCE)
    os.dup2(2, 1)
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(RANKS))
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
        count_steps()
        if fault:
            SEAMS[fault.seam][0](Spoiler(fault, folder))
        body(folder)
        end = "passed"
    except BaseException as error:
        end = f"{type(error).__name__}: {error}"
        if not isinstance(error, AssertionError):
            end += "".join(traceback.format_exc()[-400:])
    (folder / f"end-{rank}").write_bytes(pickle.dumps(end))
    os._exit(0)


def is_placed(fault: Drawn, outcome: str, truths: list[dict[str, Any]]) -> bool:
    """Tell whether the first difference that the ranks name is where the fault was."""
    named = [
        (int(step), int(rank), text) for rank, step, text in re.findall(r"rank (\d+), step (\d+): ([^;]*)", outcome)
    ]
    if not named:
        return False
    first = min(step for step, _, _ in named)
    here = [(rank, text) for step, rank, text in named if step == first]
    # The ranks of a pipeline make their first change in different steps.
    earliest = [truth for truth in truths if truth["step"] == min(each["step"] for each in truths)]
    if first != earliest[0]["step"]:
        return False
    if fault.seam in NAMES_RANK and not {rank for rank, _ in here} <= {truth["rank"] for truth in truths}:
        return False
    return any(place in text for truth in earliest for place in truth["places"] for _, text in here)


def _twin(fault: Drawn, known: dict[str, Any]) -> str:
    """Return the outcome of the tolerant case of the same engine."""
    case = SEAMS[fault.seam][3]
    if not case:
        return "none"

    def body(folder: Path) -> None:
        planned = known[LLAMA + case]
        from conformance.accelerators.registry import resolve
        from conformance.judging.checker import Checker

        own = {
            "check": Checker(), "device": torch.device("cpu"), "case": planned.case, "rank": dist.get_rank(),
            "world_size": RANKS, "group": dist.group.WORLD, "shared_dir": folder / "saved",
            "accelerator": resolve("cpu").load(),
        }  # fmt: skip
        names = planned.function.__code__.co_varnames[: planned.function.__code__.co_argcount]
        planned.function(**{name: own[name] for name in names})

    return _run(body, fault)[0]


def _prepare(twins: bool) -> dict[str, Any]:
    """Import and make references once, before the ranks are forked."""
    from conformance.plan.bundled import bundled_cases
    from conformance.suites.workloads import test_parallel_exact_ways
    from conformance.suites.workloads.parallel import models
    from tests.parallel_faults.run import exact_references

    for name in (*test_parallel_exact_ways.RANK_IMPORTS, *(models.IMPORTS if twins else ())):
        importlib.import_module(name)
    import torch.distributed.checkpoint
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    exact_references()
    if not twins:
        return {}
    for layers in (models.QUICK_LAYERS, 2 * models.QUICK_LAYERS):
        models.quick_reference("llama", layers)
    return {planned.case.id: planned for planned in bundled_cases(["workloads"])}


@dataclass(frozen=True)
class Row:
    """What became of one fault. ``twin`` is the outcome of the tolerant case, empty where there is none."""

    fault: Drawn
    outcome: str
    truths: list[dict[str, Any]]
    twin: str = ""

    @property
    def state(self) -> str:
        """Return ``void`` for a fault that changed no bit; else whether it was found, and its place."""
        if not self.truths:
            return "void" if self.outcome == "passed" else "BROKEN"
        if not self.outcome.startswith("AssertionError"):
            return "SURVIVES"
        return "placed" if is_placed(self.fault, self.outcome, self.truths) else "MISPLACED"

    def __str__(self) -> str:
        beside = f"  [tolerant: {'green' if self.twin == 'passed' else 'red'}]" if self.twin else ""
        more = "" if self.state in ("void", "placed") else f"\n          {str(self.truths)[:200]}; {self.outcome[:400]}"
        return f"{self.state:9} {self.fault}{beside}{more}"


def score(rows: list[Row]) -> str:
    """Return the sentence of the score."""
    planted = [row for row in rows if row.state != "void"]
    twins = [row for row in planted if row.twin]
    red = sum(row.state in ("placed", "MISPLACED") for row in planted)
    return (
        f"planted {len(planted)}, and {len(rows) - len(planted)} that changed no bit; red in exact {red}, with the "
        f"right place {sum(row.state == 'placed' for row in planted)}; red in the tolerant case of the same engine "
        f"{sum(row.twin != 'passed' for row in twins)} of {len(twins)}"
    )


def main(words: list[str] | None = None) -> int:
    """Run the draws and print the score. The exit status is 1 if a fault survives or has a wrong place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", required=True, help="any text, chosen after the code is done")
    parser.add_argument("--count", type=int, default=60, help="faults that change a bit")
    parser.add_argument("--twins", type=int, default=0, help="draws whose tolerant case runs too")
    chosen = parser.parse_args(words)
    known, rows = _prepare(bool(chosen.twins)), []
    for fault in draws(chosen.seed):
        outcome, truths, _ = _run(lambda folder, fault=fault: _trained(fault, folder), fault)
        twin = _twin(fault, known) if fault.number < chosen.twins and truths else ""
        rows.append(Row(fault, outcome, truths, "" if twin == "none" else twin))
        print(rows[-1], flush=True)
        if sum(row.state != "void" for row in rows) >= chosen.count:
            break
    print(score(rows))
    return int(any(row.state not in ("void", "placed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
