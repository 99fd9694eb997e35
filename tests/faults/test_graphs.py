"""Family M: facts and effects of nodes, graphs that run node by node, draws, and a case that finds a fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from conformance.suites.operators.calls import database
from tests.defects import bench
from tests.faults import run
from tests.faults.fault import Fault
from tests.faults.graphs import backend, judging, programs
from tests.faults.graphs.nodes import Broken, Seen, seen


def _compiled(function: Callable[..., Any], *given: torch.Tensor, fault: Fault | None = None) -> tuple[Any, list[Seen]]:
    """Return what a function gives as a graph that runs node by node, and its nodes."""
    nodes: list[Seen] = []

    def look(module: Any, is_backward: bool) -> dict[Any, Any]:
        runs = {}
        for node in module.graph.nodes:
            if (found := seen(node, is_backward=is_backward)) is not None:
                nodes.append(found)
                if fault is not None and judging.meets(fault, found):
                    runs[node] = Broken((fault.kind, fault.detail))
        return runs

    with backend.interpreted(look):
        return torch.compile(function, backend="inductor", fullgraph=True)(*given), nodes


def _sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.t() * y).sum(0)


def test_a_graph_that_runs_node_by_node_gives_what_uncompiled_code_gives() -> None:
    x, y = torch.randn(5, 3), torch.randn(3, 5)

    found, nodes = _compiled(_sums, x, y)

    assert torch.equal(found, _sums(x, y))
    assert [node.target for node in nodes] == ["aten.permute.default", "aten.mul.Tensor", "aten.sum.dim_IntList"]


def test_facts_are_of_a_node_and_of_what_stands_around_it() -> None:
    _, (_, product, total) = _compiled(_sums, torch.randn(1031, 3), torch.randn(3, 1031))

    assert {
        "dtype float32",
        "axis beyond 1024",
        "odd number of elements",
        "operand 0 from aten.permute.default",
        "operand 0 permuted",
        "operand 1 is an input",
        "result into aten.sum.dim_IntList",
    } <= product.facts
    assert ("strides ignored", "0") in product.effects
    assert ("operands exchanged", "0 1") in product.effects
    assert "result returned" in total.facts


@pytest.mark.parametrize(
    ("kind", "detail", "due"),
    [
        ("another value", "", lambda x, y: _sums(x, y)),
        ("strides ignored", "0", lambda x, y: (x.reshape(3, 5) * y).sum(0)),
        ("last row", "", lambda x, y: torch.cat([(x.t() * y)[:-1], (x.t() * y)[:1]]).sum(0)),
    ],
)
def test_an_effect_is_on_the_node_that_meets_the_condition(kind: str, detail: str, due: Any) -> None:
    x, y = torch.arange(15.0).view(5, 3), torch.arange(15.0).view(3, 5)
    fault = Fault("M", kind, "aten.mul.Tensor", "operand 0 permuted", detail)
    scale = 1.25 if kind == "another value" else 1.0

    found, _ = _compiled(_sums, x, y, fault=fault)

    assert torch.equal(found, due(x, y) * scale)
    assert torch.equal(_compiled(_sums, x.t().contiguous().t(), y)[0], _sums(x, y))


def test_a_stale_node_gives_its_first_result_again() -> None:
    fault = Fault("M", "stale", "aten.add.Tensor")

    def look(module: Any, is_backward: bool) -> dict[Any, Any]:
        return {node: Broken(("stale", "")) for node in module.graph.nodes if str(node.target) == fault.target}

    with backend.interpreted(look):
        add = torch.compile(lambda x: x + 1, backend="inductor")
        found = [add(torch.full((2,), value)).tolist() for value in (1.0, 5.0)]

    assert found == [[2.0, 2.0], [2.0, 2.0]]


def test_the_last_of_equal_numbers() -> None:
    fault = Fault("M", "last of equals", "aten.argmax.default")
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])

    assert _compiled(lambda x: x.argmax(1), x, fault=fault)[0].tolist() == [2, 1]


def test_a_seed_draws_the_same_programs() -> None:
    names = sorted(database.database())

    drawn = [[programs.draw(random.Random(f"seed {each}"), names) for each in range(20)] for _ in "ab"]

    assert [[each and each.name for each in part] for part in drawn[:1]] == [[e and e.name for e in drawn[1]]]
    assert sum(each is not None for each in drawn[0]) > 10


def test_a_case_finds_a_fault_and_passes_without_it() -> None:
    fault = Fault("M", "another value", "aten.cumsum.default")
    place = bench.Bench()

    def verdict(look: Callable[[Any, bool], Any]) -> bool:
        with judging.watching(look):
            return judging.is_wrong(place.run("compile.special[running]"))

    assert not verdict(lambda node, is_backward: None)
    assert verdict(partial(judging.breaking, fault, Broken((fault.kind, fault.detail))))


def test_only_the_simulated_accelerator_has_compiled_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--family", "M", "--accelerator", "cpu", "--draws", "1"]) == 4
    assert "leave --accelerator out" in capsys.readouterr().err
