"""Catalogue of the operator cases: every OpInfo of the installed torch × dtype × mode.

Importing PyTorch's operator database takes seconds and hundreds of megabytes, and a plan needs only names and dtypes.
These are therefore kept in a small file in the user's cache folder. The file's name is a hash of everything that the
list depends on. A missing, broken or unwritable file costs time and nothing else. No operator is listed here by hand.

Cells without a meaning are left out by rule: training needs a differentiable dtype and an operator with autograd.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance.accelerators.capabilities import DIFFERENTIABLE_DTYPES, DTYPES, Cell, Mode
from conformance.base.cache import cache_folder, keep, locked
from conformance.plan.case import Case
from conformance.process.python import child_python

#: float8 has no arithmetic in PyTorch's operator database; its storage and casts are cases of the accelerator area.
OPERATOR_DTYPES = tuple(name for name in DTYPES if not name.startswith("float8"))
AREA = "operators"
#: Program that reads the database, and the processes that run it beside this one.
_FILL = f"from {__name__} import fill_cache; fill_cache()"
_CHILDREN: list[subprocess.Popen[bytes]] = []
#: Timeout in seconds for the process that reads the database.
_LONGEST_READING = 300.0


@dataclass(frozen=True)
class Operator:
    """Facts of one OpInfo that a plan needs. ``dtypes`` and ``backward`` are those of PyTorch's own CPU."""

    name: str
    full_name: str
    dtypes: tuple[str, ...]
    backward: tuple[str, ...]
    autograd: bool
    error_inputs: bool


def generate() -> list[Case]:
    """Return every case of the area, in the database's order."""
    return [case for operator in operators() for case in cases_of(operator)]


def cases_of(operator: Operator) -> list[Case]:
    """Return one operator's cases: inference per dtype, then training per dtype, then error inputs."""
    found = [_cell_case(operator, dtype, Mode.INFERENCE, dtype in operator.dtypes) for dtype in OPERATOR_DTYPES]
    if operator.autograd:
        trained = [dtype for dtype in OPERATOR_DTYPES if dtype in DIFFERENTIABLE_DTYPES]
        found += [
            _cell_case(operator, dtype, Mode.TRAINING, dtype in operator.dtypes and dtype in operator.backward)
            for dtype in trained
        ]
    if operator.error_inputs and operator.dtypes:
        found.append(_error_case(operator))
    return found


def _cell_case(operator: Operator, dtype: str, mode: Mode, in_reference: bool) -> Case:
    """Return the case of an operator in a dtype and mode."""
    subject = f"{AREA}.{operator.name}"
    return Case(
        id=f"{subject}[{dtype}-{mode.value}]",
        area=AREA,
        axes=(("dtype", dtype), ("mode", mode.value)),
        requires=(Cell(subject, dtype, mode.value),),
        # An undeclared or unsupported cell runs as well, so that a wrong declaration is found in both directions.
        adaptive=True,
        in_reference=in_reference,
        payload=operator.full_name,
    )


def _error_case(operator: Operator) -> Case:
    """Return the case for an operator's error inputs.

    It is not adaptive: an operator that refuses everything refuses bad inputs too, so a refusal is no evidence.
    """
    subject = f"{AREA}.{operator.name}"
    first = next(dtype for dtype in OPERATOR_DTYPES if dtype in operator.dtypes)
    return Case(
        id=f"{subject}[error-inputs]",
        area=AREA,
        axes=(("inputs", "error-inputs"),),
        requires=(Cell(subject, first, Mode.INFERENCE.value),),
        payload=operator.full_name,
    )


@functools.cache
def operators() -> tuple[Operator, ...]:
    """Return every operator of the installed torch, from the cache file if it is valid."""
    path = cache_path()
    known = _read(path)
    if known is None:
        fill_cache_elsewhere()
        # Where the cache folder cannot be written, this process has to read the database itself.
        known = _read(path) or _from_database()
    return known


