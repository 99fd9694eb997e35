"""Plants every reported bug and looks for it: ``python -m tests.faults.reported.run [--only TEXT] [--out FILE]``.

Bugs of operators act in copies of this process, those of collectives in the processes of ranks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.defects import bench
from tests.faults import forks, liveness
from tests.faults.overloads import kernels_of_a_device, operator_of, schema
from tests.faults.overriding import Call, has_kernel, overridden

from . import collectives, compiled, functions, members, operators, sequences, vocabulary
from .results import Bug, Found, bugs, summary, table

#: Processor seconds for all cases of a bug, and for one.
_SECONDS, _DEADLINE = 90.0, 120.0
#: Cases of drawn programs, which are on the subject of each operator.
_DRAWN = {
    "operators": ("accelerator.programs[*-inference]", "accelerator.programs[*-training]"),
    "compiled": ("compile.drawn[*]",),
}


def armed(bug: Bug, device: torch.device) -> AbstractContextManager[Any]:
    """Break the device inside the context, in all kernels of the bug's operators, or above autograd if it has none."""
    kind, _, name = bug.operator[0].rpartition(".")
    if kind == "torch" and bug.effect in (whole := {**functions.PRINTS, **functions.COPIES}):
        return whole[bug.effect](device)  # type: ignore[no-any-return]
    if kind == "torch":
        return functions.loading(bug.effect, device)
    if kind == "compiled":
        return compiled.compiling(bug.effect, device)
    if kind == "autocast":
        return functions.without_autocast(name, device, in_transforms=bug.effect == "not cast in transforms")
    if kind == "module":
        return members.EFFECTS[bug.effect](device)  # type: ignore[no-any-return]
    sequences.reset()
    operators.reset()
    stack = ExitStack()
    stack.enter_context(sequences.noticed(bug.effect, device))
    stack.enter_context(_kernels(bug, device))
    return stack


def _kernels(bug: Bug, device: torch.device) -> AbstractContextManager[None]:
    known = [f"aten::{name}" for name in bug.operator]
    names = sorted(name for name in kernels_of_a_device() if _is_of(name, known))
    key = str(torch._C._dispatch_key_for_device(device.type))
    if not names and not _has_tensors(bug):
        names = sorted(name for name in torch._C._dispatch_get_all_op_names() if _is_of(name, known))
        names = [name for name in names if has_kernel(name, key)]
    if not names or vocabulary.ABOVE.fullmatch(bug.effect):
        key = f"Autograd{key}"
        every = torch._C._dispatch_get_all_op_names()
        names = sorted(name for name in every if _is_of(name, known) and has_kernel(name, key))
    return overridden(dict.fromkeys(names, _behaviour(bug)), key)


def _has_tensors(bug: Bug) -> bool:
    """Return whether an operator takes tensors; one that makes tensors has no part above its kernel."""
    known = [f"aten::{name}" for name in bug.operator]
    forms = [name for name in torch._C._dispatch_get_all_op_names() if _is_of(name, known)]
    return any("Tensor" in str(argument.type) for form in forms for argument in schema(form).arguments)


def _is_of(name: str, known: list[str]) -> bool:
    return operator_of(name) in known or name.partition(".")[0] in known


def _behaviour(bug: Bug) -> Callable[[Call], Any]:
    def behaviour(call: Call) -> Any:
        if not all(vocabulary.meets(word, call) for word in bug.when):
            return call.run()
        return vocabulary.spoiled(bug.effect, call)

    return behaviour


def _value(bug: Bug, device: torch.device) -> Any:
    """Return what the bug's own call gives, or the name of its error."""
    generator = torch.Generator().manual_seed(5)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    torch.manual_seed(3)
    try:
        return eval(bug.call, {"t": torch, "F": torch.nn.functional, "D": str(device), "r": numbers})
    except Exception as error:
        return type(error).__name__


def judge(bug: Bug, send: forks.Send) -> None:
    """Send whether the bug is live, and each case with its end, until one fails that passes on the healthy device."""
    place = bench.Bench()
    healthy, again = _value(bug, place.device), _value(bug, place.device)
    with armed(bug, place.device):
        broken = _value(bug, place.device)
    send(("live", liveness.same(healthy, again) and not liveness.same(healthy, broken)))
    drawn = bench.select(_DRAWN["compiled" if bug.operator[0].startswith("compiled") else "operators"])
    cases, started = iter((*bench.select(bug.cases), *drawn)), time.process_time()

    def is_late(case: str) -> bool:
        return time.process_time() - started > _SECONDS and case not in drawn

    while case := _first_red(bug, place, (each for each in cases if not (bench.on_ranks(each) or is_late(each))), send):
        red = _is_red(place, case)
        send(("end", case, not red))
        if not red:
            return


def _first_red(bug: Bug, place: bench.Bench, cases: Iterator[str], send: forks.Send) -> str:
    """Run cases on the broken device until one fails, and return it, or nothing."""
    with armed(bug, place.device):
        for case in cases:
            send(("begin", case))
            if _is_red(place, case):
                return case
            send(("end", case, False))
    return ""


def _is_red(place: bench.Bench, case: str) -> bool:
    forks.limit(_DEADLINE)
    red = bench.is_red(place.run(case))
    forks.limit(0)
    return red


def _found(bug: Bug, copy: forks.Copy[Bug]) -> Found:
    found = _unknown(bug, error=copy.error[-300:])
    begun = ""
    for kind, *what in copy.messages:
        if kind == "live":
            found.live = what[0]
        elif kind == "begin":
            begun = what[0]
        else:
            begun, found.ran = "", found.ran + 1
            found.by = what[0] if what[1] else ""
    if begun and not copy.error and copy.status != -signal.SIGPROF:
        found.by = begun  # the copy died in it, and not because its time was over
    if not found.live:
        found.by = ""
    return found


def _unknown(bug: Bug, **known: Any) -> Found:
    return Found(bug.report, bug.backend, bug.held, what=bug.what, collection=bug.collection, **known)


def judged(chosen: Sequence[Bug], jobs: int, say: Callable[[str], None] = print) -> list[Found]:
    """Judge bugs, those of collectives in one run of ranks."""
    results = []
    for copy in forks.run([bug for bug in chosen if not bug.is_collective], judge, jobs):
        results.append(_found(copy.task, copy))
        say(f"{results[-1].end:9} {copy.task.report:40} {results[-1].by} {results[-1].error.splitlines()[-1:] or ''}")
    of_ranks = [bug for bug in chosen if bug.is_collective]
    for bug, (met, by, ran) in zip(of_ranks, collectives.judged(of_ranks), strict=True):
        results.append(_unknown(bug, live=True, by=by if met else "", ran=ran))
        say(f"{results[-1].end:9} {bug.report:40} {results[-1].by}")
    order = {bug.report: number for number, bug in enumerate(chosen)}
    return sorted(results, key=lambda found: order[found.report])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each bug and the scores; write them as data with ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.reported.run", description=__doc__)
    parser.add_argument("--only", action="append", help="reports whose name contains this text; repeatable")
    parser.add_argument("--collection", type=int, help="rows of this collection; 3 stands for the first three")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    options = parser.parse_args(arguments)
    bench.loaded("sim")
    forks.prepare()
    of_collection = [bug for bug in bugs() if options.collection in (None, bug.collection)]
    chosen = [bug for bug in of_collection if any(text in bug.report for text in options.only or [""])]
    results = judged(chosen, options.jobs, lambda text: print(text, flush=True))
    print(summary(results))
    if options.out:
        rows = [{**asdict(found), "end": found.end} for found in results]
        options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(table(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
