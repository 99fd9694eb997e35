"""Cases per second, start-up time and memory compared with TorchCTS 0.4.1, on the same operators and dtypes.

TorchCTS declares an upper bound for torch but works with newer versions, so it is installed with --no-deps and the same
torch. Its OpInfo files are named explicitly, because it collects everything otherwise. Each side runs in a process with
one thread and without workers, one side after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from benchmarks.process import Finished, conformance, pytest, run
from benchmarks.table import Row, main, times

PEER = "torchcts==0.4.1"
#: Packages that TorchCTS 0.4.1 imports besides torch.
PEER_NEEDS = ("pytest", "psutil", "numpy", "expecttest", "hypothesis", "mpmath<2")
DTYPES = ("float32", "bfloat16")
#: One or two of each kind: elementwise, reduction, product, indexing, shape, normalisation, loss.
OPERATORS = (
    "add", "mul", "sub", "exp", "log1p", "tanh", "sigmoid", "softmax", "sum", "mean", "amax", "cumsum", "matmul", "bmm",
    "addmm", "gather", "index_select", "transpose", "nn.functional.gelu", "nn.functional.layer_norm",
    "nn.functional.linear", "nn.functional.mse_loss",
)  # fmt: skip
#: Function of TorchCTS that compares a tensor. Our operator cases count their comparisons themselves.
PEER_COMPARISON = "torchcts.core.comparer:compare_tensors"
#: With "cpu" TorchCTS runs each operator once and compares nothing. It takes this name for an accelerator.
PEER_DEVICE = "cpu:0"
PEER_FILES = ("opinfo/test_opinfo_forward.py", "opinfo/test_opinfo_backward.py")
#: TorchCTS reads from this file, in the current folder, which features it tests.
MANIFEST = """
import pathlib, runpy, torchcts
template = pathlib.Path(torchcts.__file__).with_name("templates") / "manifest.training.py"
manifest = runpy.run_path(str(template))["manifest"]
manifest["device_name"] = "cpu:0"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-python", help="a Python with torch and TorchCTS (default: install them)")
    parser.add_argument(
        "--work", type=Path, default=Path(".bench"), help="folder of the installation (default: .bench)"
    )
    parser.add_argument("--operators", type=int, default=len(OPERATORS), help="number of operators (default: all)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    operators = OPERATORS[: arguments.operators]
    python = arguments.peer_python or install(arguments.work.absolute())
    with tempfile.TemporaryDirectory() as folder:
        peer, here = run_peer(python, operators, Path(folder)), ours(operators, Path(folder))
        return rows(peer, here, len(operators))


def install(work: Path) -> str:
    """Return the Python of a virtual environment with this torch and TorchCTS; make it once."""
    python = work / "torchcts" / "bin" / "python"
    if python.exists():
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", work / "torchcts"], check=True)
    torch = metadata.version("torch").partition("+")[0]
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, f"torch=={torch}", *PEER_NEEDS], check=True)
    subprocess.run([*install, "--no-deps", PEER], check=True)
    return str(python)


def run_peer(python: str, operators: tuple[str, ...], folder: Path) -> Finished:
    where = run([python, "-c", "import torchcts; print(torchcts.__path__[0])"], cwd=folder)
    package = Path(where.output.strip().splitlines()[-1])
    (folder / "manifest.py").write_text(MANIFEST, encoding="utf-8")
    return pytest(
        *(f"--rootdir={package}", f"--confcutdir={package}", *(str(package / file) for file in PEER_FILES)),
        *("--device", PEER_DEVICE, "--level", "8", "--non-interactive", "--results-dir", "results", "-q", "--tb=no"),
        *(part for dtype in DTYPES for part in ("--dtype", dtype)),
        *("-k", " or ".join(peer_ids(operators))),
        cwd=folder,
        python=python,
        environment={"STOPWATCH_COUNT": PEER_COMPARISON},
    )


def peer_ids(operators: tuple[str, ...]) -> list[str]:
    """Return TorchCTS's ids: ``[clean-add-torch.float32]`` forward, one per tier; ``[add-torch.float32]`` backward."""
    backward = [f"{operator}-torch.{dtype}]" for operator in operators for dtype in DTYPES]
    return [f"[{tier}{part}" for tier in ("", "clean-", "has_nan-", "has_inf-") for part in backward]


def ours(operators: tuple[str, ...], folder: Path) -> Finished:
    axes = [f"[{dtype}-{mode}]" for dtype in DTYPES for mode in ("inference", "training")]
    cases = [f"--case=operators.{operator}{axis}" for operator in operators for axis in axes]
    finished = conformance("--area=operators", *cases, "-n0", "-q", cwd=folder)
    if finished.outcomes["selected"] != len(cases):
        raise SystemExit(f"{finished.outcomes['selected']} of {len(cases)} cases exist; correct OPERATORS")
    counted = comparisons(folder / "conformance-report" / "cpu" / "report.json")
    return replace(finished, outcomes={**finished.outcomes, "counted": counted})


def comparisons(report: Path) -> int:
    """Return the number of comparisons that the operator cases counted."""
    cases = json.loads(report.read_text(encoding="utf-8"))["cases"]
    return sum(case.get("metrics", {}).get("comparisons", 0) for case in cases)


def rows(peer: Finished, here: Finished, operators: int) -> list[Row]:
    cells = operators * len(DTYPES)
    return [
        against(f"cases per second of the whole command, {cells} operators × dtypes", peer, here, in_all, "≥ 5×"),
        against("cases per second once loaded", peer, here, lambda run: run.per_second),
        against(
            "comparisons per second once loaded", peer, here, lambda run: run.outcomes.get("counted", 0) / run.steady
        ),
        against("cases that ran", peer, here, lambda run: run.executed),
        against("start to the first test (s)", peer, here, lambda run: run.to_first_test, "≤ 5", less=True),
        against("start to the first verdict (s)", peer, here, lambda run: run.to_first_verdict, less=True),
        against("the whole command (s)", peer, here, lambda run: run.seconds, less=True),
        against("peak memory (MB)", peer, here, lambda run: run.peak_mb, "≤ 2000", less=True),
        Row(
            "failures on PyTorch's own CPU",
            str(here.outcomes.get("failed", 0)),
            "0",
            str(peer.outcomes.get("failed", 0)),
        ),
    ]


def in_all(run: Finished) -> float:
    return run.executed / run.seconds


def against(
    metric: str,
    peer: Finished,
    here: Finished,
    number: Callable[[Finished], float],
    goal: str = "",
    *,
    less: bool = False,
) -> Row:
    """Return a row with both numbers and their ratio; ``less`` means that a smaller number is better."""
    theirs, own = number(peer), number(here)
    over, under = (theirs, own) if less else (own, theirs)
    return Row(metric, f"{own:.4g}", goal, f"{theirs:.4g}", times(over / under) if under else "")


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