def fill_cache_elsewhere() -> None:
    """Read the database in a child process and write the cache file.

    The process that makes a plan never holds the hundreds of megabytes of the database.
    """
    subprocess.run(child_python(_FILL), capture_output=True, check=False, timeout=_LONGEST_READING)


def begin_filling() -> None:
    """Start the same child process where it is needed, and do not wait for it.

    The list is needed when the modules of other areas have been imported, which takes as long.
    """
    if not cache_path().exists():
        with contextlib.suppress(OSError):
            _CHILDREN.append(
                subprocess.Popen(child_python(_FILL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )


def fill_cache() -> None:
    """Read the database in this process and write the cache file, unless another process has just done it."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if _read(path) is None:
            keep(path, dump_operators(_from_database()))


def _from_database() -> tuple[Operator, ...]:
    """Return all operators of PyTorch's database; this imports torch's testing modules, which takes seconds."""
    from conformance.suites.operators.calls.database import database, runs_on_cuda_only

    taken: set[str] = set()
    return tuple(_operator(info, taken, in_reference=not runs_on_cuda_only(info)) for info in database().values())


def _operator(info: Any, taken: set[str], *, in_reference: bool) -> Operator:
    """Return what the plan needs of an entry. Adds its name to ``taken``."""
    forward = {str(dtype).removeprefix("torch.") for dtype in info.dtypes if in_reference}
    backward = {str(dtype).removeprefix("torch.") for dtype in info.supported_backward_dtypes("cpu")}
    return Operator(
        # Case ids allow fewer characters than the database's names.
        name=_unique(re.sub(r"[^A-Za-z0-9_.]", "_", info.full_name), taken),
        full_name=info.full_name,
        dtypes=tuple(name for name in OPERATOR_DTYPES if name in forward),
        backward=tuple(name for name in OPERATOR_DTYPES if name in backward),
        autograd=bool(info.supports_autograd),
        # Some generators of error inputs yield none for the CPU, so the first is drawn here.
        error_inputs=info.error_inputs_func is not None and any(True for _ in info.error_inputs("cpu")),
    )


def _unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if it is taken, and add it to ``taken``."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}.{number}", number + 1
    taken.add(candidate)
    return candidate


# --- the cache file -------------------------------------------------------------------------------------------------


def cache_path() -> Path:
    """Return the cache file's path; its name changes with torch, Python, NumPy, the database and this code."""
    return cache_folder() / f"operators-{_key()}.json"


def _key() -> str:
    """Return a hash of all that the list of operators depends on."""
    facts = [platform.python_version(), *(_version(name) for name in ("torch", "numpy")), _database_stamp()]
    # A change of these files changes the list for the same torch.
    calls = Path(__file__).parents[1] / "calls"
    own = (Path(__file__), calls / "database.py", calls / "unlisted.py")
    facts += [path.read_text(encoding="utf-8") for path in own]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _version(distribution: str) -> str:
    """Return the version of an installed distribution, or 'absent'."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _database_stamp() -> str:
    """Return size and modification time of the database's source file.

    A torch built from source keeps its version while its list of operators changes.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return "absent"
    source = Path(torch.origin).parent / "testing" / "_internal" / "common_methods_invocations.py"
    try:
        status = source.stat()
    except OSError:
        return "absent"
    return f"{status.st_size}:{status.st_mtime_ns}"


def dump_operators(known: Iterable[Operator]) -> str:
    """Return a list of operators as JSON."""
    return json.dumps([asdict(operator) for operator in known])


def load_operators(text: str) -> tuple[Operator, ...]:
    """Return the operators in a list; raise ValueError, TypeError or KeyError if the text is none."""
    rows = json.loads(text)
    return tuple(
        Operator(**{**row, "dtypes": tuple(row["dtypes"]), "backward": tuple(row["backward"])}) for row in rows
    )


def _read(path: Path) -> tuple[Operator, ...] | None:
    """Return the operators in a file, or None if it cannot be read or has none."""
    try:
        known = load_operators(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return known or None  # an empty list is a failed read: every torch has operators
