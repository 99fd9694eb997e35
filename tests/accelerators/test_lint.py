"""One test per rule, named after its id."""

from __future__ import annotations

import pytest
import torch

from conformance.accelerators.backends import builtin
from conformance.accelerators.lint import LintSeverity, lint
from conformance.accelerators.registry import names, resolve
from conformance.accelerators.sources import ObjectSpec
from tests.accelerators.subjects import Explodes


class Sound:
    """Forwards to the CPU accelerator: complete, and without a contradiction."""

    capabilities = builtin("cpu").statements

    def __getattr__(self, name):
        return getattr(builtin("cpu"), name)


def ids(kind, file=None):
    return {finding.id for finding in lint(ObjectSpec("x:X", "x", kind), file)}


def test_a_sound_accelerator_has_no_findings():
    assert ids(Sound) == set()


@pytest.mark.parametrize("name", names())
def test_our_own_have_neither_errors_nor_warnings(name):
    assert [str(f) for f in lint(resolve(name)) if f.severity is not LintSeverity.NOTE] == []


def test_the_worst_comes_first():
    class Mixed(Sound):
        def is_triton_supported(self):
            return False

        def is_fp16_supported(self):
            return None

    severities = [finding.severity for finding in lint(ObjectSpec("x", "x", Mixed))]

    assert severities == sorted(severities, key=list(LintSeverity).index)
    assert LintSeverity.ERROR in severities
    assert LintSeverity.NOTE in severities


def test_l01_a_listed_dtype_is_denied():
    class Denies(Sound):
        def is_bf16_supported(self):
            return bool(0)

    assert "L01" in ids(Denies)


def test_l02_an_affirmed_dtype_is_not_listed():
    class Forgets(Sound):
        def supported_dtypes(self):
            return [torch.float32]

    assert "L02" in ids(Forgets)


@pytest.mark.parametrize("member", ["is_fp16_supported", "use_host_timers", "supported_dtypes"])
def test_l03_an_answer_of_the_wrong_type(member):
    kind = type("Vague", (Sound,), {member: lambda self: None})

    assert "L03" in ids(kind)


def test_l04_a_constant_answer():
    class Constant(Sound):
        def is_bf16_supported(self):
            return True

    assert ids(Constant) == {"L04"}


def test_l05_a_stub():
    class Stub(Sound):
        def lazy_call(self, callback):
            return

        @property
        def IntTensor(self):
            """Documented, and empty."""
            return None

    assert ids(Stub) == {"L05"}


@pytest.mark.parametrize("arguments", ["self, op_name", "self", "self, name, class_name"])
def test_l06_arguments_unlike_the_interface(arguments):
    scope = {}
    exec(f"def create_op_builder({arguments}):\n    return 1", scope)

    assert "L06" in ids(type("Renamed", (Sound,), {"create_op_builder": scope["create_op_builder"]}))


def test_l06_more_arguments_with_defaults_are_fine():
    class Generous(Sound):
        def set_device(self, device_index, quietly=False):
            self.current = device_index

    assert ids(Generous) == set()


def test_l07_half_a_graph():
    class Half(Sound):
        def create_graph(self):
            return object()

        def replay_graph(self, graph):
            return None

    assert "L07" in ids(Half)


def test_l08_neither_events_nor_host_timers():
    class Timeless(Sound):
        def use_host_timers(self):
            return not True

    assert "L08" in ids(Timeless)


def test_l09_a_stream_without_streams():
    class Odd(Sound):
        def current_stream(self, device_index=None):
            return object()

    assert "L09" in ids(Odd)


def test_l10_a_missing_member():
    class Bare:
        def device_name(self, device_index=None):
            return f"cpu:{device_index}"

    findings = lint(ObjectSpec("x", "x", Bare))

    missing = {f.sentence: f.severity for f in findings if f.id == "L10"}
    assert missing["synchronize is missing"] is LintSeverity.ERROR
    assert missing["is_fp64_supported is missing"] is LintSeverity.WARNING


def test_l11_sources_that_contradict(tmp_path):
    file = tmp_path / "claims.toml"
    file.write_text('[capabilities]\nstream = "native"\n')

    class Ordered(Sound):
        def resolves_data_dependency(self):
            return not True

    assert "L11" in ids(Sound, file)
    assert "L11" in ids(Ordered)


def test_l12_complete_but_out_of_order():
    class Disorderly(Sound):
        def resolves_data_dependency(self):
            return not True

    assert "L12" in ids(Disorderly)


@pytest.mark.parametrize("variables", [[], None, ["CUDA_VISIBLE_DEVICES"]])
def test_l13_no_variable_or_another_vendors(variables):
    kind = type("Blind", (Sound,), {"visible_devices_envs": lambda self: variables})

    assert "L13" in ids(kind)


def test_l14_two_conventions_for_an_unknown_builder():
    class TwoWays(Sound):
        def create_op_builder(self, class_name):
            return {}.get(class_name)

    assert "L14" in ids(TwoWays)


def test_l15_silence():
    class Silent(Sound):
        capabilities = frozenset({"rng"})

    assert ids(Silent) == {"L15"}


def test_l16_cannot_be_built_here():
    findings = lint(ObjectSpec("x", "x", Explodes))

    assert [finding.id for finding in findings] == ["L15", "L16"]
