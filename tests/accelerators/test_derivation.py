"""Claims from DeepSpeed-style methods, and silence where the answers are unclear."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.declaration import ClaimSource, State
from conformance.accelerators.derivation import from_methods
from conformance.accelerators.lint import lint
from conformance.accelerators.proxy import AcceleratorProxy
from conformance.accelerators.sources import BackendSpec, ObjectSpec
from conformance.accelerators.torch_accelerator import TorchAccelerator


def said(**members):
    answers = {
        name: value if callable(value) or value is None else (lambda v=value: v) for name, value in members.items()
    }
    return from_methods(SimpleNamespace(**answers))


def test_an_object_that_says_nothing_claims_nothing():
    assert from_methods(object()).cells == {}


def test_listed_dtypes_are_claimed_with_their_operators():
    declaration = said(supported_dtypes=[torch.float32, torch.bfloat16, torch.int8, "nonsense"])

    assert declaration.supports(Cell("dtype", "bfloat16"))
    assert declaration.supports(Cell("operators.add", "bfloat16", "training"))
    assert not declaration.supports(Cell("operators.add", "int8", "training"))
    assert {claim.source for claim in declaration.cells.values()} == {ClaimSource.METHODS}


def test_a_clear_no_is_a_claim_and_none_is_silence():
    declaration = said(is_bf16_supported=False, is_fp16_supported=lambda: None)

    assert declaration.claim(Cell("dtype", "bfloat16")).state is State.UNSUPPORTED
    assert declaration.claim(Cell("dtype", "float16")).state is State.UNDECLARED


@pytest.mark.parametrize("answer", [None, 3, "float32", lambda: 1 / 0])
def test_a_broken_list_of_dtypes_is_silence(answer):
    assert said(supported_dtypes=answer if callable(answer) else lambda: answer).cells == {}


def test_flags_become_claims_in_both_directions():
    declaration = said(is_synchronized_device=True, resolves_data_dependency=False, use_host_timers=lambda: 1)

    assert declaration.claim(VOCABULARY["execution.synchronous"].cell).state is State.SUPPORTED
    assert declaration.claim(VOCABULARY["execution.ordered"].cell).state is State.UNSUPPORTED
    assert declaration.claim(VOCABULARY["execution.host-timers"].cell).state is State.UNDECLARED


def test_a_none_class_is_a_no_for_all_that_needs_it():
    declaration = said(Stream=None, Event=type("Event", (), {}))

    states = {str(cell): claim.state.value for cell, claim in declaration.cells.items()}
    assert states == {
        "stream": "unsupported",
        "stream.order": "unsupported",
        "stream.record": "unsupported",
        "event": "supported",
        "event.timing": "supported",
    }


@pytest.mark.parametrize(("graph", "state"), [(None, "unsupported"), ("a graph", "supported")])
def test_a_graph_or_none(graph, state):
    declaration = said(create_graph=lambda: graph)

    assert declaration.claim(VOCABULARY["graph.capture"].cell).state.value == state


def test_events_that_take_no_times_are_no_timers():
    declaration = said(Event=type("Event", (), {}), use_host_timers=True)

    assert declaration.supports(VOCABULARY["event"].cell)
    assert declaration.claim(VOCABULARY["event.timing"].cell).state is State.UNSUPPORTED


def test_a_property_that_raises_is_silence():
    class Broken:
        Stream = property(lambda self: 1 / 0)

    assert from_methods(Broken()).cells == {}


#: What DeepSpeed calls the builder of an operator that an accelerator has not; it says that it is compatible.
Absent = type("NotImplementedBuilder", (), {"is_compatible": lambda self: True})


def with_builders(**answers):
    def create_op_builder(class_name):
        answer = answers.get(class_name)
        return answer if answer is None or isinstance(answer, Absent) else SimpleNamespace(is_compatible=answer)

    return said(
        op_builder_dir="elsewhere.builders",
        create_op_builder=create_op_builder,
        supported_dtypes=[torch.float32, torch.bfloat16],
    )


def test_somebody_elses_builders_claim_or_deny_their_kernels():
    declaration = with_builders(FusedAdamBuilder=lambda: True, FusedLionBuilder=Absent(), CPUAdamBuilder=lambda: 1 / 0)

    states = {
        (name, dtype): declaration.claim(Cell(f"kernels.{name}", dtype, "training")).state
        for name in ("multi_tensor_adam", "multi_tensor_lion", "lamb", "adam_update")
        for dtype in ("float32", "float16")
    }
    assert states == {
        ("multi_tensor_adam", "float32"): State.SUPPORTED,
        ("multi_tensor_adam", "float16"): State.UNDECLARED,
        ("multi_tensor_lion", "float32"): State.UNSUPPORTED,
        ("multi_tensor_lion", "float16"): State.UNDECLARED,
        ("lamb", "float32"): State.UNSUPPORTED,
        ("lamb", "float16"): State.UNDECLARED,
        ("adam_update", "float32"): State.UNDECLARED,
        ("adam_update", "float16"): State.UNDECLARED,
    }


def test_this_projects_own_builders_claim_nothing_here():
    declaration = said(op_builder_dir="conformance.kernels.builders", create_op_builder=lambda name: 1 / 0)

    assert declaration.cells == {}


# --- silence --------------------------------------------------------------------------------------------------------


def terse(**data):
    """Return the spec of an accelerator that says nothing but two dtypes, on the module of the host."""
    claims = TORCH_BASE | dtypes("float32", "bfloat16")
    accelerator = TorchAccelerator(name="terse", vendor="tests", module="torch.cpu", capabilities=claims, **data)
    return BackendSpec("terse", "terse", accelerator)


def undeclared_by_lint(spec):
    notes = [finding.sentence for finding in lint(spec) if finding.id == "L15"]
    return {name for note in notes for name in note.split(": ", 1)[1].split(", ")}


SILENT = [
    "dtype[float16]",
    "dtype[float64]",
    "compile",
    "comm",
    "triton",
    "stream",
    "event",
    "graph.capture",
    "execution.synchronous",
    "execution.host-timers",
    "execution.ordered",
    "execution.backpressure",
]


@pytest.mark.parametrize("cell", SILENT)
def test_a_declaration_that_does_not_mention_a_cell_is_silent_about_it(cell):
    """Defaults of this project's classes, and answers that they derive from the declaration, say nothing new."""
    spec = terse()

    claims = spec.declaration(AcceleratorProxy(spec.accelerator, "terse"))

    subject, _, dtype = cell.removesuffix("]").partition("[")
    assert claims.claim(Cell(subject, dtype or None)).state is State.UNDECLARED


