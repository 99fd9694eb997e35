"""Calls at their real sizes: the shipped data, the judgement, and mutants that only a size shows."""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.accelerators.registry import resolve
from conformance.blame.calls import recorded
from conformance.suites.calls import data, freivalds
from conformance.suites.calls.judging import Ran, run, wrong
from conformance.suites.calls.kernels import base_name
from conformance.suites.calls.spec import Made, Spec, function_of
from conformance.suites.calls.test_calls import generate
from conformance.suites.operators.plan.catalogue import operators
from tests.calls import mutants
from tests.calls import run as generator
from tests.faults.overriding import Call, after, overridden
from tests.layers import longer

HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(resolve("sim").load().current_device_name())


# --- data -------------------------------------------------------------------------------------------------------------


def test_the_data_is_small_and_has_three_hundred_architectures() -> None:
    assert data.TRACED.stat().st_size + data.SAMPLE.stat().st_size < 1_000_000
    assert len(data.architectures()) >= 300
    assert {"llama", "gpt2", "vit", "t5", "whisper", "mixtral"} <= set(data.architectures())


def test_models_that_could_not_be_traced_have_a_reason() -> None:
    document = json.loads(lzma.decompress(data.TRACED.read_bytes()))

    assert all(": " in why for why in document["failed"].values())
    assert not set(document["failed"]) & set(data.architectures())


def test_calls_have_the_sizes_of_the_default_model() -> None:
    calls = data.calls_of("llama")
    sizes = {tuple(tensor["size"]) for call in calls if "mm" in call.function for tensor in call.tensors()}

    assert {(4096, 11008), (11008, 4096)} <= sizes
    assert any(call.function == "aten.embedding.default" for call in calls)
    assert any("backward" in call.function for call in calls)


def test_each_case_requires_a_known_operator_or_its_dtype() -> None:
    known = {f"operators.{operator.name}" for operator in operators()}
    cells = [cell for case in generate() for cell in case.requires]

    assert {cell.subject for cell in cells} <= known | {"dtype"}
    assert len({cell.subject for cell in cells}) > 30


def test_cases_have_each_call_once() -> None:
    calls = [json.dumps([call.function, call.args, call.kwargs]) for group in data.sample() for call in group.calls]

    assert len(calls) == len(set(calls))
    assert len({case.id for case in generate()}) == len(generate())


def test_a_call_whose_right_result_is_zeros_is_left_out_of_its_place() -> None:
    odd = ["aten.floor_divide.default", [tensor(7, dtype="int64"), 8], {}, 3]
    usual = ["aten.silu.default", [tensor(7)], {}, 3]
    row = {"calls": [odd, usual, odd]}

    assert generator.telling(row) == [usual]
    assert row["calls"] == [usual]


@pytest.mark.parametrize("step", longer([5, 1]))
def test_no_group_has_a_call_whose_right_result_is_zeros(step: int) -> None:
    groups = [group for group in data.sample() if not group.is_deep][::step]
    rows = ({"calls": [[s.function, s.args, s.kwargs, 1] for s in group.calls]} for group in groups)

    assert groups

    assert not [row for row in rows if len(row["calls"]) != len(generator.telling(row))]


def test_more_calls_are_those_that_most_models_make_for_their_time() -> None:
    small = Spec("aten.silu.default", [tensor(7, 9)], {})
    large = Spec("aten.silu.default", [tensor(2048, 4096)], {})
    common = [(json.dumps([one.function, one.args, one.kwargs]), 5) for one in (large, small)]

    assert [one.spec for one in generator._more(common, [])] == [small, large]
    assert [one.spec for one in generator._more(common, [small])] == [large]


# --- judgement --------------------------------------------------------------------------------------------------------


def tensor(*size: int, dtype: str = "float32", stride: tuple[int, ...] | None = None) -> dict[str, Any]:
    return {"size": list(size), "stride": list(stride or torch.empty(size, device="meta").stride()), "dtype": dtype}


