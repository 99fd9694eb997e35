"""The generator of faults: ids, draws, behaviours, direct calls, kills, and neutrality of its seam.

This file needs a process that has run no backward pass: copies of one that has cannot run another.
``test_faults.py`` starts it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from conformance.reports.standard import standard_families
from tests.defects import bench
from tests.faults import corpus, derivatives, forks, killers, outsiders, population, recording, run
from tests.faults.fault import Fault, Hits
from tests.faults.judging import End, Judged, candidates, judged, judged_wide
from tests.faults.liveness import Shown, armed
from tests.faults.overloads import kernel_behind, kernels_of_a_device, operator_of
from tests.faults.overriding import Call, identity, overridden
from tests.faults.pairs import judging as pairs_judging
from tests.faults.pairs import order, state
from tests.faults.pairs.pair import Pair, Part
from tests.faults.scores import over_public, over_reached, wilson
from tests.layers import longer

#: Cases with undefined results, numbers in the place of tensors, lists, views, copies and random numbers.
SAMPLE = (
    "operators.add[float32-training]",
    "operators.nn.functional.batch_norm[float32-training]",
    "operators.nn.functional.layer_norm[float32-training]",
    "operators.nn.functional.linear[float32-training]",
    "operators.linalg.matrix_rank[float32-inference]",
    "operators.clamp_min[int64-inference]",
    "operators.index_put[float32-training]",
    "operators.nn.functional.dropout[float32-training]",
    "operators.clamp_min[error-inputs]",
    "accelerator.memory.peak_inside_operations",
    "accelerator.stream.record_lets_go",
)


def part_of_order(name: str) -> Part:
    """Return the part of family T with this name."""
    return next(part for part in order.PARTS if part.name == name)


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """Load what copies need; each copy would need seconds for it."""
    bench.loaded()
    forks.prepare()


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.long)])
def found() -> recording.Map:
    """The map of a few cases, and the corpus."""
    known = [case for case in SAMPLE if case in bench.plan(bench.area_of(case))]
    assert len(known) >= len(SAMPLE) - 1
    return recording.recorded(known, "sim", 1, lambda text: None)


@pytest.mark.long
def test_an_identity_fault_on_every_kernel_fails_no_case(found: recording.Map) -> None:
    """Recording overrides every kernel, and changes nothing."""
    assert {case: record.red for case, record in found.cases.items() if record.red} == {}
    assert len(kernels_of_a_device()) > 800


@pytest.mark.long
def test_an_identity_around_every_operator_fails_no_case() -> None:
    def work(case: str, send: forks.Send) -> None:
        from conformance.accelerators.simulated.simulator import started

        place = bench.Bench()
        for name in kernels_of_a_device():
            started().core.set_around(operator_of(name), lambda call, args: call(args))
        verdict = place.run(case)
        send((bench.is_red(verdict), verdict.message))

    ends = {copy.task: copy.messages for copy in forks.run(SAMPLE[:9], work, 1)}

    assert {case: messages for case, messages in ends.items() if not messages or messages[0][0]} == {}


def test_the_map_knows_what_a_case_calls(found: recording.Map) -> None:
    record = found.cases["operators.nn.functional.linear[float32-training]"]

    assert "aten::addmm" in record.own
    assert {"float32", "strided"} <= set(record.reached["aten::addmm.out"]["2"])
    assert "111" in record.nodes["AddmmBackward0"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("A", "default", "aten::add.out", "2"),
        Fault("C", "last", "aten::add.out", "r0"),
        Fault("E", "bfloat16", "aten::addmm.out", "0"),
        Fault("F", "scaled", "AddBackward0", "0", "always"),
    ],
    ids=str,
)
def test_a_fault_is_live_and_killed(found: recording.Map, fault: Fault) -> None:
    known = corpus.read()
    assert known is not None

    (result,) = judged([fault], "sim", found, known, 1, lambda text: None)

    assert result.shown.live
    assert result.end is End.KILLED
    assert result.by


#: Faults, and the case that has to see each.
SEEN_BY: list[tuple[Fault, str]] = [
    # A result on the other device, of a dtype that the meta function describes.
    (
        Fault("D", "device", "aten::count_nonzero.dim_IntList", "r0"),
        "operators.count_nonzero[float32-inference]",
    ),
    (Fault("A", "constant", "aten::_fused_adagrad_", "7", "1.0"), "optimizers.fused_call[Adagrad]"),
    (Fault("G", "swallowed", "aten::_fused_adam_"), "optimizers.fused_call[Adam]"),
    (Fault("B", "offset", "aten::normal.Tensor_float", "0"), "operators.normal.number_mean[float32-inference]"),
    (Fault("E", "infinity", "aten::normal.Tensor_Tensor", "0"), "operators.normal[float32-inference]"),
    (Fault("C", "tail", "aten::_unique2", "r0", "18"), "operators.unique[float32-inference]"),
    (Fault("B", "expansion", "aten::geqrf", "0"), "operators.geqrf[float32-inference-deep]"),
    (Fault("B", "strides", "aten::isneginf.out", "0"), "operators.isneginf[float32-inference]"),
    (Fault("E", "subnormals", "aten::polar.out", "0"), "operators.polar[float32-inference]"),
    (Fault("E", "int through double", "aten::_foreach_addcmul.Scalar", "2"), "foreach.addcmul[int64]"),
    (Fault("A", "neighbour", "aten::take.out", "0", "1"), "operators.take[int64-inference-deep]"),
    # Infinity where the host has NaN; few infinities; an infinity beside large numbers; the other side of a kink.
    (Fault("E", "NaN", "aten::addcdiv.out", "2"), "operators.addcdiv[float32-inference]"),
    (
        Fault("E", "infinity", "aten::native_group_norm", "1"),
        "operators.nn.functional.group_norm[float32-inference]",
    ),
    (Fault("E", "infinity", "aten::triangular_solve.X", "0"), "operators.triangular_solve[float32-inference]"),
    (
        Fault("E", "subnormals", "aten::elu_backward.grad_input", "5"),
        "operators.nn.functional.selu[float32-training]",
    ),
    # A number in the place of a tensor of integers; spreads in few digits; an argument behind defaults.
    (Fault("E", "int through float", "aten::scatter.value_out", "0"), "operators.scatter[int64-inference]"),
    (Fault("E", "bfloat16", "aten::normal.Tensor_Tensor_out", "1"), "operators.normal[float32-inference]"),
    (Fault("E", "scalar", "aten::elu.out", "3"), "operators.nn.functional.elu[float32-inference-deep]"),
    (Fault("B", "expansion", "aten::normal.Tensor_Tensor", "1"), "operators.normal[float32-inference]"),
    (Fault("E", "NaN", "aten::_local_scalar_dense", "0"), "operators.item[float32-inference]"),
    (Fault("E", "int through float", "aten::_local_scalar_dense", "0"), "operators.item[int64-inference]"),
    (Fault("E", "NaN", "aten::lu_unpack.out", "0"), "operators.lu_unpack[float32-inference]"),
    # Kernels of a backward that do not check their arguments.
    (
        Fault("B", "strides", "aten::batch_norm_backward", "6"),
        "operators._batch_norm_with_update[float32-training-deep]",
    ),
    (
        Fault("G", "swallowed", "aten::batch_norm_backward"),
        "operators._batch_norm_with_update[float32-training-deep]",
    ),
    (Fault("G", "swallowed", "aten::col2im"), "operators.nn.functional.unfold[float32-training]"),
    # Numbers of the dtype itself, and NaN in matrices that are factorised, among results of another size, and in
    # samples whose factor is not 0.0.
    (Fault("E", "infinity", "aten::nextafter.out", "0"), "operators.nextafter[float32-inference]"),
    (
        Fault("E", "NaN", "aten::linalg_ldl_factor_ex.out", "0"),
        "operators.linalg.ldl_factor_ex[float32-inference]",
    ),
    (Fault("E", "NaN", "aten::_unique2", "0"), "operators.unique[float32-inference]"),
    (
        Fault("E", "NaN", "aten::native_dropout_backward", "0"),
        "operators.native_dropout_backward[float32-inference]",
    ),
    # Draws of one seed whose scale is odd or infinite, and a kernel behind a draw.
    (Fault("E", "scalar", "aten::cauchy_", "2"), "operators.cauchy[float32-inference]"),
    (Fault("E", "infinity", "aten::normal.Tensor_Tensor", "1"), "operators.normal[float32-inference]"),
    (
        Fault("E", "NaN", "aten::fractional_max_pool3d_backward", "0"),
        "operators.nn.functional.fractional_max_pool3d[float32-training]",
    ),
    # A sum of subnormal numbers and zeros alone.
    (Fault("E", "subnormals", "aten::_foreach_norm.Scalar", "0"), "foreach.norm[float32]"),
    # A difference of two zeros, powers of integers, an infinity below the diagonal, a late step of an optimizer.
    (Fault("E", "negative zero", "aten::_foreach_sub.List", "0"), "foreach.sub[float32]"),
    (Fault("E", "int through double", "aten::_foreach_pow_.List", "1"), "foreach.pow[int64]"),
    (Fault("E", "int through float", "aten::_foreach_pow.ScalarList", "0"), "foreach.pow[int64]"),
    (Fault("E", "infinity", "aten::linalg_qr.out", "0"), "operators.linalg.qr[float32-inference]"),
    (Fault("E", "bfloat16", "aten::_fused_adam_", "5"), "optimizers.fused_call[Adam]"),
    # NaN in the rate, and special values in a tensor of one number that fills another.
    (Fault("E", "NaN", "aten::_fused_adagrad_.tensor_lr", "4"), "optimizers.fused_call[Adagrad]"),
    (Fault("E", "negative zero", "aten::fill_.Tensor", "1"), "operators.fill[float32-inference]"),
    # Large outputs of a factorisation.
    (Fault("C", "tail", "aten::linalg_lu.out", "r0", "14"), "operators.linalg.lu[float32-inference]"),
    # Refusals that no meta function knows: of shapes, of a dimension, of a range of random numbers.
    (Fault("G", "swallowed", "aten::bincount"), "operators.bincount[int64-inference]"),
    (Fault("G", "swallowed", "aten::unique_consecutive"), "operators.unique_consecutive[float32-inference]"),
    (Fault("G", "swallowed", "aten::uniform_"), "operators.uniform[float32-inference]"),
]


@pytest.mark.parametrize(("fault", "case"), longer(SEEN_BY, step=15), ids=str)
def test_a_fault_fails_the_case_that_is_for_it(fault: Fault, case: str) -> None:
    def work(armed_fault: Fault | None, send: forks.Send) -> None:
        place = bench.Bench()
        with armed(armed_fault, Hits(), place.device) if armed_fault else contextlib.nullcontext():
            send(bench.is_red(place.run(case)))

    assert {copy.task: copy.messages for copy in forks.run([None, fault], work, 1)} == {None: [False], fault: [True]}


@pytest.mark.parametrize("defect", longer(outsiders.OUTSIDERS, step=12), ids=str)
def test_a_defect_by_an_outsider_fails_its_case(defect: outsiders.Outsider) -> None:
    def work(broken: outsiders.Outsider, send: forks.Send) -> None:
        place = bench.Bench()
        broken.install()
        send(bench.is_red(place.run(broken.case)))

    assert [copy.messages for copy in forks.run([defect], work, 1)] == [[True]]


def test_an_output_with_gaps_that_is_written_as_a_contiguous_one_fails() -> None:
    def dense(call: Call) -> Any:
        given, out = call.values
        # In place, the output is the input.
        if out.dim() and out.stride(-1) == 2 and out.data_ptr() != given.data_ptr():
            strides = torch.empty(out.shape, device="meta").stride()
            call.run([*call.values[:-1], out.as_strided(out.shape, strides, out.storage_offset())])
            return out
        return call.run()

    def work(_: None, send: forks.Send) -> None:
        place = bench.Bench()
        with overridden({"aten::neg.out": dense}, recording.key_of(place.device)):
            verdict = place.run("operators.neg[float32-inference]")
        send((bench.is_red(verdict), "outputs with gaps" in verdict.message))

    assert [copy.messages for copy in forks.run([None], work, 1)] == [[(True, True)]]


def test_every_family_of_a_cell_runs_also_after_one_that_fails() -> None:
    def last_is_lost(call: Call) -> torch.Tensor:
        out = call.values[-1]
        call.run()
        if out.numel() > 1 and out.is_contiguous():
            out.view(-1)[-1:].zero_()
        return out

    def work(_: None, send: forks.Send) -> None:
        place = bench.Bench()
        with killers.apart() as healthy:
            place.run("operators.neg[bfloat16-inference]")
        with overridden({"aten::neg.out": last_is_lost}, recording.key_of(place.device)), killers.apart() as broken:
            place.run("operators.neg[bfloat16-inference]")
        send((healthy.red, healthy.seconds.keys() == broken.seconds.keys(), broken.red))

    (copy,) = forks.run([None], work, 1)
    ((red, same, broken),) = copy.messages
    assert (red, same) == (set(), True)
    assert {killers.SAMPLES, "variants.arrangements_of_some"} <= broken, broken


def test_a_cell_has_the_families_of_the_profile_in_its_runs_alone() -> None:
    cell = "operators.neg[bfloat16-inference]"

    def work(_: None, send: forks.Send) -> None:
        place = bench.Bench()
        for standard in (False, True):
            with killers.apart() as record:
                place.run(cell, standard=standard)
            send(set(record.seconds))

    (copy,) = forks.run([None], work, 1)
    every, some = copy.messages
    assert some == every & {killers.SAMPLES, *standard_families(cell)} < every


@pytest.mark.long
def test_the_cases_of_outsiders_pass_on_a_device_without_their_defects() -> None:
    def work(cases: list[str], send: forks.Send) -> None:
        place = bench.Bench()
        send([case for case in cases if bench.is_red(place.run(case))])

    assert [copy.messages for copy in forks.run([[d.case for d in outsiders.OUTSIDERS]], work, 1)] == [[[]]]


def test_a_fault_that_no_case_meets_survives_as_never_exercised(found: recording.Map) -> None:
    known = corpus.read()
    assert known is not None
    late = Fault("C", "tail", "aten::addmm.out", "r0", "21")
    absent = Fault("C", "last", "aten::acosh.out", "r0")

    first, second = judged([late, absent], "sim", found, known, 1, lambda text: None)

    assert (first.shown.live, first.end) == (True, End.UNEXERCISED)
    assert (second.shown.live, second.end, second.reached) == (True, End.UNREACHED, False)


@pytest.mark.parametrize(("kernel", "live"), [("aten::neg.out", True), ("aten::max_pool2d_with_indices.out", False)])
def test_a_zero_with_another_sign_is_a_fault_where_something_defines_it(
    found: recording.Map, kernel: str, live: bool
) -> None:
    known = corpus.read()
    assert known is not None

    (result,) = judged([Fault("E", "negative zero", kernel, "0")], "sim", found, known, 1, lambda text: None)

    assert result.shown.live is live


def test_cases_of_a_kernel_come_first_and_then_the_shortest_of_each_operator() -> None:
    record = lambda seconds: recording.Record({"aten::add.out": {"0": ["float32"]}}, ["aten::add"], {}, seconds)  # noqa: E731
    seconds = {"operators.sum[a]": 1.0, "operators.sum[b]": 2.0, "operators.norm[a]": 5.0, "operators.add[a]": 9.0}
    map_of_cases = recording.Map({id: record(value) for id, value in seconds.items()})

    own, others, reached = candidates(Fault("D", "overwritten", "aten::add.out", "0"), map_of_cases)

    assert own == ["operators.add[a]", "operators.sum[a]", "operators.norm[a]", "operators.sum[b]"]
    assert (others, reached) == ([], True)


def test_a_survivor_of_a_narrow_map_meets_the_cases_in_other_dtypes(found: recording.Map) -> None:
    fault = Fault("E", "float32", "aten::addmm.out", "1")
    survivor = Judged(fault, End.TOLERATED, Shown(True), True)

    (result,) = judged_wide([survivor], "sim", found, 1)

    assert result.end is End.KILLED
    assert "float64" in result.by


def test_an_id_depends_on_the_fault_alone() -> None:
    assert Fault("C", "tail", "aten::add.out", "r0", "20").id == Fault("C", "tail", "aten::add.out", "r0", "20").id
    assert Fault("C", "tail", "aten::add.out", "r0", "20").id != Fault("C", "tail", "aten::add.out", "r0", "18").id


def test_a_seed_draws_the_same_faults_and_another_draws_others(found: recording.Map) -> None:
    known = corpus.read()
    assert known is not None
    first, again, other = (
        [fault.id for fault in population.drawn(population.families(), 70, seed, found, known.inputs)]
        for seed in ("a", "a", "b")
    )

    assert first == again
    assert first != other
    assert len(set(first)) == 70


def test_every_family_has_a_population(found: recording.Map) -> None:
    known = corpus.read()
    assert known is not None
    sizes = {name: len(population.population(name, found, known.inputs)) for name in population.families()}

    # Arithmetic in 16 bits is a table of the operators that add up, in two dtypes.
    assert sizes.pop("R") > 60
    assert min(sizes.values()) > 300, sizes


@pytest.mark.parametrize(
    ("public", "kernel"),
    [
        ("aten::add.Tensor", "aten::add.out"),
        ("aten::add_.Tensor", "aten::add.out"),
        ("aten::max.dim", "aten::max.dim_max"),
        ("aten::clamp_min.Tensor", "aten::clamp_min.Tensor_out"),
        ("aten::softmax.int", None),
    ],
)
def test_the_kernel_behind_a_public_overload(public: str, kernel: str | None) -> None:
    assert kernel_behind(public) == kernel


def test_derivative_faults_name_each_subset_once() -> None:
    faults = [str(fault) for fault in derivatives.population({"MulBackward0": 2, "ExpBackward0": 1})]

    assert "F.scaled MulBackward0 [0 10]" in faults
    assert "F.scaled MulBackward0 [0 01]" not in faults
    assert "F.scaled ExpBackward0 [0 1]" not in faults
    assert len(faults) == len(set(faults))


def test_a_derivative_fault_breaks_its_input_alone() -> None:
    hit = Hits()
    rule = derivatives.breaking(Fault("F", "dropped", "MulBackward0", "1", "11"), hit)
    gradients = tuple(torch.ones(2, device="meta") for _ in range(2))

    # A gradient on the host belongs to the reference.
    assert rule("MulBackward0", gradients) is None
    assert hit.count == 0


@pytest.mark.parametrize(
    ("pair", "end"),
    longer(
        [
            (Pair("T", order.PARTS[4], "device 1", "always"), End.KILLED),
            (Pair("T", part_of_order("elapsed time constant"), "other threads", "after 10"), End.KILLED),
            (Pair("T", part_of_order("record_stream ignored"), "device 1", "after 10"), End.KILLED),
            (Pair("S", state.PARTS[3], "device 1", "always"), End.KILLED),
        ],
        step=3,
    ),
    ids=lambda value: str(getattr(value, "fault", value)),
)
def test_a_fault_of_a_pair_is_live_and_killed(pair: Pair, end: End) -> None:
    (result,) = pairs_judging.judged([pair], 1, lambda text: None)

    assert (result.end, result.shown.live) == (end, True)
    assert result.hits > 0


def test_wilson() -> None:
    assert wilson(180, 272) == (0.6036, 0.7154)
    assert wilson(284, 300)[0] >= 0.9
    assert wilson(0, 0) == (0.0, 1.0)


def test_an_unreached_kernel_counts_as_survived_in_the_public_score_alone() -> None:
    def result(end: End, *, reached: bool = True, live: bool = True) -> Judged:
        return Judged(Fault("A", "default", "x"), end, Shown(live), reached)

    results = [
        result(End.KILLED),
        result(End.VAGUE),
        result(End.UNREACHED, reached=False),
        result(End.UNEXERCISED, live=False),
    ]

    assert (over_reached(results).killed, over_reached(results).live) == (1, 2)
    assert (over_public(results).killed, over_public(results).live) == (1, 3)


def test_an_unknown_accelerator_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--accelerator", "smi"]) == 4
    assert "accelerator 'smi' is not registered" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--draws", "0"], ["--jobs", "-1"], ["--family", "Z"], ["--draws", "many"]])
def test_wrong_options_are_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run.main(wrong)

    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_fall_of_the_score_is_a_complaint(tmp_path: Any) -> None:
    measured = tmp_path / "measured.json"
    measured.write_text('{"public": {"share": 0.66}}')

    assert run.complaint(over_public([Judged(Fault("A", "x", "y"), End.KILLED, Shown(True), True)]), measured) is None
    text = run.complaint(over_public([Judged(Fault("A", "x", "y"), End.TOLERATED, Shown(True), True)]), measured)
    assert text is not None
    assert "66%" in text


def test_identity_is_a_call(found: recording.Map) -> None:
    class Plain:
        def run(self) -> str:
            return "result"

    assert identity(Plain()) == "result"  # type: ignore[arg-type]
