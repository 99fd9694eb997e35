"""Cases with a world size, inside pytest: too few devices, the pool instead of the body, and the ranks' evidence."""

from __future__ import annotations

import base64
import os
import pickle
import platform
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from conformance.accelerators.proxy import unwrap
from conformance.case import Case, Isolation
from conformance.checker import Checker
from conformance.finding import EnvironmentLacks, Finding
from conformance.process.watchdog import Watchdog
from conformance.ranks.device_locks import DevicesBusy, Lease, Leases, lease_folder, physical_names
from conformance.ranks.messages import Hello, Work
from conformance.ranks.outcome import Finish
from conformance.ranks.pool import START_PATIENCE, Ended, Next, Pool, PoolFailed, Start
from conformance.ranks.rank_main import RANK_SIDE
from conformance.reports.verdict import Reason, skipped
from conformance.runner.case_runner import CHECKER, VERDICT, Subject
from conformance.runner.collection import case_of
from conformance.runner.context import Settings
from conformance.verdicts import Observed, Seen, too_few_devices, too_few_ranks

FINISH = pytest.StashKey[Finish]()
_HAS_RANKS = platform.system() == "Linux"
#: What a round may take beyond the case's deadline: stacks, a grace, giving back.
_AFTER_THE_DEADLINE = 30.0
#: How long a case may wait for devices that ranks of other processes use, in seconds.
_LEASE_PATIENCE = 600.0


class RankCases:
    """Runs the bodies of distributed cases on ranks. All other cases pass through untouched."""

    def __init__(self, settings: Settings, subject: Subject, watchdog: Watchdog) -> None:
        self._subject, self._watchdog, self._isolation = subject, watchdog, settings.options.rank_isolation
        file = settings.options.capabilities
        self._next: Case | None = None
        hello = Hello(settings.subject.text, str(file) if file else None, [], 0, settings.options.seed)
        self._pool = _pool(hello, settings, subject)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # Where most cases run on ranks the first one comes soon; elsewhere the zygote would compete with other cases.
        if _HAS_RANKS and 2 * sum(map(_on_ranks, session.items)) >= len(session.items) > 0:
            self._pool.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        self._next = case_of(nextitem) if nextitem is not None else None
        if _HAS_RANKS and nextitem is not None and _on_ranks(nextitem):
            self._pool.start()  # it imports torch while the case before it runs

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
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
            item.stash[VERDICT] = verdict
            raise pytest.skip.Exception(verdict.message, _use_item_location=True)
        # The pool keeps the case's deadline; the watchdog is for the pool itself. A second run may follow the first.
        self._watchdog.arm(_LEASE_PATIENCE + START_PATIENCE + 2 * (case.deadline + _AFTER_THE_DEADLINE))
        # pytest need not make what the ranks make.
        item.funcargs.update(dict.fromkeys(RANK_SIDE - {"case"}))  # type: ignore[attr-defined]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        case = case_of(pyfuncitem)
        if case is None or case.world_size is None:
            return None
        try:
            with self._devices(case) as devices:
                then = self._next_on_ranks()
                ended = self._run(_work(pyfuncitem, case), case, devices, _imports(pyfuncitem), then)
        except PoolFailed as error:
            raise Finding(Reason.RAISED, str(error)) from None
        except DevicesBusy as error:
            raise EnvironmentLacks(str(error)) from None
        if then is not None:
            self._pool.expect(then)
        checker = Checker()
        checker.count = ended.count
        checker.metrics.update(ended.metrics)
        pyfuncitem.stash[CHECKER] = checker
        pyfuncitem.stash[FINISH] = ended.finish
        if ended.finish.output:
            pyfuncitem.add_report_section("call", "on ranks", ended.finish.output)
        if ended.finish.observation.seen is not Seen.RIGHT:
            raise Observed(ended.finish.observation)
        return True

    def _run(self, work: Work, case: Case, devices: Lease | None, imports: frozenset[str], then: Next | None) -> Ended:
        """Run it; where it fails on warm ranks, once more on fresh ones, to say whose fault it may be."""
        assert case.world_size is not None
        start = Start(self._isolation.at_least(case.isolation), dict(case.environment), imports)
        ended = self._pool.run(work, case.world_size, start, devices, then)
        if not ended.owed_to_others:
            return ended
        fresh = self._pool.run(work, case.world_size, Start(Isolation.FORK, imports=imports), devices)
        if fresh.finish.observation.seen is not Seen.RIGHT:
            return ended
        seen = ended.finish.observation
        message = (
            f"{seen.message}\non fresh ranks it passes: it may be what an earlier case left: {', '.join(ended.before)}"
        )
        return replace(ended, finish=replace(ended.finish, observation=replace(seen, message=message)))

    def _next_on_ranks(self) -> Next | None:
        """What the pool may prepare; nothing where a rank has to know its leased device before it joins a group."""
        case = self._next
        if case is None or case.world_size is None or self._isolation.at_least(case.isolation) is not Isolation.REUSE:
            return None
        shared = _may_share(self._subject.accelerator, self._subject.device)
        return Next(case.world_size, case.deadline) if shared else None

    def _devices(self, case: Case) -> AbstractContextManager[Lease | None]:
        """The devices of its ranks, for nobody else meanwhile; nothing where ranks may share them."""
        assert case.world_size is not None
        accelerator = self._subject.accelerator
        if self._pool.most_ranks is not None or _may_share(accelerator, self._subject.device):
            return nullcontext()
        names = physical_names(_devices(accelerator), _visible(accelerator))
        leases = Leases(lease_folder(str(self._subject.device.type)), names)
        return leases.lease(case.world_size, _LEASE_PATIENCE, case.id)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        finish = item.stash.get(FINISH, None)
        if finish is not None and report.when == "call" and report.failed:
            # The frames of the pool say nothing; those of the ranks are in their evidence.
            report.longrepr = f"{finish.observation.message}\n\n{finish.details}"
        return report

    def pytest_sessionfinish(self) -> None:
        self._pool.close()