#: A call of each rule by which a part of a call is judged, in sizes that no model of the data has.
RULES = {
    "mm": ([tensor(777, 611), tensor(611, 513, stride=(1, 611))], {}),
    "addmm": ([tensor(513), tensor(777, 611), tensor(611, 513)], {"beta": 0.5, "alpha": 2}),
    "bmm": ([tensor(70_001, 2, 3), tensor(70_001, 3, 2)], {}),
    "baddbmm": ([tensor(33, 1, 97), tensor(33, 91, 65), tensor(33, 65, 97)], {}),
    "convolution": (
        [tensor(5, 3, 67, 65), tensor(37, 3, 5, 5), tensor(37), [2, 2], [1, 1], [1, 1], False, [0, 0], 1],
        {},
    ),
    "scaled_dot_product_attention": ([tensor(3, 6, 301, 24), tensor(3, 2, 301, 24), tensor(3, 2, 301, 24)],
                                     {"is_causal": True, "enable_gqa": True}),
    "_softmax": ([tensor(5, 40_003, 3), -1, False], {}),
    "native_layer_norm": ([tensor(33_001, 5), [5], tensor(5), tensor(5), 1e-5], {}),
    "sum": ([tensor(5, 40_003, 3), [0, 2], True], {}),
    "embedding": ([tensor(50_021, 7), tensor(3, 11_003, dtype="int64")], {}),
    "embedding_dense_backward": ([tensor(3, 1103, 7), tensor(3, 1103, dtype="int64"), 50_021, 3, False], {}),
    "nll_loss_backward": (
        [tensor(), tensor(1031, 211), tensor(1031, dtype="int64"), None, 1, -100, tensor()],
        {},
    ),
    "_grouped_mm": ([tensor(4001, 40), tensor(5, 40, 56), tensor(5, dtype="int32")], {}),
    "native_layer_norm_backward": (
        [tensor(3, 11_003, 5), tensor(3, 11_003, 5), [5], tensor(3, 11_003, 1), tensor(3, 11_003, 1), tensor(5),
         tensor(5), [True, True, True]],
        {},
    ),
    "silu": ([tensor(3, 100_003)], {}),
    "add_": ([tensor(3, 100_003), tensor(3, 1)], {"alpha": 2}),
    "cat": ([[tensor(3, 40_001), tensor(3, 40_003)], 1], {}),
}  # fmt: skip
OVERLOADS = {"sum": "dim_IntList", "add_": "Tensor"}


@functools.cache
def ran(name: str) -> Ran:
    args, kwargs = RULES[name]
    with torch.no_grad():
        return run(Spec(f"aten.{name}.{OVERLOADS.get(name, 'default')}", args, kwargs), HOST, 3)


@pytest.mark.parametrize("name", longer(RULES, step=2))
def test_a_right_call_is_right_and_every_mutant_is_found(name: str) -> None:
    assert not wrong(ran(name), 3)
    found = dict(mutants.mutants(ran(name)))

    assert len(found) > 2
    assert not [mutant for mutant, changed in found.items() if not wrong(changed, 3)]


def test_sampling_computes_less_than_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.suites.calls import judging

    made: list[int] = []

    def counted(function: Any, args: Any, kwargs: Any) -> Any:
        made.append(sum(leaf.numel() for leaf in args if isinstance(leaf, torch.Tensor)))
        return original(function, args, kwargs)

    original = judging._made
    monkeypatch.setattr(judging, "_made", counted)
    for name in ("mm", "bmm", "_softmax", "sum", "embedding", "silu"):
        made.clear()
        assert not wrong(ran(name), 3)
        whole = sum(leaf.numel() for leaf in ran(name).given.args if isinstance(leaf, torch.Tensor))
        assert sum(made) < whole, name


def product(result: torch.Tensor) -> Ran:
    right = ran("mm")
    return Ran(right.function, right.given, [result])


def test_one_element_of_a_product_is_found_by_its_random_sum_alone() -> None:
    right = ran("mm").after[0]
    changed = right.clone()
    changed[401, 203] += 0.1  # in no row or column of the sample

    function, given = ran("mm").function, ran("mm").given
    assert not freivalds.wrong_rows(function, given.args, given.kwargs, right, 0)
    assert "1 rows, the first one [0, 401]" in freivalds.wrong_rows(function, given.args, given.kwargs, changed, 0)
    assert wrong(product(changed), 0)


@pytest.mark.parametrize("output", [1, 2])
def test_a_gradient_of_a_norm_that_lacks_its_last_rows_is_found(output: int) -> None:
    right = ran("native_layer_norm_backward")
    grad, source, shape, mean, rstd, weight, bias, mask = right.given.args
    fewer = (*(part[:-1] for part in (grad, source)), shape, mean[:-1], rstd[:-1], weight, bias, mask)
    after = list(right.after)
    after[output] = right.function(*fewer)[output]

    assert wrong(Ran(right.function, right.given, after), 3)


