"""A member that the device's module lacks is a finding of the cases about it, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.plan.bundled import bundled_cases
from conformance.reports.verdict import Outcome, Reason
from tests.layers import longer

from .run import ABSENT, LEAST, lacked, run_without, touching

#: Cases about the device, seeds and streams, and operators with and without draws.
CASES = (
    "accelerator.device.current_name_index",
    "accelerator.rng.torch_seed_reaches_device",
    "accelerator.rng.state_roundtrip[rand]",
    "accelerator.synchronize.every_device",
    "accelerator.pairs.devices_wait",
    "operators.abs[float32-training]",
    "operators.normal[float32-inference]",
)
SEEDS, STATES = CASES[1], CASES[2]
#: What fails and what is skipped, by what the module lacks and what is left of it.
DEVICES: dict[tuple[str, str], tuple[set[str], set[str]]] = {
    ("device_count,current_device,synchronize,manual_seed_all,get_rng_state,default_generators", ABSENT): (
        {SEEDS, STATES},
        {CASES[-1]},
    ),
    ("device_count,current_device,set_device,synchronize,current_stream", ABSENT): (set(), set()),
    ("Event,set_device", "none"): ({CASES[0], CASES[4]}, {CASES[3]}),
    ("manual_seed,manual_seed_all", "none"): ({SEEDS}, {CASES[-1]}),
    (LEAST, ABSENT): (set(), set()),
    ("synchronize,device_count", "raises"): (set(), set()),
}


@pytest.mark.parametrize(("lacking", "how"), longer(DEVICES))
def test_only_cases_about_a_missing_member_fail(lacking: str, how: str, tmp_path: Path) -> None:
    failing, skipped = DEVICES[lacking, how]

    found = run_without(lacked(lacking), how, CASES, tmp_path)

    assert (found.died, found.false(_planned())) == ("", {})
    assert set(found.failures) == failing
    assert {id for id, verdict in found.verdicts.items() if verdict.outcome is Outcome.SKIP} == skipped
    assert all(found.verdicts[id].reason is Reason.ENVIRONMENT for id in skipped)


def test_a_device_runs_cases_for_each_line_that_looks_a_member_up() -> None:
    found = {"seed": {"a.py:1": {*CASES}, "a.py:2": {SEEDS}}, "Event": {"a.py:3": {CASES[4]}}}

    assert len(touching(["seed"], found) - {SEEDS}) in {1, 2}
    assert touching(["seed", "Event"], found) > {SEEDS, CASES[4]}
    assert touching(["Stream"], found) == set()


def _planned() -> dict:
    areas = {id.partition(".")[0] for id in CASES}
    return {entry.case.id: entry.case.planned for entry in bundled_cases(areas) if entry.case.id in CASES}
