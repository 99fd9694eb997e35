"""A collective that takes a tensor in another layout for a contiguous one is wrong; one that refuses it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from conformance.judging.checker import Checker
from conformance.suites.comm import test_layouts
from conformance.suites.comm.layouts import DENSE, EXPANDED, GAPS, PLAIN, Memory
from tests.acceptance.running import run
from tests.rows import every_row

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

HOST = torch.device("cpu")
WAIVERS = Path(__file__).parents[2] / "accelerators" / "waivers" / "cpu.toml"
#: Calls that show a wrong layout with one rank. The others are the identity there; gloo itself shows four of them.
_OTHERS = test_layouts.CHANGING | test_layouts.MESSAGES | {"all_gather_object"}
ALONE = tuple(call for call in test_layouts.CALLS if call not in _OTHERS)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def raw(value: Any) -> Any:
    """Return the first elements of the memory of a tensor, in the order in which they lie there."""
    if isinstance(value, list):
        return [raw(each) for each in value]
    return value.as_strided(value.shape, _contiguous(value), value.storage_offset()) if _is_tensor(value) else value


def refused(value: Any) -> Any:
    """Return the value unless it has a tensor that is not contiguous."""
    for each in value if isinstance(value, list) else [value]:
        if _is_tensor(each) and not each.is_contiguous():
            raise ValueError("Tensors must be contiguous")
    return value


def packed(value: Any) -> Any:
    """Return contiguous copies of inputs."""
    if isinstance(value, list):
        return [packed(each) for each in value]
    return value.contiguous() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _contiguous(tensor: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def with_arguments(change: Callable[[Any], Any], call: str) -> pytest.MonkeyPatch:
    """Let a function of torch.distributed get changed arguments."""
    patch, original = pytest.MonkeyPatch(), getattr(dist, call)
    patch.setattr(dist, call, lambda *args, **kwargs: original(*map(change, args), **kwargs))
    return patch


def check(call: str, memory: str) -> Checker:
    checker = Checker()
    test_layouts._check_layouts(checker, HOST, memory, call, 0, 1)
    return checker


@every_row([(memory, call) for memory in ("gaps", "mixed") for call in ALONE], "{0[1]} of {0[0]}".format)
def test_a_call_that_reads_memory_in_its_order_is_wrong(row: tuple[str, str]) -> None:
    memory, call = row
    patch = with_arguments(raw, call)
    try:
        with pytest.raises(AssertionError, match=f"{call} from"):
            check(call, memory)
    finally:
        patch.undo()


@every_row(ALONE)
def test_a_call_may_refuse_a_tensor_that_is_not_contiguous(call: str) -> None:
    patch = with_arguments(refused, call)
    try:
        found = check(call, "gaps")
    finally:
        patch.undo()

    assert "a column" in str(found.metrics["refused"])


def test_memory_beside_an_output_and_a_changed_input_are_seen() -> None:
    memory = Memory(HOST, GAPS[0], GAPS[1])
    given, taken = memory.give(torch.arange(4.0).view(2, 2)), memory.take((2, 2))
    taken.zero_()
    memory.check(Checker(), "a call")

    taken.as_strided((1,), (1,), taken.storage_offset() - 1).zero_()
    with pytest.raises(AssertionError, match="wrote beside a tensor that is a part of each row"):
        memory.check(Checker(), "a call")

    given[0, 0] = 7
    with pytest.raises(AssertionError, match="an input of a call"):
        memory.check(Checker(), "a call")


@every_row([*GAPS, *DENSE, PLAIN], lambda layout: layout.name)
def test_a_layout_holds_its_values_apart_from_what_is_around(layout: Any) -> None:
    exact = torch.arange(24.0).view(test_layouts.SHAPE)
    tensor = Memory(HOST, layout, layout).give(exact)

    assert torch.equal(tensor, exact)
    assert tensor.is_contiguous() == (layout.name in ("contiguous", "at an offset"))


def test_an_expanded_input_has_the_values_of_its_rows() -> None:
    memory = Memory(HOST, EXPANDED, PLAIN)
    tensor = memory.give(torch.arange(24.0).view(test_layouts.SHAPE))

    assert tensor.stride()[1:] == (0, 0, 0)
    assert tensor[1].unique().tolist() == [12.0]


def test_two_ranks(tmp_path: Path) -> None:
    """PyTorch's gloo is wrong for a column, and its waiver names the fault; the simulated collectives are right."""
    cases = [f"--case=comm.layout.gaps[{call}]" for call in ("all_reduce", "send", "gather", "all_reduce_coalesced")]
    name = "comm.layout.gaps[all_reduce]"

    plain = run("--accelerator=cpu", *cases, "-n0", cwd=tmp_path).verdicts
    waived = run("--accelerator=cpu", *cases, "-n0", f"--waivers={WAIVERS}", cwd=tmp_path).verdicts
    other = run("--accelerator=sim", *cases, "-n0", cwd=tmp_path, name="sim").verdicts

    assert plain[name] == ("fail", "wrong")
    assert waived[name] == ("skip", "waived")
    assert [outcome for outcome, _ in plain.values()].count("pass") == 3
    assert set(other.values()) == {("pass", "native")}
