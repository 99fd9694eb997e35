"""Defects of our own catalogue under TorchCTS 0.4.1: which of them each suite detects on the same broken device.

Two kinds of mutants are left out: those that end or hang their process, and those that TorchCTS cannot see. The latter
are false claims, because it reads claims from another file, and members of our interface that it does not call. The
first mutant of each family runs, and every mutant that a peer is known to miss; ``--all`` runs all. TorchCTS runs its
tests of the device interface, memory, random numbers, copies, optimizers and large tensors, and those of the operators
below, each on the healthy device first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from benchmarks.against_torchcts import add_arguments, install
from benchmarks.process import PLUGINS, run
from tests.defects import forking
from tests.defects.bench import select
from tests.defects.catalogue import MUTANTS
from tests.defects.mutant import How, Mutant

ROOT = Path(__file__).parent.parent
FILES = (
    "opinfo/test_opinfo_forward.py",
    "opinfo/test_opinfo_backward.py",
    "device_api",
    "memory",
    "rng",
    "multi_device",
    "stress",
    "autograd/test_backward.py",
    "dtypes/test_copy_cast.py",
    "operators/test_matmul.py",
    "operators/test_activation.py",
    "operators/test_reduction.py",
    "operators/test_edge_contracts.py",
    "training/test_fused_optimizer_raw.py",
    "training/test_mixed_precision.py",
    "strides",
    "serialization",
)
#: Operators of TorchCTS' database that the mutants break, and related ones.
OPERATORS = (
    "add",
    "amax",
    "bmm",
    "cumsum",
    "div",
    "floor_divide",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mm",
    "mul",
    "neg",
    "nn.functional.dropout",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.linear",
    "softmax",
    "sort",
    "sub",
    "sum",
    "tanh",
    "tril",
    "where",
)
MANIFEST = """
import pathlib, runpy, torchcts
import conformance.accelerators.simulated.torch_sim
template = pathlib.Path(torchcts.__file__).with_name("templates") / "manifest.training.py"
manifest = runpy.run_path(str(template))["manifest"]
manifest.update(device_name="sim", backend_import="conformance.accelerators.simulated.torch_sim", device_count=2)
features = ("fused_optimizer", "streams", "events", "pinned_memory", "multi_device", "device_api", "deterministic")
manifest["capabilities"].update(dict.fromkeys(features, True))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--all", action="store_true", help="every mutant instead of one of each family; takes hours")
    arguments = parser.parse_args()
    python = arguments.peer_python or install(arguments.work.absolute())
    run([python, "-m", "pip", "install", "--quiet", "jinja2", "tabulate", "junitparser", "pytest-xdist"], cwd=ROOT)
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT)], cwd=ROOT)
    chosen = visible() if arguments.all else representative(visible())
    here = ours(chosen)
    peer = theirs(python, chosen)
    sys.stdout.write(table(chosen, here, peer) + "\n")


def visible() -> list[Mutant]:
    """Return the mutants that break the device itself, so that every suite can see them."""
    return [mutant for mutant in MUTANTS if mutant.how is How.FORK and _breaks_the_device(mutant)]


def _breaks_the_device(mutant: Mutant) -> bool:
    fault = mutant.fault
    return not mutant.claims and bool(fault.switches or fault.operators or fault.members or mutant.peer_misses)


def representative(mutants: list[Mutant]) -> list[Mutant]:
    """Return the first mutant of each family, and those that a peer is known to miss."""
    first = {mutant.family: mutant for mutant in reversed(mutants)}
    return [mutant for mutant in mutants if mutant.peer_misses or first[mutant.family] is mutant]


def ours(chosen: list[Mutant]) -> dict[str, bool]:
    """Return, by mutant, whether the case that must detect it does."""
    jobs = [forking.Job(mutant, select([mutant.fault.caught_by])) for mutant in chosen]
    forking.prepare()
    forking.run_all(jobs, len(os.sched_getaffinity(0)), lambda _: None)
    return {job.name: any(verdict.outcome.value == "fail" for verdict in job.verdicts.values()) for job in jobs}


def theirs(python: str, chosen: list[Mutant]) -> dict[str, str]:
    """Return, by mutant, a test of TorchCTS that fails only with it; empty if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        package = Path(run([python, "-c", "import torchcts; print(torchcts.__path__[0])"], cwd=here).output.split()[-1])
        (here / "manifest.py").write_text(MANIFEST, encoding="utf-8")
        result = here / "mutants.json"
        finished = run(
            [
                *(python, "-m", "pytest", "-p", "mutating", "-p", "no:cacheprovider", "-p", "no:randomly"),
                *(f"--rootdir={package}", f"--confcutdir={package}", *(str(package / file) for file in FILES)),
                *("--device", "sim", "--level", "8", "--non-interactive", "--results-dir", "results", "-q", "--tb=no"),
            ],
            cwd=here,
            environment={
                "PYTHONPATH": os.pathsep.join((str(PLUGINS), str(ROOT))),
                "MUTANTS_FILE": str(result),
                "MUTANTS_NAMES": "\n".join(mutant.name for mutant in chosen),
                "MUTANTS_OPERATORS": " ".join(OPERATORS),
            },
        )
        if not result.exists():
            raise SystemExit(f"TorchCTS did not run:\n{finished.output[-2000:]}")
        found = json.loads(result.read_text(encoding="utf-8"))
    return {name: (ids or [""])[0].split("torchcts/")[-1] for name, ids in found.items()}


def table(chosen: list[Mutant], here: dict[str, bool], peer: dict[str, str]) -> str:
    rows = [
        (mutant.name, mutant.family, peer[mutant.name] or "–", "fails" if here[mutant.name] else "–")
        for mutant in chosen
    ]
    detected = sum(1 for mutant in chosen if peer[mutant.name])
    total = (f"**{len(chosen)} defects**", "", f"**{detected} detected**", f"**{sum(here.values())} detected**")
    return str(tabulate([*rows, total], headers=("defect", "family", "TorchCTS", "here"), tablefmt="github"))


if __name__ == "__main__":
    main()
