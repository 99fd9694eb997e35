"""The catalogue is complete and consistent, and the tables of the documentation list all of it."""

from __future__ import annotations

import fnmatch
from collections import Counter

from conformance.plan.selection import matches
from tests.defects.faults import SWITCHES
from tests.faults.pairs import order, state
from tests.faults.pairs.pair import CALLS, PLACES
from tests.rows import every_row

from . import bench, table
from .catalogue import MUTANTS
from .matrix import Standing
from .measuring import HEALTHY, is_healthy, read
from .mutant import Mutant
from .required import FAMILIES, LINES
from .survivors import SURVIVORS

#: Switches that are no defects.
NO_DEFECTS = {
    "context_ended": "a device with assertions in its kernels ends its context so; habits.py needs it",
    "alloc_no_poison": "what new memory holds is nobody's promise; poison only makes reading it visible",
    "kernels_give_zeros": "tests/do_nothing runs the suite with it",
    "stream_order_ignored": "it hides races of the program, and a device that orders too much is right",
}
NAMES = [mutant.name for mutant in MUTANTS]


def test_names_are_unique_and_there_are_enough():
    assert not [name for name, count in Counter(NAMES).items() if count > 1]
    assert len(MUTANTS) >= 100


@every_row(MUTANTS, name=lambda mutant: mutant.name)
def test_a_mutant_names_cases_that_are_planned(mutant: Mutant):
    assert bench.select([mutant.fault.caught_by]), f"{mutant.fault.caught_by} names no case"
    for pattern in mutant.also_run:
        assert bench.select([pattern]), f"{pattern} names no case"
    assert mutant.fault.precedent
    assert mutant.family


@every_row(MUTANTS, name=lambda mutant: mutant.name)
def test_a_mutant_breaks_something_that_exists(mutant: Mutant):
    fault = mutant.fault

    assert set(fault.switches) <= set(SWITCHES)
    assert fault.switches or fault.operators or fault.members or fault.context or mutant.claims or mutant.stand_in


def test_every_switch_has_a_mutant():
    used = {switch for mutant in MUTANTS for switch in mutant.fault.switches}
    # Generated faults use switches too, and say where a switch acts.
    used |= {switch for part in (*order.PARTS, *state.PARTS) for switch in part.switches}
    used |= {switch for table in (PLACES, CALLS) for switches in table.values() for switch in switches}

    assert set(SWITCHES) - used == set(NO_DEFECTS)


@every_row(LINES, name=lambda line: line.what[:40])
def test_every_known_defect_has_mutants_or_waits(line):
    assert line.mutants or line.waits
    assert set(line.mutants) <= set(NAMES)


def test_every_family_has_a_mutant_or_waits():
    present = {mutant.family for mutant in MUTANTS}

    assert not [family for family, waits in FAMILIES.items() if bool(waits) == (family in present)]


def test_what_a_peer_misses_is_in_the_catalogue():
    expected = {
        "*on the host", "mm gives zeros*", "set_rng_state*", "dropout drops*", "gelu*", "fused AdamW decays nothing",
        ".item()*", "subnormal results*", "wait_stream*", "event.query*", "elapsed_time is 0",
        "elapsed_time is in micro*", "peak memory*", "device_count is false",
    }  # fmt: skip
    starred = [mutant.name for mutant in MUTANTS if mutant.peer_misses]

    assert all(any(fnmatch.fnmatchcase(name, pattern) for name in starred) for pattern in expected)
    assert len(starred) == len(expected)


def test_the_page_lists_every_mutant():
    rows = [line for line in table.TABLES.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    shown = [row.split(" | ")[:3] for row in rows]

    for mutant in table.STAND_INS:
        row = table.stand_in_row(mutant, None).split(" | ")[:3]
        assert row in shown, f"{mutant.name}: renew the page"
    for mutant in table.MUTANTS:
        star = " ★" if mutant.peer_misses else ""
        assert [f"| {mutant.name}{star}", mutant.family, mutant.fault.precedent] in shown, (
            f"{mutant.name}: renew the page"
        )


def test_what_was_measured_is_of_this_catalogue():
    results = read(table.MEASURED).by_name

    healthy = {name for name in results if is_healthy(name)}
    assert healthy == {HEALTHY, *(f"{HEALTHY}: {name}" for name in {m.stand_in.name for m in table.STAND_INS})}
    assert set(results) - healthy == set(NAMES)
    alive = {mutant.name for mutant in MUTANTS if not results[mutant.name].catching(mutant)}
    assert alive == set(SURVIVORS), "survivors have to be explained in survivors.py"
    assert len(alive) <= 0.05 * len(MUTANTS)
    assert not [name for name in healthy if results[name].reds]
    assert not [mutant.name for mutant in MUTANTS if results[mutant.name].accused(mutant)]


def test_every_check_has_a_defect():
    rows = table.standings(read(table.MEASURED))

    assert not [row.name for row in rows if row.standing is Standing.NONE]


def test_expected_and_allowed_failures():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "wait_stream does nothing")

    assert mutant.expects("accelerator.stream.wait_stream[side-to-side]")
    assert mutant.may_fail("accelerator.stream.chain")
    assert not mutant.may_fail("accelerator.device.count")
    assert matches(mutant.fault.caught_by, "accelerator.stream.wait_stream[side-to-side]")
