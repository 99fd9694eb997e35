"""Drawn programs: short chains of calls on views, of writes, casts and layers, with the host's numbers."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, Tier, cases
from conformance.suites import drawn_programs
from conformance.suites.operator_claims import claims

#: Dtypes in which programs begin.
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
#: Programs of a case, of one of the dtypes that models have, and of a case of the deep tier, which has other ones.
_PROGRAMS, _OF_MODELS, _DEEP = 300, 500, 4000
_MODELS = ("float32", "bfloat16", "float16", "int64")


def generate():
    """Return a case for each dtype, one for gradients, and such with many more programs in the deep tier."""
    kinds = [*((dtype, Mode.INFERENCE) for dtype in _DTYPES), ("float32", Mode.TRAINING)]
    return [_case(dtype, mode, is_deep=is_deep) for is_deep in (False, True) for dtype, mode in kinds]


def _case(dtype, mode, *, is_deep):
    axes = (("dtype", dtype), ("mode", mode.value), *([("depth", "deep")] if is_deep else []))
    count = _OF_MODELS if dtype in _MODELS and mode is Mode.INFERENCE else _PROGRAMS
    return Case(
        id=f"accelerator.programs[{'-'.join(value for _, value in axes)}]",
        area="accelerator",
        tier=Tier.DEEP if is_deep else Tier.UNIT,
        axes=axes,
        requires=(DTYPE.on(dtype), *(Cell(f"operators.{name}", dtype, mode.value) for name in ("clone", "flip"))),
        payload=(mode, range(count, count + _DEEP) if is_deep else range(count)),
    )


@cases(generate)
def test_programs(declaration, case, device, check):
    """Drawn programs of a few calls give the host's numbers, rounded ones nearly, and change none of their inputs."""
    mode, numbers = case.payload
    trained = mode is Mode.TRAINING

    def claimed(operator, dtype):
        return claims(declaration, operator, dtype, mode)

    dtype = getattr(torch, case.dtype)
    chosen = drawn_programs.programs(dtype, numbers, claimed, by_calls=True, trained=trained)
    if not chosen:
        raise EnvironmentLacks("the device claims no program of this case")
    said = [_difference(device, declaration, check, program, trained=trained) for program in chosen]
    if not any(said):
        return
    program, message = drawn_programs.first_wrong(
        chosen, said, lambda program: _difference(device, declaration, check, program, trained=trained)
    )
    check.that(False, f"{message}:\n{program.text}\nwrong: {sum(map(bool, said))} of {len(chosen)} programs")


def _difference(device, declaration, check, program, *, trained):
    """Return what is wrong with a program on the device; "" for nothing, or if the device does not claim all of it."""
    inputs, function = program.made()
    given = program.inputs_on(device)
    try:
        results = function(*given)
        pairs = [*zip(program.results, results, function(*inputs), strict=True)]
        if trained:
            found, due = (drawn_programs.gradients(each, function) for each in (given, inputs))
            pairs += zip(program.gradient_names(inputs), found, due, strict=True)
    except Exception as error:
        if not drawn_programs.is_claimed(declaration, program):
            return ""
        return f"refused: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    pairs += [(f"{name} afterwards", *each) for (name, *_), *each in zip(program.inputs, given, inputs, strict=True)]
    return drawn_programs.difference(check, program, pairs)