def test_zeros_are_made_in_memory_that_had_other_numbers(device: torch.device) -> None:
    made = []

    def forgotten(call: Call) -> Any:
        if made:
            return made[0]  # the memory as it was left
        made.append(call.run())
        return made[0]

    spec = Spec("aten.new_zeros.default", [tensor(3), [333, 500]], {"pin_memory": False})
    assert not wrong(run(spec, device, 1), 1)
    with overridden({"aten::new_zeros": forgotten}, "PrivateUse1"):
        assert wrong(run(spec, device, 1), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_sums_accuse_no_right_product(dtype: torch.dtype) -> None:
    for seed, (m, k, n) in enumerate([(64, 4096, 33), (257, 31, 1025), (1, 9000, 7), (300, 1, 300)]):
        generator = torch.Generator().manual_seed(seed)
        left, right = (torch.randn(size, generator=generator).to(dtype) for size in ((m, k), (k, n)))
        function = torch.ops.aten.mm.default
        for order in (left @ right, (left.flip(1) @ right.flip(0)), (left.double() @ right.double()).to(dtype)):
            assert not freivalds.wrong_rows(function, (left, right), {}, order, seed)


def test_a_result_that_is_not_finite_is_found() -> None:
    changed = ran("mm").after[0].clone()
    changed[100, 100] = float("nan")

    assert "off by inf" in wrong(product(changed), 0)


def test_another_shape_is_found() -> None:
    assert "the results have the shapes" in wrong(product(ran("mm").after[0].t()), 0)


def test_equal_numbers_may_be_chosen_in_any_order() -> None:
    values = torch.zeros(40_000, 4)
    function = torch.ops.aten.topk.default
    there = [torch.zeros(40_000, 2), torch.tensor([3, 1]).expand(40_000, 2).contiguous()]

    assert not wrong(Ran(function, Made((values, 2), {}), there), 0)
    assert wrong(Ran(function, Made((values, 2), {}), [there[0], torch.ones(40_000, 2, dtype=torch.int64)]), 0)


def test_the_order_of_the_largest_is_open_if_nobody_asks_for_it() -> None:
    function = torch.ops.aten.topk.default
    source = torch.randn(5000, 9, generator=torch.Generator().manual_seed(0))
    found = [tensor.flip(1) for tensor in source.topk(3)]

    assert not wrong(Ran(function, Made((source, 3, -1, True, False), {}), found), 0)
    assert wrong(Ran(function, Made((source, 3), {}), found), 0)
    assert wrong(Ran(function, Made((source, 3, -1, True, False), {}), [found[0] * 2, found[1]]), 0)


@pytest.mark.parametrize("name", ["max.dim", "sort.default", "topk.default", "max.default"])
def test_wrong_numbers_that_are_integers_are_no_positions(name: str) -> None:
    source = torch.arange(12).reshape(3, 4) % 5
    function = function_of(Spec(f"aten.{name}", [], {}))
    args = (source,) if name in ("max.default", "sort.default") else (source, 1)
    found = function(*args)
    found = list(found) if isinstance(found, tuple) else [found]
    changed = [torch.where(found[0] > 2, found[0] - 1, found[0]), *found[1:]]

    assert not wrong(Ran(function, Made(args, {}), found), 0)
    assert wrong(Ran(function, Made(args, {}), changed), 0)


# --- mutants that only a size shows, on the simulated device ----------------------------------------------------------


def unseen(device: torch.device) -> Any:
    """Run a model of no library, with sizes beyond 2^15 rows, 2^18 elements and 65,535 batches."""
    table = nn.Embedding(50_021, 24)
    body = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 24))
    table, body = table.to(device), body.to(device)
    x = body(table(torch.zeros(3, 11_003, dtype=torch.int64, device=device)))
    weights = x.softmax(-1)
    pairs = weights[:, :, :16].reshape(-1, 4, 2)  # 66,018 matrices
    products = torch.bmm(pairs, pairs.transpose(1, 2))
    long = torch.cat((x.reshape(-1), products.reshape(-1)))
    total = (long * long + F.gelu(long)).reshape(-1, 4).sum(-1)
    wide = torch.mm(torch.empty(37, 2500, device=device), torch.empty(2500, 41, device=device))
    total.sum().backward()
    return total, wide


