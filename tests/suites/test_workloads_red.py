"""Every workload case goes red for the defect it is there for, and stays green without one."""

from __future__ import annotations

import builtins
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.accelerators.capabilities import DETERMINISTIC, MEMORY_PEAK, MEMORY_STATS, RNG_STATE
from conformance.accelerators.declaration import Declaration, supported
from conformance.accelerators.registry import resolve
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.bundled import family_of
from conformance.plan.case import Case
from conformance.suites.workloads import data, tasks, test_gpt, test_vit
from conformance.suites.workloads.loop import Trainer, weights_of
from tests.defects.catalogue.stand_ins import workloads as defects
from tests.layers import longer

BODIES = {
    "gpt.train": test_gpt.test_train,
    "gpt.rerun": test_gpt.test_rerun,
    "gpt.restart": test_gpt.test_restart,
    "gpt.generate": test_gpt.test_generate,
    "vit.train": test_vit.test_train,
    "vit.rerun": test_vit.test_rerun,
    "vit.restart": test_vit.test_restart,
    "vit.evaluate": test_vit.test_evaluate,
}
DECLARED = Declaration.of([(c.cell, supported()) for c in (DETERMINISTIC, RNG_STATE)])


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the body of one case on the CPU accelerator; returns what it counted and measured."""

    def run_case(subject: str, dtype: str = "float32", accelerator: Any = None, declared: Any = DECLARED) -> Checker:
        body, check = BODIES[subject], Checker()
        fixtures = {
            "accelerator": accelerator or resolve("cpu").load(),
            "device": torch.device("cpu"),
            "declaration": declared,
            "case": _case(body, dtype),
            "check": check,
            "tmp_path": tmp_path,
            "monkeypatch": monkeypatch,
        }
        taken = body.__code__.co_varnames[: body.__code__.co_argcount]
        body(**{name: fixtures[name] for name in taken})
        return check

    return run_case


def _case(body: Any, dtype: str) -> Case:
    family = family_of(body)
    assert family is not None
    return next(case for case in family.expand() if case.dtype == dtype)


@pytest.mark.parametrize("subject", sorted(BODIES))
def test_a_sound_device_passes(run: Any, subject: str) -> None:
    check = run(subject)

    assert check.count > 0


@pytest.mark.parametrize(
    ("dtype", "dropped_at"),
    longer(itertools.product(["float32", "bfloat16"], [0, 3, 6]), ("float32", 6), ("bfloat16", 0)),
)
def test_a_dropped_update_is_found(run: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, dropped_at: int) -> None:
    sound = Trainer.update

    def update(self: Trainer) -> None:
        if self.run_device.accelerator is None or self.taken != dropped_at:
            sound(self)
        else:
            self.taken += 1

    tasks.reference("vit")
    monkeypatch.setattr(Trainer, "update", update)

    with pytest.raises(AssertionError, match=r"the loss of step|the gradient norm of step"):
        run("vit.train", dtype)


def test_a_parameter_that_is_not_updated_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Trainer.update

    def update(self: Trainer) -> None:
        if self.run_device.accelerator is not None:
            self.model.head.bias.grad = None
        sound(self)

    monkeypatch.setattr(Trainer, "update", update)

    with pytest.raises(AssertionError, match=r"head\.bias|the loss of step"):
        run("vit.train", "bfloat16")


def test_a_model_without_a_causal_mask_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault on all sides: only the meaning of a language model can tell."""
    tasks.reference("gpt")
    with defects.no_causal_mask(), pytest.raises(AssertionError, match=r"decoding with a cache|later tokens"):
        run("gpt.generate")


