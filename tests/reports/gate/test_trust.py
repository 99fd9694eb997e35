"""Forged files that show it themselves: each is refused by the rule that owns it, or is noted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from conformance.reports.gate.command_line import foreign_words
from conformance.reports.model import Report
from conformance.reports.names import fault_of, skeleton
from conformance.reports.profiles import PROFILES, profile_results
from conformance.reports.stack import with_fingerprint
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.model import WaiverKind

from . import world
from .edits import Change, accelerator, cases, facts, in_turn, invocation, is_native, run, typed
from .honest import DAY, earlier, honest, judged, manifest_of, mended, published, rules_of


def environment(**changes: object) -> Change:
    return lambda report: replace(report, environment=replace(report.environment, **changes))  # type: ignore[arg-type]


def suite(**changes: str) -> Change:
    return lambda report: run(suite=replace(report.run.suite, **changes))(report)


def kernels(**metrics: object) -> Change:
    """Change the metrics of every passed kernel case to native kernels with these; None removes one."""

    def change(report: Report) -> Report:
        def changed(case):  # type: ignore[no-untyped-def]
            if case.outcome is not Outcome.PASS or "implementation" not in case.metrics or case.area != "ops":
                return case
            known = {**case.metrics, **metrics}
            return replace(case, metrics={name: value for name, value in known.items() if value is not None})

        return replace(report, cases=tuple(map(changed, report.cases)))

    return change


def times(make: Callable[[float, int], float]) -> Change:
    return lambda report: replace(
        report,
        cases=tuple(
            replace(case, seconds=make(case.seconds, n)) if case.outcome is Outcome.PASS else case
            for n, case in enumerate(report.cases)
        ),
    )


#: Name, rule that owns it, and the edit. Counts, lists and hashes are made to fit afterwards.
FORGERIES: tuple[tuple[str, str, Change], ...] = (
    ("the origin of every kernel is deleted", "G20", kernels(implementation=None)),
    ("every kernel is of an unknown origin", "G20", kernels(implementation="unknown")),
    ("the comparisons of operators are deleted", "G20", cases(is_native, None, metrics={})),
    ("cases on ranks do not name their processes", "G20", lambda r: cases(_on_ranks, None, metrics={})(r)),
    ("cases passed on ranks without a backend", "G15", accelerator(communication_backend="")),
    ("a merged run of 16,384 processes", "G12", in_turn(run(id="merged-1"), invocation(workers=16_384, shards=2))),
    ("a merged run of no shards", "G12", in_turn(run(id="merged-1"), invocation(shards=0))),
    ("shards in a run that was not merged", "G12", invocation(shards=4)),
    ("every pass takes 1 ms", "G13", times(lambda _s, _n: 0.001)),
    ("an empty command line", "G12", invocation(argv=())),
    ("the judge gets other answers", "G12", typed("--challenge-answers=x")),
    ("nothing is run", "G12", typed("--collect-only")),
    ("own tests are run", "G12", typed("tests/mine.py")),
    ("a plugin on the command line", "G12", typed("-p", "my_patch")),
    ("a plugin without a blank", "G12", typed("-pmy_patch")),
    ("another file of settings", "G12", typed("-c", "evil.ini")),
    ("another folder of settings", "G12", typed("--rootdir=elsewhere")),
    ("a setting on the command line", "G12", typed("-o", "python_functions=check")),
    ("failures are run again", "G12", typed("--reruns=5")),
    ("a plugin in the environment", "G12", environment(variables={"PYTEST_ADDOPTS": "-p my_patch"})),
    ("a selection in the environment", "G12", environment(variables={"PYTEST_ADDOPTS": "-k add"})),
    ("a selection in pytest's settings", "G12", environment(variables={"addopts": "--deselect x"})),
    ("a module that nobody published", "G12", lambda r: environment(plugins=(*r.environment.plugins, "my_patch"))(r)),
    ("a conftest of the vendor", "G12", lambda r: environment(plugins=(*r.environment.plugins, "conftest.py"))(r)),
    ("no plugins at all", "G12", environment(plugins=())),
    ("a commit that is none", "G15", suite(commit="patched")),
    ("a hash of files that is none", "G15", suite(files_sha256="patched")),
    ("no hash of files", "G15", suite(files_sha256="")),
    ("no build of torch", "G15", accelerator(torch_build="")),
    ("a seed without the option", "G12", invocation(seed=77)),
    ("a CUDA device with a CPU build of torch", "G17", accelerator(name="cuda", spec="cuda", device="cuda:0")),
    ("a name of 5,000 letters", "G17", accelerator(name="a" * 5_000, spec="a:B")),
    ("a device of 5,000 letters", "G17", accelerator(device_names=("x" * 5_000,))),
    ("a hundred kinds of chips", "G17", accelerator(devices=200, device_names=tuple(map(str, range(100))))),
)


def _on_ranks(case):  # type: ignore[no-untyped-def]
    return case.outcome is Outcome.PASS and case.ranks > 1


@pytest.mark.parametrize(
    ("name", "rule", "change"), FORGERIES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_forgery_that_the_file_shows_is_refused(name: str, rule: str, change: Change) -> None:
    forged = mended(change(honest()))

    assert rule in rules_of(judged(forged)), name


def test_seventeen_thousand_cases_do_not_fit_into_a_second() -> None:
    report = published("cpu")
    finished = report.run.started.replace("+00:00", ".500000+00:00")
    merged = in_turn(run(id="merged-1", finished=finished), invocation(shards=2, workers=4))(report)
    quick = times(lambda s, _n: s / 10_000 + 0.00006)(merged)

    assert "G13" in rules_of(judged(mended(quick), manifest_of(report)))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("one microsecond more", lambda s: s + 1e-6),
        ("a constant more", lambda s: s + 0.25),
        ("a hundredth more", lambda s: s * 1.01),
        ("rounded", lambda s: round(s, 5) or s),
    ],
)
def test_a_baseline_is_recognised_under_other_durations(name: str, make: Callable[[float], float]) -> None:
    baseline = earlier(honest())
    new = run(id="new", started=honest().run.started, finished=honest().run.finished)(baseline)
    replayed = replace(new, cases=tuple(replace(case, seconds=make(case.seconds)) for case in new.cases))

    assert "G13" in rules_of(judged(replayed, baseline=baseline)), name


def test_speeds_of_a_baseline_are_recognised() -> None:
    chance, baseline = random.Random(3), earlier(published("sim"))
    new = run(id="new", started=honest().run.started, finished=honest().run.finished)(baseline)
    new = replace(new, cases=tuple(replace(c, seconds=c.seconds * chance.uniform(0.8, 1.0)) for c in new.cases))

    said = " ".join(f.sentence for f in judged(new, manifest_of(new), baseline=baseline).rejections)

    assert "measured speeds are those of the baseline" in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fifty cases", lambda r: mended(replace(r, cases=r.cases[:50]))),
        ("the core", lambda r: mended(replace(r, cases=tuple(c for c in r.cases if c.level == "core")))),
        ("wrong totals", lambda r: replace(r, totals=replace(r.totals, passed=r.totals.passed + 1))),
        ("a selection", invocation(selection=("-k",))),
    ],
)
def test_a_baseline_is_at_least_as_broad_as_the_report(name: str, change: Change) -> None:
    assert "G07" in rules_of(judged(honest(), baseline=change(earlier(honest())))), name


def test_a_baseline_of_another_stack_is_noted_with_what_differs() -> None:
    baseline = with_fingerprint(accelerator(driver="9.9", device_names=("Other",))(earlier(honest())))

    (note,) = judged(honest(), baseline=baseline).findings

    assert (note.rule, note.severity.value) == ("G15", "note")
    assert "driver 9.9 and (none)" in note.sentence
    assert "chips Other and Simulated accelerator" in note.sentence


@pytest.mark.parametrize(
    "change",
    [
        accelerator(driver="1"),
        accelerator(device_names=("B",)),
        accelerator(runtime="1"),
        accelerator(communication_backend="b"),
        accelerator(torch_build="b"),
        facts(cores=3),
        suite(files_sha256="0" * 64),
        environment(plugins=("mine 1",)),
        environment(variables={"OMP_NUM_THREADS": "1"}),
    ],
)
def test_the_fingerprint_is_of_the_whole_stack(change: Change) -> None:
    required = honest().environment.fingerprint_sha256
    other = mended(change(honest()))

    assert other.environment.fingerprint_sha256 != required
    assert "G15" in rules_of(judged(other, fingerprint=required))
    assert len({published(name).environment.fingerprint_sha256 for name in ("cpu", "sim", "supa")}) == 3


@pytest.mark.parametrize(
    "name",
    [
        "cuda\u1160", "cuda\u115f", "s\u4e28m", "acme: accepted by the gate", "acme accepted by the gate", "a" * 41,
        "a b c d e",
        "acme\u200d", "аcme", "acme (upstream)", "acme upstream", "acme ", " acme", "acme  one", "", "acme\nx",
        "ａｃｍｅ",
        "acme/..",
        "official acme", "acme-certified", "acme_verified", "丨", "a丨b",
    ],
)  # fmt: skip
def test_a_name_outside_the_grammar_is_refused(name: str) -> None:
    assert fault_of(name)
    assert "G17" in rules_of(judged(mended(accelerator(name=name, spec="acme:A")(honest()))))


@pytest.mark.parametrize("name", ["rnps", "cvda", "c-u-d-a", "CUDA", "s1m", "sirn", "5lm", "hpv", "npv"])
def test_a_name_that_looks_like_a_built_in_one_is_refused(name: str) -> None:
    forged = mended(accelerator(name=name, spec="acme:A", device="acme:0")(honest()))

    assert skeleton(name) in {skeleton(known) for known in ("mps", "cuda", "sim", "xpu", "hpu", "npu")}
    assert "G17" in rules_of(judged(forged))


@pytest.mark.parametrize(
    "name", ["acme", "Acme NPU", "supa stand-in", "MTT S4000", "deepspeed-cpu", "壁仞 BR100", "gaudi3", "heron_2"]
)
def test_an_honest_name_is_one(name: str) -> None:
    assert fault_of(name) == ""


def test_a_waived_error_may_not_grow_and_a_flaky_waiver_has_no_pattern() -> None:
    wrong = {"outcome": Outcome.FAIL, "reason": Reason.WRONG, "message": "2 ulp", "repro": "pytest"}
    report = mended(cases(is_native, 1, **wrong, metrics={"comparisons": 1, "max_budget_ratio": 2.0})(honest()))
    id = next(case.id for case in report.cases if case.outcome is Outcome.FAIL)
    grown = mended(cases(lambda c: c.id == id, 1, metrics={"comparisons": 1, "max_budget_ratio": 1e30})(report))
    today = judged(report).finished
    known = {"expires": (world.NOW + 300 * DAY).date()}

    def found(one: Report, **changes: object) -> set[str]:
        now = world.datetime.fromisoformat(today) + DAY
        waived = world.waiver(id, **{**known, "expires": now.date() + timedelta(days=30), **changes})  # type: ignore[arg-type]
        return rules_of(judged(one, manifest_of(one), waivers=(waived,)))

    assert found(report) == set()
    assert {"G06", "G10"} <= found(grown)
    assert found(grown, error=1e99) == set()
    assert [fault[:8] for fault in world.waiver("operators.*", kind=WaiverKind.FLAKY).faults(world.NOW.date())] == [
        "is flaky"
    ]


def test_training_in_a_dtype_cannot_be_withdrawn_in_silence() -> None:
    def withdrawn(case):  # type: ignore[no-untyped-def]
        axes = case.axes
        reduced = axes.get("dtype") in ("float16", "bfloat16") and axes.get("mode") == "training"
        if case.area == "operators" and reduced and case.outcome is Outcome.PASS:
            return replace(case, outcome=Outcome.SKIP, reason=Reason.UNDECLARED, metrics={})
        return case

    report = published("sim")
    less = replace(report, cases=tuple(map(withdrawn, report.cases)))

    assert report.badge == "full"
    assert less.badge == "inference"
    lacks = {result.name: result.lacks for result in profile_results(less.groups)}
    assert any("operators bfloat16 training 0 of" in lack for lack in lacks["training"])
    assert set(PROFILES) == set(lacks)


@pytest.mark.parametrize(
    "words",
    [
        ["--accelerator=cpu", "-n", "4", "-q", "-p", "no:cacheprovider"],
        ["--accelerator", "cpu", "-vv", "--durations=3", "--tb", "short", "-rA", "--color=no", "--resume"],
        ["--accelerator=cpu", "--junitxml=x.xml", "--conformance-report=r", "--waivers", "w.toml", "--time-budget=60"],
    ],
)
def test_honest_command_lines_have_no_foreign_word(words: list[str]) -> None:
    assert foreign_words(words) == []
