"""Tests of device locks: all or none, in order of requests, freed by the kernel, one rank per device."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conformance.ranks.device_locks import DeviceLocks, DevicesBusy, physical_names
from tests.acceptance.running import run
from tests.waiting import wait_for

HERE = Path(__file__).parent
HOLD = """
import sys
import threading
from pathlib import Path
from conformance.ranks.device_locks import DeviceLocks
with DeviceLocks(Path(sys.argv[1]), ["0", "1", "2"]).lock(int(sys.argv[2]), 10.0, "their.case") as locked:
    print(*locked.devices, flush=True)
    sys.stdin.read()
"""


def other(folder: Path, count: int) -> subprocess.Popen[str]:
    """Start another process that locks ``number`` of three devices."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == count
    return process


def locks(folder: Path) -> DeviceLocks:
    return DeviceLocks(folder, ["0", "1", "2"])


def test_what_others_hold_is_not_ours(tmp_path: Path) -> None:
    with other(tmp_path, 1), locks(tmp_path).lock(2, 1.0, "ours") as locked:
        assert locked.devices == (1, 2)
        assert [locked.of_rank(rank)[0] for rank in (0, 1)] == [1, 2]


def test_all_or_none_and_who_has_the_rest(tmp_path: Path) -> None:
    with other(tmp_path, 1) as holder:
        with (
            pytest.raises(
                DevicesBusy,
                match=rf"3 devices are needed, 2 became free: device 0 is held by process {holder.pid} for their.case",
            ),
            locks(tmp_path).lock(3, 0.05, "ours"),
        ):
            pytest.fail("three of two")
        with locks(tmp_path).lock(2, 0.05, "ours") as locked:  # the two were given back
            assert locked.devices == (1, 2)


def test_ranks_get_devices_in_their_order_whichever_became_free_first(tmp_path: Path) -> None:
    """Warm ranks are of one device each: in another order, every case would start new ones."""
    with other(tmp_path, 1) as holder:
        assert holder.stdin is not None
        end = threading.Timer(0.2, holder.stdin.close)
        end.start()
        with locks(tmp_path).lock(3, 10.0, "ours") as locked:
            assert locked.devices == (0, 1, 2)
            assert len(set(locked.descriptors)) == 3


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    with other(tmp_path, 3) as holder:
        holder.kill()
        with locks(tmp_path).lock(3, 5.0, "ours") as locked:
            assert len(locked.devices) == 3


def test_a_rank_that_lives_on_keeps_its_device(tmp_path: Path) -> None:
    with locks(tmp_path).lock(1, 1.0, "ours") as locked:
        _, descriptors = locked.of_rank(0)
        rank = subprocess.Popen(["sleep", "60"], pass_fds=descriptors)
    with rank:
        with pytest.raises(DevicesBusy, match="device 0 is held by"), locks(tmp_path).lock(3, 0.05, "next"):
            pytest.fail("its device was given away")
        rank.kill()
    with locks(tmp_path).lock(3, 1.0, "next") as locked:
        assert len(locked.devices) == 3


def test_nobody_overtakes_who_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), "3"]
    with other(tmp_path, 1), subprocess.Popen(command, stdin=subprocess.DEVNULL) as waiting:
        queue = tmp_path / "queue"
        wait_for("the other process is in the queue", lambda: queue.exists() and not _free(queue))
        with pytest.raises(DevicesBusy, match="ahead in the queue"), locks(tmp_path).lock(1, 0.1, "ours"):
            pytest.fail("a small case went before a large one")
        waiting.kill()


def _free(lock: Path) -> bool:
    return subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", ["0", "1"]),
        ("4,2", ["4", "2"]),
        ("MIG-ab12,GPU-7", ["MIG-ab12", "GPU-7"]),
        ("3", ["0", "1"]),
        ("../x,y", ["0", "1"]),
    ],
)
def test_physical_names(visible: str, expected: list[str]) -> None:
    assert physical_names(2, visible) == expected


def test_two_workers_never_share_a_device_and_too_many_ranks_are_skipped(tmp_path: Path) -> None:
    tests = shutil.copy(HERE / "device_lock_cases.py", tmp_path / "test_device_lock_cases.py")
    found = run("--accelerator=device_lock_accelerator:OWNED", str(tests), "-n2", cwd=tmp_path, name="sim",
                PYTHONPATH=str(HERE), LEASE_NOTES=str(tmp_path), TMPDIR=str(tmp_path), SIM_DEVICES="3")  # fmt: skip

    outcomes = {id: verdict for id, verdict in found.verdicts.items() if "more" not in id}
    assert set(outcomes.values()) == {("pass", "native")}, found.output
    assert found.verdicts["lock.more"] == ("skip", "environment")
    assert found.messages["lock.more"] == "4 ranks need a device each, and there are 3"
    uses = [json.loads(line) for file in tmp_path.glob("use.*") for line in file.read_text().splitlines()]
    assert len(uses) == 8 * 2
    assert {use["worker"] for use in uses} == {"gw0", "gw1"}
    for one, two in itertools.combinations(uses, 2):
        assert one["device"] != two["device"] or one["until"] <= two["since"] or two["until"] <= one["since"]
    assert os.listdir(tmp_path / f"accelerator-conformance-{os.getuid()}" / "sim")
