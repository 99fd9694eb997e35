"""The accelerator cases fail on an accelerator with a defect and pass on one without."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.accelerators.capabilities import DTYPES, VOCABULARY
from conformance.accelerators.registry import resolve
from conformance.case import PER_DTYPE
from conformance.finding import EnvironmentLacks, Refused
from conformance.suites import accelerator, capabilities, profiling, shared_bodies, utils
from tests.acceptance.running import run

from .accelerator_defects import DEFECTS, Altered, Defect
from .bodies import planned, run_body
from .late_device import LateDevice

ROOT = Path(__file__).parents[2]
#: Cases that fail on a correct late device as well, because it is neither synchronous nor ordered.
NOT_CLAIMED = {"accelerator.flags.ordered", "accelerator.flags.synchronous_values"}
UNSUPPORTED_ON_HOST = {"accelerator.memory.allocated_follows[65537]"}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.name}: {defect.case}")
def test_a_defect_turns_its_case_red(defect: Defect, monkeypatch):
    # pytest.fail.Exception does not derive from Exception; a nested pytest.raises raises it.
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        run_body(defect.case, defect.make(), monkeypatch)

    assert not isinstance(caught.value, (EnvironmentLacks, Refused)), f"skipped instead: {caught.value}"


HEALTHY = {defect.case: defect for defect in DEFECTS if defect.case not in NOT_CLAIMED | UNSUPPORTED_ON_HOST}


@pytest.mark.parametrize("case_id", sorted(HEALTHY))
def test_the_same_case_is_green_without(case_id, monkeypatch):
    run_body(case_id, HEALTHY[case_id].healthy(), monkeypatch)


NEED_ANOTHER_DEVICE = {"accelerator.stream.per_device"}
RECORDS = ("accelerator.event.record_again", "accelerator.event.record_default")


def late_cases() -> list[str]:
    """Return the stream, event and graph cases that need no allocator, second device or record_stream()."""
    found = [
        name
        for name in planned()
        if name.startswith(("accelerator.stream.", "accelerator.event.", "accelerator.graph."))
    ]
    return [name for name in found if ".record_" not in name or name in RECORDS]


LATE_PROBES = [
    f"capabilities.{name}"
    for name in ("stream", "stream.order", "event", "event.timing", "graph.capture", "graph.pool", "synchronize")
]


@pytest.mark.parametrize("case_id", [*late_cases(), *LATE_PROBES])
def test_a_late_device_is_right(case_id, monkeypatch):
    """Check that a device whose work runs as late as allowed passes every case that waits correctly."""
    if case_id in NEED_ANOTHER_DEVICE:
        pytest.skip("two devices, or one without graphs")

    run_body(case_id, LateDevice(), monkeypatch)


def test_every_capability_has_exactly_one_probe():
    probes = [item.case for item in planned().values() if item.case.area == "capabilities"]
    cells = [str(probe.requires[0]) for probe in probes]
    # Other collectives than all_reduce need several ranks: area comm has its own adaptive cases for them.
    expected = {name for name in VOCABULARY if name not in PER_DTYPE and not name.startswith("comm.")}
    expected |= {f"dtype[{dtype}]" for dtype in DTYPES}
    expected |= {f"precision.accumulate-wide[{dtype}]" for dtype in ("float16", "bfloat16")}

    assert sorted(cells) == sorted(expected), set(cells) ^ expected
    assert all(probe.adaptive and len(probe.requires) == 1 for probe in probes)
    assert all(probe.id == f"capabilities.{cell}" for probe, cell in zip(probes, cells, strict=True))


SUITES = [Path(area.__path__[0]) for area in (accelerator, capabilities, profiling, utils)]
FILES = sorted(path for folder in SUITES for path in folder.glob("*.py") if path.name != "__init__.py")
FILES.append(Path(shared_bodies.__file__))
#: Helpers of the suites that fail where a body would: calling one is an assertion.
ASSERTING = {
    "assert_event_covers_work",
    "assert_ordered_without_waiting",
    "assert_survives_running_out",
    "check_member",
}


def functions_of(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def can_fail(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        name = getattr(node, "attr", getattr(node, "id", ""))
        failing = name.startswith("test_") or name in {*ASSERTING, "raises", "stub", "require"}
        if isinstance(node, (ast.Attribute, ast.Name)) and failing:
            return True
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_body_can_fail_and_says_what_it_checks(path):
    bodies = [function for function in functions_of(path) if function.name.startswith("test_")]

    assert bodies or not path.name.startswith("test_"), f"{path.name} holds no case"
    for function in bodies:
        assert can_fail(function), f"{path.name}:{function.lineno}: {function.name} cannot fail"
        assert ast.get_docstring(function), f"{path.name}:{function.lineno}: {function.name} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_asserts_does_assert(path):
    for function in functions_of(path):
        if function.name in ASSERTING:
            assert any(isinstance(node, ast.Assert) for node in ast.walk(function)), function.name


def test_through_the_plugin(tmp_path):
    """Check that a defective class named on the command line fails with the verdict of its case."""
    red = ("accelerator.device.current", "accelerator.rng.state_index")
    # Link only the tests into the path: the folder conformance/ beside them is not the installed package.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    finished = run(
        "--accelerator=tests.suites.accelerator_defects:StringDevice",
        *(f"--case={name}" for name in (*red, "accelerator.rng.state_roundtrip[randn]")),
        "-n0",
        cwd=tmp_path,
        name="tests.suites.accelerator_defects-StringDevice",
        PYTHONPATH=str(tmp_path),
    )

    assert finished.status == 1, finished.output
    assert finished.verdicts == {
        "accelerator.device.current": ("fail", "wrong"),
        "accelerator.rng.state_index": ("fail", "raised"),
        "accelerator.rng.state_roundtrip[randn]": ("pass", "native"),
    }, finished.output


@pytest.mark.parametrize("name", ["stream", "stream.record", "event", "memory.stats", "memory.pinned", "graph.capture"])
def test_a_probe_hears_a_clean_no(name, monkeypatch):
    with pytest.raises(Refused):
        run_body(f"capabilities.{name}", resolve("cpu").load(), monkeypatch)


PRETENDERS = {
    "capabilities.stream": {"current_stream": lambda device_index=None: object()},
    "capabilities.graph.capture": {"replay_graph": lambda graph: _raise()},
    "capabilities.memory.pinned": {"is_pinned": lambda tensor: True},
    "capabilities.memory.stats": {"memory_stats": lambda device_index=None: {"allocated_bytes.all.current": 5}},
    "capabilities.execution.ordered": {"resolves_data_dependency": lambda: None},
}


def _raise():
    raise AssertionError("replayed None")


@pytest.mark.parametrize("case_id", sorted(PRETENDERS))
def test_a_probe_sees_through_a_pretender(case_id, monkeypatch):
    with pytest.raises(AssertionError):
        run_body(case_id, Altered(**PRETENDERS[case_id]), monkeypatch)
