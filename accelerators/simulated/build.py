"""Build and load of the simulator's C++ core. The build depends on sources, torch, Python and flags."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from conformance.accelerators import building
from conformance.accelerators.building import Built, Recipe
from conformance.base.errors import SetupError

_SOURCES = Path(__file__).parent / "csrc"
_NAME = "sim_core"
# -O1: with -O0 every operator takes ten times longer, and -O2 only makes the build slower.
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-g0",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-w",
    f"-DTORCH_EXTENSION_NAME={_NAME}",
)


def load_core() -> ModuleType:
    """Return the compiled module; raise SetupError if it cannot be built or loaded here."""
    built = build()
    spec = importlib.util.spec_from_file_location(_NAME, built.file)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(core)
    except ImportError as error:
        raise SetupError(
            f"the simulated accelerator's core does not load: {error}\n  delete {built.file.parent} and try again"
        ) from None
    return core


def build() -> Built:
    """Return the compiled core; compile it unless the cache has it."""
    return building.build(recipe())


def recipe() -> Recipe:
    """Return the build recipe of the core."""
    import torch

    abi = sysconfig.get_config_var("EXT_SUFFIX") or ""
    return Recipe(
        name=_NAME,
        place="simulated",
        who="accelerator 'sim'",
        without="every other accelerator works without it",
        sources=_SOURCES,
        depends=(torch.__version__, torch.version.git_version, sys.version_info[:2], abi, _FLAGS),
        arguments=_arguments,
        hint=_hint,
    )


def _arguments(output: Path) -> list[str]:
    """Return the compiler's arguments for the core, which includes all of its sources in ``unity.cpp``."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    folders = [*include_paths(), sysconfig.get_path("include")]
    # Kineto's headers include each other without their folder.
    includes = [f"-isystem{path}" for path in (*folders, *(f"{path}/kineto" for path in folders))]
    libraries = [flag for path in library_paths() for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [
        *_FLAGS, abi, *includes, str(_SOURCES / "unity.cpp"), "-o", str(output),
        *libraries, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
    ]  # fmt: skip


def _hint(first_error: str) -> str:
    """Return the next step after a failed build."""
    import torch

    if "Python.h" in first_error:
        return "install the package python3-dev"
    return f"it is written for torch 2.13; this is {torch.__version__}"
