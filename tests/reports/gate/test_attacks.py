"""Edits of honest reports by a forger who mends every count, list and hash afterwards.

Each attack is refused by the rule that is for it. The honest reports are the published ones, and runs like them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.capabilities import VOCABULARY
from conformance.errors import JournalError
from conformance.reports.challenge import seed_of_challenge
from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.manifests import Manifest, make_manifest
from conformance.reports.gate.rules import decide
from conformance.reports.gate.rules.names import BUILT_IN, DEVICE_TYPES
from conformance.reports.gate.signers import accelerators_of
from conformance.reports.loading import load
from conformance.reports.merge import merge
from conformance.reports.model import CaseRecord, DeclaredCell, Report, WaiverRecord
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import find_policy
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import OBSERVED
from conformance.reports.waivers.model import Waiver, WaiverKind

from .world import consistent

PUBLISHED = Path(__file__).parents[3] / "reports" / "published" / "runs"
DAY = timedelta(days=1)
#: One of so many cases stays in the reports that are attacked, so that many attacks are judged in a short time.
SAMPLE = 8

Change = Callable[[Report], Report]


# --- honest reports -------------------------------------------------------------------------------------------------


@cache
def published(name: str) -> Report:
    return load(PUBLISHED / f"{name}.json.gz")


@cache
def honest(name: str = "sim") -> Report:
    """Return a published run of a smaller plan: every core case and each eighth other one."""
    report = published(name)
    kept = [case for n, case in enumerate(report.cases) if case.level == "core" or n % SAMPLE == 0]
    return mended(replace(report, cases=tuple(kept)))


def mended(report: Report) -> Report:
    """Return the report with every count, list and hash made to fit."""
    lists = {
        name: tuple(case.id for case in report.cases if case.reason is reason)
        for name, reason in (("used", Reason.WAIVED), ("stale", Reason.WAIVER_STALE))
    }
    return consistent(replace(report, waivers=WaiverRecord(**lists)))


def manifest_of(report: Report) -> Manifest:
    names = [field.name for field in fields(PlannedCase)]
    plan = [PlannedCase(**{name: getattr(case, name) for name in names}) for case in report.cases]
    # The published reports do not name the number of ranks among the properties of the plan.
    sized = [
        replace(planned, world_size=case.ranks) if case.ranks > 1 else planned
        for planned, case in zip(plan, report.cases, strict=True)
    ]
    # The hash of the plan is that of the report's cases.
    manifest = make_manifest(report.run.suite.version, report.accelerator.torch, sized)
    return replace(manifest, sha256=make_manifest(report.run.suite.version, report.accelerator.torch, plan).sha256)


@cache
def honest_manifest(name: str = "sim") -> Manifest:
    return manifest_of(honest(name))


def judged(report: Report, manifest: Manifest | None = None, **changes: Any) -> Decision:
    end = datetime.fromisoformat(published("sim").run.finished)
    known = {"policy": find_policy("full"), "now": end + DAY, "manifest": manifest or honest_manifest()}
    return decide(GateEvidence(report, **{**known, **changes}))


def rules_of(decision: Decision) -> set[str]:
    return {finding.rule for finding in decision.rejections}


def earlier(report: Report) -> Report:
    """Return another honest run of the same accelerator, five days before, with durations of its own."""
    chance = random.Random(0)
    start, end = (datetime.fromisoformat(text) - 5 * DAY for text in (report.run.started, report.run.finished))
    cases = tuple(replace(case, seconds=round(case.seconds * chance.uniform(0.9, 0.99), 6)) for case in report.cases)
    run = replace(report.run, id="earlier", started=start.isoformat(), finished=end.isoformat())
    return replace(report, run=run, cases=cases)


# --- families of attacks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    rule: str
    name: str
    change: Change
    also: frozenset[str] = frozenset()
    evidence: Mapping[str, Any] | None = None


ATTACKS: list[Attack] = []


def attack(rule: str, name: str, change: Change, *also: str, **evidence: Any) -> None:
    ATTACKS.append(Attack(rule, name, change, frozenset(also), evidence))


def accelerator(**changes: Any) -> Change:
    return lambda report: replace(report, accelerator=replace(report.accelerator, **changes))


def run(**changes: Any) -> Change:
    return lambda report: replace(report, run=replace(report.run, **changes))


def invocation(**changes: Any) -> Change:
    return lambda report: run(invocation=replace(report.run.invocation, **changes))(report)


def typed(*words: str) -> Change:
    return lambda report: invocation(argv=(*report.run.invocation.argv, *words))(report)


def facts(**changes: Any) -> Change:
    """Change facts of the environment; None removes one."""

    def change(report: Report) -> Report:
        known = {**report.environment.facts, **changes}
        kept = {name: value for name, value in known.items() if value is not None}
        return replace(report, environment=replace(report.environment, facts=kept))

    return change


def claim(*cells: DeclaredCell) -> Change:
    return lambda report: replace(
        report, declaration=replace(report.declaration, cells=(*report.declaration.cells, *cells))
    )


def in_turn(*changes: Change) -> Change:
    def change(report: Report) -> Report:
        for each in changes:
            report = each(report)
        return report

    return change


def cases(matching: Callable[[CaseRecord], bool], limit: int | None = 1, **changes: Any) -> Change:
    """Change the first cases that match; all of them without a limit."""

    def change(report: Report) -> Report:
        chosen = [case.id for case in report.cases if matching(case)][:limit]
        assert chosen
        wanted = set(chosen)
        return replace(report, cases=tuple(replace(c, **changes) if c.id in wanted else c for c in report.cases))

    return change


def is_native(case: CaseRecord) -> bool:
    return case.reason is Reason.NATIVE and case.level != "core" and case.adaptive


def is_emulated(case: CaseRecord) -> bool:
    return case.reason is Reason.EMULATED


def is_undeclared(case: CaseRecord) -> bool:
    return case.reason is Reason.UNDECLARED


def is_unsupported(case: CaseRecord) -> bool:
    return case.reason is Reason.UNSUPPORTED


def is_operator(case: CaseRecord) -> bool:
    return case.area == "operators" and case.outcome is Outcome.PASS


# Names: empty, hidden, look-alike, another's.
for spoken, text in {
    "empty": "",
    "blank": " ",
    "of CUDA": "cuda",
    "in capitals": "CUDA",
    "with a comment": "cuda (vendor)",
    "of the CPU": "cpu",
    "of the published column": "sim (upstream)",
    "of the CPU's published column": "cpu (upstream)",
    "with a digit": "c0da",
    "of one letter more": "simm",
    "of another vendor": "acme",
    "with a prefix": "my sim",
    "with a Cyrillic letter": "s\u0456m",
    "in Cyrillic": "\u0441\u0440\u0443",
    "with a Greek letter": "\u03c5pu",
    "in wide letters": "\uff53\uff49\uff4d",
    "with a dotless letter": "s\u0131m",
    "with a mathematical letter": "\U0001d42cim",
    "with a space that has no width": "sim\u200b",
    "with a space that has no width inside": "s\u200bim",
    "read from right to left": "\u202emis",
    "with a blank at its end": "sim ",
    "with a tab": "sim\tone",
    "with a line end": "sim\nsupa",
    "with an escape sequence": "sim\x1b[2K",
    "with a soft hyphen": "si\u00adm",
    "with a byte order mark": "\ufeffsim",
    "with an unusual blank": "sim\u00a0one",
}.items():
    attack("G17", f"a name {spoken}", accelerator(name=text))
for field in ("spec", "device"):
    attack("G17", f"no {field}", accelerator(**{field: ""}))
    attack("G17", f"a blank {field}", accelerator(**{field: "  "}))
    attack("G17", f"an invisible character in the {field}", accelerator(**{field: "sim\u2060"}))
for field in ("communication_backend", "driver", "runtime", "package"):
    attack("G17", f"an invisible character in the {field}", accelerator(**{field: "1.2\u200d"}))
attack("G17", "an invisible character in the device's name", accelerator(device_names=("Acme\u200b One",)))
attack("G17", "an invisible character in the run's id", run(id="new\u200b"))
attack("G17", "an invisible character in the command line", typed("--color\u200b=no"))
attack("G17", "an invisible character in a fact", facts(system="Linux\u200b"))
attack("G17", "an invisible character in a claim", claim(DeclaredCell("stre\u00adam", "unsupported", "not-yet")))
attack("G17", "a spec that was not typed", accelerator(spec="cuda", name="cuda"))
attack("G17", "another spec and name, and the typed one left", accelerator(spec="acme", name="acme", device="acme:0"))
attack("G17", "a command line for another accelerator", typed("--accelerator=cuda"))
attack("G17", "a command line in two words", typed("--accelerator", "supa"))
attack("G17", "another device", accelerator(device="cuda:0"))
attack("G17", "the host as the device", accelerator(device="cpu"))
attack("G17", "the report of another accelerator than the required one", lambda report: report, accelerator="supa")

# Verdicts that the declaration does not lead to.
attack("G08", "claimed to under-declared", cases(is_native, outcome=Outcome.SKIP, reason=Reason.UNDER_DECLARED))
attack(
    "G08",
    "all operators to under-declared",
    cases(is_operator, None, outcome=Outcome.SKIP, reason=Reason.UNDER_DECLARED),
)
for reason in (Reason.UNDECLARED, Reason.UNSUPPORTED):
    attack("G08", f"claimed to {reason.value}", cases(is_native, outcome=Outcome.SKIP, reason=reason))
    attack("G08", f"all operators to {reason.value}", cases(is_operator, None, outcome=Outcome.SKIP, reason=reason))
for reason in (Reason.NATIVE, Reason.EMULATED):
    passing = {"outcome": Outcome.PASS, "reason": reason, "message": "", "metrics": {}}
    attack("G08", f"undeclared to {reason.value}", cases(is_undeclared, **passing))
    attack("G08", f"all undeclared to {reason.value}", cases(is_undeclared, None, **passing))
    attack("G08", f"unsupported to {reason.value}", cases(is_unsupported, **passing))
    attack("G08", f"all unsupported to {reason.value}", cases(is_unsupported, None, **passing))
attack("G08", "undeclared to unsupported", cases(is_undeclared, reason=Reason.UNSUPPORTED, metrics={}))
attack("G08", "unsupported to undeclared", cases(is_unsupported, reason=Reason.UNDECLARED))
attack("G08", "undeclared to under-declared", cases(is_undeclared, reason=Reason.UNDER_DECLARED))
attack("G08", "native to emulated", cases(is_native, reason=Reason.EMULATED))
attack("G08", "emulated to native", cases(is_emulated, reason=Reason.NATIVE))
attack("G08", "all emulated to native", cases(is_emulated, None, reason=Reason.NATIVE))
attack("G08", "the core denied", claim(DeclaredCell("rng", "unsupported", "not-yet", "no")))
attack("G08", "a claim without a cell", claim(DeclaredCell("", "supported", "native")))
for state, detail in (
    ("Supported", "native"), ("supported ", "native"), ("", ""), ("perhaps", ""),
    ("supported", "fast"), ("supported", "hardware"), ("unsupported", "native"), ("unsupported", "later"),
):  # fmt: skip
    attack("G08", f"a claim in other words: {state!r} {detail!r}", claim(DeclaredCell("graph.x", state, detail)))
attack("G08", "notes of a run that has none", run(strictness="certify"))
attack("G06", "all claims to environment", cases(is_operator, None, outcome=Outcome.SKIP, reason=Reason.ENVIRONMENT))

# Failures that became passes, and kept their evidence.
attack("G18", "a failure's message", cases(is_native, message="max_budget_ratio 3100: 17 of 64 elements differ"))
attack("G18", "a failure's command", cases(is_native, repro="pytest --accelerator=sim --case x"))
for ratio in (3_100.0, 1.01, 1e308, -1.0, "nan"):
    for metric in ("max_budget_ratio", "error_of_bound"):
        attack("G18", f"a failure's {metric} {ratio}", cases(is_native, metrics={metric: ratio}))
attack("G18", "an unclaimed case's probe", cases(is_native, metrics={"probe": "wrong"}))
attack("G18", "a waived failure's reason", cases(is_native, metrics={OBSERVED: "wrong"}))
attack("G18", "the bytes that the host computed", cases(is_native, metrics={"host_bytes": 4_096}))
attack("G18", "a failure's command on a skip", cases(is_undeclared, repro="pytest --case x"))
attack("G18", "a result of the probe on a refusal", cases(is_unsupported, metrics={"probe": "wrong"}))
attack(
    "G06",
    "a failure to a stale waiver that nobody has",
    cases(is_native, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE),
)
attack(
    "G18",
    "a failure to a stale waiver, with its evidence",
    in_turn(
        typed("--waivers=waivers.toml"),
        cases(is_native, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE, metrics={"max_budget_ratio": 3_100.0}),
    ),
)

# The run and its command line.
attack("G12", "the profile core, chosen by the vendor", run(profile="core"))
attack("G12", "a smaller profile, chosen by the vendor", in_turn(run(profile="training"), invocation(argv=())))
attack("G12", "a profile that was not typed", typed("--profile=distributed"))
attack("G12", "a profile that nobody named", run(profile=None))
attack("G12", "a strictness that was not typed", typed("--strictness", "bring-up"))
attack("G12", "a challenge that was not typed", typed("--challenge=another-nonce"))
attack("G12", "the nonce of a challenge without its seed", invocation(challenge="a-new-nonce"))
for number in (2**62, 10**6, 1_000, -1, -(2**62)):
    attack("G12", f"{number} workers", invocation(workers=number))
attack("G12", "workers that were not typed", typed("-n8"))
attack("G12", "workers that were not typed, in two words", typed("--numprocesses", "8"))

# Times.
attack("G13", "no time", lambda report: run(finished=report.run.started)(report))
attack(
    "G13",
    "no time for each case, and for the run",
    in_turn(lambda report: run(finished=report.run.started)(report), cases(lambda _: True, None, seconds=1e-6)),
)
attack("G13", "no time for each case", cases(lambda _: True, None, seconds=0.0))
attack("G13", "no time for one case", cases(is_native, seconds=0.0))
attack("G13", "more time than there was", cases(is_native, seconds=3_600.0))
attack("G13", "an absurd time", cases(is_native, seconds=1e300))
attack("G13", "a date in 2099", run(started="2099-01-01T00:00:00+00:00", finished="2099-01-01T01:00:00+00:00"))
attack("G13", "an end in 2099", run(finished="2099-01-01T01:00:00+00:00"))
attack("G13", "a date in 1970", run(started="1970-01-01T00:00:00+00:00", finished="1970-01-01T01:00:00+00:00"))
attack("G13", "a start in 1970", run(started="1970-01-01T00:00:00+00:00"))
attack("G13", "no start", run(started=""))
attack("G13", "no end", run(finished=""))
attack("G13", "the year 0", run(started="0000-01-01T00:00:00+00:00"))

# The machine.
for number in (0, -1, 2**62, 0.5, "RuntimeError: no devices"):
    attack("G15", f"{number} devices", accelerator(devices=number))
attack("G15", "more kinds of devices than devices", accelerator(device_names=("One", "Two", "Three")))
for name in ("python", "system", "torch"):
    attack("G15", f"no {name}", facts(**{name: None}))
    attack("G15", f"an empty {name}", facts(**{name: ""}))
attack("G15", "no environment", lambda r: replace(r, environment=replace(r.environment, facts={})))
attack("G15", "two versions of torch", facts(torch="2.12.0"))
attack("G15", "two names of torch", facts(Torch="2.12.0"))
attack("G15", "an accelerator without torch", accelerator(torch=""), "G03")
for number in (0, -2, 2**62, "many"):
    attack("G15", f"{number} cores", facts(cores=number))
attack("G15", "4096 ranks on one device", cases(lambda case: case.ranks == 2, ranks=4_096))
attack("G15", "ranks of a case that has none", cases(is_native, ranks=64))
attack("G15", "one rank of a case that has two", cases(lambda case: case.ranks == 2, ranks=1))
attack("G15", "no ranks", cases(is_native, ranks=0))

# Signers.
for bound in (("supa",), ("supa", "cuda*"), ()):
    attack(
        "G14",
        f"a key of another vendor, for {bound}",
        lambda report: report,
        signature=SignatureCheck("eve@other.example", accelerators=bound),
    )


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: ascii(f"{one.rule}-{one.name}").replace(" ", "-"))
def test_an_edit_is_refused_by_the_rule_for_it(one: Attack) -> None:
    forged = mended(one.change(honest()))

    decision = judged(forged, **(one.evidence or {}))

    assert one.rule in rules_of(decision)
    assert one.also <= rules_of(decision)


def test_there_are_a_hundred_attacks_and_each_has_a_name() -> None:
    assert len({(one.rule, one.name) for one in ATTACKS}) == len(ATTACKS) >= 100


def test_the_attacks_on_verdicts_are_refused_on_every_published_report() -> None:
    for name in ("cpu", "supa"):
        for one in ATTACKS:
            if one.rule in ("G08", "G18"):
                forged = mended(one.change(honest(name)))
                assert one.rule in rules_of(judged(forged, honest_manifest(name))), (name, one.name)


def test_a_failure_that_becomes_a_pass_keeps_its_traces() -> None:
    """A careful forger mends the counts; each trace that stays is enough."""
    failing = cases(
        is_native,
        outcome=Outcome.FAIL,
        reason=Reason.WRONG,
        message="17 of 64 elements differ",
        repro="pytest --accelerator=sim --case x",
        metrics={"max_budget_ratio": 3_100.0},
    )(honest())
    id = next(case.id for case in failing.cases if case.outcome is Outcome.FAIL)
    for kept in ("message", "repro", "metrics"):
        emptied = {name: empty for name, empty in (("message", ""), ("repro", ""), ("metrics", {})) if name != kept}
        forged = cases(lambda case: case.id == id, outcome=Outcome.PASS, reason=Reason.NATIVE, **emptied)(failing)
        assert rules_of(judged(mended(forged))) == {"G18"}


@pytest.mark.parametrize("name", ["new-id", "its-own-id"])
def test_a_replay_with_new_times_is_refused(name: str) -> None:
    accepted = earlier(honest())
    new = {"started": honest().run.started, "finished": honest().run.finished}
    replayed = replace(accepted, run=replace(accepted.run, id=accepted.run.id if name == "its-own-id" else name, **new))

    assert rules_of(judged(replayed, baseline=accepted)) == {"G13"}


# --- honest reports are accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "sim", "supa"])
def test_the_published_reports_are_accepted(name: str) -> None:
    report = published(name)
    end = datetime.fromisoformat(report.run.finished)

    decision = judged(report, manifest_of(report), now=end + DAY)

    assert decision.findings == ()
    assert decision.met == decision.due == report.totals.passed


def test_a_newer_run_of_the_same_accelerator_is_accepted() -> None:
    assert judged(honest(), baseline=earlier(honest())).findings == ()


def test_the_baseline_itself_is_accepted_with_a_note() -> None:
    assert rules_of(judged(honest(), baseline=honest())) == set()


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


def test_a_run_with_a_challenge_is_accepted() -> None:
    nonce = "0123456789abcdef"
    report = invocation(challenge=nonce, seed=seed_of_challenge(nonce))(typed(f"--challenge={nonce}")(honest()))

    assert judged(report).findings == ()
    assert judged(report, challenge=nonce).findings == ()


def test_a_run_with_another_torch_is_accepted_with_its_manifest() -> None:
    report = mended(in_turn(accelerator(torch="2.7.1+vendor"), facts(torch="2.7.1+vendor"))(honest()))

    assert judged(report, manifest_of(report)).findings == ()
    assert rules_of(judged(report)) == {"G03"}


def test_a_run_with_waivers_is_accepted_and_says_how_many_failures_are_waived() -> None:
    waived = cases(is_native, 4, outcome=Outcome.SKIP, reason=Reason.WAIVED, metrics={OBSERVED: "wrong"})(honest())
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
    stale = cases(is_native, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE, message="passes, yet it is waived")
    report = mended(in_turn(typed("--waivers", "waivers.toml"), stale)(honest()))

    assert judged(report).findings == ()


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
    argv = (f"--accelerator={spec}", "-q")
    report = in_turn(accelerator(name=name, spec=spec, device=device), invocation(argv=argv))(honest())

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

    assert decision.unchecked == ("whether a device computed the results (conformance challenge, or your own run)",)


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