def test_later_tokens_must_not_matter(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.reference("gpt")
    monkeypatch.setattr(test_gpt, "within", lambda *_: None)

    with defects.no_causal_mask(), pytest.raises(AssertionError, match="later tokens change earlier logits"):
        run("gpt.generate")


@pytest.mark.parametrize("lost", ["optimizer", "rng", "taken"])
def test_a_restart_that_loses_something_is_found(run: Any, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    sound = Trainer.restore

    def restore(self: Trainer, state: dict[str, Any]) -> None:
        fresh = {"optimizer": self.optimizer.state_dict(), "rng": torch.Generator().get_state(), "taken": 0}
        sound(self, {**state, lost: fresh[lost]})

    monkeypatch.setattr(Trainer, "restore", restore)

    with pytest.raises(AssertionError, match="after the restart"):
        run("gpt.restart")


def test_a_restart_is_bounded_where_nothing_is_declared_deterministic(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("vit.restart", declared=Declaration())
    monkeypatch.setattr(Trainer, "restore", lambda self, state: None)

    with pytest.raises(AssertionError, match=r"after the restart .* is off by"):
        run("vit.restart", declared=Declaration())


def test_a_model_that_stops_learning_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sides agree, and the model is still no better than counting bytes."""
    sound = Trainer.update

    def update(self: Trainer) -> None:
        sound(self) if self.taken < tasks.COMPARED_STEPS else setattr(self, "taken", self.taken + 1)

    monkeypatch.setattr(Trainer, "update", update)
    monkeypatch.setattr(tasks, "reference", tasks.Reference)

    with pytest.raises(AssertionError, match="the model has not learned: held-out loss"):
        run("gpt.train")


class _Counting:
    """The CPU accelerator with counters; ``leak`` bytes more are allocated at each reading."""

    def __init__(self, leak: int) -> None:
        self._sound, self._leak, self._allocated = resolve("cpu").load(), leak, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)

    def memory_allocated(self) -> int:
        self._allocated += self._leak
        return self._allocated

    def max_memory_allocated(self) -> int:
        return 123456

    def reset_peak_memory_stats(self) -> None:
        pass


def test_memory_that_does_not_come_back_is_found(run: Any) -> None:
    counted = Declaration.of([(c.cell, supported()) for c in (DETERMINISTIC, MEMORY_STATS, MEMORY_PEAK)])

    check = run("vit.train", accelerator=_Counting(0), declared=counted)
    assert check.metrics["peak_memory_bytes"] == 123456
    with pytest.raises(AssertionError, match="bytes stay allocated"):
        run("vit.train", accelerator=_Counting(10_000), declared=counted)


def test_not_a_number_is_no_agreement(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Trainer.loss

    def loss(self: Trainer, *batch: torch.Tensor) -> torch.Tensor:
        return sound(self, *batch) * (float("nan") if self.run_device.accelerator is not None else 1.0)

    tasks.reference("vit")
    monkeypatch.setattr(Trainer, "loss", loss)

    with pytest.raises(AssertionError, match="nan"):
        run("vit.train")


def test_without_scikit_learn_the_environment_lacks_something(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="sklearn")  # as Python says it
        return sound(name, *arguments)

    for cached in (data.digits, tasks.reference, tasks.task_named):
        cached.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)

    with pytest.raises(EnvironmentLacks, match=r"in the checkout, pip install '.\[workloads\]'"):
        run("vit.evaluate")


def test_the_initial_weights_do_not_depend_on_the_generator() -> None:
    first = weights_of(Trainer(tasks.task_named("vit"), *_host()).model)
    torch.rand(7)
    second = weights_of(Trainer(tasks.task_named("vit"), *_host()).model)

    assert all(torch.equal(second[name], tensor) for name, tensor in first.items())


def _host() -> Any:
    from conformance.suites.workloads.loop import HOST, ORACLE

    return HOST, ORACLE


def test_sixteen_bit_training_asks_for_autocast() -> None:
    needs = {
        case.id: sorted(str(cell) for cell in case.requires)
        for body in BODIES.values()
        for case in family_of(body).expand()  # type: ignore[union-attr]
    }

    assert len(needs) == 24
    assert needs["workloads.gpt.train[float32-training]"] == ["workloads.gpt[float32-training]"]
    assert needs["workloads.gpt.train[bfloat16-training]"] == ["autocast", "workloads.gpt[bfloat16-training]"]
    assert needs["workloads.vit.evaluate[float16-inference]"] == ["workloads.vit[float16-inference]"]
    assert "precision.deterministic" in needs["workloads.vit.rerun[float32-training]"]
