"""Acceptance table of the rank pool: torture cases for each isolation, many cases on the same ranks, and chaos.

tox run -e instrument -- torture                         # everything; about an hour on two cores
tox run -e instrument -- torture --chaos 20 --words reuse fork
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.judging.observation import Seen
from conformance.plan.case import Isolation
from conformance.ranks import pool as pools
from conformance.ranks.channel import Hello, Work
from conformance.ranks.pool import Pool
from tests.acceptance.running import Run
from tests.harness.ranks import chaos, torture_cases
from tests.harness.ranks.expectations import EXPECTED, missing_texts, overdue, verdicts
from tests.harness.ranks.test_torture import leftovers, tortured
from tests.harness.ranks.torchrun import one_host

#: Seconds that fresh ranks need to start, in addition to the time of a body.
START = {Isolation.REUSE: 0.5, Isolation.FORK: 0.5, Isolation.EXEC: 8.0}
TORCHRUN = "torchrun"
MOST_DRIFT, MOST_GROWTH = 1.05, 10.0


@dataclass(frozen=True)
class Line:
    """Row of the table."""

    what: str
    measured: str
    target: str
    met: bool


def tortures(words: list[str], workers: list[str]) -> Iterator[Line]:
    if TORCHRUN in words:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with one_host(4, folder, MARK_OF_THIS_RUN=name) as (endpoint, torchrun):
                run = tortured(folder, f"--ranks-from={endpoint}")
                status = torchrun.status(30)
            yield from judged(run, TORCHRUN, Isolation.REUSE, name, 1)
            yield Line(f"{TORCHRUN}: its exit status", str(status), "0", not status)
    for word in (Isolation(word) for word in words if word != TORCHRUN):
        for count in workers:
            with tempfile.TemporaryDirectory() as name:
                run = tortured(Path(name), count, f"--rank-isolation={word.value}")
                yield from judged(run, f"{word.value} {count}", word, name, 2 if count == "-n2" else 1)


def judged(run: Run, where: str, word: Isolation, folder: str, processes: int) -> Iterator[Line]:
    """Return the rows of a run of all bodies."""
    found, expected = run.verdicts, verdicts()
    wrong = sorted(id for id in expected if found.get(id) != expected[id])
    false_greens = [id for id in wrong if found.get(id, ("", ""))[0] == "pass"]
    texts, late = missing_texts(run), overdue(run, START[word], processes)
    left = leftovers(folder)
    yield Line(f"{where}: verdicts of {len(EXPECTED)} bodies and their followers", *_none(wrong, len(expected)))
    yield Line(f"{where}: false greens", str(len(false_greens)), "0", not false_greens)
    yield Line(f"{where}: texts in messages", *_none([f"{name}: {text}" for name, text, _ in texts], 0))
    slow = [f"{name} {seconds:.1f} s" for name, seconds in late.items()]
    yield Line(f"{where}: time bounds", *_none(slow, len(EXPECTED)))
    yield Line(f"{where}: processes left", str(len(left)), "0", not left)
    if word is Isolation.REUSE:
        yield from promptness(run, where)


def promptness(run: Run, where: str) -> Iterator[Line]:
    """Return the rows with the time until each kind of failure is reported."""
    seconds = {case.id.removeprefix("torture."): case.seconds for case in run.report.cases}
    hang = max(seconds[name] - torture_cases.DEADLINE for name in ("sleeps", "loops_with_the_gil"))
    yield _at_most(f"{where}: crash told after (s)", seconds["segfaults"], 0.5)
    yield _at_most(f"{where}: one fails, the others in a collective (s)", seconds["raises_while_others_wait"], 0.5)
    yield _at_most(f"{where}: proven mismatch (s)", seconds["one_has_left"], 2.0)
    yield _at_most(f"{where}: hang, beyond the deadline (s)", hang, 1.0)


def drift(cases: int) -> Iterator[Line]:
    """Return the rows of many cases on the same ranks: the last quarter compared with the second one, which is warm."""
    pools._MOST_CASES = cases + 1
    pool = Pool(Hello("cpu", None, [], 0, 0))
    file = Path(__file__).with_name("pool_bodies.py")
    work = Work("", "pool.sum", "tests.harness.ranks.pool_bodies", str(file), "test_sum", 0, 0, 30.0, "")
    seconds, processes, memory = [], set(), []
    for number in range(cases):
        begun = time.perf_counter()
        ended = pool.run(work, 2)
        seconds.append(time.perf_counter() - begun)
        if ended.finish.observation.seen is not Seen.RIGHT:
            raise SystemExit(f"case {number} on the same ranks: {ended.finish.observation}")
        processes.add(ended.metrics["pid"])
        if number in (cases // 4, cases - 1):
            memory.append(_resident(int(ended.metrics["pid"])))
    pool.close()
    early, late = (statistics.median(seconds[at : at + cases // 4]) for at in (cases // 4, 3 * cases // 4))
    yield Line(f"{cases} cases: processes that were rank 0", str(len(processes)), "1", len(processes) == 1)
    shown = f"{1e3 * early:.2f} → {1e3 * late:.2f} ms"
    yield Line(f"{cases} cases: median of the last quarter", shown, "≤ 1.05×", late <= MOST_DRIFT * early)
    yield _at_most(f"{cases} cases: growth of a rank (MiB)", memory[1] - memory[0], MOST_GROWTH)


def chaotic(deaths: int, seed: int) -> Iterator[Line]:
    """Repeat chaos runs until ``deaths`` processes have been killed."""
    dice = random.Random(seed)
    victims: Counter[str] = Counter()
    left: list[str] = []
    runs = 0
    while victims.total() < deaths:
        begun, outcome = time.monotonic(), chaos.one_run(dice)
        victims.update(outcome.victims)
        left += outcome.left
        runs += 1
        # Hours on a busy machine: what is known so far must not be lost with the rest.
        sys.stderr.write(f"chaos {victims.total()}/{deaths}: {', '.join(outcome.victims) or 'nobody'}, "
                         f"{time.monotonic() - begun:.1f} s, {len(outcome.left)} left\n")  # fmt: skip
    shown = ", ".join(f"{count}× {name}" for name, count in sorted(victims.items()))
    yield Line(f"{victims.total()} deaths in {runs} runs (seed {seed}; {shown}): processes, ports, segments left",
               *_none(left, 0))  # fmt: skip


def _none(found: list[str], of: int) -> tuple[str, str, bool]:
    shown = f"{len(found)} missed: {'; '.join(found)}" if found else "all" if of else "none missing"
    return shown, "all" if of else "none missing", not found


def _at_most(what: str, value: float, most: float) -> Line:
    return Line(what, f"{value:.2f}", f"≤ {most:g}", value <= most)


def _resident(pid: int) -> float:
    """Return the resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def lines(arguments: argparse.Namespace) -> Iterator[Line]:
    yield from tortures(arguments.words, arguments.workers)
    if arguments.drift:
        yield from drift(arguments.drift)
    if arguments.chaos:
        yield from chaotic(arguments.chaos, arguments.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", nargs="*", default=[word.value for word in Isolation] + [TORCHRUN],
                        help="words of isolation, and torchrun for ranks that it provides")  # fmt: skip
    parser.add_argument("--workers", nargs="*", default=["-n0", "-n2"], type=lambda count: f"-n{count.strip('-n')}")
    parser.add_argument("--drift", type=int, default=2000, help="cases on the same ranks (default: 2000)")
    parser.add_argument("--chaos", type=int, default=200, help="deaths in runs (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the chaos")
    missed = 0
    sys.stdout.write("| what | measured | target | |\n|---|---|---|---|\n")
    for line in lines(parser.parse_args()):
        missed += not line.met
        sys.stdout.write(f"| {line.what} | {line.measured} | {line.target} | {'yes' if line.met else '**no**'} |\n")
        sys.stdout.flush()
    sys.stdout.write(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
