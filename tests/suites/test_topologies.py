"""Cores and NUMA nodes that launcher cases bind ranks to, on topologies that this machine does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.suites.launcher.test_slots import cores_of_one_node, node_of
from conformance.suites.launcher.test_torchrun import parts_of_cores

#: Node of each core: nodes whose cores follow each other, nodes whose cores alternate, and a number of two digits.
MACHINES = {"in a row": [0, 0, 1, 1], "alternating": [0, 1, 0, 1], "far": [12, 12, 3, 3], "unnamed": [None] * 4}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[int | None]]:
    """Return a folder as Linux has it, and the nodes of its cores."""
    nodes = MACHINES[request.param]
    for core, node in enumerate(nodes):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        if node is not None:
            (tmp_path / f"cpu{core}" / f"node{node}").mkdir()
    return tmp_path, nodes


def test_nodes_are_those_of_the_topology(machine: tuple[Path, list[int | None]]) -> None:
    folder, nodes = machine

    assert [node_of(core, folder) for core in range(4)] == [node or 0 for node in nodes]


@pytest.mark.parametrize("usable", [[], [1], [1, 2], [0, 1, 2, 3], [3, 2]])
def test_bound_cores_are_of_one_node(usable: list[int], machine: tuple[Path, list[int | None]]) -> None:
    folder, nodes = machine

    cores, node = cores_of_one_node(usable, folder)

    assert cores == [core for core in usable if (nodes[core] or 0) == node]
    assert cores[:1] == usable[:1]


@pytest.mark.parametrize(
    ("usable", "parts"),
    [
        (set(), [[], []]),
        ({5}, [[], []]),
        ({2, 9}, [[2], [9]]),
        ({0, 1, 2}, [[0], [1]]),
        ({7, 4, 6, 5}, [[4, 5], [6, 7]]),
    ],
)
def test_two_ranks_share_no_core(usable: set[int], parts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: usable)

    assert parts_of_cores() == parts
