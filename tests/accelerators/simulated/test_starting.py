"""What goes wrong before a device exists is one sentence; other device profiles and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conformance.accelerators.building import compiler
from conformance.accelerators.simulated.build import build, recipe
from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start
from conformance.base.errors import SetupError, UsageError
from tests.acceptance.running import run as run_pytest


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SIM_DEVICES", "many"),
        ("SIM_DEVICES", "0"),
        ("SIM_DEVICES", "-1"),
        ("SIM_MEMORY", "lots"),
        ("SIM_MEMORY", "5"),
        ("SIM_MEMORY", "2T"),
        ("SIM_VISIBLE_DEVICES", "0,7"),
        ("SIM_VISIBLE_DEVICES", "0,0"),
        ("SIM_VISIBLE_DEVICES", "zero"),
        ("SIM_VISIBLE_DEVICES", "0,,1"),
    ],
)
def test_nonsense_is_a_usage_error_naming_the_variable(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=variable):
        DeviceProfile().from_environment({variable: text})


def test_environment_sets_the_face() -> None:
    profile = DeviceProfile().from_environment({"SIM_DEVICES": "4", "SIM_MEMORY": "512M", "SIM_VISIBLE_DEVICES": "3,1"})

    assert (profile.devices, profile.memory, profile.visible) == (2, 512 << 20, (3, 1))
    assert DeviceProfile().from_environment({"SIM_VISIBLE_DEVICES": ""}).devices == 0


def test_second_device_in_one_process_is_refused() -> None:
    with pytest.raises(SetupError, match="'sim' is already this process' out-of-tree device"):
        start(DeviceProfile(device="supa"))


def test_without_compiler_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(SetupError, match=r"install the package g\+\+"):
        compiler(recipe().who, recipe().without)


def test_building_twice_finds_the_first() -> None:
    assert build().file == build().file
    assert build().seconds == 0


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_face_has_its_own_names() -> None:
    out = run(
        """
        import torch
        from conformance.accelerators.simulated.simulator import start
        from conformance.accelerators.simulated.device_profile import DeviceProfile
        start(DeviceProfile(device="supa", devices=3, memory=1 << 30, comm="bccl", graph="SUPAGraph", prefix="SUPA"))
        x = torch.ones(3, device="supa:2")
        print((x + 1).sum().item(), torch.supa.device_count(), torch.supa.SUPAGraph.__name__,
              torch.distributed.Backend.backend_capability["bccl"])
        """
    )

    assert out == "6.0 3 SUPAGraph ['supa', 'cpu']"


def test_poor_face_refuses() -> None:
    out = run(
        """
        import torch
        from conformance.accelerators.simulated.simulator import start
        from conformance.accelerators.simulated.device_profile import DeviceProfile
        start(DeviceProfile(device="poor", streams=False, graph="", dtypes=("float32", "int64", "bool"),
                   missing=frozenset({"aten::cumsum"})))
        for work in (lambda: torch.ones(2, device="poor", dtype=torch.bfloat16),
                     lambda: torch.ones(2, device="poor").cumsum(0)):
            try:
                work()
            except NotImplementedError as error:
                print(error)
        print(hasattr(torch.poor, "Stream"), hasattr(torch.poor, "graph"))
        """
    ).splitlines()

    assert out == [
        "poor does not support BFloat16",
        "Could not run 'aten::cumsum' with arguments from the 'poor' backend: it is not implemented.",
        "False False",
    ]


def test_visible_devices_limit_a_new_process() -> None:
    code = "import torch, conformance.accelerators.simulated.torch_sim\nprint(torch.sim.device_count())"

    assert run(code, SIM_VISIBLE_DEVICES="1") == "1"


def test_processes_that_ran_a_backward_end_cleanly() -> None:
    code = """
        import torch, conformance.accelerators.simulated.torch_sim
        torch.ones(3, device="sim", requires_grad=True).sum().backward()
        """
    for _ in range(2):
        run(code)


@pytest.mark.long
def test_compiling_has_a_time_limit_of_its_own_and_a_line(tmp_path: Path) -> None:
    """The compiler needs longer than loading may take: on a busy machine it is killed with nothing to show for it."""
    compiler = tmp_path / "c++"
    # The last argument after -o is the file to write. The core that this machine has stands for the compiler's work.
    compiler.write_text(
        f'#!/bin/sh\nsleep 24\nwhile [ "$1" != -o ]; do shift; done\ncp {build().file} "$2"\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    variables = {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path), "CONFORMANCE_LOAD_SECONDS": "20"}

    finished = run_pytest(
        "--accelerator=sim", "--case=accelerator.device.count", "-n1", cwd=tmp_path, name="sim", **variables
    )

    assert finished.status == 0, finished.output
    assert "compiling sim_core, once for this torch" in finished.output
    assert list(tmp_path.glob("accelerator-conformance/simulated/*/sim_core.so"))
