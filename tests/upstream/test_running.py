"""Export of a base for PyTorch's device tests, and runs of test files with it on the simulated accelerator."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.cli.main import main
from conformance.reports.loading import load
from conformance.upstream import export, running
from conformance.upstream.evidence import Evidence, Standing
from conformance.upstream.series import ADAPTERS, series_of
from tests.acceptance.running import LIBRARIES, forked_children

ADAPTER = ADAPTERS["2.13"]
YES, BAD = (
    Evidence(Standing.VERIFIED),
    Evidence(Standing.FAILING, 'wrong: "\n    import os  # 7 differ (operators.abs)'),
)
TESTS = """
import os
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

CHOSEN = [op for op in op_db if op.full_name in ("abs", "add", "igamma", "jiterator_unary")]
ONE = [op for op in op_db if op.full_name == "jiterator_unary"]


class TestMine(TestCase):
    @ops(CHOSEN, allowed_dtypes=(torch.float32, torch.float64))
    def test_shape(self, device, dtype, op):
        self.assertEqual(torch.ones(2, device=device, dtype=dtype).shape, (2,))

    @ops(ONE, allowed_dtypes=(torch.float32,))
    def test_alone(self, device, dtype, op):
        pass

    def test_crash(self, device):
        os.abort()

    def test_wrong(self, device):
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))


class TestSparse(TestCase):
    def test_there(self, device):
        pass


class TestOfTheHost(TestCase):
    def test_plain(self):
        raise AssertionError("it is not for the device")


instantiate_device_type_tests(TestMine, globals())
instantiate_device_type_tests(TestSparse, globals())
"""


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    with forked_children(running, *LIBRARIES):
        yield


def checkout(folder: Path, **files: str) -> Path:
    (folder / "test").mkdir()
    (folder / "version.txt").write_text(f"{series_of(torch.__version__)}.0a0\n")
    for name, text in files.items():
        (folder / "test" / f"{name}.py").write_text(text)
    return folder


def test_an_export_is_python_and_a_message_is_no_code():
    plan = export.plan_of(resolve("sim").static_declaration, {("abs", "float32"): YES, ("abs", "int8"): BAD})

    text = export.python_file(plan, ADAPTER, "sim", "PrivateUse1TestBase", "Written by\nimport os")

    tree = ast.parse(text)
    assert [node.names[0].name for node in tree.body if isinstance(node, ast.Import)] == ["copy", "unittest", "torch"]
    assert plan.allowed is not None
    assert [name for name in plan.allowed if not name.startswith("_")] == ["abs"]
    assert plan.hides("abs", ("int8",))
    assert not plan.hides("abs", ("float32",))
    assert plan.hides("add", ("float32",))


def test_an_operator_that_fails_in_every_dtype_is_not_allowed():
    plan = export.plan_of(resolve("cpu").static_declaration, {("abs", "int8"): BAD, ("add", "int8"): YES})

    assert plan.allowed is not None
    assert [name for name in plan.allowed if not name.startswith("_")] == ["add"]


def test_references_and_lists_follow_their_operator():
    known = {("abs", "float32"): YES, ("abs", "int8"): BAD, ("sin", "float32"): BAD}

    plan = export.plan_of(resolve("sim").static_declaration, known)

    assert [plan.hides(name, ("float32",)) for name in ("_refs.abs", "_foreach_abs", "_refs.sin")] == [
        False,
        False,
        True,
    ]
    assert [plan.hides(name, ("int8",)) for name in ("_refs.abs", "_foreach_abs")] == [True, True]


def test_a_class_is_not_the_beginning_of_another():
    setting = running.Setting("sim", "sim", Path(), Path(), export.Plan(None, {}, {"TestSparse": "strided only"}))
    names = ("TestSparseSIM.test_a_sim", "TestSparseCSRSIM.test_a_sim", "TestSparseAnySIM.test_a_sim")

    assert [running._predicted(running.Test(name, None, ()), setting) for name in names] == [True, False, False]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a file of tests and one that dies at its import, with the declaration of sim."""
    folder = tmp_path_factory.mktemp("upstream")
    place = checkout(
        folder, test_mine=TESTS, test_dies="import os\nos._exit(7)\n", test_raises="import no_such_module\n"
    )
    files = ["test_mine.py", "test_dies.py", "test_raises.py"]
    outputs = ["-o", str(folder / "report.json"), "--lists", str(folder / "lists"), "--list", str(folder / "names")]
    status = main(["upstream", "run", *files, "--accelerator", "sim", "--checkout", str(place), *outputs])
    report = load(folder / "report.json")
    cases = {case.id.removeprefix("imported.upstream."): case for case in report.cases}
    return {
        "status": status,
        "cases": cases,
        "lists": json.loads((folder / "lists").read_text()),
        "names": (folder / "names").read_text().split(),
        "totals": report.totals,
    }


