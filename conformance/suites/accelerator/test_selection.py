"""Selection: how a process chooses its accelerator, and the side effects of importing it."""

from __future__ import annotations

from conformance.accelerators.capabilities import DEVICE
from conformance.accelerators.registry import names, resolve
from conformance.base.errors import SetupError
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, Level, case

from .processes import TOTAL, answers_of_new_process, run_python, spec_of, total_here

REFUSED = """
from conformance.accelerators import get_accelerator
try:
    tell(device=get_accelerator().device_name())
except Exception as error:
    tell(error=type(error).__name__, text=str(error))
"""


@case("accelerator.selection.override", requires=[DEVICE], level=Level.CORE, deadline=120, about=About.PACKAGE)
def test_override(accelerator, pytestconfig):
    """DS_ACCELERATOR overrides detection, and a second call returns the same object."""
    answers = answers_of_new_process(spec_of(pytestconfig))

    assert answers["device"] == accelerator.device_name(), (
        f"DS_ACCELERATOR={spec_of(pytestconfig)} selected another device: {answers}"
    )
    assert answers["again"] is True, f"a second get_accelerator() returned another object: {answers['again']}"


@case("accelerator.selection.unknown_name", requires=[DEVICE], level=Level.CORE, deadline=120, about=About.PACKAGE)
def test_unknown_name(pytestconfig):
    """An unknown name raises a ValueError that lists the known names."""
    answers = run_python(REFUSED, spec_of(pytestconfig), DS_ACCELERATOR="no_such_accelerator")

    assert answers.get("error") == "ValueError", f"an unknown name gives {answers}, not a ValueError"
    missing = [name for name in names() if name not in answers["text"]]
    assert not missing, f"the error does not name {missing}: {answers['text']}"


@case("accelerator.selection.missing_package", requires=[DEVICE], level=Level.CORE, deadline=120, about=About.PACKAGE)
def test_missing_package(pytestconfig):
    """A known name whose package is not installed raises a ValueError that names the package."""
    # Take the first registered accelerator whose package is missing on this machine.
    for name in names():
        try:
            resolve(name).preflight()
        except SetupError as error:
            package = str(error).partition("needs the package ")[2].partition(",")[0]
            if package:
                break
    else:
        environment_lacks("the packages of all registered accelerators are installed here")

    answers = run_python(REFUSED, spec_of(pytestconfig), DS_ACCELERATOR=name)

    assert answers.get("error") == "ValueError", f"{name} without its package gives {answers}, not a ValueError"
    assert package in answers["text"], f"the error does not name the package {package}: {answers['text']}"


@case("accelerator.selection.detection", requires=[DEVICE], level=Level.CORE, deadline=120, about=About.PACKAGE)
def test_detection(pytestconfig):
    """Without DS_ACCELERATOR, detection finds an available accelerator whose tensors have its device type."""
    # A package that imitates another vendor's torch module must not be taken for that vendor.
    program = """
import torch
from conformance.accelerators import get_accelerator
found = get_accelerator()
tensor = torch.ones(3, device=found.device_name())
tell(named=found.device_name(), type=tensor.device.type, available=found.is_available(), total=tensor.sum().item())
"""
    answers = run_python(program, spec_of(pytestconfig), DS_ACCELERATOR=None)

    assert answers["available"] is True, f"detection chose an accelerator that is not available: {answers}"
    assert answers["named"] == answers["type"], f"{answers['named']} creates tensors on {answers['type']}"
    assert answers["total"] == 3, f"on the detected device three ones add up to {answers['total']}, not 3"


@case("accelerator.selection.replaced", requires=[DEVICE], level=Level.CORE, deadline=120, about=About.PACKAGE)
def test_replaced(pytestconfig):
    """set_accelerator() replaces the choice, and refuses an object that is no accelerator."""
    answers = answers_of_new_process(spec_of(pytestconfig))

    assert answers["kept"] is True, (
        f"get_accelerator() does not return the object passed to set_accelerator(): {answers}"
    )
    refused = answers["refused"]
    assert refused == [True, True, True], (
        f"set_accelerator() must refuse None, an object and a string; it refused {refused}"
    )


#: The child ends with os._exit(), so that it does not run the exit handlers it shares with its parent.
FORKED = (
    TOTAL
    + """
import torch
from conformance.accelerators.registry import resolve
subject = resolve(spec)
subject.static_declaration
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        live = subject.load()
        live.set_device(0)
        text = str(total(live.device_name()))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    os.write(write, text.encode()[:4000])
    os._exit(0)
os.close(write)
with os.fdopen(read) as pipe: text = pipe.read()
os.waitpid(child, 0)
tell(child=text)
"""
)


@case("accelerator.selection.fork_after_import", requires=[DEVICE], level=Level.CORE, deadline=120)
def test_fork_after_import(device, pytestconfig):
    """Importing an accelerator creates no device context, so a child forked afterwards can use the device."""
    due = total_here(device)
    answers = run_python(FORKED, spec_of(pytestconfig))

    assert answers["child"] == str(due), f"a child forked after the import got {answers['child']}, not {due}"


@case("accelerator.selection.other_process", requires=[DEVICE], level=Level.CORE, deadline=120)
def test_other_process(accelerator, device, pytestconfig):
    """A second process sees the same device type, count and dtypes, and computes on the device."""
    due = total_here(device)
    answers = answers_of_new_process(spec_of(pytestconfig))

    here = {
        "device": accelerator.device_name(),
        "count": accelerator.device_count(),
        "dtypes": sorted(map(str, accelerator.supported_dtypes())),
        "total": due,
    }
    there = {name: answers[name] for name in here}
    assert there == here, f"another process sees {there}, this process {here}"