def _pool(hello: Hello, settings: Settings, subject: Subject) -> Pool:
    """Ranks of this host, or those that torchrun has started."""
    endpoint = settings.options.ranks_from
    if endpoint is None:
        return Pool(hello)
    from conformance.ranks.remote_pool import ProvidedPool

    return ProvidedPool(hello, endpoint, own_devices=not _may_share(subject.accelerator, subject.device))


def _on_ranks(item: pytest.Item) -> bool:
    case = case_of(item)
    return case is not None and case.world_size is not None


def _imports(item: pytest.Function) -> frozenset[str]:
    """What the module of a case says that its ranks import."""
    return frozenset(getattr(item.module, "RANK_IMPORTS", ()))


def _work(item: pytest.Function, case: Case) -> Work:
    function: Any = item.function
    return Work(
        nonce="",
        case_id=case.id,
        module=str(function.__module__),
        file=str(item.path),
        function=".".join(filter(None, (item.cls and item.cls.__qualname__, item.originalname))),
        rank=0,
        world_size=0,
        deadline=case.deadline,
        values=_pickled({name: item.funcargs[name] for name in item._fixtureinfo.argnames if name not in RANK_SIDE}),
    )


def _pickled(values: dict[str, Any]) -> str:
    """What the pytest process has made for the body. What cannot be sent is named."""
    try:
        return base64.b64encode(pickle.dumps(values)).decode() if values else ""
    except Exception:  # noqa: BLE001 - any object may fail to be pickled in its own way
        name = next(name for name, value in values.items() if not _can_be_pickled(value))
    raise Finding(
        Reason.RAISED,
        f"fixture '{name}' gives a {type(values[name]).__name__}, which cannot be sent to the ranks. "
        f"Let it return plain data, or make it in the body; ranks make these: {', '.join(sorted(RANK_SIDE))}.",
    )


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - see above
        return False
    return True


def _devices(accelerator: Any) -> int:
    try:
        return int(accelerator.device_count())
    except Exception:  # noqa: BLE001 - a device that cannot be counted is the finding of other cases; there is one
        return 1


def _visible(accelerator: Any) -> str:
    """What the first of its variables that is set makes visible."""
    try:
        variables = accelerator.visible_devices_envs()
    except Exception:  # noqa: BLE001 - an accelerator without such variables numbers its devices itself
        return ""
    return next((os.environ[name] for name in variables if name in os.environ), "")


def _may_share(accelerator: Any, device: Any) -> bool:
    """Whether several ranks may use one device: the host's processor, and what is simulated on it."""
    return str(getattr(device, "type", "")) == "cpu" or bool(getattr(unwrap(accelerator), "simulated", False))
