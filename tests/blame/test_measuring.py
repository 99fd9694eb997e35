"""Instruments of blame: runs on right devices, and other ways to find an operator."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.blame.program import Program
from tests.faults.fault import Hits
from tests.faults.overriding import after, overridden

from . import healthy, peers, ranked, strangers
from .programs import PROGRAMS

ROOT = Path(__file__).parents[2]
WRONG = {"aten::mm.out": after(lambda result: result.mul_(1.01))}


@pytest.fixture(scope="module")
def live() -> Any:
    return resolve("sim").load()


def test_right_devices_run_every_program_in_16_bits() -> None:
    found = healthy.tasks(200)

    assert len(found) == len(set(found)) == 200
    assert {task.program for task in found} == set(PROGRAMS)
    assert {task.device for task in found} == set(healthy.DEVICES)
    assert {task.variant for task in found} == set(healthy.VARIANTS)
    assert {task.program for task in found if task.variant == "bfloat16"} == set(PROGRAMS) - {"physics"}


def test_who_is_blamed_on_a_right_device_is_told(live: Any) -> None:
    task = healthy.Task("sim", "unet", "float32", 0)

    assert healthy.judged(task, live).is_right
    with overridden(WRONG, "PrivateUse1"):
        assert not healthy.judged(task, live).is_right


def test_a_device_that_rounds_once_is_far_from_the_host_and_only_rounds(live: Any) -> None:
    ran = healthy.judged(healthy.Task("sim", "unet", healthy.WIDE, 0), live)

    assert not ran.close
    assert ran.is_right
    assert not healthy.Ran(ran.task, "RIGHT", judged=1, close=False).is_right


@pytest.mark.parametrize("way", [peers.by_switching_off, peers.by_debug_mode])
def test_other_ways_name_an_operator(live: Any, way: Any) -> None:
    program, device = Program("unet", PROGRAMS["unet"]), torch.device(live.current_device_name())
    right = way(program, device, Hits())
    with overridden(WRONG, "PrivateUse1"):
        wrong = way(program, device, Hits())

    assert not right.named, right.why
    assert wrong.named == ["aten.mm.default"]


def test_the_table_counts_right_and_wrong_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_here", lambda: ["off", "debug"])
    ways = {"blame": peers.Way(["a"], right=True), "off": peers.Way(), "debug": peers.Way(["b"], size=2_000_000)}
    found = [peers.Outcome("p", "fault", True, ways), peers.Outcome("p", "", False, ways)]

    rows = list(csv.reader(peers.table(found).splitlines(), delimiter="|"))

    cells = {row[1].strip(): [cell.strip() for cell in row[2:5]] for row in rows[2:]}
    assert cells == {"blame": ["1 of 1", "0", "1"], "off": ["0 of 1", "0", "0"], "debug": ["0 of 1", "1", "1"]}


# --- architectures of a seed, and ranks -------------------------------------------------------------------------------


def test_architectures_of_a_seed_are_small_and_no_test_names_them() -> None:
    pytest.importorskip("transformers")
    passed: dict[str, str] = {}
    names = [name for name, _ in itertools.islice(strangers.drawn("a", passed), 3)]

    assert names == [name for name, _ in itertools.islice(strangers.drawn("a", {}), 3)]
    assert names != [name for name, _ in itertools.islice(strangers.drawn("b", {}), 3)]
    assert not {name.removeprefix("transformers:") for name in names} & strangers.named()
    assert all(passed.values())


def test_an_architecture_of_a_seed_is_trained() -> None:
    pytest.importorskip("transformers")
    found = strangers.train("qwen2", torch.device("cpu"))

    assert found["gradients"]
    assert all(value.abs().sum() > 0 for name, value in found["gradients"].items() if "weight" in name)


@pytest.mark.parametrize("name", ranked.CHANGES)
def test_each_fault_of_a_collective_changes_what_it_writes(name: str) -> None:
    before, output = torch.rand(2, 3), torch.rand(2, 3) + 1
    due = output.clone()
    ranked.CHANGES[name](output, before)

    assert not torch.equal(output, due)


def test_faults_of_ranks_are_drawn_in_collectives_and_in_kernels() -> None:
    flags = {"aten::mm.out": {"r": ["n9"], "0": ["n9"], "1": ["n9"], "2": ["n9"]}}
    found = {"ddp": (flags, {"c10d::allreduce_": {"c10d::allreduce"}, "aten::mm.out": {"aten::mm"}})}
    tasks = list(ranked.drawn(found, 40, "a"))

    assert {task.fault.target for task in tasks if task.fault} == {"c10d::allreduce_", "aten::mm.out"}
    assert {task.hit for task in tasks} == {(1,), (0, 1)}
    assert tasks == list(ranked.drawn(found, 40, "a")) != list(ranked.drawn(found, 40, "b"))


@pytest.mark.long
def test_a_culprit_on_two_ranks_is_first(tmp_path: Path) -> None:
    """In a process of its own: copies of one that has run a backward pass cannot run another."""
    words = ["--program", "zero", "--draws", "2", "--seed", "a", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "tests.blame.ranked", *words], check=True, cwd=ROOT)
    healthy, *broken = json.loads((tmp_path / "ranked.json").read_text(encoding="utf-8"))

    assert healthy["answer"] == "RIGHT"
    assert [one["right"] for one in broken if one["moved"]]
    assert all(one["right"] for one in broken if one["moved"])
