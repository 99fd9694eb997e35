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
#: Dtypes of which a few programs stand in the graph of another dtype, and how many of each.
_BESIDE = {"float32": ("float16", "bfloat16", "float64"), "int64": ("int32", "int16", "int8", "uint8")}
_OF_EACH = 4


def generate():
    """Return a case for each dtype and for gradients, and ones with many more programs in the deep tier.

    The payload has whether gradients are judged, and the numbers of programs by the dtype in which they begin.
    """
    return [_case(*kind, is_deep=is_deep) for is_deep, kinds in _KINDS.items() for kind in kinds]


def _case(dtype, trained, *, is_deep):
    together = _TRAINED if trained else _TOGETHER
    beside = {} if trained or is_deep else dict.fromkeys(_BESIDE.get(dtype, ()), range(_OF_EACH))
    mode = [("mode", Mode.TRAINING.value)] if trained else []
    axes = (("dtype", dtype), *mode, *([("depth", "deep")] if is_deep else []))
    return Case(
        id=f"compile.drawn[{'-'.join(value for _, value in axes)}]",
        area="compile",
        tier=Tier.DEEP if is_deep else Tier.UNIT,
        axes=axes,
        requires=(COMPILE.cell, DTYPE.on(dtype)),
        deadline=DEADLINE,
        payload=(
            trained,
            {dtype: range(together, _TOGETHER * (_GRAPHS + 1)) if is_deep else range(together), **beside},
        ),
    )


@cases(generate)
def test_drawn(accelerator, declaration, case, device, check):
    """Drawn programs of a few exact steps give the same numbers compiled and uncompiled, many in one graph."""
    trained, numbers = case.payload
    mode = Mode.TRAINING if trained else Mode.INFERENCE

    def claimed(operator, dtype):
        return claims(declaration, operator, dtype, mode if dtype in numbers else Mode.INFERENCE)

    differences = _gradients if trained else _results
    chosen = [
        program
        for dtype, own in numbers.items()
        if declaration.supports(DTYPE.on(dtype))
        for program in drawn_programs.programs(getattr(torch, dtype), own, claimed, trained=trained)
        if drawn_programs.is_claimed(declaration, program)
    ]
    if not chosen:
        raise EnvironmentLacks("the device claims no program of this case")
    size = len(chosen) if len(numbers) > 1 else _TOGETHER
    graphs = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    for together in graphs:
        said = _refusing(differences, accelerator, device, check, together)
        if not any(said):
            continue

        def alone(program):
            return _refusing(differences, accelerator, device, check, [program])[0]

        # A compiler can be wrong in what it joins: then each program is right alone.
        program, message = drawn_programs.first_wrong(together, said, alone, "in one graph with others, ")
        more = f"wrong in this graph: {sum(map(bool, said))} of {len(together)} programs"
        with naming_torch(accelerator, lambda program=program: _check_on_host(differences, check, program)):
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

    function = compiled(all_of, fullgraph=True)
    found, again = ([*function(*(program.inputs_on(device, turned=turned) for program in chosen))]
                    for turned in (False, True))  # fmt: skip
    due = all_of(*(inputs for inputs, _ in made))
    return [
        [
            *zip(program.results, *results, strict=True),
            *_again(program, dict(zip(program.results, second, strict=True))),
        ]
        for program, *results, second in zip(chosen, found, due, again, strict=True)
    ]


def _again(program, found, *, trained=False):
    """Yield name, found and due result of a second call of the same function, with other numbers of the same form."""
    for name, due in program.due_again(trained=trained).items():
        yield f"{name}{drawn_programs.AGAIN}", found[name], due


def _gradients(compiled, device, chosen):
    """Return name, compiled gradient and due gradient of all floating inputs of each program."""
    made = [program.made() for program in chosen]

    def all_of(*given):
        rest = iter(given)
        return [each for inputs, function in made for each in function(*(next(rest) for _ in inputs))]

    def found(turned):
        given = [each for program in chosen for each in program.inputs_on(device, turned=turned)]
        return iter(drawn_programs.gradients(given, function))

    function = compiled(all_of, fullgraph=True)
    first, second = found(False), found(True)
    due = iter(drawn_programs.gradients([each for given, _ in made for each in given], all_of))
    results = []
    for program, (given, _) in zip(chosen, made, strict=True):
        names = program.gradient_names(given)
        again = dict(zip(names, second, strict=False))
        results.append([*((name, next(first), next(due)) for name in names), *_again(program, again, trained=True)])
    return results