def test_a_crash_is_a_verdict_and_the_tests_behind_it_run(ran: dict[str, Any]):
    reasons = {name.rpartition(".")[2]: case.reason.value for name, case in ran["cases"].items()}

    assert reasons["test_crash_sim"] == "crash"
    assert reasons["test_wrong_sim"] == "wrong"
    assert reasons["test_shape_abs_sim_float32"] == "native"
    assert not [name for name in reasons if "plain" in name]
    assert ran["status"] == 1


def test_a_file_that_ends_at_its_import_is_one_row(ran: dict[str, Any]):
    assert "exit status 7" in ran["cases"]["test_dies.import"].message
    assert "no_such_module" in ran["cases"]["test_raises.import"].message


def test_the_three_lists(ran: dict[str, Any]):
    lists = ran["lists"]

    assert [name.rpartition(".")[2] for name in lists["not hidden and fail"]] == ["test_crash_sim", "test_wrong_sim"]
    # The declaration excludes sparse layouts. This test needs none, whatever its class is called.
    hidden = {name.rpartition(".")[2] for name in lists["hidden and pass"]}
    assert "test_there_sim" in hidden
    assert sum(map(len, lists.values())) == len(ran["names"])


def test_the_rows_are_foreign(ran: dict[str, Any]):
    assert {case.tier for case in ran["cases"].values()} == {"imported"}
    assert (ran["totals"].claimed, ran["totals"].failed > 0) == (0, True)


@pytest.mark.long
def test_what_is_predicted_to_be_hidden_is_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = checkout(tmp_path, test_mine=TESTS.replace("os.abort()", "pass"))

    main(["upstream", "run", "test_mine.py", "--accelerator", "sim", "--checkout", str(place), "--only", "test_"])

    line = capsys.readouterr().out.splitlines()[0]
    numbers = line.rpartition("hidden: ")[2].split()
    assert numbers[0] == numbers[2], line
    assert int(numbers[0]) >= 1, line


def test_a_checkout_of_another_torch_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = checkout(tmp_path)
    (place / "version.txt").write_text("2.7.0a0\n")

    assert main(["upstream", "run", "test_a.py", "--accelerator", "sim", "--checkout", str(place)]) == 4
    assert "is a checkout of torch 2.7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["export", "sim", "--torch", "2.99"], "there is no adapter for the device tests of torch 2.99"),
        (["export", "klxpu"], "is in torch's tree, and the package"),
        (["run", "test_a.py", "--accelerator", "sim", "--checkout", "."], "is no checkout of PyTorch"),
        (["export", "sim", "--report", "no_such_report"], "no_such_report"),
        ([], "required"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    status = main(["upstream", *words])

    text = capsys.readouterr().err
    assert status in (2, 4)
    assert sentence in text
    assert "Traceback" not in text


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = checkout(tmp_path)

    assert main(["upstream", "run", "test_a.py", "--accelerator", "sim", "--checkout", str(place)]) == 4
    assert "has no test file test_a.py" in capsys.readouterr().err


def test_results_of_a_file_are_not_added_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = checkout(tmp_path, test_raises="import no_such_module\n")
    command = ["upstream", "run", "test_raises.py", "--accelerator", "sim", "--checkout", str(place)]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main([*command, "-o", str(first)]) == 1

    assert main([*command, "--into", str(first), "-o", str(second)]) == 4
    assert "has results of test_raises.py already" in capsys.readouterr().err
