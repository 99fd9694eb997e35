"""The backend files: complete, different from each other, and by convention."""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

import pytest

from conformance.accelerators import backends
from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import DIFFERENTIABLE_DTYPES, VOCABULARY, Cell
from conformance.accelerators.interface import MEMBERS
from conformance.accelerators.registry import resolve

FOLDER = Path(backends.__path__[0])
CPU_FLOATING = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
CPU_DTYPES = (*CPU_FLOATING, "int8", "int16", "int32", "int64", "uint8", "bool")


@pytest.mark.parametrize("name", builtin_names())
def test_a_backend_says_everything_it_must(name):
    accelerator = builtin(name)

    assert accelerator.name == name
    assert accelerator.vendor
    assert accelerator.visible_devices
    assert accelerator.listing or accelerator.simulated
    assert accelerator.collectives
    assert set(accelerator.collectives) <= {"linux", "win32", "darwin"}
    assert accelerator.impersonates <= set(builtin_names())
    assert len(MEMBERS) == 77
    assert resolve(name).static_declaration.supports(Cell("dtype", "float32"))


@pytest.mark.parametrize("name", builtin_names())
def test_flags_and_classes_agree_with_the_claims(name):
    accelerator, declaration = builtin(name), resolve(name).static_declaration

    assert declaration.supports(VOCABULARY["stream"].cell) is accelerator.streams
    assert declaration.supports(VOCABULARY["event"].cell) <= accelerator.events
    assert declaration.supports(VOCABULARY["graph.capture"].cell) <= bool(accelerator.graph)
    assert declaration.supports(VOCABULARY["triton"].cell) <= accelerator.triton
    assert declaration.supports(VOCABULARY["execution.ordered"].cell) is accelerator.ordered
    assert declaration.supports(VOCABULARY["memory.pinned"].cell) <= accelerator.pins


#: Collectives besides all-reduce, broadcast and all-gather, as the vendors' libraries and process groups have them.
ALL = {"average", "rooted", "all-to-all", "point-to-point"}
COLLECTIVES = {
    "cpu": ALL | {"bitwise"},
    "cuda": ALL | {"coalesced"},
    "hpu": ALL,
    "klxpu": ALL - {"average"},
    "mlu": ALL,
    "mps": set(),
    "npu": ALL,
    "sdaa": ALL - {"rooted"},
    "sim": ALL | {"bitwise"},
    "supa": ALL,
    "xpu": ALL,
}


@pytest.mark.parametrize("name", builtin_names())
def test_a_backend_claims_the_collectives_that_its_library_has(name):
    declaration = resolve(name).static_declaration

    claimed = {kind for kind in (*ALL, "bitwise", "coalesced") if declaration.supports(Cell(f"comm.{kind}"))}

    assert claimed == COLLECTIVES[name]


def test_no_two_files_are_near_copies():
    texts = {file.name: file.read_text().splitlines() for file in FOLDER.glob("[!_]*.py")}

    for (first, a), (second, b) in itertools.combinations(texts.items(), 2):
        assert difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() < 0.75, f"{first} and {second}"


def test_the_cpu_speaks_of_every_capability():
    declaration = resolve("cpu").static_declaration

    spoken = {cell.subject for cell in declaration.cells}  # a capability claimed for a dtype counts
    assert [name for name in VOCABULARY if name not in spoken] == []


@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_the_cpu_claims_its_dtypes_with_their_operators(dtype):
    declaration = resolve("cpu").static_declaration

    assert declaration.supports(Cell("dtype", dtype))
    assert declaration.supports(Cell("operators.anything_at_all", dtype, "inference"))
    trains = declaration.supports(Cell("operators.anything_at_all", dtype, "training"))
    assert trains is (dtype in DIFFERENTIABLE_DTYPES)


def test_a_new_file_is_a_new_accelerator(tmp_path, monkeypatch):
    source = (FOLDER / "sdaa.py").read_text().replace("SDAA", "NEWCHIP").replace('"sdaa"', '"newchip"')
    (tmp_path / "newchip.py").write_text(source)
    (tmp_path / "newchip.toml").write_text('[capabilities]\n"profiler" = "native"\n')
    monkeypatch.setattr(backends, "__path__", [str(tmp_path), *backends.__path__])

    assert "newchip" in builtin_names()
    assert resolve("newchip").static_declaration.supports(VOCABULARY["profiler"].cell)
