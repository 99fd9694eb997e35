"""Drawn programs in compiled code: short chains of exact steps, which have to give the numbers of uncompiled code."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMPILE, DTYPE
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, Tier, cases

from . import tables
from .test_compiled import DEADLINE
from .test_programs import HOST, Inductor, check_same, naming_torch, plainly

#: Dtypes in which programs begin in each run, and in the deep tier.
_DTYPES = {False: ("float32", "int64"), True: ("float32", "bfloat16", "int64")}
#: Programs of one graph: compiled alone, each would take four times as long.
_TOGETHER = 24
#: Graphs of a deep case, whose programs are other ones.
_GRAPHS = 5


def generate():
    """Return a case for each dtype, and one with many more programs in the deep tier."""
    return [_case(dtype, is_deep=is_deep) for is_deep, dtypes in _DTYPES.items() for dtype in dtypes]


def _case(dtype, *, is_deep):
    axes = (("dtype", dtype), *([("depth", "deep")] if is_deep else []))
    return Case(
        id=f"compile.drawn[{'-'.join(value for _, value in axes)}]",
        area="compile",
        tier=Tier.DEEP if is_deep else Tier.UNIT,
        axes=axes,
        requires=(COMPILE.cell, DTYPE.on(dtype)),
        deadline=DEADLINE,
        payload=range(_TOGETHER, _TOGETHER * (_GRAPHS + 1)) if is_deep else range(_TOGETHER),
    )


@cases(generate)
def test_drawn(accelerator, declaration, case, device, check):
    """Drawn programs of a few exact steps give the same numbers compiled and uncompiled, many in one graph."""
    from . import drawn

    dtype = getattr(torch, case.dtype)
    chosen = drawn.programs(dtype, case.payload, lambda *cell: tables.claimed(declaration, *cell))
    if not chosen:
        raise EnvironmentLacks("the device claims no program of this case")
    graphs = [chosen[start : start + _TOGETHER] for start in range(0, len(chosen), _TOGETHER)]
    for together in graphs:
        said = _differences(accelerator, device, check, together)
        if not any(said):
            continue
        program, message = _first(accelerator, device, check, together, said)
        more = f"wrong in this graph: {sum(map(bool, said))} of {len(together)} programs"
        with naming_torch(lambda program=program: _check_on_host(check, program)):
            check.that(False, f"{message}, compiled:\n{program.text}\n{more}")


def _first(accelerator, device, check, chosen, said):
    """Return the first wrong program up to its first wrong step, and what is wrong with its result."""
    for program, message in zip(chosen, said, strict=True):
        for beginning in program.beginnings() if message else ():
            [alone] = _differences(accelerator, device, check, [beginning])
            if alone:
                return beginning, alone
    # A compiler can be wrong in what it joins: then each program is right alone.
    return next(
        (program, f"in one graph with others, {message}")
        for program, message in zip(chosen, said, strict=True)
        if message
    )


def _check_on_host(check, program):
    """Check that PyTorch's own compiler gives the right results of a program on the host."""
    [said] = _differences(Inductor, HOST, check, [program])
    check.that(not said, said)


def _differences(accelerator, device, check, chosen):
    """Compile programs in one graph, and return what is wrong with the results of each, "" for nothing."""
    made = [program.made() for program in chosen]

    def all_of(*given):
        return [function(*inputs) for (_, function), inputs in zip(made, given, strict=True)]

    try:
        with plainly(accelerator) as compiled:
            found = compiled(all_of, fullgraph=True)(*([tensor.to(device) for tensor in inputs] for inputs, _ in made))
    except Exception as error:
        reason = str(error).partition("\n")[0]
        return [f"compiled code is refused: {type(error).__name__}: {reason}"] * len(chosen)
    due = all_of(*(inputs for inputs, _ in made))
    return [_difference(check, *each) for each in zip(chosen, found, due, strict=True)]


def _difference(check, program, found, due):
    try:
        for name, actual, wanted in zip(program.results, found, due, strict=True):
            check.equal((actual.dtype, actual.shape), (wanted.dtype, wanted.shape), f"dtype and shape of {name}")
            check_same(check, name, actual.cpu(), wanted)
    except AssertionError as error:
        return str(error)
    return ""
