"""Drawn programs in compiled code: short chains of exact steps, which have to give the numbers of uncompiled code."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMPILE, DTYPE, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, Tier, cases
from conformance.suites import drawn_programs
from conformance.suites.operator_claims import claims

from .test_compiled import DEADLINE
from .test_programs import HOST, Inductor, naming_torch, plainly

#: Dtypes in which programs begin, and whether their gradients are judged: in each run, and in the deep tier.
_KINDS = {
    False: (("float32", False), ("int64", False), ("float32", True)),
    True: (("float32", False), ("bfloat16", False), ("int64", False), ("float32", True)),
}
#: Programs of one graph: compiled alone, each would take four times as long.
_TOGETHER = 24
#: The same where gradients are judged: a gradient has kernels of its own, and none of the reported bugs.
_TRAINED = 6
#: Graphs of a deep case, whose programs are other ones.
_GRAPHS = 5


def generate():
    """Return a case for each dtype and for gradients, and ones with many more programs in the deep tier."""
    return [_case(*kind, is_deep=is_deep) for is_deep, kinds in _KINDS.items() for kind in kinds]


def _case(dtype, trained, *, is_deep):
    together = _TRAINED if trained else _TOGETHER
    mode = [("mode", Mode.TRAINING.value)] if trained else []
    axes = (("dtype", dtype), *mode, *([("depth", "deep")] if is_deep else []))
    return Case(
        id=f"compile.drawn[{'-'.join(value for _, value in axes)}]",
        area="compile",
        tier=Tier.DEEP if is_deep else Tier.UNIT,
        axes=axes,
        requires=(COMPILE.cell, DTYPE.on(dtype)),
        deadline=DEADLINE,
        payload=(trained, range(together, _TOGETHER * (_GRAPHS + 1)) if is_deep else range(together)),
    )


@cases(generate)
def test_drawn(accelerator, declaration, case, device, check):
    """Drawn programs of a few exact steps give the same numbers compiled and uncompiled, many in one graph."""
    trained, numbers = case.payload
    mode = Mode.TRAINING if trained else Mode.INFERENCE

    def claimed(operator, dtype):
        return claims(declaration, operator, dtype, mode if dtype == case.dtype else Mode.INFERENCE)

    differences = _gradients if trained else _results
    drawn = drawn_programs.programs(getattr(torch, case.dtype), numbers, claimed, trained=trained)
    chosen = [program for program in drawn if drawn_programs.is_claimed(declaration, program)]
    if not chosen:
        raise EnvironmentLacks("the device claims no program of this case")
    graphs = [chosen[start : start + _TOGETHER] for start in range(0, len(chosen), _TOGETHER)]
    for together in graphs:
        said = _refusing(differences, accelerator, device, check, together)
        if not any(said):
            continue

        def alone(program):
            return _refusing(differences, accelerator, device, check, [program])[0]

        # A compiler can be wrong in what it joins: then each program is right alone.
        program, message = drawn_programs.first_wrong(together, said, alone, "in one graph with others, ")
        more = f"wrong in this graph: {sum(map(bool, said))} of {len(together)} programs"
        with naming_torch(lambda program=program: _check_on_host(differences, check, program)):
            check.that(False, f"{message}, compiled:\n{program.text}\n{more}")


def _check_on_host(differences, check, program):
    """Check that PyTorch's own compiler gives the right results of a program on the host."""
    [said] = _refusing(differences, Inductor, HOST, check, [program])
    check.that(not said, said)


def _refusing(differences, accelerator, device, check, chosen):
    """Compile programs in one graph, and return what is wrong with the results of each, "" for nothing."""
    try:
        with plainly(accelerator) as compiled:
            pairs = differences(compiled, device, chosen)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        return [f"compiled code is refused: {type(error).__name__}: {reason}"] * len(chosen)
    return [drawn_programs.difference(check, *each) for each in zip(chosen, pairs, strict=True)]


def _results(compiled, device, chosen):
    """Return name, compiled result and due result of all results of each program."""
    made = [program.made() for program in chosen]

    def all_of(*given):
        return [function(*inputs) for (_, function), inputs in zip(made, given, strict=True)]

    found = compiled(all_of, fullgraph=True)(*(program.inputs_on(device) for program in chosen))
    due = all_of(*(inputs for inputs, _ in made))
    return [
        [*zip(program.results, *results, strict=True)] for program, *results in zip(chosen, found, due, strict=True)
    ]


def _gradients(compiled, device, chosen):
    """Return name, compiled gradient and due gradient of all floating inputs of each program."""
    made = [program.made() for program in chosen]

    def all_of(*given):
        rest = iter(given)
        return [each for inputs, function in made for each in function(*(next(rest) for _ in inputs))]

    given = [each for program in chosen for each in program.inputs_on(device)]
    found = iter(drawn_programs.gradients(given, compiled(all_of, fullgraph=True)))
    due = iter(drawn_programs.gradients([each for given, _ in made for each in given], all_of))
    return [
        [(name, next(found), next(due)) for name in program.gradient_names(given)]
        for program, (given, _) in zip(chosen, made, strict=True)
    ]
