"""Requirements of cases: a case is skipped only for a capability that it uses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.accelerators.capabilities import COMM, COMM_AVERAGE, COMM_DTYPE, DTYPES, Cell, Mode
from conformance.accelerators.claims import Statement
from conformance.accelerators.declaration import unsupported
from conformance.judging.finding import EnvironmentLacks, Refused
from conformance.plan.bundled import bundled_cases, family_of
from conformance.plan.case import case
from conformance.suites.ops.loading import functions, functions_if_any
from tests.defects.bench import Bench, is_red
from tests.faults.overloads import kernels_of_a_device, operator_of
from tests.faults.overriding import Call, overridden
from tests.faults.recording import key_of


def _requirements(pattern: str) -> dict[str, set[str]]:
    """Return the requirements of the bundled cases whose id begins with the pattern."""
    planned = {row.case.id: set(map(str, row.case.requires)) for row in bundled_cases()}
    return {id: needs for id, needs in planned.items() if id.startswith(pattern)}


@pytest.mark.parametrize("subject", ["parity", "sharding", "accumulation", "clipping", "overflow"])
def test_engines_of_torch_state_their_own_requirements(subject: str) -> None:
    """DDP and ZeroRedundancyOptimizer divide by the number of ranks themselves; FSDP2 asks the backend to average."""
    found = _requirements(f"runtime.{subject}[")

    averaging = {id for id, needs in found.items() if "comm.average" in needs}
    assert averaging == {id for id in found if "[fsdp" in id}
    assert all({"comm.dtype[int32]", "comm.dtype[int64]"} <= needs for id, needs in found.items() if "[fsdp" not in id)


def test_an_answer_is_demanded_of_devices_that_declare_its_capability() -> None:
    """Silence about memory.stats or rng.state is no claim that memory_stats() or get_rng_state() answers."""
    found = _requirements("accelerator.effect.answer[")

    assert found["accelerator.effect.answer[memory_stats]"] == {"device", "memory.stats"}
    assert found["accelerator.effect.answer[get_rng_state]"] == {"device", "rng.state"}
    assert found["accelerator.effect.answer[default_generator]"] == {"device", "rng.generator"}


def test_an_axis_gives_each_value_its_own_requirements() -> None:
    @case("x.y", requires=[COMM], axes={"engine": {"a": (), "b": (COMM_AVERAGE,)}, "n": ["1"]}, world_size=(2, 3))
    def test_body() -> None: ...

    family = family_of(test_body)

    assert family is not None
    assert {planned.id: planned.requires for planned in family.expand()} == {
        f"x.y[{engine}-1-{world}]": needs
        for engine, needs in (("a", (COMM.cell,)), ("b", (COMM.cell, COMM_AVERAGE.cell)))
        for world in "23"
    }


def test_requirements_of_an_axis_get_the_dtype() -> None:
    @case("x.y", axes={"dtype": ["int8"], "way": {"a": (COMM_DTYPE,)}}, world_size=2)
    def test_body() -> None: ...

    family = family_of(test_body)

    assert family is not None
    assert [planned.requires for planned in family.expand()] == [(COMM_DTYPE.on("int8"),)]


#: Kernels that store and dequantize a frozen weight, by the start of the format's name.
QUANTIZERS = {
    "whole": set(),
    "int8": {"kernels.quantize[bfloat16-inference]", "kernels.dequantize_fp32[float32-inference]"},
    "fp": {"kernels.fp_quantize[bfloat16-inference]", "kernels.fp_dequantize[bfloat16-inference]"},
}


def test_linear_layers_need_the_quantizers_that_they_use() -> None:
    """An accelerator whose report says that a quantizer is missing is not asked for layers that use it."""
    found = _requirements("linear.")

    for id, needs in found.items():
        stored = next((kernels for word, kernels in QUANTIZERS.items() if f"[{word}" in id), None)
        if stored is not None:
            kernels = {need for need in needs if need.startswith("kernels.")}
            assert kernels - {"kernels.fp_dequantize[float16-inference]"} == stored, id
        assert "op-builders" not in needs, id
    assert QUANTIZERS["int8"] | QUANTIZERS["fp"] <= found["linear.refuses"]


def test_a_swap_buffer_needs_files_as_well() -> None:
    assert _requirements("v1.pin_memory.")["v1.pin_memory.swap_buffer"] == {
        "kernels.pin_handle[float32-inference]",
        "kernels.aio_handle[float32-inference]",
    }


#: Placeholder of a missing operator in DeepSpeed: it reports that it is compatible, and raises when it is loaded.
class NotImplementedBuilder:
    def is_compatible(self) -> bool:
        return True

    def load(self) -> None:
        raise ValueError("This op had not been implemented on CPU backend.")


@pytest.mark.parametrize("builder", [None, NotImplementedBuilder()])
def test_a_placeholder_is_no_builder(builder: object) -> None:
    accelerator = SimpleNamespace(create_op_builder=lambda name: builder)

    with pytest.raises(Refused):
        functions(accelerator, "AsyncIOBuilder")
    with pytest.raises(EnvironmentLacks):
        functions_if_any(accelerator, "QuantizerBuilder")


def _without(operator: str, case: str, *, claimed: bool = False) -> list[str]:
    """Run a case on a device that refuses an operator, and declares it unsupported unless it is ``claimed``.

    Return its refusals and red ends.
    """
    claims = [
        Statement(Cell(f"operators.{operator}", dtype, mode.value), unsupported("no kernel"))
        for dtype in DTYPES
        for mode in Mode
    ]
    refused = []

    def refuse(call: Call) -> None:
        refused.append(call.name)
        raise NotImplementedError(f"no kernel for {call.name}")

    place = Bench(() if claimed else claims)
    kernels = [name for name in kernels_of_a_device() if operator_of(name) == f"aten::{operator.rpartition('.')[2]}"]
    assert kernels
    with overridden(dict.fromkeys(kernels, refuse), key_of(place.device)):
        verdict = place.run(case)
    return [*refused, verdict.message] if is_red(verdict) else []


@pytest.mark.parametrize(
    ("operator", "case"),
    [
        ("topk", "accelerator.edges.nan_order[topk]"),
        ("nn.functional.relu", "accelerator.edges.nan_order[relu]"),
        ("cumsum", "accelerator.edges.empty[cumsum]"),
        ("sigmoid", "utils.views.bounds[sigmoid_out]"),
        ("index_add", "accelerator.determinism.repeats[index_add]"),
        ("clamp", "accelerator.laws.large_integers[int32]"),
        ("gt", "accelerator.laws.host_scalars"),
        ("cat", "foreach.cosh[float32]"),
        ("cat", "accelerator.laws.multinomial"),
        ("any", "accelerator.generator.own"),
        ("eq", "utils.placement.deep_copy"),
        ("flip", "accelerator.edges.nan_order[maximum]"),
        ("multinomial", "accelerator.rng.seed_repeats[multinomial]"),
        ("exponential", "accelerator.rng.seeds_differ[exponential]"),
        ("bernoulli", "accelerator.rng.advances[bernoulli]"),
        # The suite lays inputs out by these views, and reads and turns what it compares.
        ("as_strided", "operators.addcdiv[float32-inference]"),
        ("as_strided", "operators.clone[int64-inference]"),
        ("as_strided", "operators.full_like[int64-inference]"),
        ("flip", "operators.permute[int64-inference]"),
        ("unfold", "accelerator.dtype.copy_routes[float32-on_device]"),
    ],
)
def test_a_device_may_lack_an_operator_that_a_case_is_not_about(operator: str, case: str) -> None:
    assert _without(operator, case) == []


def test_a_device_that_lacks_what_it_claims_is_red() -> None:
    assert _without("sub", "accelerator.edges.nan_order[topk]") == []
    assert _without("mul", "accelerator.graph.order") == []
    assert _without("mul", "accelerator.graph.order", claimed=True)
