"""Runs the mutants and says which survive: ``python -m tests.defects.run [--mutant PATTERN] [--out FILE]``."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.plan.selection import matches

from . import bench, measuring
from .catalogue import MUTANTS
from .forking import Job, prepare, run_all
from .measuring import Red, Result
from .mutant import How, Mutant, fast_subset

MEASURED = Path(__file__).parent / "measured.json"
#: Ordinary mutants that go through a whole run as well, which must say the same.
SAMPLE = (
    "wait_stream does nothing",
    "record_stream does nothing",
    "set_rng_state does nothing",
    "peak memory is 0",
    "mm gives zeros above 2 M outputs",
    "gelu's gradient is 8 % too large",
    "fused AdamW decays nothing",
    "claims Triton",
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = [m for m in MUTANTS if not options.mutant or any(matches(p, m.name) for p in options.mutant)]
    if options.quick:
        chosen = [mutant for mutant in chosen if mutant.how is How.FORK]
        chosen = chosen if options.mutant else fast_subset(chosen)
    if not chosen:
        print(f"no mutant is called {' or '.join(options.mutant)}; see tests/defects/detection.md", file=sys.stderr)
        return 4
    started = time.perf_counter()
    quick = functools.partial(measuring.quickest_case, known=measuring.read(MEASURED).by_name)
    results = run(chosen, options.jobs, quick if options.quick else measuring.cases_of)
    if options.out:
        adds = options.mutant and options.out.exists()
        kept = measuring.read(options.out).with_results(results) if adds else measuring.whole(results)
        measuring.write(kept, options.out)
    by_name = {result.name: result for result in results}
    differing = [] if options.quick else compare(chosen, by_name)
    return report(chosen, by_name, differing, time.perf_counter() - started)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.defects.run", description=__doc__)
    parser.add_argument("--mutant", action="append", default=[], metavar="PATTERN", help="only these; * is any text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="some mutants of each family, and only one case that must catch each"
    )
    parser.add_argument("--out", type=Path, help="write what was measured to this file; with --mutant, add to it")
    return parser.parse_args(arguments)


def run(chosen: Sequence[Mutant], jobs: int, cases_of: Callable[[Mutant], list[str]]) -> list[Result]:
    """Run the healthy accelerator and the sound stand-ins first, then every mutant."""
    cases = {mutant.name: cases_of(mutant) for mutant in chosen}
    stand_ins = list(dict.fromkeys(mutant.stand_in for mutant in chosen if mutant.stand_in))
    # On ranks the healthy accelerator is the suite's own run of it; here there is one process.
    named = dict.fromkeys(case for mutant in chosen if not mutant.stand_in for case in cases[mutant.name])
    healthy = [case for case in named if not bench.on_ranks(case)]
    forked = [mutant for mutant in chosen if mutant.how is How.FORK]
    planned = [
        Job(None, healthy),
        *(Job(None, measuring.sound_cases(stand_in, chosen), stand_in) for stand_in in stand_ins),
        *(Job(mutant, cases[mutant.name]) for mutant in forked),
    ]
    results: list[Result] = []
    prepare()

    def done(job: Job) -> None:
        message = job.mutant.message if job.mutant else ""
        result = measuring.result_of(job.name, job.verdicts, job.seconds, message)
        results.append(result)
        print(_line(job.mutant, result), flush=True)

    run_all(planned, jobs, done)
    from .through_pytest import run_mutant

    for mutant in chosen:
        if mutant.how is How.PYTEST:
            results.append(run_mutant(mutant, cases[mutant.name]))
            print(_line(mutant, results[-1]), flush=True)
    return results


def compare(chosen: Sequence[Mutant], results: dict[str, Result]) -> list[str]:
    """The names of sampled mutants to whose named cases a whole run gives other verdicts."""
    from .through_pytest import run_mutant

    differing = []
    for mutant in chosen:
        if mutant.name not in SAMPLE:
            continue
        cases = measuring.naming_cases(mutant)
        whole = _verdicts(run_mutant(mutant, cases).reds, cases)
        same = whole == _verdicts(results[mutant.name].reds, cases)
        print(f"{'same' if same else 'OTHER'} verdicts in a whole run: {mutant.name}", flush=True)
        differing += [] if same else [mutant.name]
    return differing


def _verdicts(reds: Sequence[Red], cases: Sequence[str]) -> set[tuple[str, str]]:
    return {(red.case, red.reason) for red in reds if red.case in cases}


def _line(mutant: Mutant | None, result: Result) -> str:
    if mutant is None:
        return f"{result.name}   {result.ran} cases, {len(result.reds)} red, {result.seconds:.0f} s" + _listed(
            result.reds
        )
    caught = result.catching(mutant)
    word = "killed  " if caught else "SURVIVED"
    by = ", ".join(bench.functions_of([red.case for red in caught])[:4]) or f"not by {mutant.fault.caught_by}"
    numbers = f"({len(result.reds)} red of {result.ran}, {result.seconds:.0f} s)"
    return f"{word}  {mutant.name}: {by} {numbers}" + _listed(result.accused(mutant))


def _listed(reds: Sequence[Red]) -> str:
    return "".join(f"\n          accused: {name}" for name in bench.functions_of([red.case for red in reds]))


def report(chosen: Sequence[Mutant], results: dict[str, Result], differing: Sequence[str], seconds: float) -> int:
    """Print totals; 1 if a mutant survives, somebody is accused falsely, or a whole run says something else."""
    survivors = [mutant.name for mutant in chosen if not results[mutant.name].catching(mutant)]
    accused = [mutant.name for mutant in chosen if results[mutant.name].accused(mutant)]
    wrong = sum(len(result.reds) for result in results.values() if measuring.is_healthy(result.name))
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {seconds:.0f} s")
    print(f"false accusations: {wrong} on healthy accelerators, by {len(accused)} mutants")
    for title, names in (("survivors", survivors), ("accusing", accused), ("other verdicts in a whole run", differing)):
        if names:
            print(f"{title}: {'; '.join(names)}")
    return 1 if survivors or accused or wrong or differing else 0


if __name__ == "__main__":
    sys.exit(main())
