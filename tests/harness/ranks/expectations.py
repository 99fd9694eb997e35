"""Expected results of the bodies in torture_cases.py: verdict, text of the message, and largest duration."""

from __future__ import annotations

from dataclasses import dataclass

from tests.acceptance.running import Run
from tests.harness.ranks import torture_cases

PASS, SKIP = ("pass", "native"), ("skip", "environment")
RAISED, WRONG = ("fail", "raised"), ("fail", "wrong")
CRASH, HANG, DISAGREEMENT = ("fail", "crash"), ("fail", "hang"), ("fail", "disagreement")

#: Seconds on a quiet machine, without the start of the ranks. A case whose verdict is decided waits for nothing.
AT_ONCE, WITH_GRACE, PROVEN = 0.5, 1.5, 3.0
#: What 100,000 lines take to be written.
LONG_WINDED = 5.0


@dataclass(frozen=True)
class Expected:
    """Expected result of a body; ``seconds`` count from the deadline if only the deadline ends the body."""

    verdict: tuple[str, str]
    texts: tuple[str, ...] = ()
    seconds: float = AT_ONCE


EXPECTED: dict[str, Expected] = {
    "raises_on_one": Expected(RAISED, ("rank 1 of 2", "only rank 1 minds", "rank 0 passed")),
    "raises_while_others_wait": Expected(
        RAISED, ("rank 1 of 2: ValueError: rank 1 never joins", "consequence", "rank 0"), WITH_GRACE
    ),
    "raises_on_all": Expected(RAISED, ("everybody minds", "consequence")),
    "fails_by_pytest": Expected(WRONG, ("rank 1 of 2: rank 1 says so",)),
    "asserts_without_words": Expected(WRONG, ("of 2",)),
    "skips_on_all": Expected(SKIP, ("no such thing here",)),
    "skips_by_unittest": Expected(SKIP, ("no such thing here either",)),
    "skips_on_rank_0": Expected(DISAGREEMENT, ("rank 0 skipped: rank 0 alone", "rank 1 has ended its body")),
    "skips_while_others_wait": Expected(DISAGREEMENT, ("rank 1 skipped: rank 1 alone", "rank 0"), WITH_GRACE),
    "skips_and_fails": Expected(DISAGREEMENT, ("rank 0 skipped: rank 0 skips", "rank 1 failed: rank 1 fails")),
    "segfaults": Expected(CRASH, ("rank 1 was killed by SIGSEGV", "Segmentation fault", "rank 0")),
    "segfaults_while_others_wait": Expected(CRASH, ("rank 1 was killed by SIGSEGV", "consequence: rank 0"), WITH_GRACE),
    "is_killed": Expected(CRASH, ("rank 0 was killed by SIGKILL",), WITH_GRACE),
    "exits_72": Expected(CRASH, ("rank 1 ended with exit status 72", "before its body returned"), WITH_GRACE),
    "exits_0_early": Expected(CRASH, ("rank 1 ended with exit status 0", "before its body returned")),
    "exits_0_on_all": Expected(CRASH, ("exit status 0", "before its body returned")),
    "leaves_by_sys_exit": Expected(RAISED, ("rank 1 of 2: SystemExit",)),
    "mismatched_calls": Expected(HANG, ("rank 0 was in broadcast #2 float32[4]", "rank 1 was in recv"), WITH_GRACE),
    "one_has_left": Expected(
        HANG, ("cannot come together", "rank 0 is in all_reduce #2 float32[4]", "rank 1 has ended its body"), PROVEN
    ),
    "sleeps": Expected(
        HANG,
        ("no end before the deadline", "rank 1 was in all_reduce #1 float32[4]", "rank 0 was in the body"),
        WITH_GRACE,
    ),
    "loops_with_the_gil": Expected(
        HANG, ("rank 0 was in all_reduce #1 float32[4]", "rank 1 was in the body"), WITH_GRACE
    ),
    "prints_and_passes": Expected(PASS, seconds=LONG_WINDED),
    "prints_and_fails": Expected(WRONG, ("after all that was printed",), LONG_WINDED),
    "prints_without_end": Expected(HANG, ("rank 1 was in the body",), WITH_GRACE),
    "wrong_on_one": Expected(WRONG, ("rank 1 of 2: got 2.0", "rank 0 passed")),
    "differs_between_ranks": Expected(
        DISAGREEMENT, ("result is not the same on all ranks", "[1.0, 0.0]", "[1.0, 1.0]")
    ),
    "changes_the_default_dtype": Expected(PASS),
    "leaks_all_it_can": Expected(PASS),
    "computes_slowly": Expected(PASS, seconds=PROVEN),
    "leaves_a_thread": Expected(PASS, seconds=WITH_GRACE),
    "leaves_a_process": Expected(CRASH, ("exit status 3",), WITH_GRACE),
    "comes_back_from_a_fork": Expected(WRONG, ("the rank itself has failed",), WITH_GRACE),
    "dies_with_shared_memory": Expected(CRASH, ("SIGSEGV",)),
    "destroys_the_group_itself": Expected(PASS),
    "kills_the_fork_server": Expected(CRASH, ("was lost", "rank 0", "rank 1"), PROVEN),
}


def verdicts() -> dict[str, tuple[str, str]]:
    """Return the verdicts of all cases: the bodies, and the ordinary cases that follow them."""
    following = {f"torture.after.{name}": PASS for name in EXPECTED}
    return {f"torture.{name}": expected.verdict for name, expected in EXPECTED.items()} | following


def missing_texts(run: Run) -> list[tuple[str, str, str]]:
    """Return name, expected text and message of each case whose message lacks the text."""
    messages = run.messages
    return [
        (name, text, messages.get(f"torture.{name}", ""))
        for name, expected in EXPECTED.items()
        for text in expected.texts
        if text not in messages.get(f"torture.{name}", "")
    ]


def overdue(run: Run, allowance: float, processes: int) -> dict[str, float]:
    """Return the bodies that took longer than allowed, with their seconds.

    The first case of each of the ``processes`` waits for its fork server, so the slowest ones are left out.
    """
    seconds = {case.id.removeprefix("torture."): case.seconds for case in run.report.cases}
    late = {
        name: seconds[name]
        for name, expected in EXPECTED.items()
        if seconds[name] > allowance + expected.seconds + torture_cases.SHORT.get(name, 0)
    }
    return dict(sorted(late.items(), key=lambda item: item[1])[: max(0, len(late) - processes)])
