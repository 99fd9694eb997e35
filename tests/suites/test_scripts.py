"""The identity of calls: a label names one call, and the script of a failed call shows the failure."""

from __future__ import annotations

import contextlib
import io
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.judging.checker import Checker
from conformance.plan.case import Case, Tier, seed_of
from conformance.process.state import seed_everything
from conformance.reports.calls import is_selector
from conformance.reports.verdict import Reason
from conformance.suites.operators import cell
from conformance.suites.operators.calls import database
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import Statement
from conformance.suites.operators.calls.joined import Joined
from conformance.suites.operators.inputs import families
from conformance.suites.operators.judge.cells import Cell, Failure
from conformance.suites.operators.judge.script import Unwritable, script
from conformance.suites.operators.plan.catalogue import generate
from tests.defects.catalogue import MUTANTS
from tests.defects.faults import armed
from tests.defects.mutant import Mutant
from tests.faults.overriding import overridden
from tests.layers import longer

#: Cells whose calls are looked at; the issue of a wrong script was found in each of these.
CELLS = [
    "operators.matmul[float32-inference]",
    "operators.sort[float32-inference]",
    "operators.gather[int64-inference]",
    "operators.nn.functional.layer_norm[float32-training]",
    "operators.bernoulli[float32-inference]",
]
#: One with indices, and one with gradients.
FEW = CELLS[2:4]

#: Characters of a script that takes long to run.
LONG = 60_000


@pytest.fixture(scope="module")
def sim() -> Any:
    return resolve("sim").load()


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        yield


def all_cells() -> dict[str, Case]:
    return {case.id: case for case in generate()}


def judged(case: Case, device: torch.device, accelerator: Any, calls: str = "") -> Checker:
    """The checker after a run of the case that may fail."""
    check = Checker()
    check.calls = calls
    seed_everything(seed_of(case.id, 0), accelerator)
    with contextlib.suppress(Exception):
        cell.run(case, device, check)
    return check


def printed(text: str) -> str:
    """What a script prints in this process, where a fault may be armed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "script", "exec"), {"__name__": "script"})
    return out.getvalue()


def written(failure: Failure) -> str:
    with cell.quiet():
        return script(failure, "a call", device="sim", package=resolve("sim").unloaded().package)


def different_arguments(one: Call, other: Call) -> bool:
    pairs = list(zip(one.tensors, other.tensors, strict=False))
    same = all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(*(t.detach().nan_to_num() for t in (a, b)))
        for a, b in pairs
        if a.layout is torch.strided and not a.is_quantized
    )
    return len(one.tensors) != len(other.tensors) or not same


def some_cells() -> list[str]:
    found = [id for id, case in all_cells().items() if case.dtype and case.in_reference and case.tier is not Tier.DEEP]
    return random.Random(7).sample(found, 40)


def kind(key: str) -> str:
    """Return a call's label without its numbers, of which the scripts are alike."""
    return re.sub(r"\d+", "", key)


@pytest.mark.parametrize(
    ("id", "scripts"),
    longer(
        [*((id, "of each kind") for id in FEW), *((id, "all") for id in (*CELLS, *some_cells()))],
        *((id, "of each kind") for id in FEW),
        repeating=[(id, "all") for id in some_cells()],
    ),
)
def test_a_label_names_one_call_and_its_script_shows_nothing_on_a_healthy_device(
    id: str, scripts: str, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, tuple[Call, Any]] = {}
    problems: list[str] = []
    note = Cell.note

    def noted(self: Cell, call: Call, *given: Any) -> None:
        note(self, call, *given)
        own = call.origin or call
        known, _ = made.setdefault(own.key, (own, self.info))
        if not is_selector(own.key):
            problems.append(f"{own.key} is no selector")
        if known is not own and known.kept is not own.kept and different_arguments(known, own):
            problems.append(f"two calls are {own.key}")

    monkeypatch.setattr(Cell, "note", noted)
    monkeypatch.setattr(families, "left_to_deep", dict)  # labels are those of all families
    judged(all_cells()[id], torch.device("cpu"), sim)
    monkeypatch.undo()

    assert problems == []
    assert len(made) > 3
    if scripts == "of each kind":
        made = {key: made[key] for key in {kind(key): key for key in made}.values()}
    for key, (call, info) in made.items():
        try:
            text = written(Failure(call, info))
        except Unwritable as error:
            assert "layout" in str(error) or "no name in torch" in str(error), key  # noqa: PT017
            continue
        if len(text) > LONG:
            continue  # the same lines with more numbers
        assert "DIFFERENT" not in printed(text), f"{id}{key}\n{printed(text)}\n{text[:3000]}"


