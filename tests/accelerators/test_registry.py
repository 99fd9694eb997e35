"""From what people type to a subject: every kind of name, and every kind of mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.accelerators.declaration import Declaration, State
from conformance.accelerators.registry import names, resolve
from conformance.base.errors import DeclarationError, SetupError, UnknownName, UsageError

HERE = "tests.accelerators.subjects"


def test_every_builtin_is_registered():
    expected = {"cpu", "cuda", "hpu", "klxpu", "mlu", "mps", "npu", "sdaa", "supa", "xpu"}

    assert expected <= set(names())


def test_resolving_a_builtin_imports_no_torch_and_no_vendor():
    program = (
        "import sys\n"
        "from conformance.accelerators.registry import names, resolve\n"
        "for name in names(): resolve(name).static_declaration\n"
        "resolve('deepspeed:cpu').static_declaration; resolve('torch:xpu').static_declaration\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'deepspeed', 'pytest')])"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("cpu", "cpu"),
        ("torch:cpu", "torch-cpu"),
        ("deepspeed:CPU", "deepspeed-CPU"),
        (f"{HERE}:Duck", "tests.accelerators.subjects-Duck"),
        (f"{HERE}:DECLARED", "declared"),
    ],
)
def test_a_subject_remembers_its_spec_and_has_a_safe_name(spec, name):
    subject = resolve(spec)

    assert (subject.text, subject.name) == (spec, name)


@pytest.mark.parametrize(
    ("spec", "error", "sentence"),
    [
        ("supu", UnknownName, "accelerator 'supu' is not registered.*did you mean 'supa'"),
        ("", UsageError, "name is empty"),
        ("deepspeed:", UsageError, "names no accelerator"),
        (":Class", UsageError, "names no accelerator"),
        ("no_such_module:Class", UsageError, "module no_such_module, which cannot be found"),
        ("json.no_such:Class", UsageError, "cannot be found"),
        (f"{HERE}:Dukc", UnknownName, "did you mean 'Duck'"),
        (f"{HERE}:function", UsageError, "it is a function"),
        ("json:decoder", UsageError, "it is a module"),
        (f"{HERE}:NUMBER", UsageError, "int has no device_name"),
        (f"{HERE}:Stranger", UsageError, "none of the 77 members"),
        (f"{HERE}:NeedsArgument", UsageError, "cannot be built without arguments.*device"),
    ],
)
def test_what_is_no_accelerator_is_one_sentence_and_a_step(spec, error, sentence):
    with pytest.raises(error, match=f"(?s){sentence}") as raised:
        resolve(spec)

    assert "\n  " in str(raised.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import no_such_dependency", "importing broken_a fails: ModuleNotFoundError: No module named 'no_such_depen"),
        ("raise OSError('libdriver.so: not found')", "importing broken_b fails: OSError: libdriver.so: not found"),
        ("def (", "importing broken_c fails: SyntaxError"),
        ("import sys; sys.exit(3)", "importing broken_d fails: SystemExit: 3"),
    ],
    ids=["a", "b", "c", "d"],
)
def test_an_error_inside_the_module_is_a_setup_error(tmp_path, monkeypatch, request, source, sentence):
    name = f"broken_{request.node.callspec.id}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SetupError, match=sentence):
        resolve(f"{name}:Accelerator")


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "lies_here.py").write_text("class Mine:\n    def device_name(self, i=None): return 'cpu'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    assert resolve("lies_here:Mine").load().device_name() == "cpu"


def test_an_entry_point_is_resolved_by_its_name(tmp_path, monkeypatch):
    _install(tmp_path, "[conformance.accelerators]\nvendor-one = vendor_one:Mine\n")
    (tmp_path / "vendor_one.py").write_text("class Mine:\n    def device_name(self, i=None): return 'cpu'\n")
    (tmp_path / "vendor_one.toml").write_text('[capabilities]\n"stream.order" = "native"\n')
    monkeypatch.syspath_prepend(tmp_path)

    subject = resolve("vendor-one")

    assert "vendor-one" in names()
    assert subject.load().device_name() == "cpu"
    assert [str(cell) for cell in subject.static_declaration.cells] == ["stream.order"]


def test_an_entry_point_that_does_not_import_is_a_setup_error(tmp_path, monkeypatch):
    _install(tmp_path, "[conformance.accelerators]\nvendor-two = vendor_two:Mine\n")
    (tmp_path / "vendor_two.py").write_text("raise RuntimeError('wrong torch')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SetupError, match="RuntimeError: wrong torch"):
        resolve("vendor-two")


def test_a_missing_vendor_package_is_found_before_loading():
    with pytest.raises(SetupError, match=r"(?s)'supa' needs the package torch_supa, which is not installed.*install"):
        resolve("supa").preflight()


def test_a_device_that_is_not_there_is_a_setup_error(monkeypatch):
    import torch

    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)

    with pytest.raises(SetupError, match=r"torch\.xpu\.is_available\(\) is False"):
        resolve("xpu").load()


def test_an_unknown_torch_type_lists_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'xpu'"):
        resolve("torch:xpuu").preflight()


def test_a_package_that_is_here_but_not_installed_is_named(tmp_path, monkeypatch):
    (tmp_path / "torch_nova").mkdir()
    (tmp_path / "torch_nova" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownName, match="torch_nova is here, but it is not installed: pip install -e"):
        resolve("torch:nova").preflight()


def test_torch_cpu_is_driven_like_the_cpu():
    subject = resolve("torch:cpu")

    assert subject.load().current_device_name() == "cpu:0"
    assert subject.static_declaration == resolve("cpu").static_declaration


def test_unknown_capabilities_of_a_class_are_declaration_errors():
    with pytest.raises(DeclarationError, match=r"(?s)BadlyDeclared: capability 'rng.staet'.*did you mean 'rng.state'"):
        resolve(f"{HERE}:BadlyDeclared").static_declaration  # noqa: B018 - the property reads the declaration


def test_three_sources_merge_and_the_later_wins(tmp_path):
    file = tmp_path / "more.toml"
    file.write_text('[dtypes]\nfloat16 = { unsupported = "hardware", reason = "no such unit" }\n')
    subject = resolve(f"{HERE}:Duck")

    declaration = subject.declaration(subject.load(), file)

    states = {str(cell): claim.state for cell, claim in declaration.cells.items()}
    assert states["dtype[float32]"] is State.SUPPORTED
    assert states["dtype[float16]"] is State.UNSUPPORTED
    assert states["ranges"] is State.SUPPORTED
    assert isinstance(declaration, Declaration)


def test_the_host_gets_workers_and_a_device_one():
    assert resolve("cpu").default_workers >= 1
    assert resolve("cuda").default_workers == 1


def _install(folder, entry_points):
    info = folder / "fake_vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
