"""The plan of the operator area: complete, unique, cached, and cheap."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from conformance.base.cache import keep
from conformance.suites.operators.plan import catalogue


@pytest.fixture
def cases():
    return catalogue.generate()


def test_ids_are_unique_and_safe(cases):
    ids = [case.id for case in cases]

    assert len(ids) == len(set(ids))
    assert [i for i in ids if not re.fullmatch(r"operators\.[A-Za-z0-9_.]+\[[a-z0-9-]+\]", i)] == []


def test_thousands_of_cells_are_in_the_reference(cases):
    assert sum(case.in_reference for case in cases) >= 5000


def test_every_operator_has_every_dtype(cases):
    found = [case for case in cases if case.mode == "inference"]

    assert len(catalogue.operators()) * len(catalogue.OPERATOR_DTYPES) == len(found)


def test_training_is_planned_for_differentiable_dtypes_only(cases):
    dtypes = {case.dtype for case in cases if case.mode == "training"}

    assert {"float32", "float16", "bfloat16", "float64", "complex64", "complex128"} == dtypes


def test_a_cell_requires_itself(cases):
    cell = next(case for case in cases if case.id == "operators.mm[float32-inference]")

    assert str(cell.requires[0]) == "operators.mm[float32-inference]"
    assert cell.adaptive


def test_a_warm_plan_does_not_import_torch():
    catalogue.operators()
    code = (
        "import cProfile, sys; from conformance.suites.operators.plan import catalogue; profile = cProfile.Profile();"
        "n = len(profile.runcall(catalogue.generate));"
        "print(n, sum(entry.callcount for entry in profile.getstats()), 'torch' in sys.modules)"
    )

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert int(answer[0]) > 10_000
    assert int(answer[1]) <= 25 * int(answer[0]), "about 11 calls a case were needed"
    assert answer[2] == "False"


def test_the_database_needs_no_scipy_and_leaves_it_to_others():
    code = (
        "import importlib.util, sys\n"
        "from conformance.suites.operators.calls.database import database\n"
        "assert len(database()) > 500\n"
        "from torch.testing._internal import common_utils\n"
        "print('scipy' in sys.modules, common_utils.TEST_SCIPY == bool(importlib.util.find_spec('scipy')))"
    )

    # As errors: it warns about test tools that are not installed.
    command = [
        sys.executable,
        "-W",
        "error::ImportWarning",
        "-c",
        f"import sys; sys.modules['hypothesis'] = None\n{code}",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert answer == ["False", "True"]


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '[{"name": "x"}]', "null"])
def test_a_broken_cache_is_no_cache(tmp_path, text):
    file = tmp_path / "operators.json"
    file.write_text(text)

    assert catalogue._read(file) is None


def test_what_is_written_is_read(tmp_path):
    known = catalogue.operators()[:3]
    file = tmp_path / "new" / "operators.json"

    keep(file, catalogue.dump_operators(known))

    assert known == catalogue._read(file)
    assert [file] == list(file.parent.iterdir())


def test_an_unwritable_cache_does_not_matter(tmp_path):
    (tmp_path / "file").write_text("")

    keep(tmp_path / "file" / "operators.json", "[]")

    assert (tmp_path / "file").read_text() == ""


def test_the_cache_obeys_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert tmp_path / "accelerator-conformance" == catalogue.cache_path().parent
