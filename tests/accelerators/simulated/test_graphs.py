"""Capture records without running; replay runs on what the inputs hold then."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def captured(sim: Any, work: Any, **options: Any) -> Any:
    graph = sim.SIMGraph()
    with sim.graph(graph, **options):
        work()
    return graph


def test_replay_uses_current_values(sim: Any) -> None:
    x = torch.ones(4, device="sim")
    out: list[torch.Tensor] = []
    graph = captured(sim, lambda: out.append(x * 2 + 1))

    assert torch.isnan(out[0].cpu()).all()
    x.copy_(torch.arange(4.0))
    graph.replay()
    assert out[0].tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (torch.abs, [0, 1, 2, 3]),  # PyTorch makes an empty result, which abs.out then lets grow
        (lambda x: torch.add(x, 1.0, out=torch.empty(0, device="sim")), [1, 0, -1, -2]),
        (lambda x: torch.cat((x, x), out=torch.empty(2, device="sim")), [0, -1, -2, -3, 0, -1, -2, -3]),
        (lambda x: torch.mul(x, 2.0, out=torch.empty(9, device="sim").resize_(4)), [0, -2, -4, -6]),
    ],
)
def test_a_result_that_grows_during_capture_is_replayed(sim: Any, work: Any, expected: list[float]) -> None:
    x = torch.ones(4, device="sim")
    out: list[torch.Tensor] = []
    graph = captured(sim, lambda: out.append(work(x)))

    x.copy_(-torch.arange(4.0))
    graph.replay()
    assert out[0].tolist() == expected


def test_capture_undoes_in_place_work_and_draws(sim: Any) -> None:
    x = torch.ones(4, device="sim")
    state = sim.get_rng_state()
    graph = captured(sim, lambda: (x.add_(1), torch.rand(3, device="sim")))

    assert x.tolist() == [1, 1, 1, 1]
    assert torch.equal(sim.get_rng_state(), state)
    graph.replay()
    graph.replay()
    assert x.tolist() == [3, 3, 3, 3]


def test_random_numbers_advance_with_each_replay(sim: Any) -> None:
    out: list[torch.Tensor] = []
    graph = captured(sim, lambda: out.append(torch.rand(8, device="sim")))
    graph.replay()
    first = out[0].tolist()
    graph.replay()

    assert out[0].tolist() != first


def test_pool_is_shared(sim: Any) -> None:
    x = torch.ones(4, device="sim")
    first = captured(sim, lambda: x * 2)
    second = captured(sim, lambda: x * 3, pool=first.pool())

    assert second.pool() == first.pool()


def test_the_host_cannot_look_while_capturing(sim: Any) -> None:
    x = torch.ones(4, device="sim")

    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(sim, lambda: x.sum().item())
    assert x.sum().item() == 4


def test_training_step_is_captured(sim: Any) -> None:
    model = torch.nn.Linear(4, 1).to("sim")
    x = torch.ones(2, 4, device="sim")
    model(x).sum().backward()
    expected = model.weight.grad.clone()

    def step() -> None:
        model.weight.grad.zero_()
        model(x).sum().backward()

    graph = captured(sim, step)
    model.weight.grad.fill_(9)
    graph.replay()

    assert torch.equal(model.weight.grad, expected)
