"""Broken vendor wheels: torch must import in spite of them, and the chosen one must fail in a sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from conformance.accelerators import autoload
from conformance.accelerators.registry import resolve
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.base.errors import SetupError, UnknownName


def wheel(folder, package, source, hook="_autoload"):
    """An installed vendor wheel with a ``torch.backends`` entry point."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{package} = {package}:{hook}\n")


def test_this_module_is_cheap_to_import():
    program = "import sys, conformance.accelerators.autoload; print('torch' in sys.modules, 'pytest' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["False", "False"]


def test_the_profilers_own_messages_are_silenced_unless_asked_for(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    autoload.disable()
    silent = os.environ["KINETO_LOG_LEVEL"]
    monkeypatch.setenv("KINETO_LOG_LEVEL", "1")
    autoload.disable()

    assert (silent, os.environ["KINETO_LOG_LEVEL"]) == ("99", "1")


def test_a_broken_wheel_harms_nobody_but_itself(tmp_path):
    wheel(tmp_path, "torch_supa", "raise ImportError('libsupa.so.1: wrong ELF class')")
    program = (
        "from conformance.accelerators.registry import resolve\n"
        "from conformance.base.errors import SetupError, UnknownName\n"
        "print(resolve('cpu').load().device_count())\n"
        "print(resolve('auto').load().device_name())\n"
        "resolve('supa').preflight()\n"
        "try: resolve('supa').load()\n"
        "except SetupError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)

    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[:2] == ["1", "cpu"]
    assert lines[2] == (
        "accelerator 'supa' cannot be used: loading torch_supa fails: ImportError: libsupa.so.1: wrong ELF class"
    )


def test_a_module_that_imports_torch_is_safe_from_other_wheels(tmp_path):
    wheel(tmp_path, "torch_supa", "raise ImportError('libsupa.so.1: wrong ELF class')")
    source = "import torch\nclass Mine:\n    def device_name(self, i=None): return 'cpu'\n"
    (tmp_path / "imports_torch.py").write_text(source)
    program = (
        "from conformance.accelerators.registry import resolve\n"
        "print(resolve('imports_torch:Mine').load().device_name())"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)

    assert answer.stdout.strip() == "cpu", answer.stderr


def test_the_chosen_wheels_entry_point_is_run(tmp_path, monkeypatch):
    wheel(tmp_path, "torch_vendor_run", "ran = []\ndef _autoload(): ran.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    autoload.load_vendor("torch_vendor_run", "vendor")

    assert sys.modules["torch_vendor_run"].ran == [1]


def test_an_entry_point_that_raises_is_a_setup_error(tmp_path, monkeypatch):
    wheel(tmp_path, "torch_vendor_hook", "def _autoload(): raise RuntimeError('driver too old')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SetupError, match="loading torch_vendor_hook fails: RuntimeError: driver too old"):
        autoload.load_vendor("torch_vendor_hook", "vendor")


def test_a_wheel_whose_hook_is_missing_is_a_setup_error(tmp_path, monkeypatch):
    wheel(tmp_path, "torch_vendor_nohook", "", hook="absent")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SetupError, match="AttributeError"):
        autoload.load_vendor("torch_vendor_nohook", "vendor")


def test_a_wheel_without_a_torch_module_is_a_setup_error(tmp_path, monkeypatch):
    (tmp_path / "torch_hollow").mkdir()
    (tmp_path / "torch_hollow" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    hollow = TorchAccelerator(name="hollow", vendor="tests", package="torch_hollow")

    with pytest.raises(SetupError, match=r"torch\.hollow does not exist in .*names it as `module`"):
        hollow.load()


def test_a_torch_type_of_an_entry_point_is_known(tmp_path, monkeypatch):
    wheel(tmp_path, "torch_invented", "def _autoload(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)

    subject = resolve("torch:invented")

    subject.preflight()
    with pytest.raises(SetupError, match=r"no device type 'invented', and loading torch_invented does not register it"):
        subject.load()


@pytest.mark.parametrize("package", ["torch_quiet1", "torchquiet2", "quiet3_torch", "quiet5torch", "pytorch_quiet4"])
def test_a_package_without_an_entry_point_is_found_by_its_name(package, tmp_path, monkeypatch):
    type = re.search(r"quiet\d", package)[0]
    (tmp_path / f"{package}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    subject = resolve(f"torch:{type}")

    subject.preflight()
    with pytest.raises(SetupError, match=rf"(?s)no device type '{type}', and loading {package} does not register it"):
        subject.load()
    assert package in sys.modules


def test_a_type_without_a_package_says_which_names_were_looked_for():
    with pytest.raises(UnknownName, match=r'(?s)none is named torch_absent or torchabsent.*package="NAME"'):
        resolve("torch:absent").preflight()


def test_importing_the_registry_starts_no_device():
    program = (
        "import torch, conformance.accelerators.registry, conformance.accelerators.selection\n"
        "import conformance.accelerators.backends.cuda\n"
        "print(torch.cuda.is_initialized(), torch.xpu.is_initialized())"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["False", "False"]
    assert torch.cuda.is_initialized() is False
