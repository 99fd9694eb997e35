"""Faults that only a size shows, the choice of calls that meet them, and architectures that are held out."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.suites.calls import data
from conformance.suites.calls.judging import run, wrong
from conformance.suites.calls.spec import Spec, function_of
from tests.calls import held_out
from tests.calls.cover import cover, met, operator, sizes_of, text_of, weights
from tests.calls.size_faults import KINDS, SizeFault, behaviour
from tests.calls.stretched import form_of, stretched, stretched_of
from tests.faults.fault import Hits
from tests.faults.overriding import overridden
from tests.layers import longer


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(resolve("sim").load().current_device_name())


def tensor(*size: int, dtype: str = "float32") -> dict[str, Any]:
    return {"size": list(size), "stride": list(torch.empty(size, device="meta").stride()), "dtype": dtype}


#: By kind: a call that meets a limit, and the limit. No tile divides 40,003.
MET: dict[str, tuple[Spec, int]] = {
    "rows": (Spec("aten._softmax.default", [tensor(40_003, 3), -1, False], {}), 1 << 15),
    "columns": (Spec("aten._softmax.default", [tensor(3, 40_003), -1, False], {}), 1 << 14),
    "index": (Spec("aten.silu.default", [tensor(3, 40_003)], {}), 100_000),
    "tile": (Spec("aten.silu.default", [tensor(3, 40_003)], {}), 100),
    "tile of rows": (
        Spec("aten.native_layer_norm.default", [tensor(4001, 9), [9], tensor(9), tensor(9), 1e-5], {}),
        64,
    ),
    "matrices": (Spec("aten.bmm.default", [tensor(66_001, 2, 1), tensor(66_001, 1, 2)], {}), 65_535),
    "terms": (Spec("aten.mm.default", [tensor(33, 5000), tensor(5000, 31)], {}), 4096),
}


def test_every_kind_has_a_call_here() -> None:
    assert set(MET) == set(KINDS)


@pytest.mark.parametrize("kind", MET)
def test_a_fault_shows_at_its_size_and_below_it_not(device: torch.device, kind: str) -> None:
    spec, limit = MET[kind]
    fault, hits = SizeFault(operator(spec), kind, limit), Hits()
    small = Spec(spec.function, [smaller(value) for value in spec.args], {})

    assert fault.is_met(sizes_of(spec) or pytest.fail("no sizes"))
    with overridden({function_of(spec).name(): behaviour(fault, hits)}, "PrivateUse1"), torch.no_grad():
        assert not wrong(run(small, device, 1), 1)
        assert not hits.count
        assert wrong(run(spec, device, 1), 1)
        assert hits.count == 1


def smaller(value: Any) -> Any:
    """Return an argument with at most 10 elements in each dimension."""
    return tensor(*(min(size, 10) for size in value["size"])) if isinstance(value, dict) else value


def test_a_view_in_all_but_name_has_no_sizes() -> None:
    assert sizes_of(Spec("aten._unsafe_view.default", [tensor(6, 2), [3, 4]], {})) is None
    assert sizes_of(Spec("aten.clone.default", [tensor(6, 2)], {})) is None
    assert sizes_of(Spec("aten.add_.Tensor", [tensor(6, 2), 1], {})) is not None


def test_calls_are_chosen_by_the_faults_that_they_meet_for_their_time() -> None:
    long, wide, both = (Spec("aten.silu.default", [tensor(*size)], {}) for size in ((999, 1), (1, 999), (999, 999)))
    weight = weights([[long], [wide], [both]])
    texts = {text_of(long): 1.0, text_of(wide): 1.0, text_of(both): 1.5}

    assert next(iter(cover(texts, weight, set(), 9))) == text_of(both)
    assert list(cover(texts, weight, met([both]), 9)) == []
    assert set(cover(texts, weight, set(), 1.2)) <= {text_of(long), text_of(wide)}


def test_a_stretched_call_meets_the_limits_that_its_operator_can_have() -> None:
    makers = {
        text_of(Spec("aten.mm.default", [tensor(2048, 768), tensor(768, 3072)], {})): 3,
        text_of(Spec("aten.bmm.default", [tensor(24, 1024, 64), tensor(24, 64, 1024)], {})): 2,
    }
    calls = [Spec(*json.loads(text)) for text in stretched_of(makers)]
    faults = met(calls)

    assert {fault.kind for fault in faults if fault.operator == "bmm"} == set(KINDS)
    for name, kind in KINDS.items():
        assert name == "matrices" or all(SizeFault("mm", name, limit) in faults for limit in kind.limits), name
    assert {form_of(call) for call in calls} == {form_of(Spec(*json.loads(text))) for text in makers}


def test_a_call_whose_rows_must_be_aligned_is_stretched_too() -> None:
    """A grouped product refuses rows that are no multiple of 16 bytes."""
    tensors = [
        {"size": list(size), "stride": stride, "dtype": "bfloat16"}
        for size, stride in (((4096, 256), [256, 1]), ((8, 256, 512), [256 * 512, 512, 1]))
    ]
    ends = {"size": [8], "stride": [1], "dtype": "int32"}

    found = [sizes_of(call) for call in stretched(Spec("aten._grouped_mm.default", [*tensors, ends], {}))]

    assert max(sizes.rows for sizes in found if sizes) > 65_536
    assert max(sizes.result[-1] for sizes in found if sizes) > 65_536


def test_sizes_that_only_the_commonest_call_has_equal_are_stretched_one_by_one() -> None:
    bias, square, wide = tensor(768), tensor(768, 768), tensor(768, 3072)
    makers = {
        text_of(Spec("aten.addmm.default", [bias, tensor(1024, 768), square], {})): 9,
        text_of(Spec("aten.addmm.default", [tensor(3072), tensor(1024, 768), wide], {})): 3,
    }
    faults = met(Spec(*json.loads(text)) for text in stretched_of(makers))

    assert {fault.kind for fault in faults} == set(KINDS) - {"matrices"}
    assert SizeFault("addmm", "columns", 1 << 14) in faults
    assert SizeFault("addmm", "terms", 1 << 14) in faults


def test_a_size_that_an_argument_asks_for_is_stretched() -> None:
    indices = {"size": [2, 512], "stride": [512, 1], "dtype": "int64"}
    spec = Spec("aten.embedding_dense_backward.default", [tensor(2, 512, 768), indices, 32_000, -1, False], {})

    assert max(sizes.rows for sizes in map(sizes_of, stretched(spec)) if sizes) > 65_536


_PAIRS = [[1, 1], [0, 0], [1, 1]]
_TENSORS = [tensor(2, 64, 27, 27), tensor(2, 32, 28, 28), tensor(64, 32, 2, 2)]


@pytest.mark.parametrize(
    "spec",
    [
        Spec("aten.convolution_backward.default", [*_TENSORS, [64], *_PAIRS, False, [0, 0], 1, [True] * 3], {}),
        Spec("aten.slice_backward.default", [tensor(2, 30, 40), [2, 30, 70], 2, 0, 40, 1], {}),
    ],
    ids=lambda spec: spec.function,
)
def test_a_stretched_backward_whose_sizes_depend_on_each_other_can_be_made(spec: Spec) -> None:
    small = [call for call in stretched(spec) if call.elements < 1 << 20]

    assert len(small) > 2
    for call in small:
        run(call, torch.device("cpu"), 0)


def test_a_stretched_call_keeps_the_order_of_strides_and_what_is_expanded() -> None:
    across = {"size": [64, 1024], "stride": [1, 64], "dtype": "float32"}
    spread = {"size": [64, 1024], "stride": [0, 1], "dtype": "float32"}

    for call in stretched(Spec("aten.add.Tensor", [across, spread], {})):
        left, right = call.tensors()
        assert left["stride"] == [1, left["size"][0]]
        assert right["stride"] == [0, 1]


def test_drawn_faults_are_met_by_a_call_of_the_architecture() -> None:
    calls = data.calls_of("gpt2")
    found = held_out.drawn(calls, 30, "a")

    assert len(set(found)) == 30
    assert len({fault.kind for fault in found}) > 4
    assert held_out.drawn(calls, 30, "a") == found != held_out.drawn(calls, 30, "b")
    for fault in found:
        sizes = [sizes_of(call) for call in calls if sizes_of(call) is not None and operator(call) == fault.operator]
        assert any(fault.is_met(one) for one in sizes if one is not None), fault


@pytest.mark.parametrize("step", longer([40, 1]))
def test_ordinary_calls_meet_what_the_calls_of_models_meet(step: int) -> None:
    ordinary = met(call for group in data.sample() if not group.is_deep for call in group.calls)
    weight = weights(data.calls_of(name) for name in data.architectures()[::step])

    assert sum(count for fault, count in weight.items() if fault in ordinary) / weight.total() > 0.95
