"""Forgeries by somebody who has a report with failures and wants it accepted, as data: what is written into the file.

``head`` are members by path. ``failed`` is what becomes of the cases that failed, ``passed`` of those that passed, and
``claims`` of the claims. Counts, lists and hashes are made to fit afterwards unless ``careless``. ``seen`` is False for
what one file cannot show: docs/gate.md says what does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PASS = {"outcome": "pass", "reason": "native"}
CLEAN = {**PASS, "message": "", "repro": ""}
GOOD = {**CLEAN, "metrics": {"comparisons": 12, "samples": 12, "max_abs": 1e-7, "max_budget_ratio": 0.2}}


def skip(reason: str) -> dict[str, Any]:
    return {"outcome": "skip", "reason": reason, "message": "", "repro": "", "metrics": {}}


@dataclass(frozen=True)
class Stranger:
    """Forgery of a report with failures."""

    name: str
    head: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    passed: dict[str, Any] = field(default_factory=dict)
    claims: str = ""
    careless: bool = False
    seen: bool = True


S = Stranger
STRANGERS: tuple[Stranger, ...] = (
    # Verdicts.
    S("only the outcome", failed={"outcome": "pass", "reason": "native"}),
    S("a pass that keeps the command", failed={**GOOD, "repro": "pytest --case x"}),
    S("a pass that keeps the message", failed={**GOOD, "message": "worked in the end"}),
    S("a pass without numbers", failed={**CLEAN, "metrics": {}}),
    S(
        "a pass with an exact budget of 1.0001",
        failed={**CLEAN, "metrics": {"comparisons": 9, "max_budget_ratio": 1.0001}},
    ),
    S("a pass with an error in words", failed={**CLEAN, "metrics": {"comparisons": 9, "max_budget_ratio": "small"}}),
    S("a pass with a negative error", failed={**CLEAN, "metrics": {"comparisons": 9, "max_budget_ratio": -0.1}}),
    S("a pass with the script of a failure", failed={**GOOD, "metrics": {**GOOD["metrics"], "script": "import torch"}}),
    S("a pass that compared nothing", failed={**CLEAN, "metrics": {"comparisons": 0, "max_budget_ratio": 0.1}}),
    S("a pass that compared half a thing", failed={**CLEAN, "metrics": {"comparisons": 0.5, "max_budget_ratio": 0.1}}),
    S("a pass in no time", failed={**GOOD, "seconds": 0.0}),
    S("a pass in negative time", failed={**GOOD, "seconds": -2.0}),
    S("an emulated pass", failed={**GOOD, "reason": "emulated"}),
    S("skipped for the environment", failed={**skip("environment"), "message": "no memory"}),
    S("skipped as unsupported", failed=skip("unsupported")),
    S("skipped as undeclared", failed=skip("undeclared")),
    S("skipped as waived", failed={**skip("waived"), "message": "bug", "metrics": {"observed": "wrong"}}),
    S("skipped as a stub", failed=skip("stub")),
    S("skipped as over-declared", failed=skip("over-declared")),
    S("a stale waiver", failed={"reason": "waiver-stale", "message": "", "repro": ""}),
    S("an expired waiver", failed={"reason": "waiver-expired"}),
    S("a failure of the suite", failed={"reason": "suite-error"}),
    S("under-declared", failed=skip("under-declared")),
    S("not about the device", failed={**GOOD, "about": "package"}),
    S("moved to the deep tier", failed={"tier": "deep"}),
    S("another area", failed={"area": "imported"}),
    S("not adaptive", failed={**GOOD, "adaptive": False}),
    S("in four processes", failed={**GOOD, "ranks": 4}),
    S("on four ranks", failed={**GOOD, "ranks": 4, "world_size": 4}),
    S("requires nothing", failed={**GOOD, "requires": []}),
    S("the failures are dropped", failed={"dropped": True}),
    S("the failures are lost", failed={"lost": True}),
    S("the failures are unknown to the plan", failed={**GOOD, "id": "operators.renamed[{n}]"}),
    # Claims.
    S("the claims are emptied", claims="emptied", failed=skip("undeclared")),
    S("what failed is denied without a reason", claims="denied-oddly", failed=skip("unsupported")),
    S("everything is on the host", claims="host"),
    S("a claim is written twice", claims="twice", failed=GOOD),
    S("a claim in other words", claims="words", failed=GOOD),
    # The run.
    S("careless", failed=GOOD, careless=True),
    S("a challenge that nobody asked for", head={"run.invocation.challenge": "0123456789abcdef"}, failed=GOOD),
    S("an invented seed", head={"run.invocation.seed": 123_456}, failed=GOOD),
    S("strictness of bring-up", head={"run.strictness": "bring-up"}, failed=GOOD),
    S("strictness of nobody", head={"run.strictness": "lenient"}, failed=GOOD),
    S("another profile", head={"run.profile": "core"}, failed=GOOD),
    S("no id", head={"run.id": " "}, failed=GOOD),
    S("an end before the start", head={"run.finished": "2020-01-01T00:00:00+00:00"}, failed=GOOD),
    S("no end", head={"run.finished": ""}, failed=GOOD),
    S(
        "dates without a zone",
        head={"run.started": "2026-11-25T08:00:00", "run.finished": "2026-11-25T09:00:00"},
        failed=GOOD,
    ),
    S("a date in words", head={"run.started": "yesterday"}, failed=GOOD),
    S(
        "a run of next year",
        head={"run.started": "2027-11-25T08:00:00+00:00", "run.finished": "2027-11-25T09:00:00+00:00"},
        failed=GOOD,
    ),
    S("an hour in a second", head={"run.finished": "{started}"}, failed=GOOD),
    S("negative workers", head={"run.invocation.workers": -1}, failed=GOOD),
    S("a million workers", head={"run.invocation.workers": 1_000_000}, failed=GOOD),
    S("ten thousand shards", head={"run.id": "merged-ab", "run.invocation.shards": 10_000}, failed=GOOD),
    S(
        "an own plugin",
        head={"environment.plugins": ["accelerator-conformance 0.1.0", "pytest-xdist 3.8.0", "judge"]},
        failed=GOOD,
    ),
    S("a hook in a variable", head={"environment.variables": {"PYTEST_PLUGINS": "judge"}}, failed=GOOD),
    S(
        "a fixture file",
        head={"run.invocation.argv": ["--accelerator=sim", "--profile=full", "--confcutdir=/x"]},
        failed=GOOD,
    ),
    S(
        "only what failed last",
        head={"run.invocation.argv": ["--accelerator=sim", "--profile=full", "--lf"]},
        failed=GOOD,
    ),
    S(
        "stops at the first failure",
        head={"run.invocation.argv": ["--accelerator=sim", "--profile=full", "-x"]},
        failed=GOOD,
    ),
    S(
        "another accelerator was typed",
        head={"run.invocation.argv": ["--accelerator=cpu", "--profile=full"]},
        failed=GOOD,
    ),
    S("another profile was typed", head={"run.invocation.argv": ["--accelerator=sim", "--profile=core"]}, failed=GOOD),
    # The stack.
    S("another version of the suite", head={"run.suite.version": "0.2.0"}, failed=GOOD),
    S("a commit with a word", head={"run.suite.commit": "v1-final"}, failed=GOOD),
    S("files of zeros and a letter", head={"run.suite.files_sha256": "0" * 63 + "g"}, failed=GOOD),
    S("another torch", head={"accelerator.torch": "2.12.0"}, failed=GOOD),
    S("torch of no version", head={"accelerator.torch": ""}, failed=GOOD),
    S("no device", head={"accelerator.devices": 0}, failed=GOOD),
    S("an error instead of devices", head={"accelerator.devices": "RuntimeError: none"}, failed=GOOD),
    S("a device that is not there", head={"accelerator.device": "sim:9"}, failed=GOOD),
    S("a device of another kind", head={"accelerator.device": "cuda:0"}, failed=GOOD),
    S("a name with a Greek letter", head={"accelerator.name": "sιm"}, failed=GOOD),
    S("a name in full width", head={"accelerator.name": "ｓｉｍ"}, failed=GOOD),
    S("a name with a verdict", head={"accelerator.name": "sim accepted"}, failed=GOOD),
    S("python of letters", head={"environment.facts.python": "three"}, failed=GOOD),
    S("cores of a galaxy", head={"environment.facts.cores": 10**7}, failed=GOOD),
    S("no system", head={"environment.facts.system": ""}, failed=GOOD),
    # All passes.
    S("one error for all", passed={"seconds": 0.002}, failed={**GOOD, "seconds": 0.002}),
    S("all are infinitely quick", passed={"seconds": 1e-9}, failed={**GOOD, "seconds": 1e-9}),
    S("all take a day", passed={"seconds": 86_400.0}, failed=GOOD),
    # What one file cannot show.
    S("every trace is replaced by good numbers", failed=GOOD, seen=False),
    S(
        "another driver and chip",
        head={"accelerator.driver": "9.9", "accelerator.device_names": ["Other"]},
        failed=GOOD,
        seen=False,
    ),
    S(
        "another id and day",
        head={"run.id": "fresh", "run.started": "2026-11-25T20:30:00+00:00"},
        failed=GOOD,
        seen=False,
    ),
    S("the files of the release", head={"run.suite.files_sha256": "ab" * 32}, failed=GOOD, seen=False),
    S("another build of torch", head={"accelerator.torch_build": "abcdef012345"}, failed=GOOD, seen=False),
)
