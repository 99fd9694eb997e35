"""Reported bugs: rows with sources of their own, words that exist, and committed results for each row."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.overloads import schema
from tests.faults.overriding import Call
from tests.faults.pairs.collectives import FUNCTIONS
from tests.faults.reported import (
    collectives,
    compiled,
    functions,
    members,
    neighbours,
    results,
    sequences,
    vocabulary,
)
from tests.faults.reported.results import EARLIER, MEASURED, Bug, Found
from tests.rows import every_row

#: Rows of the first three collections. Those of the fourth one are measured apart until it is told.
_EARLIER = 206
README = Path(results.__file__).with_name("README.md")


class Given:
    """A call without a kernel."""

    def __init__(self, name: str, *values: Any) -> None:
        self.name, self.values, self.arguments = name, list(values), list(schema(name).arguments)

    def run(self, values: Any = None) -> Any:
        """Return the values that the kernel would get."""
        return values or self.values


@every_row(results.bugs, name=lambda bug: bug.report)
def test_a_row_names_a_report_an_operator_and_known_words(bug: Bug) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", bug.report)
    assert bug.what[0].islower()
    assert not bug.what.endswith(".")
    if bug.is_collective:
        assert bug.operator[0].removeprefix("dist.") in FUNCTIONS
        return
    kind = bug.operator[0].rpartition(".")[0]
    if kind in _OTHERS:
        assert bug.effect in _OTHERS[kind]
        assert not bug.when
        return
    for name in bug.operator:
        assert hasattr(torch.ops.aten, name), name
    names = {a.name for name in bug.operator for form in _forms(name) for a in schema(form).arguments}
    for word in (*bug.when, bug.effect):
        first = word.split()[0]
        assert word in _WHOLE or first in names | _WORDS or re.fullmatch(r"r\d", first), word


#: The last collection of which no row is held out any more.
_OPENED = 14
#: Effects of what no kernel computes, by the word in front of the operator.
_OTHERS = {"torch": {**functions.LOADS, **functions.PRINTS, **functions.COPIES}, "compiled": compiled.EFFECTS,
           "autocast": {"not cast", "not cast in transforms"},
           "module": members.EFFECTS}  # fmt: skip
#: Conditions that name no argument.
_WHOLE = {
    *("reduces last", "reduces first", "reduces all", "reduces all but one"),
    *("deterministic", "beside over 65535"),
    *("group size not a power of two", "again", "first of its shape"),
    *("each 4th call", "each 10th call", "each 500th call"),
    *("without dim", "unequal steps", "ranks differ", "without grad_scale", "output smaller"),
    *("inner size smaller", "after another dtype", "after another width", "second to last of one column"),
    *("rank other than the size", "sixth dimension broadcast"),
    *("same gaps", "column against row", "in front of the matrices"),
    *("along one padded place", "reduces to an end", "correction left out", "dtype left out"),
    *("size one broadcast", "exponent whole", "other a fraction"),
    *vocabulary.HELD,
}
#: Words that begin a condition or an effect and name no argument.
_WORDS = {"written", "result", "dtype", "mixed", "16", "no", "gradient", *(key.split()[0] for key in vocabulary.OTHERS)}


def _forms(name: str) -> list[str]:
    every = torch._C._dispatch_get_all_op_names()
    return [form for form in every if form.partition(".")[0] in (f"aten::{name}", f"aten::{name}_")]


def test_a_bug_is_moved_to_other_operators_of_its_kind() -> None:
    softplus = next(bug for bug in results.bugs() if bug.operator == ("softplus",) and not bug.held)

    moved = list(neighbours.neighbours(softplus, random.Random("any")))

    assert {"mish", "elu"} <= {name for bug in moved for name in bug.operator}
    for bug in moved:
        assert (bug.when, bug.effect, bug.held) == (softplus.when, softplus.effect, False)
        assert "softplus" not in bug.call
        assert any(f".{bug.operator[0]}[" in pattern for pattern in bug.cases)


def test_no_report_stands_twice() -> None:
    reports = [bug.report for bug in results.bugs()]

    assert len(set(reports)) == len(reports)
    assert len(reports) >= 206


def test_every_row_was_measured() -> None:
    measured = [Found.of(row) for row in json.loads(MEASURED.read_text(encoding="utf-8"))]

    every = [bug for bug in results.bugs() if bug.collection == EARLIER or len(measured) > _EARLIER]
    assert [found.report for found in measured] == [bug.report for bug in every], README.read_text()[:400]
    assert MEASURED.with_suffix(".md").read_text(encoding="utf-8") == results.table(measured)


@pytest.mark.parametrize(
    ("word", "met"),
    [
        ("self strided", True),
        ("self offset", False),
        ("self rank 2", True),
        ("self longer 2 0", True),
        ("self longer 3 0", False),
        ("self size 2 3 -1", True),
        ("dtype float32", True),
        ("dtype float16", False),
        ("mixed dtypes", False),
        ("self on host", True),
        ("self has nan", False),
        ("self shares out", False),
        ("self rows 3", False),
        ("self rows 2", True),
        ("self one of 2 3 0", True),
        ("self one of 4 5 0", False),
        ("self in all 5", True),
        ("self in all 6", False),
        ("self negative zero", False),
        ("self ragged 2 0", True),
        ("self ragged 3 0", False),
        ("self between 0 1", True),
        ("self from rank 2", True),
        ("self from rank 3", False),
        ("self remainder 2 1 0", True),
        ("self remainder 2 0 0", False),
        ("self floating", True),
        ("self ends empty", False),
        ("deterministic", False),
    ],
)
def test_a_condition_is_read_from_the_call(word: str, met: bool) -> None:
    call = Given("aten::neg.out", torch.ones(2, 3).t(), torch.ones(3, 2))

    assert vocabulary.meets(word, call) is met  # type: ignore[arg-type]


@pytest.mark.parametrize("rest", ["like self", "one", "first of self"])
def test_an_effect_edits_a_result_of_several_elements(rest: str) -> None:
    call: Any = Given("aten::neg.out", torch.ones(2, 3), torch.zeros(2, 3))
    result = torch.zeros(2, 3)

    assert vocabulary._form(result, call, rest) is None
    assert result.eq(1).all()


@pytest.mark.parametrize(("values", "rest", "met"), [([2, 2], "all 2", True), ([2, 1], "all 2", False),
                                                     ([], "all 2", False), ([], "without entries", True)])  # fmt: skip
def test_a_condition_on_numbers_asks_for_all_of_them(values: list[int], rest: str, met: bool) -> None:
    assert vocabulary._meets_numbers(values, rest) is met


def test_an_unknown_condition_is_an_error() -> None:
    with pytest.raises(ValueError, match="no condition is called purple"):
        vocabulary.meets("self purple", Given("aten::neg.out", torch.ones(2), torch.ones(2)))  # type: ignore[arg-type]


def test_a_dense_read_takes_what_lies_in_memory() -> None:
    base = torch.arange(6.0).view(2, 3)

    assert vocabulary.READS["dense"](base.t()).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert vocabulary.READS["base"](base[:, 1]).tolist() == [0, 3]


def test_a_condition_on_calls_counts_them() -> None:
    sequences.reset()
    call: Any = Given("aten::neg.out", torch.ones(2, 3), torch.ones(2, 3))
    other: Any = Given("aten::neg.out", torch.ones(2, 3).t(), torch.ones(3, 2))

    assert [vocabulary.meets("again", call) for _ in range(2)] == [False, True]
    assert [vocabulary.meets("first of its shape", call) for _ in range(2)] == [True, False]
    assert [vocabulary.meets("each 4th call", call) for _ in range(5)] == [False, False, False, True, False]
    assert not vocabulary.meets("self strided after dense", other)
    assert not vocabulary.meets("self strided after dense", _neg(torch.ones(3, 2)))
    assert vocabulary.meets("self strided after dense", other)


def _neg(tensor: torch.Tensor) -> Call:
    given: Any = Given("aten::neg.out", tensor, torch.ones(tensor.shape))
    return given  # type: ignore[no-any-return]


def test_a_wrong_result_keeps_the_right_gradient() -> None:
    x = torch.ones(2, requires_grad=True)

    wrong = vocabulary._with_gradient(x * 3, vocabulary._values(vocabulary.VALUES["zero"]))

    assert wrong.tolist() == [0, 0]
    assert torch.autograd.grad(wrong.sum(), x)[0].tolist() == [3, 3]


def test_a_bug_of_a_collective_is_a_fault_with_its_conditions() -> None:
    bug = Bug("a/b#1", "gloo", "it is wrong", ("dist.broadcast",), "dense", (), ("gaps",))

    assert str(collectives.fault_of(bug)) == "K.dense broadcast [reported gaps]"


@pytest.mark.parametrize("collection", [15, 17, 18, 19, 21, 22, 23, 24])
def test_every_third_row_is_held_out(collection: int) -> None:
    rows = [bug for bug in results.bugs() if bug.collection == collection]
    order = sorted(rows, key=lambda bug: hashlib.sha256(bug.report.encode()).hexdigest())

    assert [bug for bug in order if bug.held] == order[2::3]


def test_twelve_rows_of_the_sixteenth_collection_were_drawn_to_be_held_out() -> None:
    rows = [bug for bug in results.bugs() if bug.collection == EARLIER + 13]
    order = sorted(rows, key=lambda bug: hashlib.sha256(f"16 {bug.report}".encode()).hexdigest())

    assert [bug for bug in order if bug.held] == order[:12]


def test_a_third_of_the_twentieth_collection_was_drawn_to_be_held_out() -> None:
    rows = [bug for bug in results.bugs() if bug.collection == EARLIER + 17]
    order = sorted((bug.report for bug in rows), key=lambda report: hashlib.sha256(report.encode()).hexdigest())
    drawn = random.Random("collection 20 held").sample(order, len(order) // 3)

    assert {bug.report for bug in rows if bug.held} == set(drawn)


def test_what_was_opened_is_not_held_out() -> None:
    """The scores of thirds up to the fourteenth collection's were told, and then their rows were read."""
    assert not any(bug.held for bug in results.bugs() if bug.collection <= _OPENED)


def test_a_class_of_c_has_its_own_method_again_behind_the_context() -> None:
    record = torch.Event.record

    with members.method(torch.Event, "record", lambda self: 3):
        assert torch.Event().record() == 3

    assert torch.Event.record == record


def test_statistics_are_counted_from_what_was_there_at_the_reset() -> None:
    now = {"allocated_bytes": {"all": {"current": 5, "peak": 9, "freed": 2}}, "num_ooms": 1}
    gone = {"allocated_bytes": {"all": {"current": 4, "peak": 8, "freed": 2}}, "num_ooms": 0}

    left = {"all": {"current": 1, "peak": 5, "freed": 0}}
    assert members._less(now, gone) == {"allocated_bytes": left, "num_ooms": 1}
    assert members._less(now, {}) == now
