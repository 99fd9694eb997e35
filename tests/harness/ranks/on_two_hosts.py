"""Runs over two hosts: two connected network namespaces, torchrun in both, pytest in the first.

Each host has its own network, name, clock, process ids and disk. The clocks differ by a day, and each host mounts a
disk of its own on the same path.

tox run -e instrument -- hosts            # needs root, for the namespaces
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.running import Run, environment
from tests.harness.ranks.chaos import marked
from tests.harness.ranks.test_kills import wait_until
from tests.harness.ranks.torchrun import PORT, Torchrun, command, started

HERE = Path(__file__).parent
PASS = ("pass", "native")
ADDRESSES = ("10.97.4.1", "10.97.4.2")
#: How long the kernel takes to say that a host is gone, with what a busy machine adds.
UNTIL_TOLD = 20.0
#: Seconds between the clocks of the two hosts.
CLOCKS_DIFFER = 86_400
#: Areas whose cases run over the two hosts.
AREAS = ("comm", "checkpoint", "runtime", "moe", "pipe")


@dataclass(frozen=True)
class Hosts:
    """Pair of network namespaces; ``inside`` returns a command that runs in one of them as on a host of its own."""

    names: tuple[str, str]
    disk: Path

    def inside(self, host: int, words: list[str]) -> list[str]:
        """Return the command in the host's network. Its first process has id 1: when it ends, the kernel kills all."""
        program = f'hostname host-{host} && mount -t tmpfs none {self.disk} && exec "$@"'
        own = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=TERM", "--mount-proc"]
        clock = ["--time", f"--monotonic={host * CLOCKS_DIFFER}", f"--boottime={host * CLOCKS_DIFFER}"]
        return ["ip", "netns", "exec", self.names[host], *own, *clock, "sh", "-c", program, "sh", *words]

    def cut(self) -> None:
        """Drop all packets between the hosts, without an error on either side."""
        _ip("-n", self.names[0], "link", "set", "cable", "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    disk = tmp_path / "disk"
    disk.mkdir()
    names = (f"conformance-{os.getpid()}-0", f"conformance-{os.getpid()}-1")
    with ExitStack() as stack:
        try:
            for name in names:
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
            _ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
            for name, address in zip(names, ADDRESSES, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            why = str(getattr(error, "stderr", "") or error).strip()
            pytest.skip(f"no network namespaces can be made here: {why}")
        yield Hosts(names, disk)


@dataclass(frozen=True)
class Running:
    """Started run over two hosts."""

    process: subprocess.Popen[str]
    torchruns: tuple[Torchrun, Torchrun]
    folder: Path

    def ended(self, timeout: float) -> Run:
        output, _ = self.process.communicate(timeout=timeout)
        return Run(self.process.returncode, output, self.folder / "conformance-report" / "cpu")

    def ranks(self) -> dict[int, str]:
        """Return the processes of the run that are left, without torchrun, which has its own timeout."""
        return {pid: line for pid, line in marked(str(self.folder)).items() if "torch.distributed.run" not in line}


@pytest.fixture
def running(request: pytest.FixtureRequest, hosts: Hosts, tmp_path: Path) -> Iterator[Running]:
    tests = shutil.copy(HERE / "host_cases.py", tmp_path / "test_host_cases.py")
    with over(hosts, tmp_path, [str(tests)], **request.param) as run:
        yield run


@contextmanager
def over(hosts: Hosts, folder: Path, arguments: list[str], **variables: str) -> Iterator[Running]:
    """Start torchrun on both hosts, and pytest with these arguments on the first."""
    more = {"MARK_OF_THIS_RUN": str(folder), "HOSTS_OF_THIS_RUN": "2", **variables}
    more = {name: value.format(folder=folder) for name, value in more.items()}
    options = [
        "--accelerator=cpu",
        f"--ranks-from={ADDRESSES[0]}:{PORT}",
        "--tb=short",  # with the stacks of a hang
        f"--basetemp={hosts.disk / 'pytest'}",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    with ExitStack() as stack:
        both = [
            stack.enter_context(started(hosts.inside(node, command(2, node, 2, ADDRESSES[0], PORT)), folder, **more))
            for node in (0, 1)
        ]
        process = subprocess.Popen(
            hosts.inside(0, [sys.executable, "-m", "pytest", *options, *arguments]),
            cwd=folder, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        yield Running(process, (both[0], both[1]), folder)
        process.kill()
        process.communicate()


#: Two ranks still fit on the first host.
OF_TWO, OF_FOUR = ([f"hosts.after[{n}-{world}]" for n in "01"] for world in (2, 4))
LOSING = [{"HOSTS_LOSE_ONE": "{folder}"}]


@pytest.mark.parametrize("running", [{}], indirect=True)
def test_cases_over_two_hosts(running: Running) -> None:
    run = running.ended(300)

    assert run.verdicts == {
        **{f"hosts.sum[{n}-{world}]": PASS for n in "01" for world in (2, 4)},
        "hosts.raises": ("fail", "raised"),
        "hosts.dies": ("fail", "crash"),
        "hosts.sleeps": ("fail", "hang"),
        "hosts.many": ("skip", "environment"),
        "hosts.loses_its_host": PASS,
        **dict.fromkeys(OF_TWO + OF_FOUR, PASS),
    }, run.output
    assert "rank 1 of 2: ValueError: rank 1 minds" in run.messages["hosts.raises"]
    assert "rank 1 was killed by SIGKILL" in run.messages["hosts.dies"]
    assert "6 ranks are needed, and torchrun provides 4" in run.messages["hosts.many"]
    assert "rank 0 was in barrier #1; rank 1 was in the body" in run.messages["hosts.sleeps"]
    assert "in test_sleeps" in run.output, "the stacks of the other host"
    assert [torchrun.status(60) for torchrun in running.torchruns] == [0, 0], running.torchruns[1].said()
    assert running.ranks() == {}


#: Cases whose ranks read each other's files.
NEED_A_SHARED_FOLDER = ("checkpoint.reshard[", "checkpoint.async", "checkpoint.training")


@pytest.mark.parametrize("shared", [False, True], ids=["no folder", "shared folder"])
def test_the_suite_over_two_hosts(hosts: Hosts, tmp_path: Path, shared: bool) -> None:
    """Nothing compares clocks, process ids or files of different hosts."""
    folder = tmp_path / "on-both"
    folder.mkdir()
    everything = [f"--area={area}" for area in AREAS]
    arguments = ["--case=checkpoint.*", f"--shared-dir={folder}"] if shared else everything

    with over(hosts, tmp_path, arguments) as running:
        run = running.ended(900)

    failed = {id: (verdict, run.messages.get(id)) for id, verdict in run.verdicts.items() if verdict[0] == "fail"}
    assert failed == {}, run.output[-8000:]
    sharing = {id: verdict for id, verdict in run.verdicts.items() if id.startswith(NEED_A_SHARED_FOLDER)}
    assert set(sharing.values()) == {PASS if shared else ("skip", "environment")}
    if not shared:
        assert "--shared-dir" in run.messages["checkpoint.async"]
        ranks = {id for id in run.verdicts if id.startswith(("comm.", "runtime.", "moe.", "pipe."))}
        assert sum(run.verdicts[id] == PASS for id in ranks) > 200
    assert list(folder.iterdir()) == []


def lost(running: Running) -> None:
    """Return the rows of a run that loses its second host during a case."""
    run = running.ended(UNTIL_TOLD + 60)

    assert run.verdicts["hosts.loses_its_host"] == ("fail", "crash"), run.output
    assert "rank 1 on host-1 was lost before its body returned, in the body" in run.messages["hosts.loses_its_host"]
    for name in OF_FOUR:
        assert run.verdicts[name] == ("fail", "raised")
        assert "4 ranks are needed, and 2 of torchrun's 4 at" in run.messages[name]
        assert "gone: rank 2 on host-1, rank 3 on host-1" in run.messages[name]
    assert [run.verdicts[name] for name in OF_TWO] == [PASS, PASS]
    seconds = {case.id: case.seconds for case in run.report.cases}
    assert seconds["hosts.loses_its_host"] < UNTIL_TOLD
    assert max(seconds[name] for name in OF_TWO + OF_FOUR) < 3
    assert wait_until(lambda: not running.ranks(), UNTIL_TOLD), running.ranks()


def both_wait(folder: Path) -> None:
    assert wait_until(lambda: len(list(folder.glob("waits.*"))) == 2, 240)
    time.sleep(0.3)


@pytest.mark.parametrize("running", LOSING, indirect=True)
def test_the_cable_is_cut(running: Running, hosts: Hosts) -> None:
    both_wait(running.folder)

    hosts.cut()

    lost(running)


@pytest.mark.parametrize("running", LOSING, indirect=True)
def test_everything_on_the_second_host_is_killed(running: Running, hosts: Hosts) -> None:
    both_wait(running.folder)

    words = subprocess.run(["ip", "netns", "pids", hosts.names[1]], check=True, capture_output=True, text=True).stdout
    for pid in words.split():
        os.kill(int(pid), signal.SIGKILL)

    lost(running)


@pytest.mark.parametrize("running", LOSING, indirect=True)
def test_pytest_is_killed(running: Running) -> None:
    both_wait(running.folder)

    os.killpg(running.process.pid, signal.SIGKILL)

    assert wait_until(lambda: not running.ranks(), 10), running.ranks()
    assert [torchrun.status(60) for torchrun in running.torchruns] == [0, 0]