def faulty() -> list[Mutant]:
    """Mutants of operators that are killed by a cell of one."""
    known = all_cells()
    found = [m for m in MUTANTS if m.fault.caught_by in known and m.stand_in is None and not m.claims]
    # The others fail beside their cell: the health check, or the profile, says so.
    found = [m for m in found if known[m.fault.caught_by].dtype and m.reason in (None, Reason.WRONG, Reason.STUB)]
    return random.Random(7).sample(found, 40)


@pytest.mark.parametrize(
    "mutant",
    longer(faulty(), step=5, repeating=[m for place, m in enumerate(faulty()) if place % 5]),
    ids=lambda mutant: mutant.name,
)
def test_the_script_of_a_failed_call_shows_the_defect(mutant: Mutant, sim: Any) -> None:
    case, device = all_cells()[mutant.fault.caught_by], torch.device("sim", 0)
    with armed(mutant.fault):
        check = judged(case, device, sim)
        assert check.failed is not None
        again = judged(case, device, sim, calls=check.failed.call.key)
        assert again.failed is not None
        assert again.failed.call.key == check.failed.call.key
        assert again.on_failure is not None, "the selected call alone does not fail"
        text = written(check.failed)
        shown = printed(text)
    assert "DIFFERENT" in shown, f"{check.failed.call}\n{shown}\n{text[:3000]}"
    assert "DIFFERENT" not in printed(text)


def _wrong_on_a_thread(call: Any) -> Any:
    found = call.run()
    return found.add_(1) if threading.current_thread() is not threading.main_thread() else found


def _wrong_if_deterministic(call: Any) -> Any:
    found = call.run()
    return found.add_(1) if torch.are_deterministic_algorithms_enabled() else found


@pytest.mark.parametrize("behaviour", [_wrong_on_a_thread, _wrong_if_deterministic])
def test_a_script_makes_its_call_where_it_failed(behaviour: Callable[[Any], Any], sim: Any) -> None:
    case, device = all_cells()["operators.atan2[float32-inference]"], torch.device("sim", 0)
    with overridden({"aten::atan2.out": behaviour}, "PrivateUse1"):
        check = judged(case, device, sim)
        assert check.failed is not None
        text = written(check.failed)
        assert "DIFFERENT" in printed(text), text[:3000]
    assert "DIFFERENT" not in printed(text)


def test_a_script_makes_the_calls_before(sim: Any) -> None:
    seen: list[Any] = []

    def keeps_the_first(call: Any) -> Any:
        found = call.run()
        seen.append(found.clone())
        same = len(seen) > 1 and seen[-2].shape == found.shape
        return found.copy_(seen[-2]) if same else found

    info = database.find("atan2")
    first = Call(1, torch.rand(3), (torch.rand(3),))
    again = Call(2, torch.rand(3), (torch.rand(3),), before=(first,))
    text = written(Failure(again, info))
    with overridden({"aten::atan2.out": keeps_the_first}, "PrivateUse1"):
        assert "DIFFERENT" in printed(text)
    assert "DIFFERENT" not in printed(text)


def test_the_script_of_a_statement_makes_it(sim: Any) -> None:
    given = Call(1, torch.zeros(3, 2), (torch.tensor([0]),)).into("a statement", Statement("t[:, a] = 20"))
    text = written(Failure(given, database.find("__getitem__")))

    assert "    t[:, a] = 20\n" in text
    assert "DIFFERENT" not in printed(text)
    with overridden({"aten::index_put_": lambda call: call.values[0]}, "PrivateUse1"):
        assert "DIFFERENT" in printed(text)


def test_the_script_of_a_compiled_call_shows_what_the_compiler_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    info = database.find("logsumexp")
    call = Call(0, torch.arange(12.0).view(3, 4), (1,), source="compiled")
    call = call.into("compiled between others", Joined(info.op, "inductor"), one=torch.ones(()))
    text = script(Failure(call, info), "a compiled call", device="cpu")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    assert "DIFFERENT" not in printed(text)

    monkeypatch.setattr(
        torch, "compile", lambda function, **_: lambda *args, **given: [function(*args, **given)[0] * 2]
    )
    with pytest.raises(Unwritable, match="no name"):
        script(Failure(call.into("", Joined(info.op, object())), info), "", device="cpu")

    assert "DIFFERENT: result 0" in printed(text)
