"""Audit of skip lists: each entry gets its class, no list is executed, and a bad file is one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import UsageError
from conformance.cli.main import main
from conformance.reports.loading import load
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Reason, failed, passed
from conformance.upstream.evidence import Standing, dtypes_of, evidence_of, operators
from conformance.upstream.skip_lists import Entry, read
from tests.reports.samples import entry, report_of

Audit = Callable[..., list[dict[str, Any]]]
#: The newest published report of the simulated device, with every case of every operator.
PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "runs" / "sim.json.gz"
#: Operators whose names are in no other one, each with float32.
SINGLE = [name for name in operators() if "float32" in dtypes_of(name) and name.isalnum()][:120]
STALE, NEEDED, LEFT = SINGLE[:60], SINGLE[60:100], SINGLE[100:]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report of supa: 60 operators pass in float32, and 40 fail."""
    cases = [
        (entry(f"operators.{name}", dtype="float32", mode="inference"), verdict)
        for names, verdict in ((STALE, passed()), (NEEDED, failed(Reason.WRONG, "7 elements differ")))
        for name in names
    ]
    made = report_of(tmp_path, *cases)
    path = tmp_path / "made.json"
    path.write_text(to_json(made))
    return path


@pytest.fixture
def audit(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Audit:
    """Return a function that audits texts as files, and returns the rows."""

    def run(*texts: str, suffix: str = ".py", options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        files = [tmp_path / f"list{number}{suffix}" for number, _ in enumerate(texts)]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        command = ["upstream", "audit", *map(str, files), "--accelerator", "supa", "--report", str(report)]
        assert main([*command, "--format", "json", *options]) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return run


def names_of(rows: list[dict[str, Any]], state: str) -> list[str]:
    return [row["entry"] for row in rows if row["class"] == state]


def as_dictionary(names: list[str]) -> str:
    entries = "".join(f'        # ticket {number}\n        "{name}",\n' for number, name in enumerate(names))
    return f'skip_dict = {{\n    "test_ops_sim.py": (\n{entries}    ),\n    "test_other.py": None,\n}}\n'


def test_of_200_entries_the_60_stale_ones_are_named_and_no_other(audit: Audit):
    stale = [f"test_out_{name}_supa_float32" for name in STALE[:30]]
    needed = [f"test_out_{name}_supa_float32" for name in NEEDED]
    others = [f"test_storage_number_{number}_sim" for number in range(60)]
    overrides = dict.fromkeys(STALE[30:], "[DecorateInfo(unittest.skip('x'), dtypes=(torch.float32,))]")
    overrides |= {f"no_operator_{number}": "[DecorateInfo(unittest.skip('x'))]" for number in range(20)}
    overrides |= dict.fromkeys(LEFT, "[DecorateInfo(unittest.skip('x'), dtypes=(torch.float32,))]")
    body = "".join(f"        {name!r}: {value},\n" for name, value in overrides.items())

    rows = audit(as_dictionary([*stale, *needed, *others]), f"class Base(X):\n    op_overrides = {{\n{body}    }}\n")

    assert len(rows) == 200
    assert names_of(rows, "stale") == [*stale, *(f"{name}[float32]" for name in STALE[30:])]
    assert names_of(rows, "needed") == needed
    assert names_of(rows, "not ours") == others
    assert len(names_of(rows, "dead")) == 20
    assert names_of(rows, "unknown") == [f"{name}[float32]" for name in LEFT]


def as_exclusions(names: list[str]) -> str:
    """Return names of tests as a base class of PyTorch excludes them."""
    return f"class Base(X):\n    test_exclusions = {{'TestOps': {names!r}}}\n"


def as_overrides(names: list[str]) -> str:
    body = "".join(
        f"        {name!r}: [DecorateInfo(unittest.skip('x'), dtypes=(torch.float32,))],\n" for name in names
    )
    return f"class Base(X):\n    op_overrides = {{\n{body}    }}\n"


def as_disabled(names: list[str]) -> str:
    return json.dumps({f"{name} (__main__.TestOpsPRIVATEUSE1)": ["ticket", [""]] for name in names})


def as_configuration(names: list[str]) -> str:
    tests = "".join(f"            - TestOps::{name}\n" for name in names)
    return (
        "test_suite_config:\n  files:\n    - path: ${TORCH_ROOT}/test/test_ops.py\n"
        f"      unlisted_test_mode: mandatory_success\n      tests:\n        - names:\n{tests}          mode: skip\n"
    )


@pytest.mark.parametrize(
    ("form", "suffix"),
    [(as_dictionary, ".py"), (as_exclusions, ".py"), (as_disabled, ".json"), (as_configuration, ".yaml")],
)
def test_the_60_stale_ones_are_named_in_each_form(form: Callable[[list[str]], str], suffix: str, audit: Audit):
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    kinds = {"stale": STALE, "needed": NEEDED, "unknown": LEFT}
    listed = {kind: [f"test_out_{name}_supa_float32" for name in names] for kind, names in kinds.items()}
    listed["not ours"] = [f"test_storage_number_{number}_supa" for number in range(80)]
    order = [name for names in listed.values() for name in names][::-1]

    rows = audit(form(order), suffix=suffix)

    assert len(rows) == 200
    for kind, names in listed.items():
        found = [plain(text) for text in names_of(rows, kind)]
        assert found == [name for name in order if name in names], kind


def test_the_60_stale_ones_are_named_among_overrides(audit: Audit):
    unknown = [f"no_operator_{number}" for number in range(80)]

    rows = audit(as_overrides([*LEFT, *unknown, *NEEDED, *STALE]))

    assert len(rows) == 200
    assert names_of(rows, "stale") == [f"{name}[float32]" for name in STALE]
    assert names_of(rows, "dead") == [f"{name}[float32]" for name in unknown]


@pytest.mark.long
@pytest.mark.parametrize("seed", [38, 39])
def test_the_60_stale_ones_are_named_by_the_published_report(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    evidence, chosen = evidence_of(load(PUBLISHED)), random.Random(seed)
    variants = sorted((name, dtype) for name in operators() for dtype in dtypes_of(name))
    verified = [each for each in variants if each in evidence and evidence[each].standing is Standing.VERIFIED]
    refused = sorted(each for each, found in evidence.items() if found.standing is Standing.DENIED)
    without = [each for each in variants if each not in evidence]
    stale = [name_of_test(each) for each in chosen.sample(verified, 60)]
    others = [name_of_test(each) for each in (*chosen.sample(refused, 80), *chosen.sample(without, 20))]
    order = [*stale, *others, *(f"test_storage_number_{number}_sim" for number in range(40))]
    chosen.shuffle(order)
    forms = ((as_dictionary, ".py"), (as_exclusions, ".py"), (as_disabled, ".json"))
    for form, suffix in forms:
        file = tmp_path / f"{form.__name__}{suffix}"
        file.write_text(form(order))

        command = ["upstream", "audit", str(file), "--accelerator", "sim", "--report", str(PUBLISHED)]
        assert main([*command, "--format", "json"]) == 0

        rows = json.loads(capsys.readouterr().out)
        assert len(rows) == 200, form
        assert sorted(plain(text) for text in names_of(rows, "stale")) == sorted(stale), form


def name_of_test(variant: tuple[str, str]) -> str:
    """Return how PyTorch names a test of an operator in a dtype on the simulated device."""
    operator, dtype = variant
    return f"test_out_{operator.replace('.', '_').replace('-', '_')}_sim_{dtype}"


def plain(text: str) -> str:
    """Return the name of a test without its class."""
    return text.partition(" ")[0].rpartition("::")[2].rpartition(".")[2]


def test_a_list_of_disabled_tests_names_whole_tests(audit: Audit, tmp_path: Path):
    names = tmp_path / "names"
    names.write_text("TestASUPA.test_abs_supa_float32\nTestASUPA.test_abs_supa_float32_more\nTestBSUPA.test_b_supa\n")
    disabled = {
        "test_abs_supa_float32 (__main__.TestAPRIVATEUSE1)": {"DTYPE": "unsupported float32"},
        "test_b_supa (nn.test_b.TestBSUPA)": ["", [""]],
        "test_b_supa (__main__.TestA)": ["", ["A2"]],
        "test_without_its_class": ["", [""]],
    }

    rows = audit(json.dumps(disabled), suffix=".json", options=("--names", str(names)))

    assert [(row["hides"], row["class"]) for row in rows] == [(1, "stale"), (1, "not ours"), (0, "dead"), (0, "dead")]
    assert [row["comment"] for row in rows[:3]] == ["DTYPE, unsupported float32", "", "A2"]


@pytest.mark.parametrize(
    ("name", "state", "hides"),
    [
        ("_compare_cpu_histc_supa_", "unknown", len(dtypes_of("histc"))),
        ("test_compare_cpu_argmin_supa_int", "unknown", 4),
        ("test_compare_cpu_nn_functional_avg_pool1d", "unknown", 5),
        ("test_logical_or_supa_bool_float32", "unknown", 2),
        ("test_polar_supa_bfloat16", "not ours", 0),
        ("test_multinomial_supa_float32test_compare_cpu_mode", "dead", 0),
    ],
)
def test_a_name_that_is_cut_or_glued(name: str, state: str, hides: int, audit: Audit):
    rows = audit(as_dictionary([name]))

    assert [(row["class"], row["hides"]) for row in rows] == [(state, hides)]


def test_a_class_is_not_the_beginning_of_another(audit: Audit, tmp_path: Path):
    names = tmp_path / "names"
    names.write_text("TestSparseSUPA.test_a_supa\nTestSparseCSRSUPA.test_a_supa\nTestSparseSUPA.test_ab_supa\n")
    text = 'set_test_configs(test_exclusions={"TestSparse": "*", "TestSparseCSR": ["test_a"]})\n'

    rows = audit(text, options=("--names", str(names)))

    assert [row["hides"] for row in rows] == [2, 1]


def test_an_entry_is_a_part_of_a_name_and_hides_all_that_contain_it(audit: Audit, tmp_path: Path):
    names = tmp_path / "names"
    names.write_text("TestA.test_sum_supa_int8\nTestA.test_cumsum_supa_int8\nTestB.test_sum_supa_int8\n")

    rows = audit(as_dictionary(["sum_supa", "test_nothing"]), options=("--names", str(names)))

    assert [(row["entry"], row["hides"]) for row in rows] == [("sum_supa", 3), ("test_nothing", 0)]
    assert names_of(rows, "dead") == ["test_nothing"]


def test_exclusions_hide_by_class_and_whole_name(audit: Audit, tmp_path: Path):
    names = tmp_path / "names"
    names.write_text("TestASUPA.test_sum_supa\nTestASUPA.test_mean_supa\nTestBSUPA.test_sum_supa\n")
    text = 'set_test_configs(test_exclusions={"TestA": ["test_sum"], "TestB": "*", "TestC": "*"})\n'

    rows = audit(text, options=("--names", str(names)))

    assert [(row["entry"], row["hides"], row["class"]) for row in rows] == [
        ("TestA.test_sum", 1, "not ours"),
        ("TestB.*", 1, "not ours"),
        ("TestC.*", 0, "dead"),
    ]


def test_a_key_that_is_no_file_skips_nothing(audit: Audit):
    rows = audit('skip_dict = {"test_unary_ufuncs_sim.pyy": ("test_a",), "test_binary_ufuncs": ("test_b",)}\n')

    assert [row["class"] for row in rows] == ["dead", "dead"]


def test_comments_are_kept_and_nothing_is_executed(audit: Audit, tmp_path: Path):
    mark = tmp_path / "executed"
    rows = audit(f"open({str(mark)!r}, 'w')\nimport no_such_module\n" + as_dictionary(["test_a", "test_b"]))

    assert [row["comment"] for row in rows] == ["ticket 0", "ticket 1"]
    assert not mark.exists()


XLA = """
DISABLED_TORCH_TESTS_ANY = {
    "TestOpsSUPA": {
        "test_sum",  # not lowered
        "test_pow_.*_supa",
    },
    "TestGone": {"test_a"},
}
DISABLED_TORCH_TESTS = {"CPU": prepare_match_set(DISABLED_TORCH_TESTS_ANY)}
"""


def test_disabled_tests_by_class(audit: Audit, tmp_path: Path):
    names = tmp_path / "names"
    names.write_text(
        "TestOpsSUPA.test_sum_supa_int8\nTestOpsSUPA.test_sum_supa_int16\nTestOpsSUPA.test_pow_-2_supa\n"
        "TestOtherSUPA.test_sum_supa_int8\n"
    )

    rows = audit(XLA, options=("--names", str(names)))

    assert [(row["entry"], row["hides"], row["class"]) for row in rows] == [
        ("TestOpsSUPA.test_sum", 2, "not ours"),
        ("TestOpsSUPA.test_pow_.*_supa", 1, "not ours"),
        ("TestGone.test_a", 0, "dead"),
    ]
    assert rows[0]["comment"] == "not lowered"


def test_operators_with_their_dtypes(audit: Audit):
    """A key is an operator with its variant, and without a dot between them: normnuc is norm.nuc."""
    rows = audit(
        f"def decorated(ops):\n"
        f"    ON_MPS_XFAILLIST: dict[str, list | None] = {{\n"
        f"        # sorts in another order\n"
        f"        {STALE[0]!r}: [torch.float32, torch.no_such_dtype],\n        {NEEDED[0]!r}: None,\n    }}\n"
        f"    SKIPLIST = {{'normnuc': [torch.float32], 'no_such_operator': None}}\n"
    )

    assert [(row["entry"], row["class"], row["hides"]) for row in rows] == [
        (f"{STALE[0]}[float32, no_such_dtype]", "stale", 1),
        (f"{NEEDED[0]}[all dtypes]", "needed", len(dtypes_of(NEEDED[0], "supa"))),
        ("normnuc[float32]", "unknown", 1),
        ("no_such_operator[all dtypes]", "dead", 0),
    ]
    assert rows[0]["comment"] == "sorts in another order"


SPYRE = """
test_suite_config:
  files:
    - path: ${TORCH_ROOT}/test/test_unary_ufuncs.py
      tests:
        - names: ["TestUnaryUfuncs::test_contig.*"]
          mode: xfail
        - names: ["TestUnaryUfuncs::test_abs"]
          mode: mandatory_success
          edits: {dtypes: {exclude: [{name: bfloat16, description: unsupported}]}}
  global:
    supported_ops: [{name: add, dtypes: [{name: float16, precision: {atol: 1e-3}}]}, {name: no_such_operator}]
"""
SPYRE_FAILS = """
test_suite_config:
  files:
    - path: ${TORCH_ROOT}/test/test_modules.py
      unlisted_test_mode: xfail
      tests: [{names: ["*TestModule*::test_forward"], mode: xfail}]
  global:
    supported_dtypes: [{name: float16}, {name: float32, force_xfail: true}]
    supported_ops: [{name: mul, force_xfail: true}, {name: add, dtypes: [{name: int64, force_xfail: true}]}]
"""


def test_a_configuration_of_torch_spyre(audit: Audit, tmp_path: Path):
    pytest.importorskip("yaml")
    names = tmp_path / "names"
    names.write_text("TestUnaryUfuncsSUPA.test_contig_abs_supa\nTestUnaryUfuncsSUPA.test_abs_supa_bfloat16\n")

    rows = audit(SPYRE, suffix=".yaml", options=("--names", str(names)))

    assert [(row["entry"], row["hides"], row["class"]) for row in rows] == [
        ("TestUnaryUfuncs::test_contig.*", 1, "not ours"),
        ("TestUnaryUfuncs::test_abs[bfloat16]", 1, "not ours"),
        ("each test that is not listed of test_unary_ufuncs.py", 0, "not ours"),
        ("add", 0, "not ours"),
        ("no_such_operator", 0, "dead"),
    ]


def test_a_configuration_that_expects_failures(audit: Audit, tmp_path: Path):
    pytest.importorskip("yaml")
    names = tmp_path / "names"
    names.write_text("TestModuleSUPA.test_forward_nn_GELU_supa_float32\nTestModuleSUPA.test_grad_supa_float16\n")

    rows = audit(SPYRE_FAILS, suffix=".yaml", options=("--names", str(names)))

    assert [(row["entry"], row["hides"]) for row in rows] == [
        ("*TestModule*::test_forward", 1),
        ("each test that is not listed of test_modules.py", 0),
        ("mul[all dtypes]", len(dtypes_of("mul", "supa"))),
        ("add", 0),
        ("add[int64]", 1),
        ("each test in float32", 1),
    ]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("list.py", "skip_dict = {\n", "line 1 is no valid Python"),
        ("list.py", "skip_dict = " + "(" * 5000, "is no valid Python"),
        ("list.py", "import torch\nTESTS = {'test_a.py': ('test_a',)}\n", "has no skip list in a known form"),
        ("list.yaml", "a: [1\n", "is no valid YAML"),
        ("list.yaml", "a: !!python/object/apply:os.system [ls]\n", "is no valid YAML"),
        ("list.yaml", "a: 1\n", "has no `test_suite_config`"),
        ("list.json", "{", "line 1 is no valid JSON"),
        ("list.json", "[" * 100_000, "is no valid JSON"),
        ("list.json", '{"DTYPE": "some data types"}', "is no list of disabled tests"),
        ("list.json", "[1]", "is no list of disabled tests"),
    ],
)
def test_a_bad_list_is_one_sentence(name: str, text: str, sentence: str, tmp_path: Path):
    file = tmp_path / name
    file.write_text(text)

    with pytest.raises(UsageError, match=sentence):
        read(file)


def test_a_missing_list_ends_with_status_4(capsys: pytest.CaptureFixture[str]):
    assert main(["upstream", "audit", "no_such_list.py", "--accelerator", "sim"]) == 4
    assert "no_such_list.py cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("device_type", ["cuda", "mps", "xpu"])
def test_the_database_names_what_it_skips_on_a_device(device_type: str, capsys: pytest.CaptureFixture[str]):
    assert main(["upstream", "audit", "op_db", "--accelerator", "sim", "--device-type", device_type]) == 0

    assert "unknown" in capsys.readouterr().out


def test_an_allowlist_is_read(tmp_path: Path):
    file = tmp_path / "base.py"
    file.write_text('class Base(X):\n    op_allowlist = frozenset(("add", "mul"))\n')

    found: list[Entry] = read(file)

    assert [(each.operator, each.allows) for each in found] == [("add", True), ("mul", True)]


def test_aliases_that_multiply_are_refused(tmp_path: Path):
    pytest.importorskip("yaml")
    file = tmp_path / "list.yaml"
    names, tests, files = (", ".join([what] * 60) for what in ("a", "*test", "*file"))
    file.write_text(
        f"test: &test {{mode: skip, names: [{names}]}}\nfile: &file {{path: t.py, tests: [{tests}]}}\n"
        f"test_suite_config: {{files: [{files}]}}\n"
    )

    with pytest.raises(UsageError, match="more than 50000 entries"):
        read(file)
