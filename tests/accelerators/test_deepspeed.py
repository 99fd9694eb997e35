"""DeepSpeed's own accelerators as subjects. What needs DeepSpeed is skipped without it."""

from __future__ import annotations

import importlib.util

import pytest

from conformance.accelerators.capabilities import DEVICE_INDEX
from conformance.accelerators.declaration import State
from conformance.accelerators.derivation import from_methods
from conformance.accelerators.lint import lint
from conformance.accelerators.registry import resolve
from conformance.base.errors import SetupError, UnknownName

INSTALLED = importlib.util.find_spec("deepspeed") is not None
needs_deepspeed = pytest.mark.skipif(not INSTALLED, reason="needs deepspeed: pip install deepspeed")


def test_without_deepspeed_the_package_is_named(monkeypatch):
    monkeypatch.setattr("conformance.accelerators.sources.is_installed", lambda package: False)

    with pytest.raises(SetupError, match=r"(?s)needs the package deepspeed.*pip install deepspeed"):
        resolve("deepspeed:cpu").preflight()


def test_it_claims_what_ours_supports_and_denies_no_capability_for_ours():
    ours, theirs = resolve("cpu").static_declaration.cells, resolve("deepspeed:cpu").static_declaration.cells

    claimed = {cell: claim for cell, claim in ours.items() if claim.state is State.SUPPORTED}
    assert theirs == {cell: claim for cell, claim in claimed.items() if cell != DEVICE_INDEX.cell}
    assert resolve("deepspeed:no_such").static_declaration.cells == {}


@pytest.mark.parametrize("name", ["cpu", "cuda", "xpu"])
def test_how_our_class_names_its_devices_is_no_claim_of_theirs(name):
    """DeepSpeed's interface promises no index in a name: its CPU's is 'cpu', its CUDA's is 'cuda:0'."""
    assert DEVICE_INDEX.cell in resolve(name).static_declaration.cells
    assert DEVICE_INDEX.cell not in resolve(f"deepspeed:{name}").static_declaration.cells


class Named:
    """Class with the methods of DeepSpeed's accelerators, as far as they name devices."""

    def __init__(self, indexed):
        self.indexed = indexed

    def device_name(self, device_index=None):
        return f"cpu:{device_index}" if self.indexed and device_index is not None else "cpu"


def test_a_name_with_an_index_is_a_claim_and_a_name_without_is_silence():
    assert from_methods(Named(indexed=True)).cells[DEVICE_INDEX.cell].state is State.SUPPORTED
    assert DEVICE_INDEX.cell not in from_methods(Named(indexed=False)).cells


def test_names_are_read_from_an_installed_deepspeed(tmp_path, monkeypatch):
    folder = tmp_path / "deepspeed" / "accelerator"
    folder.mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    for name in ("abstract", "real", "cpu", "klxpu"):
        (folder / f"{name}_accelerator.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    resolve("deepspeed:cpu").preflight()
    with pytest.raises(UnknownName, match=r"(?s)registered: cpu, klxpu.*did you mean 'cpu'"):
        resolve("deepspeed:cpuu").preflight()


@needs_deepspeed
@pytest.mark.filterwarnings("ignore")
def test_deepspeeds_cpu_is_a_subject_with_its_real_faults():
    subject = resolve("deepspeed:cpu")

    live = subject.load()

    assert live.device_name() == "cpu"
    assert live.device(0) is None
    assert {"L05", "L06"} <= {finding.id for finding in lint(subject)}
