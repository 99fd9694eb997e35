"""TOML declarations: strict on the way in, and the same claims on the way round."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.declaration import Claim, ClaimSource, Declaration, Detail, State, supported, unsupported
from conformance.accelerators.declaration_file import dump, parse_declaration, read_declaration
from conformance.accelerators.registry import names, resolve
from conformance.base.errors import DeclarationError

COMPLETE = """
[capabilities]
stream = "native"
"precision.accumulate-wide[bfloat16]" = "emulated"
triton = { unsupported = "not-yet", reason = "no compiler yet" }

[dtypes]
bfloat16 = "host"

[operators]
"*" = { inference = ["float32", "bfloat16"], training = ["float32"] }
"linalg.*" = { inference = ["bfloat16"], unsupported = "hardware", reason = "no 16-bit solver" }
"matmul" = [{ inference = ["float16"], as = "emulated" }, { training = ["float16"] }]

[workloads]
"gpt" = { training = ["float32"] }
"""


def test_a_complete_file_becomes_claims():
    declaration = parse_declaration(COMPLETE)

    claims = {str(cell): (claim.state.value, claim.detail.value) for cell, claim in declaration.cells.items()}
    assert claims == {
        "stream": ("supported", "native"),
        "precision.accumulate-wide[bfloat16]": ("supported", "emulated"),
        "triton": ("unsupported", "not-yet"),
        "dtype[bfloat16]": ("supported", "host"),
        "operators.*[float32-inference]": ("supported", "native"),
        "operators.*[bfloat16-inference]": ("supported", "native"),
        "operators.*[float32-training]": ("supported", "native"),
        "operators.linalg.*[bfloat16-inference]": ("unsupported", "hardware"),
        "operators.matmul[float16-inference]": ("supported", "emulated"),
        "operators.matmul[float16-training]": ("supported", "native"),
        "workloads.gpt[float32-training]": ("supported", "native"),
    }
    assert {claim.source for claim in declaration.cells.values()} == {ClaimSource.FILE}


def test_a_longer_pattern_wins():
    declaration = parse_declaration(COMPLETE)

    assert declaration.claim(Cell("operators.linalg.solve", "bfloat16", "inference")).state is State.UNSUPPORTED
    assert declaration.claim(Cell("operators.add", "bfloat16", "inference")).state is State.SUPPORTED


@pytest.mark.parametrize("text", [COMPLETE, "", '[dtypes]\nbool = "native"\n'])
def test_what_is_written_reads_back_the_same(text):
    declaration = parse_declaration(text)

    assert parse_declaration(dump(declaration)) == declaration


@pytest.mark.parametrize("name", names())
def test_every_builtin_round_trips(name):
    declaration = resolve(name).static_declaration

    assert parse_declaration(dump(declaration), ClaimSource.CAPABILITIES) == declaration


def test_awkward_reasons_round_trip():
    claim = unsupported('says "no",\n\tC:\\path \x01 – ünïcode', Detail.NOT_YET, ClaimSource.FILE)
    declaration = Declaration.of([(Cell("triton"), claim), (Cell("operators.add", "bool", "inference"), claim)])

    assert parse_declaration(dump(declaration)) == declaration


def test_a_reason_of_a_supported_claim_round_trips():
    claim = Claim(State.SUPPORTED, Detail.EMULATED, "in float32", ClaimSource.FILE)
    declaration = Declaration.of([(Cell("triton"), claim), (Cell("operators.add", "bool", "inference"), claim)])

    assert parse_declaration(dump(declaration)) == declaration


def test_undeclared_claims_are_not_written():
    declaration = Declaration.of(
        [(Cell("triton"), Claim(State.UNDECLARED)), (Cell("stream"), supported(source=ClaimSource.FILE))]
    )

    assert dump(declaration) == '[capabilities]\n"stream" = "native"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[capabilities\n", r"f.toml is not valid TOML: .*line 1.*\. Fix that line"),
        ('[capabilites]\nstream = "native"', "line 1: table 'capabilites'.*did you mean 'capabilities'"),
        ('\n[capabilities]\nstraem = "native"', "line 3: capability 'straem'.*did you mean 'stream'"),
        ('[capabilities]\nstream = "nativ"', "line 2: kind of support 'nativ'.*did you mean 'native'"),
        ("[capabilities]\nstream = true", "line 2: 'stream' must be one of native.*not a boolean"),
        ('[capabilities]\nstream = { unsupported = "not-yet" }', "line 2: 'stream' is unsupported without a reason"),
        ('[capabilities]\nstream = { unsupported = "never", reason = "x" }', "kind of lack 'never'"),
        ('[capabilities]\nstream = { reason = "x" }', "does not say what is unsupported"),
        ('[capabilities]\nstream = { as = "native", unsupported = "hardware", reason = "x" }', "both supported and"),
        ('[capabilities]\nstream = { unsuported = "hardware" }', "key 'unsuported'.*did you mean 'unsupported'"),
        ('[capabilities]\n"operators.add" = "native"', r"line 2: 'operators.add' belongs in \[operators\]"),
        ('[capabilities]\n"dtype[floot32]" = "native"', "dtype 'floot32'.*did you mean 'float32'"),
        ('[capabilities]\n"workload[float32-train]" = "native"', "mode 'train'.*did you mean 'training'"),
        ('[dtypes]\nfloat33 = "native"', "line 2: dtype 'float33'.*did you mean 'float32'"),
        ('[operators]\nadd = "native"', "line 2: 'add' must be a table.*not a string"),
        ("[operators]\nadd = { inferenc = [] }", "line 2: key 'inferenc'.*did you mean 'inference'"),
        ('[operators]\nadd = { inference = "float32" }', "line 2: 'inference' of 'add' must be a list"),
        ('[operators]\nadd = { inference = ["float32", "bf16"] }', "line 2: dtype 'bf16'"),
        ('[operators]\nadd = { as = "native" }', "line 2: 'add' names neither inference nor training"),
        (
            '[operators]\nadd = [{ inference = ["bool"] }, { inference = ["bool"], as = "host" }]',
            r"line 2: operators.add\[bool-inference\] is declared twice and differently",
        ),
        ("capabilities = 3", r"line 1: \[capabilities\] must be a table, not a number"),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path, text, sentence):
    file = tmp_path / "f.toml"
    file.write_text(text)

    with pytest.raises(DeclarationError, match=f"(?s){sentence}") as raised:
        read_declaration(file)

    assert str(raised.value).startswith(str(file))


def test_an_unreadable_file_is_one_sentence(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(DeclarationError, match=r"absent.toml cannot be read: No such file or directory\."):
        read_declaration(tmp_path / "absent.toml")
    with pytest.raises(DeclarationError, match="not UTF-8"):
        read_declaration(tmp_path / "binary.toml")
    with pytest.raises(DeclarationError, match="cannot be read"):
        read_declaration(tmp_path)
