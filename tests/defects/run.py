"""Runs the mutants and says which survive: ``python -m tests.defects.run [--mutant PATTERN] [--out FILE]``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.selection import matches

from . import bench, measuring
from .catalogue import MUTANTS
from .forking import Job, prepare, run_all
from .measuring import Result
from .mutant import How, Mutant


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = [m for m in MUTANTS if not options.mutant or any(matches(p, m.name) for p in options.mutant)]
    if not chosen:
        print(
            f"no mutant is called {' or '.join(options.mutant)}; the names stand in docs/detection.md", file=sys.stderr
        )
        return 4
    started = time.perf_counter()
    results = run(chosen, options.jobs, measuring.naming_cases if options.quick else measuring.cases_of)
    if options.out:
        measuring.write(results, options.out)
    return report(chosen, {result.name: result for result in results}, time.perf_counter() - started)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.defects.run", description=__doc__)
    parser.add_argument(
        "--mutant", action="append", default=[], metavar="PATTERN", help="only mutants of that name; * is any text"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side (default: all cores)"
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that must catch each mutant")
    parser.add_argument("--out", type=Path, help="write what was measured to this file")
    return parser.parse_args(arguments)


def run(chosen: Sequence[Mutant], jobs: int, cases_of: Callable[[Mutant], list[str]]) -> list[Result]:
    """The healthy accelerator first, then every mutant."""
    cases = {mutant.name: cases_of(mutant) for mutant in chosen}
    healthy = list(dict.fromkeys(case for some in cases.values() for case in some))
    forked = [mutant for mutant in chosen if mutant.how is How.FORK]
    planned = [Job(None, healthy), *(Job(mutant, cases[mutant.name]) for mutant in forked)]
    results: list[Result] = []
    prepare()

    def done(job: Job) -> None:
        result = measuring.result_of(job.name, job.verdicts, job.seconds)
        results.append(result)
        print(_line(job.mutant, result), flush=True)

    run_all(planned, jobs, done)
    from .through_pytest import run_mutant

    for mutant in chosen:
        if mutant.how is How.PYTEST:
            results.append(run_mutant(mutant, measuring.cases_of(mutant)))
            print(_line(mutant, results[-1]), flush=True)
    return results


def _line(mutant: Mutant | None, result: Result) -> str:
    if mutant is None:
        return f"healthy   {result.ran} cases, {len(result.reds)} red, {result.seconds:.0f} s" + _listed(result.reds)
    caught = result.catching(mutant)
    word = "killed  " if caught else "SURVIVED"
    by = ", ".join(dict.fromkeys(bench.function_of(red.case) for red in caught)) or f"not by {mutant.fault.caught_by}"
    accused = result.accused(mutant)
    return f"{word}  {mutant.name}: {by} ({len(result.reds)} red of {result.ran}, {result.seconds:.0f} s)" + _listed(
        accused
    )


def _listed(reds: Sequence[measuring.Red]) -> str:
    names = dict.fromkeys(bench.function_of(red.case) for red in reds)
    return "".join(f"\n          accused: {name}" for name in names)


def report(chosen: Sequence[Mutant], results: dict[str, Result], seconds: float) -> int:
    """Print totals; 1 if a mutant survives or somebody is accused falsely."""
    survivors = [mutant.name for mutant in chosen if not results[mutant.name].catching(mutant)]
    accused = [mutant.name for mutant in chosen if results[mutant.name].accused(mutant)]
    wrong = len(results["healthy"].reds)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {seconds:.0f} s")
    print(f"false accusations: {wrong} on the healthy accelerator, by {len(accused)} mutants {accused or ''}")
    if survivors:
        print("survivors: " + "; ".join(survivors))
    return 1 if survivors or accused or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