def beyond(limit: int) -> Callable[[torch.Tensor], Any]:
    return lambda result: result.view(-1)[limit:].mul_(0) if result.numel() > limit else None


def wraps(limit: int) -> Callable[[torch.Tensor], Any]:
    """Write elements to the place that an index of few bits has, and leave their own with what was there."""

    def change(result: torch.Tensor) -> None:
        flat = result.view(-1)
        if len(flat) > limit:
            flat[limit:] = flat[: len(flat) - limit].clone() if len(flat) < 2 * limit else 0

    return change


def partial(tile: int) -> Callable[[torch.Tensor], Any]:
    return lambda result: result.view(-1)[result.numel() // tile * tile :].add_(1) if result.numel() > 1 << 15 else None


def rows(limit: int) -> Callable[[torch.Tensor], Any]:
    return lambda result: result.view(-1, result.shape[-1])[limit:].mul_(1.1) if result.dim() > 1 else None


def batches(limit: int) -> Callable[[torch.Tensor], Any]:
    return lambda result: result[limit:].mul_(1.1) if result.dim() == 3 else None


def whole_tile(begin: int, size: int) -> Callable[[torch.Tensor], Any]:
    return lambda result: result.view(-1)[begin : begin + size].add_(1) if result.numel() > 1 << 17 else None


_LONG = ("silu", "gelu", "mul", "add", "_softmax", "native_layer_norm", "addmm", "bmm")
_KERNELS = {"native_layer_norm": "aten::native_layer_norm", "silu": "aten::silu.out", "gelu": "aten::gelu.out",
            "mul": "aten::mul.out", "add": "aten::add.out", "_softmax": "aten::_softmax.out",
            "addmm": "aten::addmm.out", "bmm": "aten::bmm.out", "mm": "aten::mm.out"}  # fmt: skip
CHANGES: dict[str, tuple[tuple[str, ...], Callable[[torch.Tensor], Any]]] = {
    "elements beyond 2^18": (_LONG, beyond(1 << 18)),
    "an index of 18 bits": (_LONG, wraps(1 << 18)),
    "the last partial tile": (_LONG, partial(4096)),
    "tiles beyond the 2^15th row": (("_softmax", "native_layer_norm", "addmm"), rows(1 << 15)),
    "more than 65,535 batches": (("bmm",), batches(65_535)),
    "half a tile in the middle": (_LONG, whole_tile(150_001, 16_384)),
}
MUTANTS = [(what, kernel) for what, (kernels, _) in CHANGES.items() for kernel in kernels]


@functools.cache
def specs() -> list[Spec]:
    return recorded(unseen)


def calls_of(kernel: str) -> Iterator[tuple[int, Spec]]:
    for number, spec in enumerate(specs()):
        if base_name(function_of(spec)).removesuffix("_") == kernel:
            yield number, spec


def judged(kernel: str, device: torch.device) -> list[str]:
    known = list(calls_of(kernel))  # the first test records them, which takes a backward pass
    with torch.no_grad():
        return [text for number, spec in known if (text := wrong(run(spec, device, number), number))]


@pytest.mark.parametrize("kernel", _KERNELS)
def test_a_healthy_device_is_right(device: torch.device, kernel: str) -> None:
    assert list(calls_of(kernel))
    assert not judged(kernel, device)


def test_what_shows_only_at_size_is_found(device: torch.device) -> None:
    survivors = []
    for what, kernel in MUTANTS:
        with overridden({_KERNELS[kernel]: after(CHANGES[what][1])}, "PrivateUse1"):
            if not judged(kernel, device):
                survivors.append((what, kernel))

    assert len(MUTANTS) >= 36
    assert not survivors


@pytest.mark.parametrize("parts", longer([2, 3, 8, 16], 3))
def test_a_lost_part_of_a_long_sum_is_found(device: torch.device, parts: int) -> None:
    """A split of the sum above 2,048 terms loses its last part."""

    def split(call: Call) -> Any:
        result = call.run()
        left, right = call.values[:2]
        if left.shape[1] > 2048:
            begin = left.shape[1] - left.shape[1] // parts
            result.sub_(left[:, begin:].contiguous().mm(right[begin:].contiguous()))
        return result

    with overridden({"aten::mm.out": split}, "PrivateUse1"):
        assert judged("mm", device)
