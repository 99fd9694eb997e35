"""Instruments: measurements of the suite and of this project that take longer than a test.

    python -m tests.instruments                          # lists them
    python -m tests.instruments defects                  # runs one
    python -m tests.instruments faults --draws 200       # what follows the name goes to the instrument
    python -m tests.instruments nightly                  # runs all that need nothing more; prints a table of minutes

An instrument that needs more than the suite's own packages says what to install, and then does not run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
#: In the words of a command: a folder that is removed after the run, and the folder for what stays.
TEMPORARY, KEPT = "{temporary}", "{kept}"
USAGE = 4


@dataclass(frozen=True)
class Instrument:
    """One instrument: its minutes on two cores, a sentence, and programs of this Python with their words.

    The first program gets the words that a user gives; without any, it gets ``default``, and ``at_night`` in a nightly
    run. ``packages`` are what it imports beyond the suite's packages, with the requirement for pip. ``needs`` are
    programs, or facts about the machine, that nobody can install from here; an instrument that has needs, or lacks a
    package, is not part of a night.
    """

    name: str
    minutes: str
    sentence: str
    programs: tuple[tuple[str, ...], ...]
    default: tuple[str, ...] = ()
    at_night: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    packages: tuple[tuple[str, str], ...] = ()
    needs: str = ""
    prepare: Callable[[], int] | None = None

    @property
    def is_nightly(self) -> bool:
        """Return whether it runs here without anything more."""
        return not (self.needs or missing(self))


def _tests(*paths: str) -> tuple[str, ...]:
    """Return the words that run these files or folders of tests, with what they print."""
    return ("-m", "pytest", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", *(str(TESTS / path) for path in paths))


def _install_axe() -> int:
    """Install axe-core, which judges the page's accessibility, with npm into the folder that AXE names."""
    folder = Path(os.environ["AXE"]).parents[2]
    command = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder), "axe-core@4.14.1"]
    return subprocess.run(command, check=False).returncode