def test_lint_and_the_run_agree_about_silence():
    spec = terse(ordered=True, backpressure=False)

    claims = spec.declaration(AcceleratorProxy(spec.accelerator, "terse"))

    silent = {cell for cell in VOCABULARY if claims.claim(Cell(cell)).state is State.UNDECLARED} - {"dtype"}
    silent -= {name for name, known in VOCABULARY.items() if known.core}
    assert undeclared_by_lint(spec) == silent
    assert claims.supports(Cell("execution.ordered"))
    assert claims.claim(Cell("execution.backpressure")).state is State.UNSUPPORTED


def test_a_member_that_a_vendor_overrides_is_no_default():
    class Overriding(TorchAccelerator):
        def is_fp64_supported(self):
            return False

        def supported_dtypes(self):
            return [torch.float32, torch.float16]

    claims = from_methods(Overriding(name="mine", vendor="tests", module="torch.cpu", capabilities=TORCH_BASE))

    assert {str(cell): claim.state.value for cell, claim in claims.cells.items() if cell.subject == "dtype"} == {
        "dtype[float32]": "supported",
        "dtype[float16]": "supported",
        "dtype[float64]": "unsupported",
    }


@pytest.mark.parametrize(
    ("answer", "state"), [("inductor", "undeclared"), ("acme", "supported"), (None, "unsupported")]
)
def test_the_compile_backend_that_everybody_returns_is_no_claim(answer, state):
    declaration = said(get_compile_backend=lambda: answer)

    assert declaration.claim(VOCABULARY["compile"].cell).state.value == state


def test_lint_counts_what_methods_claim():
    class Answering:
        def is_available(self):
            return True

        def resolves_data_dependency(self):
            return True

    silent = undeclared_by_lint(ObjectSpec("x:Answering", "x", Answering))

    assert "execution.ordered" not in silent
    assert "execution.synchronous" in silent
