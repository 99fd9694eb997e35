"""The operator cases: every OpInfo of the installed torch × dtype × mode, without importing torch twice a day.

Importing PyTorch's operator database takes seconds and much memory, and a plan needs only names and dtypes. So
what the database says is kept in a small file in the user's cache folder, keyed by everything it depends on; a
missing, broken or unwritable file costs time and nothing else. No operator is listed here by hand.

Cells that make no sense are left out by rule: training needs a differentiable dtype and an operator with autograd.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from conformance.accelerators.capabilities import DIFFERENTIABLE_DTYPES, DTYPES, Cell, Mode
from conformance.case import Case
from conformance.process.python import child_python

#: float8 has no arithmetic in PyTorch's operator database; its storage and casts are cases of the accelerator area.
OPERATOR_DTYPES = tuple(name for name in DTYPES if not name.startswith("float8"))
AREA = "operators"
_LONGEST_READING = 300.0


@dataclass(frozen=True)
class Operator:
    """What a plan needs to know of one OpInfo. ``dtypes`` and ``backward`` are those of PyTorch's own CPU."""

    name: str
    full_name: str
    dtypes: tuple[str, ...]
    backward: tuple[str, ...]
    autograd: bool
    error_inputs: bool


def generate() -> list[Case]:
    """Every case of the area, in the database's order."""
    return [case for operator in operators() for case in cases_of(operator)]


def cases_of(operator: Operator) -> list[Case]:
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
    subject = f"{AREA}.{operator.name}"
    return Case(
        id=f"{subject}[{dtype}-{mode.value}]",
        area=AREA,
        axes=(("dtype", dtype), ("mode", mode.value)),
        requires=(Cell(subject, dtype, mode.value),),
        adaptive=True,
        in_reference=in_reference,
        payload=operator.full_name,
    )


def _error_case(operator: Operator) -> Case:
    """Refusing bad input is no evidence for an operator that refuses everything, so this one is not adaptive."""
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
    """Every operator of the installed torch, from the cache file when it is valid."""
    path = cache_path()
    known = _read(path)
    if known is None:
        fill_cache_elsewhere()
        known = _read(path) or _from_database()
    return known


def fill_cache_elsewhere() -> None:
    """Read the database in a process of its own: a plan then never holds its hundreds of megabytes."""
    program = f"from {__name__} import fill_cache; fill_cache()"
    subprocess.run(child_python(program), capture_output=True, check=False, timeout=_LONGEST_READING)


def fill_cache() -> None:
    _write(cache_path(), _from_database())


def _from_database() -> tuple[Operator, ...]:
    from .database import database, runs_on_cuda_only

    taken: set[str] = set()
    return tuple(_operator(info, taken, in_reference=not runs_on_cuda_only(info)) for info in database().values())


def _operator(info: object, taken: set[str], *, in_reference: bool) -> Operator:
    forward = {str(dtype).removeprefix("torch.") for dtype in info.dtypes if in_reference}
    backward = {str(dtype).removeprefix("torch.") for dtype in info.supported_backward_dtypes("cpu")}
    return Operator(
        name=_unique(re.sub(r"[^A-Za-z0-9_.]", "_", info.full_name), taken),
        full_name=info.full_name,
        dtypes=tuple(name for name in OPERATOR_DTYPES if name in forward),
        backward=tuple(name for name in OPERATOR_DTYPES if name in backward),
        autograd=bool(info.supports_autograd),
        error_inputs=info.error_inputs_func is not None and any(True for _ in info.error_inputs("cpu")),
    )


def _unique(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}.{number}", number + 1
    taken.add(candidate)
    return candidate


# --- the cache file -------------------------------------------------------------------------------------------------


def cache_path() -> Path:
    """The cache file of this torch, Python, and database; a new name for anything that changes the list."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "accelerator-conformance" / f"operators-{_key()}.json"


def _key() -> str:
    facts = [platform.python_version(), *(_version(name) for name in ("torch", "numpy")), _database_stamp()]
    facts += [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("catalogue.py", "database.py")]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _database_stamp() -> str:
    """Size and time of the database's source: a torch built from source keeps its version while its list changes."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return "absent"
    source = Path(torch.origin).parent / "testing" / "_internal" / "common_methods_invocations.py"
    try:
        status = source.stat()
    except OSError:
        return "absent"
    return f"{status.st_size}:{status.st_mtime_ns}"


def _read(path: Path) -> tuple[Operator, ...] | None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        known = tuple(
            Operator(**{**row, "dtypes": tuple(row["dtypes"]), "backward": tuple(row["backward"])}) for row in rows
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return known or None


def _write(path: Path, known: tuple[Operator, ...]) -> None:
    """Write beside, then rename: several workers may do this at once, and a reader sees all or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump([asdict(operator) for operator in known], file)
        Path(temporary).replace(path)
    except OSError:
        return  # the next process computes it again
