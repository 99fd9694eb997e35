"""Cases with a world size, inside pytest: the pool runs the body on ranks, and their outcomes become the verdict."""

from __future__ import annotations

import base64
import os
import pickle
import platform
import time
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from conformance.accelerators.proxy import unwrap
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks, Finding
from conformance.judging.observation import Observation, Observed, Seen
from conformance.judging.verdicts import judge, too_few_devices, too_few_ranks
from conformance.plan.case import Case, Isolation
from conformance.process.machine import MOST_SLOWDOWN, slowdown
from conformance.process.time_limits import case_seconds
from conformance.process.watchdog import Watchdog
from conformance.ranks.channel import Hello, Work
from conformance.ranks.device_locks import DeviceLocks, DevicesBusy, LockedDevices, lock_folder, physical_names
from conformance.ranks.outcome import CaseOutcome
from conformance.ranks.pool import START_TIMEOUT, ExecutionResult, Pool, PoolFailed, RankStart
from conformance.ranks.rank_main import RANK_SIDE
from conformance.reports.verdict import Reason, skipped
from conformance.runner.case_runner import CHECKER, VERDICT, answers_of, raise_outcome
from conformance.runner.collection import case_of
from conformance.runner.context import AcceleratorUnderTest, RunContext

OUTCOME = pytest.StashKey[CaseOutcome]()
#: Begin of the names of this suite's modules.
_SUITE = "conformance.suites."
_HAS_RANKS = platform.system() == "Linux"
#: Seconds that an execution may take beyond the case's deadline: for stacks, a grace period, and the tear-down.
_AFTER_THE_DEADLINE = 30.0
#: Seconds of a case's time that have to be left for a second try on fresh ranks.
_LEAST_FOR_A_SECOND_TRY = 10.0
#: Seconds that a case may wait for devices that ranks of other processes use.
_LOCK_TIMEOUT = 600.0


