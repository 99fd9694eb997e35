"""The accelerator cases pass on a device that is late, each capability has a probe, and each body can fail."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from conformance.accelerators.capabilities import DTYPES, MEMORY_STATS, VOCABULARY
from conformance.judging.finding import Finding
from conformance.plan.case import PER_DTYPE
from conformance.reports.verdict import Outcome, Reason
from conformance.suites import accelerator, capabilities, profiling, shared_bodies, utils
from conformance.suites.accelerator.test_autocast import products_agree
from tests.acceptance.running import run
from tests.defects.mutant import StandIn
from tests.defects.stand_ins import HOST, LATE, Altered, planned, run_body, verdict_on
from tests.layers import longer

ROOT = Path(__file__).parents[2]

NEED_ANOTHER_DEVICE = {"accelerator.stream.per_device"}
RECORDS = ("accelerator.event.record_again", "accelerator.event.record_default")


def late_cases() -> list[str]:
    """Return the stream, event and graph cases that need no allocator, second device or record_stream()."""
    # The host has no allocator of its own: its memory is that of the process, and the C library keeps freed memory.
    found = [
        name
        for name, one in planned().items()
        if name.startswith(("accelerator.stream.", "accelerator.event.", "accelerator.graph."))
        and MEMORY_STATS.cell not in one.case.requires
    ]
    return [name for name in found if ".record_" not in name or name in RECORDS]


LATE_PROBES = [
    f"capabilities.{name}"
    for name in ("stream", "stream.order", "event", "event.timing", "graph.capture", "graph.pool", "synchronize")
]


@pytest.mark.parametrize("case_id", longer([*late_cases(), *LATE_PROBES], step=16))
def test_a_late_device_is_right(case_id):
    """Check that a device whose work runs as late as allowed passes every case that waits correctly."""
    if case_id in NEED_ANOTHER_DEVICE:
        pytest.skip("two devices, or one without graphs")

    run_body(case_id, LATE)


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
    "assert_in_turn",
    "assert_ordered_without_waiting",
    "assert_survives_running_out",
    "assert_waits",
    "check_even",
    "check_event_times",
    "check_exchange",
    "check_family",
    "check_kept",
    "check_member",
    "products_agree",
}
#: Comparisons of the fixture ``check``, which raise AssertionError.
COMPARING = {"agree", "equal", "that"}


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
        owner = getattr(node, "value", None)
        if name in COMPARING and isinstance(owner, ast.Name) and owner.id == "check":
            return True
    return False


@pytest.mark.parametrize(
    ("body", "can"),
    [
        ("check.that(a, 'b')", True),
        ("check.equal(a, b, 'c')", True),
        ("check.metric('a', 1)", False),
        ("other.that(a, 'b')", False),
        ("return", False),
    ],
)
def test_a_body_that_compares_nothing_is_found(body, can):
    (function,) = ast.parse(f"def test_body(check):\n    {body}").body

    assert can_fail(function) is can


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
            comparing = {getattr(node, "attr", "") for node in ast.walk(function)} & COMPARING
            assert comparing or any(isinstance(node, ast.Assert) for node in ast.walk(function)), function.name


def test_through_the_plugin(tmp_path):
    """Check that a defective class named on the command line fails with the verdict of its case."""
    red = ("accelerator.device.current", "accelerator.rng.state_index")
    # Link only the tests into the path: the folder conformance/ beside them is not the installed package.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    finished = run(
        "--accelerator=tests.defects.stand_ins:StringDevice",
        *(f"--case={name}" for name in (*red, "accelerator.rng.state_roundtrip[randn]")),
        "-n0",
        cwd=tmp_path,
        name="tests.defects.stand_ins-StringDevice",
        PYTHONPATH=str(tmp_path),
    )

    assert finished.status == 1, finished.output
    assert finished.verdicts == {
        "accelerator.device.current": ("fail", "wrong"),
        "accelerator.rng.state_index": ("fail", "raised"),
        "accelerator.rng.state_roundtrip[randn]": ("pass", "native"),
    }, finished.output


@pytest.mark.parametrize("name", ["stream", "stream.record", "event", "memory.stats", "memory.pinned", "graph.capture"])
def test_a_probe_hears_a_clean_no(name):
    assert verdict_on(f"capabilities.{name}", HOST).reason is Reason.UNSUPPORTED


class TwoNames(Altered):
    """Two devices for which one generator draws, as the host's does for a backend without generators."""

    def __init__(self) -> None:
        super().__init__(device_count=lambda: 2, device_name=lambda index=None: "cpu", get_rng_state=self.state)

    def state(self, index: int | None = None) -> torch.Tensor:
        return torch.get_rng_state()


def test_one_generator_for_all_devices_is_a_clean_no():
    verdict = verdict_on("capabilities.rng.per-device", StandIn("one generator", TwoNames))

    assert (verdict.outcome, verdict.reason) == (Outcome.SKIP, Reason.UNSUPPORTED), verdict


@pytest.mark.parametrize("name", ["mm", "bmm", "linear"])
def test_a_product_that_autocast_leaves_alone_is_no_wrong_value(name, monkeypatch):
    """It has the precision of its inputs: a denial of autocast is true of it, and a claim fails as a stub."""
    owner = torch.nn.functional if name == "linear" else torch
    product = getattr(owner, "matmul" if name == "mm" else name)

    def uncast(*arguments: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return product(*arguments)

    monkeypatch.setattr(*((torch.Tensor, "__matmul__") if name == "mm" else (owner, name)), uncast)

    with pytest.raises(Finding, match=f"has no effect on {name}") as found:
        products_agree(torch.autocast("cpu", dtype=torch.bfloat16), torch.device("cpu"), "bfloat16")
    assert found.value.reason is Reason.STUB
