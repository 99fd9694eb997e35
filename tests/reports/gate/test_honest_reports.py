"""Honest reports are accepted, and a decision states what was checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import VOCABULARY
from conformance.base.errors import JournalError
from conformance.reports.challenge import seed_of_challenge
from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
from conformance.reports.gate.rules.names import BUILT_IN, DEVICE_TYPES
from conformance.reports.gate.signers import accelerators_of
from conformance.reports.merge import merge
from conformance.reports.model import CaseRecord, Report
from conformance.reports.profiles import find_policy
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import OBSERVED
from conformance.reports.waivers.model import Waiver, WaiverKind

from .edits import (
    accelerator,
    cases,
    facts,
    in_turn,
    invocation,
    is_native,
    is_undeclared,
    is_unsupported,
    run,
    typed,
)
from .honest import (
    DAY,
    as_published,
    earlier,
    honest,
    judged,
    latest,
    manifest_of,
    mended,
    published,
    rules_of,
    waivers_of,
)


@pytest.mark.parametrize("name", ["cpu", "sim", "supa"])
def test_the_published_reports_are_accepted(name: str) -> None:
    report = latest(as_published(name))
    end = datetime.fromisoformat(report.run.finished)

    decision = judged(report, manifest_of(report), now=end + DAY, waivers=waivers_of(name))

    assert decision.findings == ()
    assert decision.met == decision.due == report.totals.claimed
    assert decision.met == report.totals.passed - report.totals.aside + decision.waived


def test_a_newer_run_of_the_same_accelerator_is_accepted() -> None:
    assert judged(honest(), baseline=earlier(honest())).findings == ()


def test_the_baseline_itself_is_accepted_with_a_note() -> None:
    assert rules_of(judged(honest(), baseline=honest())) == set()


@pytest.mark.parametrize(
    ("reason", "metrics"),
    [
        (Reason.UNDER_DECLARED, {"max_budget_ratio": 0.1}),
        (Reason.UNDER_DECLARED, {"max_budget_ratio": 0.1, "probe": "fallback"}),
        (Reason.UNDECLARED, {"max_budget_ratio": 0.1, "probe": "fallback"}),
    ],
)
def test_a_case_that_works_and_is_not_claimed_has_numbers(reason: Reason, metrics: dict[str, float | str]) -> None:
    """So does a run write it: the cell is unsupported, or computes on the host (conformance.judging.verdicts)."""
    report = honest()
    place = next(n for n, case in enumerate(report.cases) if is_undeclared(case) and case.area == "operators")
    message = "the cell is not declared; probe: finding: on the host"
    case = replace(report.cases[place], reason=reason, metrics=metrics, message=message)
    changed = mended(replace(report, cases=(*report.cases[:place], case, *report.cases[place + 1 :])))

    assert "G18" not in rules_of(judged(changed))


def test_merged_shards_are_accepted() -> None:
    """Two shards on two machines: the merged run has the processes of both."""
    halves = []
    for part in (0, 1):
        kept = tuple(case for n, case in enumerate(honest().cases) if n % 2 == part)
        shard = mended(replace(honest(), cases=kept))
        argv = (*shard.run.invocation.argv, f"--shard={part + 1}/2", "-n2")
        shard = invocation(argv=argv, selection=("--shard",), workers=2)(shard)
        halves.append(run(id=f"shard{part}")(shard))

    merged = merge(halves)

    assert merged.run.invocation.workers == 4
    assert judged(merged).findings == ()


def test_a_resumed_run_is_accepted() -> None:
    """A resumed run began three days before its end."""
    start = datetime.fromisoformat(honest().run.started) - 3 * DAY
    resumed = replace(in_turn(typed("--resume", "-n2"), run(started=start.isoformat()))(honest()))

    assert judged(resumed).findings == ()


def test_a_run_that_was_resumed_with_more_processes_is_accepted() -> None:
    """The file gives the processes of the first part."""
    resumed = in_turn(typed("-n1"), invocation(workers=1))(published("sim"))

    assert judged(resumed, manifest_of(resumed)).findings == ()


def test_a_run_in_one_process_is_accepted() -> None:
    assert judged(in_turn(typed("-n0"), invocation(workers=0))(honest())).findings == ()


def test_a_run_with_certify_is_accepted_if_everything_is_declared() -> None:
    kept = tuple(case for case in honest().cases if not is_undeclared(case))
    report = mended(in_turn(typed("--strictness=certify"), run(strictness="certify"))(replace(honest(), cases=kept)))

    assert judged(report, manifest_of(report)).findings == ()


def answered(report: Report) -> Report:
    """The report with an answer in every passed case."""
    cases = tuple(
        replace(case, metrics={**case.metrics, "answer": "0123abcd=1.5"}) if case.outcome is Outcome.PASS else case
        for case in report.cases
    )
    return replace(report, cases=cases)


def test_a_run_with_a_challenge_is_accepted() -> None:
    nonce = "0123456789abcdef"
    report = invocation(challenge=nonce, seed=seed_of_challenge(nonce))(typed(f"--challenge={nonce}")(honest()))
    report = answered(report)

    assert judged(report).findings == ()
    assert judged(report, challenge=nonce).findings == ()


def test_a_run_with_another_torch_is_accepted_with_its_manifest() -> None:
    report = mended(in_turn(accelerator(torch="2.7.1+vendor"), facts(torch="2.7.1+vendor"))(honest()))

    assert judged(report, manifest_of(report)).findings == ()
    assert rules_of(judged(report)) == {"G03"}


def test_a_run_with_waivers_is_accepted_and_says_how_many_failures_are_waived() -> None:
    skip = {"outcome": Outcome.SKIP, "reason": Reason.WAIVED, "message": "bug, https://sim.example/1: rounds"}
    waived = cases(is_native, 4, **skip, metrics={OBSERVED: "wrong"})(honest())
    report = mended(typed("--waivers=waivers.toml")(waived))
    end = datetime.fromisoformat(report.run.finished)
    ids = tuple(case.id for case in report.cases if case.reason is Reason.WAIVED)
    known = Waiver(
        ids, Reason.WRONG, WaiverKind.BUG, "https://sim.example/1", "rounds", "ada@sim.example", (end + 30 * DAY).date()
    )

    decision = judged(report, waivers=(known,))

    assert decision.rejections == ()
    assert decision.waived == 4


def test_a_stale_waiver_that_the_reviewer_has_pruned_is_accepted() -> None:
    report = mended(typed("--waivers", "waivers.toml")(with_stale_waivers(honest(), is_native)))

    assert judged(report).findings == ()


def with_stale_waivers(report: Report, *matching: Callable[[CaseRecord], bool]) -> Report:
    """Return the report as a run writes it whose waivers name the first case that matches each."""
    chosen = {next(case.id for case in report.cases if matches(case)) for matches in matching}
    return replace(
        report,
        cases=tuple(
            replace(
                case,
                outcome=Outcome.FAIL,
                reason=Reason.WAIVER_STALE,
                message="passes, yet it is waived",
                metrics={**case.metrics, OBSERVED: case.reason.value},
            )
            if case.id in chosen
            else case
            for case in report.cases
        ),
    )


@pytest.mark.parametrize("matching", [is_unsupported, is_undeclared])
def test_a_stale_waiver_makes_no_pass_of_a_case_that_is_not_claimed(matching: Callable[[CaseRecord], bool]) -> None:
    forged = with_stale_waivers(honest(), matching)
    said = cases(lambda case: case.reason is Reason.WAIVER_STALE, None, metrics={OBSERVED: "native"})

    assert rules_of(judged(mended(in_turn(typed("--waivers", "waivers.toml"), said)(forged)))) == {"G08"}


@pytest.mark.parametrize(
    ("name", "spec", "device"),
    [
        ("heron", "heron_accelerator:HERON", "heron:0"),
        ("torchax_accelerator-Torchax", "torchax_accelerator:Torchax", "jax:0"),
        ("deepspeed-cpu", "deepspeed:cpu", "cpu"),
        ("vulkan", "torchvulkan_accelerator:VULKAN", "vulkan:0"),
        ("Acme NPU", "acme.backend:Acme", "acme:0"),
        ("klxpu", "klxpu", "cuda:0"),
        ("cuda", "auto", "cuda:0"),
        ("sim stand-in", "sim", "sim:0"),
        ("壁仞 BR100", "biren:Supa", "supa:0"),
    ],
)
def test_honest_names_are_accepted(name: str, spec: str, device: str) -> None:
    argv = (f"--accelerator={spec}", "--profile=full", "-q")
    report = mended(in_turn(accelerator(name=name, spec=spec, device=device), invocation(argv=argv))(honest()))

    assert judged(report).findings == ()
    assert judged(report, accelerator=name).findings == ()


def test_a_signer_of_the_accelerator_is_accepted_and_named() -> None:
    decision = judged(honest(), signature=SignatureCheck("ada@sim.example", accelerators=("sim*",)))

    assert decision.findings == ()
    assert decision.signer == "ada@sim.example"


def test_a_signer_file_binds_principals_to_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "signers.toml"
    path.write_text(
        '[[signer]]\nprincipal = "*@acme.example"\naccelerators = ["acme", "acme *"]\n'
        '[[signer]]\nprincipal = "ada@acme.example"\naccelerators = ["sim"]\n'
    )

    assert accelerators_of("ada@acme.example", path) == ("acme", "acme *", "sim")
    assert accelerators_of("eve@acme.example.org", path) == ()


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "signer = 1",
        "[[signer]]\nprincipal = 'a'",
        "[[signer]]\nprincipal = 1\naccelerators = ['a']",
        "[[signer]]\nprincipal = 'a'\naccelerators = 'a'",
        "[[signer]]\nprincipal = 'a'\naccelerators = [1]",
        "[[signer]]\nprincipal = 'a'\naccelerators = ['a']\nmore = 1",
        "[[",
        "a" + ".a" * 400 + " = 1",
    ],
)
def test_a_signer_file_that_cannot_be_read_binds_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "signers.toml"
    path.write_text(text)

    with pytest.raises(JournalError, match=r"signers\.toml"):
        accelerators_of("ada@acme.example", path)


# --- what a decision states -----------------------------------------------------------------------------------------


def test_a_decision_states_the_run_and_what_was_not_checked() -> None:
    decision = judged(honest(), profile_is_named=False)

    assert (decision.run, decision.finished) == (honest().run.id, honest().run.finished)
    options = ("allowed-signers", "accelerator", "profile", "baseline", "fingerprint", "challenge")
    assert all(any(f"--{option})" in sentence for sentence in decision.unchecked) for option in options)


@pytest.mark.parametrize("name", ["cpu", "sim", "supa"])
def test_a_published_report_is_accepted_in_the_format_that_it_has(name: str) -> None:
    report = as_published(name)

    assert judged(report, manifest_of(report), waivers=waivers_of(name)).findings == ()
    old = replace(report, schema=1)
    assert "of format 1" in " ".join(judged(replace(old), manifest_of(report)).unchecked)


def test_what_was_checked_is_not_among_the_unchecked() -> None:
    nonce = "0123456789abcdef"
    report = invocation(challenge=nonce, seed=seed_of_challenge(nonce))(honest())
    decision = judged(
        report,
        signature=SignatureCheck("ada@sim.example", accelerators=("sim",)),
        accelerator="sim",
        baseline=earlier(report),
        fingerprint=report.environment.fingerprint_sha256,
        challenge=nonce,
    )

    assert decision.unchecked == (
        f"whether the suite's files {report.run.suite.files_sha256[:12]} are the released ones",
        "whether a device computed the results (conformance challenge, or your own run)",
    )


# --- facts that the rules repeat, because reports may not import the accelerators -----------------------------------


def test_the_names_of_the_built_in_accelerators_are_known_to_the_gate() -> None:
    assert set(builtin_names()) == BUILT_IN
    types = {name: builtin(name).device_type for name in builtin_names() if builtin(name).device_type}
    assert types == DEVICE_TYPES


def test_the_cells_of_the_core_are_those_that_its_cases_require() -> None:
    core = {name for name, known in VOCABULARY.items() if known.core}
    for name in ("cpu", "sim", "supa"):
        evidence = GateEvidence(published(name), find_policy("full"), datetime.fromisoformat("2026-12-01T00:00:00Z"))
        assert evidence.core_cells == core