LIKE_CUDA = "tests.like_cuda.accelerator:LIKE_CUDA"
INSTRUMENTS = (
    Instrument(
        "defects", "20", "Every known defect by itself: which does the suite detect, and whom does it accuse falsely?",
        (("-m", "tests.defects.run"),),
    ),
    Instrument(
        "faults", "60", "Generated faults: the share that the suite kills, per family, with intervals.",
        (("-m", "tests.faults.run", "--out", f"{KEPT}/faults"),),
        default=("--draws", "5000"), at_night=("--narrow", "--draws", "700"),
    ),
    Instrument(
        "reported", "6", "Bugs of real backends from public reports, planted: how many are found, and by which case?",
        (("-m", "tests.faults.reported.run"),), default=("--out", f"{KEPT}/reported.json"),
        at_night=("--out", f"{KEPT}/reported.json"),
    ),
    Instrument(
        "killers", "30", "Every case and family of inputs that kills a drawn fault: what standard is chosen by.",
        (("-m", "tests.faults.killers", "--reported"),),
        default=("--out", f"{KEPT}/killers.jsonl"), at_night=("--draws", "70", "--out", f"{KEPT}/killers.jsonl"),
    ),
    Instrument(
        "families", "5", "What each family of inputs of the operators costs, and which faults it alone kills.",
        (("-m", "tests.faults.families"),), default=(f"{KEPT}/killers.jsonl", "--out", f"{KEPT}/families.json"),
        at_night=(f"{KEPT}/killers.jsonl", "--out", f"{KEPT}/families.json"),
    ),
    Instrument(
        "workload-faults", "5", "Faults that only a model shows: are they found, and do messages name the layer?",
        (("-m", "tests.workload_faults"),),
    ),
    Instrument(
        "engine-faults", "2", "Faults of engines drawn by a seed: are they red in exact, and is the place named?",
        (("-m", "tests.parallel_faults.drawn"),), default=("--seed", "nightly"),
    ),
    Instrument(
        "surroundings", "1", "Devices whose bits depend on a drawn surrounding: are operator, kind and size named?",
        (("-m", "tests.suites.drawn_surroundings"),), default=("--seed", "nightly"),
    ),
    Instrument(
        "blame", "20", "Faults in kernels that programs use: is the culprit named first? Prints scores and misses.",
        (("-m", "tests.blame.run", "--out", f"{KEPT}/blame"),), at_night=("--draws", "60", "--pairs", "10"),
        packages=(("transformers", "transformers"),),
    ),
    Instrument(
        "blame-ranks", "5", "The same on two ranks, in kernels and in collectives.",
        (("-m", "tests.blame.ranked", "--out", f"{KEPT}/blame"),), at_night=("--draws", "20"),
    ),
    Instrument(
        "blame-healthy", "15", "Devices that are right: is anybody blamed, and is honest rounding called rounding?",
        (("-m", "tests.blame.healthy"),), at_night=("--runs", "70", "--rounding", "5"),
        packages=(("transformers", "transformers"),),
    ),
    Instrument(
        "calls", "15", "Traces transformers' models again, and chooses the calls of the area calls.",
        (("-m", "tests.calls.run"),), at_night=("--coverage",), packages=(("transformers", "transformers"),),
    ),
    Instrument(
        "calls-held-out", "5", "Faults that only a size shows, in calls of architectures that the sample did not see.",
        (("-m", "tests.calls.held_out"),), default=("--seed", "nightly"), at_night=("--seed", "nightly"),
        packages=(("transformers", "transformers"),),
    ),
    Instrument(
        "do-nothing", "15", "Every case on an accelerator that does nothing: which pass, and may they?",
        (("-m", "tests.do_nothing.run"),),
    ),
    Instrument(
        "missing-members", "25", "Devices whose module lacks, or refuses, a member: is anything else accused?",
        (("-m", "tests.missing_members.run"),), at_night=("--how", "absent", "--how", "raises", "--how", "none"),
    ),
    Instrument(
        "lies", "10", "Twenty false claims in a true declaration, twenty times: which are named? Prints a table.",
        (_tests("acceptance/test_lies.py"),), variables=(("CONFORMANCE_LIE_SEEDS", "20"),),
    ),
    Instrument(
        "chaos", "10", "Workers that crash and hang, and runs that are killed at twenty random moments and resumed.",
        (_tests("acceptance/test_chaos.py", "acceptance/test_interrupts.py"),),
        variables=(("CONFORMANCE_KILLS", "20"),),
    ),
    Instrument(
        "torture", "60", "Ranks that crash or hang in every way, 2,000 cases on the same ranks, 200 kills: a table.",
        (("-m", "tests.harness.ranks.acceptance"),), at_night=("--chaos", "20"),
    ),
    Instrument(
        "exact", "15", "Devices that compute exactly, in wide numbers or in another order: is any accused?",
        (_tests("exact"),), variables=(("CONFORMANCE_EXACT", "1"),),
    ),
    Instrument(
        "like-cuda", "10", "Most areas on the simulated accelerator with CUDA's habits, which is right: is it accused?",
        (("-m", "pytest", f"--accelerator={LIKE_CUDA}", "--area=capabilities,accelerator,operators,ops,workloads",
          f"--conformance-report={KEPT}/like-cuda"),),
    ),
    Instrument(
        "recipe", "3", "The README's recipes in a new clone; run, gate and publish on cpu, sim and a stand-in.",
        (("-m", "tests.recipe.published", "--profile", "core", "--out", f"{KEPT}/published"),
         ("-m", "tests.recipe.readme")),
    ),
    Instrument(
        "coverage", "15", "The tests with the line coverage of each package outside of the suites; fails below 85 %.",
        (("-m", "tests.line_coverage"),),
        packages=(("coverage", "coverage>=7.10"), ("hypothesis", "hypothesis"), ("lxml", "lxml"), ("yaml", "pyyaml")),
    ),
    Instrument(
        "fuzz", "30", "A million changed reports, waivers, manifests and JUnit files, and a coverage-guided fuzzer.",
        (("-m", "tests.fuzz.blast"), ("-m", "tests.fuzz.run", "-max_total_time=600")), default=("1000000",),
        packages=(("hypothesis", "hypothesis"), ("atheris", "atheris")),
    ),
    Instrument(
        "triton", "3", "The Triton kernels by Triton's interpreter, and compiled for two GPUs that are not here.",
        (_tests("kernels/test_triton.py"),), packages=(("triton", "triton==3.9.0"),),
    ),
    Instrument(
        "strangers", "60", "The suite on backends of other people: failures, their causes and a sample to judge.",
        (("-m", "tests.strangers.run", "--out", f"{KEPT}/strangers"),), needs="a network for their packages",
    ),
    Instrument(
        "hosts", "3", "Cases over two hosts that are network namespaces, with torchrun in both.",
        (_tests("harness/ranks/on_two_hosts.py"),), needs="root and iproute2",
    ),
    Instrument(
        "page", "3", "The published page in Chromium, with the rules of axe-core for accessibility.",
        (_tests("reports/page/in_chromium.py"),),
        variables=(("AXE", f"{TEMPORARY}/node_modules/axe-core/axe.min.js"),),
        packages=(("playwright", "playwright"),), needs="Chromium and npm", prepare=_install_axe,
    ),
)  # fmt: skip
BY_NAME = {instrument.name: instrument for instrument in INSTRUMENTS}


