"""Generated forgeries of the published reports: those that the gate accepts are counted, and none of them matters."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from conformance.reports.model import Report
from conformance.reports.profiles import PROFILES, find_profile
from conformance.reports.verdict import Outcome, Reason
from tests.layers import longer

from . import honest
from .forgeries import Forgery, forgeries

#: One of so many cases stays in the reports that are forged: the rules see each kind of case, and a run takes seconds.
SAMPLE, SMALL_SAMPLE = 60, 240
PAIRS = (("cpu", "sim"), ("sim", "supa"), ("supa", "cpu"))
FORGED = longer([(*PAIRS[0], SMALL_SAMPLE), *((*pair, SAMPLE) for pair in PAIRS)])
#: Edits that the gate accepts, each with the reason why it cannot or need not refuse them.
ACCEPTED = {
    # The signer answers for facts that no other part of the file repeats; --fingerprint compares all of the machine's.
    "run.id:*": "any text is a name for a run; --baseline finds a replay",
    "run.suite.commit:*": "a commit that could be one",
    "run.suite.files_sha256:*": "any hash could be that of a release; `not checked` says if it is not this suite's",
    "accelerator.torch_build:*": "what the accelerator says of itself; --fingerprint compares it",
    "environment.plugins:*": "names of installed packages; --fingerprint compares them",
    "run.*: of another report": "dates and workers of an honest run fit the cases of another one",
    "run: replaced by another report's": "refused where the command line is another accelerator's",
    "run.invocation.argv:*": "options may come from PYTEST_ADDOPTS, so an empty command line is honest",
    "run.invocation.seed: one higher": "only a challenge shows which numbers were used",
    "run.invocation.workers:*": "without -n the file alone says it",
    "accelerator.name: *": "a name that begins with the spec is the accelerator's own; --accelerator compares it",
    "accelerator.device*:*": "what the accelerator says of itself",
    "accelerator.communication_backend:*": "what the accelerator says of itself",
    "accelerator.driver:*": "what the accelerator says of itself",
    "environment.facts.cores: one higher": "facts of the machine; --fingerprint compares them",
    "environment.facts.cores: a thousandfold": "facts of the machine; --fingerprint compares them",
    "environment.variables.*: *": "settings of the run; the rules check their options, --fingerprint compares them",
    "environment: replaced by another report's": "facts of another machine; --fingerprint compares them",
    "environment.facts.machine: *": "facts of the machine; --fingerprint compares them",
    "environment.facts.system: *": "facts of the machine; --fingerprint compares them",
    "environment.facts.python: with other digits": "facts of the machine; --fingerprint compares them",
    **{
        f"environment.facts.{package}: *": "a version that the rules cannot know; --fingerprint compares it"
        for package in ("numpy", "pytest", "pytest-xdist", "scikit-learn", "scipy")
    },
    "accounting.torn_lines: one higher": "a torn line that nobody wrote is no advantage",
    "accounting: replaced*": "equal in honest reports",
    "notes:*": "text for people",
    # Claims.
    "a claim *: reason *": "text for people",
    "a claim *: detail removed": "the same claim in other words",
    "a claim *: cell *": "a claim about a cell that no case of the smaller plan has",
    "a claim *: turned to *": "a claim about a cell that no case of the smaller plan has",
    "a claim *: removed": "a claim about a cell that no case of the smaller plan has",
    # Cases.
    "* case that is *: seconds *": "durations are checked together",
    "* case that is *: world_size of *": "the same number, or that of a case in one process",
    "* case that is *: max_abs 1e+300": "a number of float64, in which a case may have such an error",
    "* case that is *: metrics of *": "numbers that another case of the report could have; a challenge checks them",
    "* case that is *: metrics removed": "few areas have numbers in every case",
    "* case that is *: an_invented_metric *": "shown as it is; no rule reads it",
    "* case that is un*: message *": "text for people",
    "* case that is environment: message *": "text for people",
    "* case that is environment: turned to skip waived": "about a library that is not installed; in no percentage",
    "* case that is un*: turned to skip under-declared": "worse than the truth",
    "every case: *": "numbers that another case of the report could have; a challenge checks them",
}


@cache
def judged(who: str, other: str, sample: int) -> tuple[tuple[Forgery, frozenset[str]], ...]:
    """Return every forgery that differs from the honest report, with the rules that refuse it."""
    report, lender = sampled(who, sample), sampled(other, sample)
    manifest = honest.manifest_of(report)
    found = []
    for forgery in forgeries(report, lender):
        forged = honest.mended(forgery.report)
        if forged != report:
            found.append((forgery, frozenset(honest.rules_of(honest.judged(forged, manifest)))))
    return tuple(found)


@cache
def sampled(who: str, sample: int) -> Report:
    """Return a published run of a smaller plan: one of ``sample`` cases, and what shows forgeries in any plan.

    That is a case of the core, what the profile full requires, and a case of what the device lacks, if any. Waived
    cases are left out: the gate here has no waivers, and refuses an honest report for them.
    """
    unwaived = (case for case in honest.published(who).cases if case.reason is not Reason.WAIVED)
    cases = sorted(unwaived, key=lambda case: case.id)  # a report has them in the order of their costs
    due = {
        next(n for n, case in enumerate(cases) if need in case.requires and case.outcome is Outcome.PASS)
        for need in find_profile("distributed").needs
    }
    due.add(next(n for n, case in enumerate(cases) if PROFILES["core"].own(case) and case.outcome is Outcome.PASS))
    due |= set([n for n, case in enumerate(cases) if case.reason is Reason.UNSUPPORTED][:1])
    kept = tuple(case for n, case in enumerate(cases) if n % sample == 0 or n in due)
    return honest.mended(replace(honest.published(who), cases=kept))


@pytest.mark.parametrize(("who", "sample"), [(PAIRS[0][0], SMALL_SAMPLE), *((who, SAMPLE) for who, _ in PAIRS)])
def test_the_reports_that_are_forged_are_accepted(who: str, sample: int) -> None:
    report = sampled(who, sample)

    assert honest.judged(report, honest.manifest_of(report)).findings == ()


@pytest.mark.parametrize(("who", "other", "sample"), FORGED)
def test_a_generated_forgery_is_refused_or_cannot_matter(who: str, other: str, sample: int) -> None:
    accepted = [forgery.name for forgery, rules in judged(who, other, sample) if not rules]

    assert [name for name in accepted if not any(fnmatch.fnmatchcase(name, known) for known in ACCEPTED)] == []


@pytest.mark.parametrize(("who", "other", "sample"), FORGED)
def test_most_generated_forgeries_are_refused_each_by_several_rules(who: str, other: str, sample: int) -> None:
    outcomes = judged(who, other, sample)
    refused = Counter(rule for _, rules in outcomes for rule in rules)

    assert len(outcomes) > 500
    assert sum(bool(rules) for _, rules in outcomes) > 0.7 * len(outcomes)
    assert {"G03", "G05", "G08", "G12", "G13", "G15", "G17", "G18"} <= set(refused)
