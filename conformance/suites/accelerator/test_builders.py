"""Operator builders: found by name, consistent between both members, and able to load their operators."""

from __future__ import annotations

import importlib
import inspect

import pytest

from conformance.accelerators.capabilities import DEVICE, OP_BUILDERS
from conformance.judging.finding import environment_lacks, require
from conformance.plan.case import Level, case
from conformance.suites.ops.loading import is_compatible, loaded

UNKNOWN = "NoSuchOperatorBuilder"


def builder_names(accelerator):
    """Return the sorted names of the builder classes in the module of op_builder_dir().

    A placeholder for missing operators is left out. DeepSpeed's one says that it is compatible, and raises when loaded.
    """
    module = importlib.import_module(accelerator.op_builder_dir())
    # Abstract base classes end in "Builder" too, but they have no NAME.
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and name.endswith("Builder")
        and name != "NotImplementedBuilder"
        and hasattr(value, "NAME")
        and hasattr(value, "load")
    )


@case("accelerator.builders.unknown_name", requires=[DEVICE], level=Level.CORE)
def test_unknown_name(accelerator):
    """get_op_builder() and create_op_builder() do not raise for an unknown name, and agree about it."""
    builder_class, instance = accelerator.get_op_builder(UNKNOWN), accelerator.create_op_builder(UNKNOWN)

    assert (builder_class is None) == (instance is None), (
        f"get_op_builder() returned {builder_class!r}, create_op_builder() {instance!r}"
    )
    if builder_class is not None:
        assert type(instance) is builder_class, (
            f"get_op_builder() returned {builder_class!r}, create_op_builder() a {type(instance)!r}"
        )
        assert instance.is_compatible() is False, "is_compatible() of a builder for an unknown operator is not False"


@case("accelerator.builders.unknown_loads_nothing", requires=[DEVICE], level=Level.CORE)
def test_unknown_loads_nothing(accelerator):
    """Loading an unknown operator raises an error."""
    builder = accelerator.create_op_builder(UNKNOWN)
    if builder is None:
        environment_lacks("this accelerator has no builder for unknown operators, so nothing can be loaded")

    # Builders of different vendors raise different errors.
    with pytest.raises((NotImplementedError, ValueError, ImportError, RuntimeError)):
        builder.load()


@case("accelerator.builders.by_keyword", requires=[DEVICE], level=Level.CORE)
def test_by_keyword(accelerator):
    """get_op_builder() and create_op_builder() accept class_name by name."""
    builder_class, instance = (
        accelerator.get_op_builder(class_name=UNKNOWN),
        accelerator.create_op_builder(class_name=UNKNOWN),
    )

    assert (builder_class is None) == (instance is None), (
        f"get_op_builder() returned {builder_class!r}, create_op_builder() {instance!r}"
    )


@case("accelerator.builders.reachable", requires=[OP_BUILDERS])
def test_reachable(accelerator):
    """Every builder in the module of op_builder_dir() is found by its name by both members."""
    found = builder_names(accelerator)
    assert found, f"{accelerator.op_builder_dir()} contains no builder class"

    wrong = {}
    for name in found:
        builder_class = require(accelerator.get_op_builder(name), f"get_op_builder({name!r})")
        instance = require(accelerator.create_op_builder(name), f"create_op_builder({name!r})")
        if not inspect.isclass(builder_class) or builder_class.__name__ != name or type(instance) is not builder_class:
            wrong[name] = (
                f"get_op_builder() returned {builder_class!r}, create_op_builder() a {type(instance).__name__}"
            )
    assert not wrong, f"builders are not found by their names: {wrong}"


@case("accelerator.builders.compatible_is_bool", requires=[OP_BUILDERS])
def test_compatible_is_bool(accelerator):
    """is_compatible() returns a bool for every builder."""
    answers = {name: is_compatible(accelerator.create_op_builder(name)) for name in builder_names(accelerator)}

    invalid = {name: answer for name, answer in answers.items() if type(answer) is not bool}
    assert answers and not invalid, (
        f"is_compatible() must return a bool; it returned {invalid or 'nothing: there is no builder'}"
    )


@case("accelerator.builders.load_twice", requires=[OP_BUILDERS])
def test_load_twice(accelerator):
    """A compatible builder loads an object with functions, and the same object the second time."""
    compatible = [name for name in builder_names(accelerator) if is_compatible(accelerator.create_op_builder(name))]
    if not compatible:
        environment_lacks("no builder is compatible on this machine")
    # One builder is enough here: building may mean compiling, and area ops loads every builder.
    name = "FusedAdamBuilder" if "FusedAdamBuilder" in compatible else compatible[0]

    first, second = loaded(accelerator.create_op_builder(name)), loaded(accelerator.create_op_builder(name))

    functions = [
        attribute for attribute in dir(first) if not attribute.startswith("_") and callable(getattr(first, attribute))
    ]
    assert first is second, f"{name}.load() returned another object the second time"
    assert functions, f"{name}.load() returned {first!r}, which has no functions"
