"""Every operator of PyTorch's database in compiled code, between others that a compiler joins with it in one kernel."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMPILE, Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, Tier, cases
from conformance.suites.operator_claims import claims

from .test_compiled import DEADLINE
from .test_programs import Inductor, naming_torch, plainly

#: Kinds of operators, by what a compiler makes of them.
_KINDS = ("unary", "binary", "reductions", "indices", "functional", "transforms", "others")
#: What is compiled of each kind.
_COMPILED = (
    ("float32", Mode.INFERENCE),
    ("float32", Mode.TRAINING),
    ("bfloat16", Mode.INFERENCE),
    ("int64", Mode.INFERENCE),
)
#: What a run without the deep tier compiles: what compilers write as loops of their own, in a few seconds.
_ALWAYS = ("reductions", "float32", Mode.INFERENCE)
#: Operators of one graph. Alone, each would take six times as long.
_TOGETHER = 24
#: Operators whose failures a message shows.
_SHOWN = 8


def generate():
    """Return the cases of each kind, dtype and mode. All but one are deep: each takes a compiler half a minute."""
    chosen = [(kind, dtype, mode) for kind in _KINDS for dtype, mode in _COMPILED]
    # PyTorch has no Fourier transform in bfloat16.
    return [_case(*each) for each in chosen if each[:2] != ("transforms", "bfloat16")]


def _case(kind, dtype, mode):
    axes = (("kind", kind), ("dtype", dtype), ("mode", mode.value))
    is_deep = (kind, dtype, mode) != _ALWAYS
    if is_deep:
        axes += (("depth", "deep"),)
    return Case(
        id=f"compile.operators[{'-'.join(value for _, value in axes)}]",
        area="compile",
        tier=Tier.DEEP if is_deep else Tier.UNIT,
        axes=axes,
        requires=(COMPILE.cell, *(Cell(f"operators.{name}", dtype, "inference") for name in ("flip", "mul"))),
        deadline=DEADLINE,
        payload=(kind, dtype, mode),
    )


@cases(generate)
def test_operators(accelerator, declaration, case, device, check):
    """Operators give uncompiled results where a compiler joins them with what makes their inputs and reads results."""
    from conformance.suites.operators import cell
    from conformance.suites.operators.plan.catalogue import operators

    from . import joined

    kind, dtype, mode = case.payload
    trained = mode is Mode.TRAINING
    known = [each for each in operators() if dtype in (each.backward if trained else each.dtypes)]
    claimed = [each.full_name for each in known if claims(declaration, each.name, dtype, mode)]
    with cell.quiet(), cell.reporting(case, device, check, getattr(accelerator, "package", "") or ""):
        chosen = [*joined.subjects(claimed, kind, getattr(torch, dtype), device, check, trained=trained)]
        if not chosen:
            raise EnvironmentLacks("the device claims none of the operators of this case")
        graphs = [chosen[start : start + _TOGETHER] for start in range(0, len(chosen), _TOGETHER)]
        wrong = [said for graph in graphs for said in _wrong(accelerator, check, graph)]
        check.that(
            not wrong, "\n".join([*wrong[:_SHOWN], *([f"and {len(wrong) - _SHOWN} more"] * (len(wrong) > _SHOWN))])
        )


def _wrong(accelerator, check, chosen):
    """Compile operators in one graph; where that is refused or wrong, each alone. Return what is wrong, by operator.

    An operator that PyTorch does not trace has no compiled code on any device.
    """
    from torch._dynamo.exc import Unsupported

    try:
        _check_graph(accelerator, chosen)
        return []
    except (AssertionError, Unsupported) as error:
        together = error
    wrong, traced = [], []
    for subject in chosen:
        try:
            with naming_torch(accelerator, lambda subject=subject: _check_graph(Inductor, [subject.on_host()])):
                _check_graph(accelerator, [subject])
            traced.append(subject.name)
        except Unsupported:
            check.metric("not traced", subject.name)
        except AssertionError as error:
            check.failed = check.failed or subject.failure(accelerator.get_compile_backend())
            wrong.append(f"{subject.name}: {error}")
    if len(traced) == len(chosen):
        wrong.append(f"Each of {', '.join(traced)} is right alone; in one graph: {together}")
    return wrong


def _check_graph(accelerator, chosen):
    """Compile operators in one graph, and compare their results with the host's."""
    from torch._dynamo.exc import Unsupported

    from . import joined

    with plainly(accelerator) as compiled:
        try:
            found = joined.run(chosen, compiled)
        except Unsupported:
            raise
        except Exception as error:
            raise AssertionError(f"compiled code is refused: {type(error).__name__}: {error}") from error
    for subject, result in zip(chosen, found, strict=True):
        joined.judge(subject, result)