def listed() -> str:
    """Return the table of all instruments."""
    rows = [
        (one.name, one.minutes, one.sentence, ", ".join([*(name for name, _ in one.packages), one.needs]).strip(", "))
        for one in INSTRUMENTS
    ]
    return tabulate(rows, headers=("name", "minutes", "what it measures", "needs"), tablefmt="github")


def missing(instrument: Instrument) -> list[str]:
    """Return the requirements of packages that cannot be imported here."""
    return [wanted for name, wanted in instrument.packages if importlib.util.find_spec(name) is None]


def run(instrument: Instrument, words: Sequence[str]) -> int:
    """Run the programs of an instrument until one fails; return its exit status."""
    if lacking := missing(instrument):
        command = f"{sys.executable} -m pip install {' '.join(lacking)}"
        print(f"{instrument.name} needs {' and '.join(lacking)}. Install it: {command}", file=sys.stderr)
        return USAGE
    kept = Path(os.environ.get("INSTRUMENTS_OUT", ROOT / "conformance-report" / "instruments"))
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:

        def filled(text: str) -> str:
            return text.replace(TEMPORARY, temporary).replace(KEPT, str(kept))

        os.environ.update({name: filled(value) for name, value in instrument.variables})
        if instrument.prepare and (status := instrument.prepare()):
            return status
        given = [filled(word) for word in words or instrument.default]
        for program in instrument.programs:
            # A program of this folder starts in the checkout. Pytest starts outside of it: there, the folder
            # conformance/ would hide the installed package.
            cwd = temporary if "pytest" in program else ROOT
            command = [sys.executable, *map(filled, program), *given]
            if status := subprocess.run(command, cwd=cwd, check=False).returncode:
                return status
            given = []
    return 0


def nightly() -> int:
    """Run all instruments that need nothing more; print minutes and statuses, and return 1 for a failure."""
    rows = []
    for instrument in INSTRUMENTS:
        if not instrument.is_nightly:
            rows.append((instrument.name, "–", "not run"))
            continue
        started = time.monotonic()
        print(f"\n== {instrument.name}: {instrument.sentence}", flush=True)
        # Another process, because an instrument sets variables.
        command = [sys.executable, "-m", "tests.instruments", instrument.name, *instrument.at_night]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        minutes = f"{(time.monotonic() - started) / 60:.1f}"
        rows.append((instrument.name, minutes, f"status {status}" if status else "ok"))
    print(tabulate(rows, headers=("instrument", "minutes", ""), tablefmt="github"))
    return int(any(result.startswith("status") for *_, result in rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """List the instruments, or run one or all; return 4 for an unknown name."""
    name, *words = arguments if arguments is not None else sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        print(f"{(__doc__ or '').strip()}\n\n{listed()}")
        return 0
    if name == "nightly":
        return nightly()
    if name not in BY_NAME:
        print(f"no instrument is called {name}; there are {', '.join(BY_NAME)}", file=sys.stderr)
        return USAGE
    return run(BY_NAME[name], words)


if __name__ == "__main__":
    sys.exit(main())
