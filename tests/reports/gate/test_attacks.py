"""Edits of honest reports by a forger who mends every count, list and hash afterwards.

Each attack is refused by the rule that is for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from conformance.reports.gate.evidence import SignatureCheck
from conformance.reports.model import DeclaredCell
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import OBSERVED
from tests.layers import longer

from .edits import (
    Change,
    accelerator,
    cases,
    claim,
    facts,
    in_turn,
    invocation,
    is_emulated,
    is_float32,
    is_native,
    is_operator,
    is_undeclared,
    is_unsupported,
    run,
    typed,
)
from .honest import (
    earlier,
    honest,
    honest_manifest,
    judged,
    mended,
    rules_of,
)


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
for error in (1e300, float("inf")):
    attack("G18", f"an error of {error}", cases(is_float32, metrics={"max_abs": error}))
attack("G18", "a metric that is infinite", cases(is_native, metrics={"logit_error": float("inf")}))
attack("G18", "a metric that is no number", cases(is_native, metrics={"logit_error": float("nan")}))
attack("G18", "an unclaimed case's probe", cases(is_native, metrics={"probe": "wrong"}))
attack("G18", "a waived failure's reason", cases(is_native, metrics={OBSERVED: "wrong"}))
attack("G18", "the bytes that the host computed", cases(is_native, metrics={"host_bytes": 4_096}))
attack("G18", "the call of a failure", cases(is_native, metrics={"call": "{sample=0,form=out}"}))
attack("G18", "a failure's command on a skip", cases(is_undeclared, repro="pytest --case x"))
attack("G18", "a result of the probe on a refusal", cases(is_unsupported, metrics={"probe": "wrong"}))
attack(
    "G06",
    "a failure to a stale waiver that nobody has",
    cases(is_native, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE),
)
attack(
    "G18",
    "a failure to a stale waiver that does not say how it passed",
    in_turn(typed("--waivers=waivers.toml"), cases(is_native, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE)),
)
attack(
    "G08",
    "an emulated cell to a stale waiver of a native one",
    in_turn(
        typed("--waivers=waivers.toml"),
        cases(is_emulated, outcome=Outcome.FAIL, reason=Reason.WAIVER_STALE, metrics={OBSERVED: "native"}),
    ),
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
for seed in (-1, 0.5):
    attack("G12", f"the seed {seed}", invocation(seed=seed))
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


@pytest.mark.parametrize("name", longer(["cpu", "supa"]))
def test_the_attacks_on_verdicts_are_refused_on_every_published_report(name: str) -> None:
    for one in ATTACKS:
        if one.rule in ("G08", "G18"):
            forged = mended(one.change(honest(name)))
            assert one.rule in rules_of(judged(forged, honest_manifest(name))), one.name


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
        assert rules_of(judged(mended(forged))) - {"G20"} == {"G18"}


@pytest.mark.parametrize("name", ["new-id", "its-own-id"])
def test_a_replay_with_new_times_is_refused(name: str) -> None:
    accepted = earlier(honest())
    new = {"started": honest().run.started, "finished": honest().run.finished}
    replayed = replace(accepted, run=replace(accepted.run, id=accepted.run.id if name == "its-own-id" else name, **new))

    assert rules_of(judged(replayed, baseline=accepted)) == {"G13"}
