"""Environment variables that a launcher passes on, and the compile backend."""

from __future__ import annotations

import os

import pytest
import torch

from conformance.accelerators.capabilities import COMPILE, DEVICE, DEVICE_VISIBILITY
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import Level, case

from .processes import answers_of_new_process, run_python, spec_of


@case("accelerator.environment.exports", requires=[DEVICE], level=Level.CORE)
def test_exports(accelerator):
    """export_envs() returns a list of different, non-empty prefixes of variable names."""
    prefixes = accelerator.export_envs()

    assert type(prefixes) is list, f"export_envs() returned {prefixes!r}; it must return a list"
    # Launchers export every variable that begins with a prefix, so an empty one would export all of them.
    bad = [text for text in prefixes if type(text) is not str or not text or "=" in text or text != text.strip()]
    assert not bad, f"export_envs() contains {bad}, which are not prefixes of variable names"
    assert len(set(prefixes)) == len(prefixes), f"export_envs() contains an entry twice: {prefixes}"


@case("accelerator.environment.visible_names", requires=[DEVICE], level=Level.CORE)
def test_visible_names(accelerator):
    """visible_devices_envs() returns a list of at least one variable name."""
    variables = accelerator.visible_devices_envs()

    # Launchers use the first name.
    assert type(variables) is list and variables, (
        f"visible_devices_envs() returned {variables!r}; it must return a list of names"
    )
    bad = [text for text in variables if type(text) is not str or not text or not text.replace("_", "a").isalnum()]
    assert not bad, f"visible_devices_envs() contains {bad}, which are not variable names"


IDS = {"one": [3], "several": [0, 2, 5], "reordered": [1, 0], "tuple": (0, 1), "range": range(2), "strings": ["0", "1"]}


@case("accelerator.environment.set_visible", requires=[DEVICE], level=Level.CORE, axes={"ids": list(IDS)})
def test_set_visible(accelerator, ids):
    """set_visible_devices_envs() writes the comma-separated ids into the given dict and nowhere else."""
    variables = accelerator.visible_devices_envs()
    given, outside = {"KEPT": "as it is"}, dict(os.environ)

    accelerator.set_visible_devices_envs(given, IDS[ids])

    if given == {"KEPT": "as it is"}:
        stub("set_visible_devices_envs() has no effect: it wrote no variable")
    expected = {"KEPT": "as it is", **dict.fromkeys(variables, ",".join(str(number) for number in IDS[ids]))}
    assert given == expected, f"set_visible_devices_envs() wrote {given}, not {expected}"
    assert dict(os.environ) == outside, "set_visible_devices_envs() changed the environment of this process"


@case("accelerator.environment.set_visible_by_name", requires=[DEVICE], level=Level.CORE)
def test_set_visible_by_name(accelerator):
    """set_visible_devices_envs() accepts its arguments by name and replaces an older value."""
    variable = accelerator.visible_devices_envs()[0]
    given = {variable: "7"}

    accelerator.set_visible_devices_envs(current_env=given, local_accelerator_ids=[1])

    assert given[variable] == "1", f"{variable} is {given[variable]!r}, not '1'"


COUNT = """
from conformance.accelerators.registry import resolve
live = resolve(spec).load()
live.set_device(0)
tell(count=live.device_count(), name=live.current_device_name())
"""


@case("accelerator.environment.visible_count", requires=[DEVICE_VISIBILITY], deadline=120)
def test_visible_count(accelerator, pytestconfig):
    """A new process sees exactly the devices that the variable names, counted from 0."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case hides one of two")
    given = {}
    accelerator.set_visible_devices_envs(given, [1])

    answers = run_python(COUNT, spec_of(pytestconfig), **given)

    assert answers["count"] == 1, f"with {given} a process sees {answers['count']} devices, not 1"


@case("accelerator.compile_backend.known", requires=[COMPILE])
def test_compile_backend_known(accelerator):
    """get_compile_backend() is registered with torch.compile."""
    import torch._dynamo

    backend, known = accelerator.get_compile_backend(), torch._dynamo.list_backends(exclude_tags=())

    assert backend in known, f"get_compile_backend() is {backend!r}; registered are {known}"


@case("accelerator.compile_backend.set", requires=[DEVICE], level=Level.CORE)
def test_compile_backend_set(accelerator):
    """set_compile_backend() accepts a registered backend, and get_compile_backend() then returns it."""
    before = accelerator.get_compile_backend()
    try:
        accelerator.set_compile_backend("eager")
        after = accelerator.get_compile_backend()
    finally:
        accelerator.set_compile_backend(before)

    if after == before != "eager":
        stub(f"set_compile_backend('eager') has no effect: it is {after!r} as before")
    assert after == "eager", f"after set_compile_backend('eager') it is {after!r}"
    assert accelerator.get_compile_backend() == before


@case("accelerator.compile_backend.unknown", requires=[DEVICE], level=Level.CORE)
def test_compile_backend_unknown(accelerator):
    """An unknown backend raises a ValueError and keeps the old backend."""
    before = accelerator.get_compile_backend()

    with pytest.raises(ValueError):
        accelerator.set_compile_backend("no_such_backend")

    assert accelerator.get_compile_backend() == before, "a refused backend replaced the old one"


@case("accelerator.environment.import_keeps_it", requires=[DEVICE], deadline=120)
def test_import_keeps_environment(pytestconfig):
    """Loading an accelerator keeps torch's deterministic mode, default dtype and gradient mode."""
    answers = answers_of_new_process(spec_of(pytestconfig))

    before, after = answers["before"], answers["after"]
    assert after == before, (
        f"loading changed torch's modes (deterministic, default dtype, gradients) from {before} to {after}"
    )
    # A process that starts in deterministic mode would make the comparison above meaningless.
    assert before[0] is False, f"torch {torch.__version__} starts in deterministic mode"