class RankCases:
    """Hooks that run the bodies of distributed cases on ranks. All other cases pass through untouched."""

    def __init__(self, context: RunContext, subject: AcceleratorUnderTest, watchdog: Watchdog) -> None:
        self._subject, self._watchdog, self._isolation = subject, watchdog, context.options.rank_isolation
        self._strictness = context.options.strictness
        file = context.options.capabilities
        options = context.options
        hello = Hello(
            context.accelerator.text, str(file) if file else None, [], 0, options.seed, challenge=options.challenge
        )
        self._pool = _pool(hello, context, subject)
        self._imports: frozenset[str] = frozenset()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = [item for item in session.items if _on_ranks(item)]
        # All at once: ranks that were forked before an import end with it, and what they have learnt of shapes too.
        self._imports = rank_imports(getattr(item, "module", None) for item in items)
        # Start early only where most cases run on ranks; elsewhere the fork server would compete with other cases.
        if _HAS_RANKS and 2 * len(items) >= len(session.items) > 0:
            self._pool.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        if _HAS_RANKS and nextitem is not None and _on_ranks(nextitem):
            self._pool.start()  # it imports torch while the case before it runs

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a case that has too few devices or ranks, and arm the watchdog for the pool."""
        case = case_of(item)
        if case is None or case.world_size is None:
            return
        accelerator = self._subject.accelerator
        provided = self._pool.most_ranks
        if provided is None:
            shared = _may_share(accelerator, self._subject.device)
            verdict = too_few_devices(case, _devices(accelerator), shared=shared)
        else:
            verdict = too_few_ranks(case, provided)
        if not _HAS_RANKS:
            verdict = skipped(Reason.ENVIRONMENT, "ranks need Linux, which forks, watches and ends them")
        if verdict:
            lacking = Observation(Seen.ENVIRONMENT, verdict.message)
            # Judged as an observation, because certify fails an undeclared cell that cannot be probed here.
            verdict = judge(case, self._subject.declaration, lacking, self._strictness)
            item.stash[VERDICT] = verdict
            raise_outcome(verdict, None)
        # The pool keeps the case's deadline; the watchdog guards the pool itself. A failed case may run a second time.
        executions = case_seconds() + 2 * _AFTER_THE_DEADLINE * MOST_SLOWDOWN
        self._watchdog.arm(_LOCK_TIMEOUT + START_TIMEOUT + executions)
        # The ranks make these fixtures, so pytest must not.
        item.funcargs.update(dict.fromkeys(RANK_SIDE - {"case"}))  # type: ignore[attr-defined]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the body on ranks and raise their common observation, unless it is right. Returns ``True`` when done."""
        case = case_of(pyfuncitem)
        if case is None or case.world_size is None:
            return None
        try:
            with self._devices(case) as devices:
                answers = answers_of(pyfuncitem, case)
                work = _work(pyfuncitem, case, None if answers is None else answers.claimed_text)
                result = self._run(work, case, devices)
        except PoolFailed as error:
            raise Finding(Reason.RAISED, str(error)) from None
        except DevicesBusy as error:
            raise EnvironmentLacks(str(error)) from None
        checker = Checker(answers)
        checker.count = result.count
        if answers is not None:
            answers.add(result.answers)
        checker.metrics.update(result.metrics)
        outcome = result.outcome
        pyfuncitem.stash[CHECKER], pyfuncitem.stash[OUTCOME] = checker, outcome
        if outcome.output:
            pyfuncitem.add_report_section("call", "on ranks", outcome.output)
        if outcome.observation.seen is not Seen.RIGHT:
            raise Observed(outcome.observation)
        return True

    def _run(self, work: Work, case: Case, devices: LockedDevices | None) -> ExecutionResult:
        """Run the case. If it fails on warm ranks, run it on fresh ranks too: an earlier case may be the cause."""
        assert case.world_size is not None
        # The option may raise a case's isolation, and never lower it.
        start = RankStart(self._isolation.at_least(case.isolation), dict(case.environment), self._imports)
        began = time.monotonic()
        result = self._pool.run(work, case.world_size, start, devices)
        left = case_seconds() - (time.monotonic() - began)
        if not result.suspects_earlier_case or left < _LEAST_FOR_A_SECOND_TRY:
            return result
        # Fresh ranks are forks: state of an earlier case cannot be in them.
        work = replace(work, deadline=min(work.deadline, left))
        fresh = self._pool.run(work, case.world_size, RankStart(Isolation.FORK, imports=self._imports), devices)
        if fresh.outcome.observation.seen is not Seen.RIGHT:
            return result
        observation = result.outcome.observation
        message = (
            f"{observation.message}\non fresh ranks it passes, so the cause may be state that an earlier case left: "
            f"{', '.join(result.before)}"
        )
        return replace(result, outcome=replace(result.outcome, observation=replace(observation, message=message)))

    def _devices(self, case: Case) -> AbstractContextManager[LockedDevices | None]:
        """Lock a device for each rank of the case, or nothing where ranks may share a device."""
        assert case.world_size is not None
        accelerator = self._subject.accelerator
        if self._pool.most_ranks is not None or _may_share(accelerator, self._subject.device):
            return nullcontext()
        names = physical_names(_devices(accelerator), _visible(accelerator))
        locks = DeviceLocks(lock_folder(str(self._subject.device.type)), names)
        return locks.lock(case.world_size, _LOCK_TIMEOUT, case.id)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace the frames of the pool in a failure by the details of the ranks."""
        report = yield
        outcome = item.stash.get(OUTCOME, None)
        if outcome is not None and report.when == "call" and report.failed:
            # The frames of the pool tell nothing about the case; the details have the frames of the ranks.
            report.longrepr = f"{outcome.observation.message}\n\n{outcome.details}"
        return report

    def pytest_sessionfinish(self) -> None:
        self._pool.close()


def _pool(hello: Hello, context: RunContext, subject: AcceleratorUnderTest) -> Pool:
    """Return a pool of ranks on this host, or of the ranks that torchrun has started."""
    endpoint = context.options.ranks_from
    if endpoint is None:
        return Pool(hello)
    from conformance.ranks.remote_pool import RemotePool

    return RemotePool(hello, endpoint, own_devices=not _may_share(subject.accelerator, subject.device))


def _on_ranks(item: pytest.Item) -> bool:
    case = case_of(item)
    return case is not None and case.world_size is not None


def rank_imports(modules: Iterable[ModuleType | None]) -> frozenset[str]:
    """Return what the fork server imports for the cases of these modules: what they list, and modules of this suite.

    Modules of other suites are imported by the ranks alone: nobody has said that they leave devices and threads alone.
    """
    found: set[str] = set()
    for module in filter(None, {*modules}):
        found.update(getattr(module, "RANK_IMPORTS", ()))
        if module.__name__.startswith(_SUITE):
            found.add(module.__name__)
    return frozenset(found)


def _work(item: pytest.Function, case: Case, claimed: str | None) -> Work:
    """Return the work that a rank needs to find and run this case. The pool fills in ranks and nonce."""
    function: Any = item.function
    return Work(
        nonce="",
        case_id=case.id,
        module=str(function.__module__),
        file=str(item.path),
        function=".".join(filter(None, (item.cls and item.cls.__qualname__, item.originalname))),
        rank=0,
        world_size=0,
        deadline=case_seconds(case.deadline * slowdown()),
        claimed=claimed,
        values=_pickled({name: item.funcargs[name] for name in item._fixtureinfo.argnames if name not in RANK_SIDE}),
    )


def _pickled(values: dict[str, Any]) -> str:
    """Return the values that the pytest process has made for the body, pickled. Raise Finding if one cannot be sent."""
    try:
        return base64.b64encode(pickle.dumps(values)).decode() if values else ""
    except Exception:  # noqa: BLE001 - any object may fail to be pickled in its own way
        name = next(name for name, value in values.items() if not _can_be_pickled(value))
    raise Finding(
        Reason.RAISED,
        f"fixture '{name}' returns a {type(values[name]).__name__}, which cannot be pickled for the ranks. "
        f"Return plain data, or make the value in the body; ranks make these: {', '.join(sorted(RANK_SIDE))}.",
    )


def _can_be_pickled(value: Any) -> bool:
    """Return whether ``value`` can be pickled. Any exception means no."""
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - see above
        return False
    return True


def _devices(accelerator: Any) -> int:
    """Return the number of the accelerator's devices, or 1 where it cannot be counted."""
    try:
        return int(accelerator.device_count())
    except Exception:  # noqa: BLE001 - other cases judge devices that cannot be counted; assume one
        return 1


def _visible(accelerator: Any) -> str:
    """Return the value of the first of its visibility variables that is set, or an empty string."""
    try:
        variables = accelerator.visible_devices_envs()
    except Exception:  # noqa: BLE001 - an accelerator without such variables numbers its devices itself
        return ""
    return next((os.environ[name] for name in variables if name in os.environ), "")


def _may_share(accelerator: Any, device: Any) -> bool:
    """Tell whether several ranks may use one device: the host's processor, or a device simulated on it."""
    return str(getattr(device, "type", "")) == "cpu" or bool(getattr(unwrap(accelerator), "simulated", False))
