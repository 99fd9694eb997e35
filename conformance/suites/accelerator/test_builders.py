"""Operator builders are found by name, agree with each other, and load what they promise."""

from __future__ import annotations

import importlib
import inspect

import pytest

from conformance.accelerators.capabilities import DEVICE, OP_BUILDERS
from conformance.case import Level, case
from conformance.finding import environment_lacks, require
from conformance.suites.ops.loading import is_compatible, loaded

NOWHERE = "NoSuchOperatorBuilder"


def builder_names(accelerator):
    """The builder classes that the builders' module offers by name."""
    module = importlib.import_module(accelerator.op_builder_dir())
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and name.endswith("Builder") and hasattr(value, "NAME") and hasattr(value, "load")
    )


@case("accelerator.builders.unknown_name", requires=[DEVICE], level=Level.CORE)
def test_unknown_name(accelerator):
    """An unknown name crashes neither member, and both say no in the same way."""
    kind, instance = accelerator.get_op_builder(NOWHERE), accelerator.create_op_builder(NOWHERE)

    assert (kind is None) == (instance is None), f"get_op_builder gives {kind!r}, create_op_builder {instance!r}"
    if kind is not None:
        assert type(instance) is kind, f"get_op_builder gives {kind!r}, create_op_builder a {type(instance)!r}"
        assert instance.is_compatible() is False, "a builder of an operator that nobody knows says it is compatible"


@case("accelerator.builders.unknown_loads_nothing", requires=[DEVICE], level=Level.CORE)
def test_unknown_loads_nothing(accelerator):
    """Loading an operator that nobody knows raises; it never gives something to call."""
    builder = accelerator.create_op_builder(NOWHERE)
    if builder is None:
        environment_lacks("unknown operators have no builder here, so there is nothing to load")

    with pytest.raises((NotImplementedError, ValueError, ImportError, RuntimeError)):
        builder.load()


@case("accelerator.builders.by_keyword", requires=[DEVICE], level=Level.CORE)
def test_by_keyword(accelerator):
    """Both members take class_name by name."""
    kind, instance = accelerator.get_op_builder(class_name=NOWHERE), accelerator.create_op_builder(class_name=NOWHERE)

    assert (kind is None) == (instance is None), f"get_op_builder gives {kind!r}, create_op_builder {instance!r}"


@case("accelerator.builders.reachable", requires=[OP_BUILDERS])
def test_reachable(accelerator):
    """op_builder_dir() is importable; every builder in it is found by its name, and get and create agree on it."""
    found = builder_names(accelerator)
    assert found, f"{accelerator.op_builder_dir()} offers no builder"

    wrong = {}
    for name in found:
        kind = require(accelerator.get_op_builder(name), f"get_op_builder({name!r})")
        instance = require(accelerator.create_op_builder(name), f"create_op_builder({name!r})")
        if not inspect.isclass(kind) or kind.__name__ != name or type(instance) is not kind:
            wrong[name] = f"get gives {kind!r}, create {type(instance).__name__}"
    assert not wrong, f"builders are not found by their names: {wrong}"


@case("accelerator.builders.compatible_is_bool", requires=[OP_BUILDERS])
def test_compatible_is_bool(accelerator):
    """is_compatible() answers a bool for every builder."""
    answers = {name: is_compatible(accelerator.create_op_builder(name)) for name in builder_names(accelerator)}

    odd = {name: answer for name, answer in answers.items() if type(answer) is not bool}
    assert answers and not odd, f"is_compatible() answers {odd or 'for no builder at all'}"


@case("accelerator.builders.load_twice", requires=[OP_BUILDERS])
def test_load_twice(accelerator):
    """A compatible builder loads, gives something to call, and the same thing the second time.

    One builder stands for all here: building may mean compiling, and the ops area loads every one.
    """
    compatible = [n for n in builder_names(accelerator) if is_compatible(accelerator.create_op_builder(n))]
    if not compatible:
        environment_lacks("no builder is compatible here")
    name = "FusedAdamBuilder" if "FusedAdamBuilder" in compatible else compatible[0]

    first, second = loaded(accelerator.create_op_builder(name)), loaded(accelerator.create_op_builder(name))

    functions = [
        attribute for attribute in dir(first) if not attribute.startswith("_") and callable(getattr(first, attribute))
    ]
    assert first is second, f"{name}.load() gives another object the second time"
    assert functions, f"{name}.load() gives {first!r}, in which nothing can be called"
