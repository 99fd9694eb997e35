"""Every way to end badly on ranks: one verdict with all ranks' evidence, the next case passes, nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.running import Run, run
from tests.harness.ranks import torture_cases

HERE = Path(__file__).parent
PASS, SKIP = ("pass", "native"), ("skip", "environment")
RAISED, WRONG = ("fail", "raised"), ("fail", "wrong")
CRASH, HANG, DISAGREEMENT = ("fail", "crash"), ("fail", "hang"), ("fail", "disagreement")

#: Name → verdict, what its message says, and how many seconds it may take beside the deadline of those that hang.
EXPECTED: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "raises_on_one": (RAISED, ("rank 1 of 2", "only rank 1 minds", "rank 0 passed")),
    "raises_while_others_wait": (RAISED, ("rank 1 of 2: ValueError: rank 1 never joins", "consequence", "rank 0")),
    "raises_on_all": (RAISED, ("everybody minds", "consequence")),
    "fails_by_pytest": (WRONG, ("rank 1 of 2: rank 1 says so",)),
    "asserts_without_words": (WRONG, ("of 2",)),
    "skips_on_all": (SKIP, ("no such thing here",)),
    "skips_by_unittest": (SKIP, ("no such thing here either",)),
    "skips_on_rank_0": (DISAGREEMENT, ("rank 0 skipped: rank 0 alone", "rank 1 has ended its body")),
    "skips_while_others_wait": (DISAGREEMENT, ("rank 1 skipped: rank 1 alone", "rank 0")),
    "skips_and_fails": (DISAGREEMENT, ("rank 0 skipped: rank 0 skips", "rank 1 failed: rank 1 fails")),
    "segfaults": (CRASH, ("rank 1 was killed by SIGSEGV", "Segmentation fault", "rank 0")),
    "segfaults_while_others_wait": (CRASH, ("rank 1 was killed by SIGSEGV", "consequence: rank 0")),
    "is_killed": (CRASH, ("rank 0 was killed by SIGKILL",)),
    "exits_72": (CRASH, ("rank 1 ended with exit status 72", "before its body returned")),
    "exits_0_early": (CRASH, ("rank 1 ended with exit status 0", "before its body returned")),
    "exits_0_on_all": (CRASH, ("exit status 0", "before its body returned")),
    "leaves_by_sys_exit": (RAISED, ("rank 1 of 2: SystemExit",)),
    "mismatched_calls": (HANG, ("rank 0 was in broadcast #2 float32[4]", "rank 1 was in recv")),
    "one_has_left": (
        HANG,
        ("cannot come together", "rank 0 is in all_reduce #2 float32[4]", "rank 1 has ended its body"),
    ),
    "sleeps": (
        HANG,
        ("no end before the deadline", "rank 1 was in all_reduce #1 float32[4]", "rank 0 was in the body"),
    ),
    "loops_with_the_gil": (HANG, ("rank 0 was in all_reduce #1 float32[4]", "rank 1 was in the body")),
    "prints_and_passes": (PASS, ()),
    "prints_and_fails": (WRONG, ("after all that was printed",)),
    "prints_without_end": (HANG, ("rank 1 was in the body",)),
    "wrong_on_one": (WRONG, ("rank 1 of 2: got 2.0", "rank 0 passed")),
    "differs_between_ranks": (DISAGREEMENT, ("result is not the same on all ranks", "[1.0, 0.0]", "[1.0, 1.0]")),
    "changes_the_default_dtype": (PASS, ()),
    "leaks_all_it_can": (PASS, ()),
    "computes_slowly": (PASS, ()),
    "leaves_a_thread": (PASS, ()),
    "leaves_a_process": (CRASH, ("exit status 3",)),
    "comes_back_from_a_fork": (WRONG, ("the rank itself has failed",)),
    "dies_with_shared_memory": (CRASH, ("SIGSEGV",)),
    "destroys_the_group_itself": (PASS, ()),
    "kills_the_zygote": (CRASH, ("was lost", "rank 0", "rank 1")),
}
#: Seconds a failure may take on a busy machine; without the pool's own findings each would take its deadline of 60.
PROMPT = 8.0


@pytest.fixture(scope="module", params=["-n0", "-n2"])
def torture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("torture")
    tests = shutil.copy(HERE / "torture_cases.py", folder / "test_torture_cases.py")
    return run("--accelerator=cpu", str(tests), request.param, cwd=folder, MARK_OF_THIS_RUN=str(folder))


def test_every_body_is_expected_somewhere() -> None:
    assert set(EXPECTED) == {body.__name__ for body in torture_cases.BODIES}


def test_every_case_has_one_verdict_and_the_next_one_passes(torture: Run) -> None:
    expected = {f"torture.{name}": verdict for name, (verdict, _) in EXPECTED.items()}
    following = {f"torture.after.{name}": PASS for name in EXPECTED}

    assert torture.verdicts == expected | following, torture.output
    assert torture.status == 1


def test_messages_tell_who_and_where(torture: Run) -> None:
    messages = torture.messages

    missing = [
        (name, text, messages[f"torture.{name}"])
        for name, (_, texts) in EXPECTED.items()
        for text in texts
        if text not in messages[f"torture.{name}"]
    ]
    assert not missing


def test_nobody_waits_for_a_deadline_that_is_decided(torture: Run) -> None:
    seconds = {case.id: case.seconds for case in torture.report.cases}

    slow = {id: s for id, s in seconds.items() if s > PROMPT + torture_cases.SHORT.get(id.split(".")[-1], 0)}
    # The first case of a process waits for the zygote, and one after its death for the next one.
    assert len([id for id in slow if "zygote" not in id and "raises_on_one" not in id]) == 0, slow


@pytest.mark.parametrize(
    "text",
    [
        '[rank 1]   File "',  # tagged tracebacks and stacks
        "in loops_with_the_gil",
        "in sleeps",
        "in segfaults",
        "only rank 1 minds",
        f"of {torture_cases.LINES} lines",
        "[rank 1] line 0 of rank 1",
        f"[rank 1] line {torture_cases.LINES - 1} of rank 1",
        "assert 0 == 7",
    ],
)
def test_the_report_shows(torture: Run, text: str) -> None:
    assert text in torture.output


def test_output_is_capped(torture: Run) -> None:
    assert len(torture.output) < 2_000_000


@pytest.mark.parametrize(
    ("name", "leaked"),
    [
        ("changes_the_default_dtype", {"default_dtype"}),
        ("leaks_all_it_can", {"environment", "folder", "module_path", "excepthook", "SIGTERM", "warning_filters",
                              "default_device", "grad_enabled"}),
        ("leaves_a_thread", {"threads"}),
    ],
)  # fmt: skip
def test_leaks_are_named(torture: Run, name: str, leaked: set[str]) -> None:
    metrics = {case.id: dict(case.metrics) for case in torture.report.cases}[f"torture.{name}"]

    assert set(str(metrics.get("leaked", "")).split(",")) == leaked


def test_nothing_is_left(torture: Run) -> None:
    assert leftovers(str(torture.folder.parent.parent)) == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith("torture-")] == []


def leftovers(mark: str) -> list[str]:
    """Command lines of processes that were started, directly or not, by the run in that folder."""
    found = []
    for process in os.listdir("/proc"):
        try:
            if process.isdigit() and mark.encode() in Path(f"/proc/{process}/environ").read_bytes():
                found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_leftovers_would_be_seen(tmp_path: Path) -> None:
    environment = {**os.environ, "MARK_OF_THIS_RUN": str(tmp_path)}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        found = leftovers(str(tmp_path))
        process.kill()

    assert found == ["sleep 60 "]
