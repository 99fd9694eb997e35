"""The rooms: what may import what, which packages ship, and what importing costs."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.rows import every_row

ROOT = Path(__file__).parent.parent
ROOMS = {
    "conformance.accelerators": ROOT / "accelerators",
    "conformance.kernels": ROOT / "kernels",
    "conformance.reports": ROOT / "reports",
    "conformance": ROOT / "conformance",
}
#: Leaves of the import graph, which every place may import.
LEAVES = "conformance.base"
#: What each place may import of this project besides the leaves.
ALLOWED = {
    "accelerators": ("conformance.accelerators",),
    "kernels": ("conformance.kernels", "conformance.accelerators"),
    "reports": ("conformance.reports",),
    "suites": (
        "conformance.suites",
        "conformance.plan.case",
        "conformance.process.machine",
        # The call that a crash or a hang names.
        "conformance.process.last_call",
        "conformance.process.python",
        "conformance.judging.finding",
        # The type of the fixture `check`, and the fields by which a call is named in a report.
        "conformance.judging.checker",
        "conformance.reports.calls",
        # The metrics that give the smallest surrounding for an operator.
        "conformance.reports.surroundings",
        "conformance.numerics",
        "conformance.process.watchdog",
        "conformance.kernels",
        "conformance.accelerators.capabilities",
        "conformance.accelerators.declaration",
        "conformance.accelerators.interface",
        "conformance.accelerators.registry",
    ),
}


def _but(*allowed: str) -> tuple[str, ...]:
    """Return the packages inside ``conformance`` without the given ones."""
    inside = (path.parent.name for path in (ROOT / "conformance").glob("*/__init__.py"))
    return tuple(f"conformance.{name}" for name in sorted(inside) if name not in allowed)


#: Packages inside ``conformance`` that must not import others: who is used does not know its user.
FORBIDDEN_INSIDE = {
    "conformance/process": _but("base", "process"),
    # The plan asks the suites for the list of operators, and checks an endpoint of ranks.
    "conformance/plan": _but("base", "plan", "process", "ranks", "suites"),
    "conformance/judging": _but("base", "plan", "judging"),
    "conformance/ranks": _but("base", "plan", "process", "judging", "ranks"),
    "conformance/numerics": _but("base", "numerics"),
    "conformance/runner": ("conformance.suites", "conformance.cli"),
}
FORBIDDEN_LIBRARIES = {"reports": ("torch", "pytest", "_pytest", "numpy"), "accelerators": ("pytest", "_pytest")}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path, package: str) -> Iterator[str]:
    """Yield every absolute module name that a file imports; relative imports are resolved against its package."""
    yield from imports_of(ast.parse(path.read_text()), package)


def imports_of(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            yield from (f"{parent}.{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names)


def package_of(path: Path) -> str:
    for name, folder in ROOMS.items():
        if path.is_relative_to(folder):
            inside = path.parent.relative_to(folder).parts
            return ".".join((name, *inside))
    raise AssertionError(f"{path} is in no room")


def place_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return "suites" if relative.parts[:2] == ("conformance", "suites") else relative.parts[0]


ALL = [path for folder in dict.fromkeys(ROOMS.values()) for path in sources(folder)]


@every_row(ALL, name=lambda path: str(path.relative_to(ROOT)))
def test_arrows_between_rooms(path: Path) -> None:
    place, found = place_of(path), list(imports(path, package_of(path)))
    own = [name for name in found if name.split(".")[0] == "conformance"]

    allowed = (*ALLOWED.get(place, ("conformance",)), LEAVES)
    strays = [name for name in own if not any(name == a or name.startswith(a + ".") for a in allowed)]
    assert not strays, f"{place} must not import {strays}"
    libraries = [name for name in found if name.split(".")[0] in FORBIDDEN_LIBRARIES.get(place, ())]
    assert not libraries, f"{place} must not import {libraries}"
    assert "conformance.plugin" not in {name.rpartition(".")[0] for name in own} | set(own), (
        "nothing imports the plugin"
    )
    assert not {name.split(".")[0] for name in found} & {"accelerators", "kernels", "reports"}, "one name per module"


@pytest.mark.parametrize("folder", FORBIDDEN_INSIDE)
def test_arrows_inside_conformance(folder: str) -> None:
    strays = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(ROOT / folder)
        for name in imports(path, package_of(path))
        if any(f"{name}.".startswith(f"{package}.") for package in FORBIDDEN_INSIDE[folder])
    ]

    assert not strays


def test_no_module_is_in_an_import_cycle() -> None:
    modules = {module_name(path): path for path in ALL}
    graph = {name: set(runtime_imports(path, name, modules)) for name, path in modules.items()}

    # Prepare raises CycleError, whose second argument is one cycle.
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def module_name(path: Path) -> str:
    package = package_of(path)
    return package if path.name == "__init__.py" else f"{package}.{path.stem}"


def runtime_imports(path: Path, module: str, modules: Collection[str]) -> Iterator[str]:
    """Modules of this project that are imported when ``path`` is: not inside functions, nor for type checkers."""
    kept = [node for node in ast.parse(path.read_text()).body if "TYPE_CHECKING" not in ast.dump(node)]
    top = [node for node in kept if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for name in imports_of(ast.Module(top, []), package_of(path)):
        target = name if name in modules else name.rpartition(".")[0]
        if target in modules and target != module:
            yield target


@every_row(sources(ROOT / "conformance" / "base"), name=lambda path: path.name)
def test_leaves_import_only_leaves_and_the_standard_library(path: Path) -> None:
    found = [name for name in imports(path, LEAVES) if name.split(".")[0] not in sys.stdlib_module_names]

    assert all(name.startswith(f"{LEAVES}.") for name in found), found


def test_the_top_of_the_package_has_rooms_and_the_plugin_only() -> None:
    modules = {path.name for path in (ROOT / "conformance").iterdir() if path.is_file()}

    assert modules == {"__init__.py", "__main__.py", "plugin.py", "py.typed"}


def test_suites_import_no_backend_and_name_no_accelerator() -> None:
    backends = {path.stem for path in sources(ROOT / "accelerators" / "backends")} - {"__init__", "cpu"}
    strays = []
    for path in sources(ROOT / "conformance" / "suites"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in backends:
                strays.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}")

    assert not strays


def test_the_package_itself_imports_only_what_finds_the_rooms() -> None:
    assert list(imports(ROOT / "conformance" / "__init__.py", "conformance")) == ["pathlib.Path", "importlib.metadata"]


def test_every_package_on_disk_ships() -> None:
    discovered = runpy.run_path(str(ROOT / "setup.py"))["packages"]()

    on_disk = {package_of(path) for path in ALL if path.name == "__init__.py"}
    bare = {path.parent for path in ALL} - {path.parent for path in ALL if path.name == "__init__.py"}

    assert sorted(discovered) == sorted(on_disk)
    assert not bare, "modules in a folder without __init__.py do not ship"


#: Triton's decorators need Triton, which may be missing: what offers the kernels imports them when one is loaded.
IN_TRITON = {path for path in sources(ROOT / "kernels" / "triton") if path.stem not in ("__init__", "offering")}
IMPORTABLE = sorted(
    {
        f"{package_of(path)}.{path.stem}" if path.name != "__init__.py" else package_of(path)
        for path in ALL
        if path not in IN_TRITON
        if place_of(path) in ("accelerators", "reports", "kernels")
        or path.parent == ROOT / "conformance"
        or path.parent.name in ("base", "judging", "plan")
    }
)


def test_importing_a_room_touches_no_vendor_package_and_no_device() -> None:
    program = (
        "import sys, importlib\n"
        f"for name in {IMPORTABLE!r}: importlib.import_module(name)\n"
        "stacks = ('torch_npu', 'torch_mlu', 'torch_supa', 'habana_frameworks')\n"
        "vendors = [m for m in sys.modules if m.split('.')[0] in stacks]\n"
        "assert not vendors, vendors\n"
        "torch = sys.modules.get('torch')\n"
        "assert torch is None or not torch.cuda.is_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_reports_import_neither_torch_nor_pytest() -> None:
    names = [name for name in IMPORTABLE if name.startswith("conformance.reports")]
    program = (
        f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\n"
        "assert not {'torch', 'pytest', '_pytest'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
