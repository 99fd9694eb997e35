"""Cases per second, start-up and memory against TorchCTS 0.4.1, on the same operators and dtypes, in one go.

TorchCTS declares an upper bound of torch that it works beyond, so it is installed with --no-deps beside the same
torch. Its OpInfo files are named explicitly; without that it collects everything. Both sides run in one process
without worker processes, one after the other, with one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.process import Finished, conformance, pytest, run
from benchmarks.table import Row, main, times

PEER = "torchcts==0.4.1"
#: What TorchCTS 0.4.1 imports besides torch.
PEER_NEEDS = ("pytest", "psutil", "numpy", "expecttest", "mpmath<2")
DTYPES = ("float32", "bfloat16")
#: One or two of each kind: elementwise, reduction, product, indexing, shape, normalisation, loss.
OPERATORS = (
    "add", "mul", "div", "exp", "log1p", "tanh", "sigmoid", "softmax", "sum", "mean", "amax", "cumsum", "matmul", "bmm",
    "addmm", "gather", "index_select", "transpose", "nn.functional.gelu", "nn.functional.layer_norm",
    "nn.functional.linear", "nn.functional.mse_loss",
)  # fmt: skip
PEER_FILES = ("opinfo/test_opinfo_forward.py", "opinfo/test_opinfo_backward.py")
#: TorchCTS reads what it may test from this file in the current folder.
MANIFEST = """
import pathlib, runpy, torchcts
template = pathlib.Path(torchcts.__file__).with_name("templates") / "manifest.training.py"
manifest = runpy.run_path(str(template))["manifest"]
manifest["device_name"] = "cpu"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-python", help="a Python that has torch and TorchCTS; without it one is installed")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="where it is installed (default: .bench)")
    parser.add_argument("--operators", type=int, default=len(OPERATORS), help="only the first so many operators")


def measure(arguments: argparse.Namespace) -> list[Row]:
    operators = OPERATORS[: arguments.operators]
    python = arguments.peer_python or install(arguments.work.absolute())
    with tempfile.TemporaryDirectory() as folder:
        # A first run fills the file cache, and ours of the operator database, for both sides alike.
        peer = run_peer(python, operators, Path(folder))
        ours(operators[:1], Path(folder))
        return rows(peer, ours(operators, Path(folder)), len(operators))


def install(work: Path) -> str:
    """A virtual environment with this torch and TorchCTS; made once."""
    python = work / "torchcts" / "bin" / "python"
    if python.exists():
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", work / "torchcts"], check=True)
    torch = metadata.version("torch")
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if torch.endswith("+cpu") else []
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, f"torch=={torch}", *index, *PEER_NEEDS], check=True)
    subprocess.run([*install, "--no-deps", PEER], check=True)
    return str(python)


def run_peer(python: str, operators: tuple[str, ...], folder: Path) -> Finished:
    where = run([python, "-c", "import torchcts; print(torchcts.__path__[0])"], cwd=folder)
    package = Path(where.output.strip().splitlines()[-1])
    (folder / "manifest.py").write_text(MANIFEST, encoding="utf-8")
    return pytest(
        *(f"--rootdir={package}", f"--confcutdir={package}", *(str(package / file) for file in PEER_FILES)),
        *("--device", "cpu", "--level", "8", "--non-interactive", "--results-dir", "results", "-q", "--tb=no"),
        *(part for dtype in DTYPES for part in ("--dtype", dtype)),
        *("-k", " or ".join(peer_ids(operators))),
        cwd=folder,
        python=python,
    )


def peer_ids(operators: tuple[str, ...]) -> list[str]:
    """TorchCTS's ids: ``[clean-add-torch.float32]`` forward, one per tier; ``[add-torch.float32]`` backward."""
    backward = [f"{operator}-torch.{dtype}]" for operator in operators for dtype in DTYPES]
    return [f"[{tier}{part}" for tier in ("", "clean-", "has_nan-", "has_inf-") for part in backward]


def ours(operators: tuple[str, ...], folder: Path) -> Finished:
    cases = [
        f"operators.{op}[{dtype}-{mode}]" for op in operators for dtype in DTYPES for mode in ("inference", "training")
    ]
    return conformance("--area=operators", *(f"--case={case}" for case in cases), "-n0", "-q", cwd=folder)


def rows(peer: Finished, here: Finished, operators: int) -> list[Row]:
    what = f"{operators} operators × {len(DTYPES)} dtypes"
    cells = operators * len(DTYPES)
    return [
        Row(
            f"cases per second, {what}",
            f"{here.per_second:.1f} ({here.executed} cases)",
            "≥ 5×",
            f"{peer.per_second:.1f} ({peer.executed} cases)",
            times(here.per_second / peer.per_second),
        ),
        Row(
            "seconds per operator and dtype, forward and backward",
            f"{here.running / cells:.3f}",
            "",
            f"{peer.running / cells:.3f}",
            times(peer.running / here.running),
        ),
        Row(
            "cold start to the first test (s)",
            f"{here.to_first_test:.1f}",
            "≤ 5 s",
            f"{peer.to_first_test:.1f}",
            times(peer.to_first_test / here.to_first_test),
        ),
        Row(
            "the whole command (s)",
            f"{here.seconds:.1f}",
            "",
            f"{peer.seconds:.1f}",
            times(peer.seconds / here.seconds),
        ),
        Row(
            "peak memory (MB)",
            f"{here.peak_mb:.0f}",
            "≤ 2,000",
            f"{peer.peak_mb:.0f}",
            times(peer.peak_mb / here.peak_mb),
        ),
        Row(
            "failures on PyTorch's own CPU",
            str(here.outcomes.get("failed", 0)),
            "0",
            str(peer.outcomes.get("failed", 0)),
        ),
    ]


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
