"""A misspelled operator, kernel or workload is an error with a suggestion, and no claim."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.accelerators import subjects
from conformance.accelerators.capabilities import FAMILIES, Cell, Mode
from conformance.accelerators.claims import Element, declaration_of, kernels, lacks, parse_cell
from conformance.accelerators.declaration_file import parse_declaration
from conformance.base.errors import DeclarationError
from conformance.cli.manifest import _cells
from conformance.reports.gate.manifests import FOLDER, read_manifest


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ("operators.gelus[float32-inference]", r"no operator 'gelus'.\n  did you mean 'nn.functional.gelu'"),
        (Cell("operators.gelus", "float32", "inference"), "no operator 'gelus'"),
        (Cell("operators.linlag.*", "float32", "inference"), r"no operator matches .*\n  did you mean 'linalg.\*'"),
        (Cell("operators.qqqqqq", "float32", "inference"), "no operator 'qqqqqq'.\n  all names: conformance list"),
        (Cell("kernels.multi_tensor_adma", "float32", "training"), "did you mean 'multi_tensor_adam'"),
        ("workloads.gtp[float32-inference]", "did you mean 'gpt'"),
    ],
)
def test_a_misspelled_name_in_python_is_an_error(element: Element, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        declaration_of({element})


def test_helpers_are_checked_too() -> None:
    with pytest.raises(DeclarationError, match="no kernel 'adm'"):
        declaration_of(kernels("adm", dtypes=["float32"], mode=Mode.TRAINING))
    with pytest.raises(DeclarationError, match="no operator 'matmull'"):
        declaration_of(lacks(Cell("operators.matmull", "float32", "inference"), "no unit for it"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_misspelled_name_in_toml_is_an_error_with_its_line(family: str) -> None:
    text = f'[{family}]\n"*" = {{ inference = ["float32"] }}\nxgpts = {{ inference = ["float32"] }}\n'

    with pytest.raises(DeclarationError, match=f"acme.toml, line 3: there is no {family[:-1]} 'xgpts'"):
        parse_declaration(text, file="acme.toml")


@pytest.mark.parametrize(
    "name", ["operators.*", "operators.linalg.*", "operators.add", "operators.*norm*", "kernels.*", "workloads.gpt"]
)
def test_right_names_and_patterns_are_claims(name: str) -> None:
    assert declaration_of({Cell(name, "float32", "inference")}).cells


def test_the_cells_of_a_report_may_name_operators_of_another_torch() -> None:
    assert parse_cell("operators.not_in_this_torch[float32-inference]").subject == "operators.not_in_this_torch"


def test_operators_of_an_unlisted_torch_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "_installed_series", lambda: "9.9")

    subjects.check_subject("operators.brand_new")
    with pytest.raises(DeclarationError):
        subjects.check_subject("kernels.brand_new")


def test_the_names_are_those_of_the_released_manifests() -> None:
    manifests = [read_manifest(path) for path in FOLDER.glob("*.json.gz")]

    found = subjects.dump({manifest.torch: _cells(manifest) for manifest in manifests})

    assert found == subjects.FILE.read_text(encoding="utf-8")


def test_names_are_checked_without_torch() -> None:
    program = (
        "import sys\nfrom conformance.accelerators.subjects import check_subject\n"
        "try: check_subject('operators.gelus')\nexcept Exception as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "did you mean 'nn.functional.gelu'" in done.stdout
