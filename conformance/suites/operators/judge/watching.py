"""Records of where a cell's first calls compute, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.judging.checker import Checker
from conformance.judging.finding import Reason, report
from conformance.numerics.placement import HostWork, Operand, Recording, host_work
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call


@dataclass
class Watch:
    """Host work found in the first informative calls of one direction (forward or backward).

    ``left`` is how many calls are still to be recorded. ``blind`` names the exception that prevented a recording.
    """

    device: torch.device
    left: int
    found: HostWork | None = None
    blind: str = ""

    def is_idle(self, given: Sequence[torch.Tensor]) -> bool:
        """Return whether a call with these tensors need not be recorded.

        The host cannot fall back to itself, and tensors of one element prove nothing: scalars live on the host.
        """
        uninformative = bool(given) and all(tensor.numel() < 2 for tensor in given)
        done = self.left == 0 or self.found is not None or bool(self.blind)
        return self.device.type == HOST.type or done or uninformative


@dataclass
class ProfileSession:
    """One profile that spans several calls.

    It begins with the first recorded call. A failure of the profiler changes no result of an operator.
    """

    recording: Recording | None = None
    regions: list[tuple[Watch, list[Operand]]] = field(default_factory=list)

    def run(self, watch: Watch, given: Sequence[torch.Tensor], compute: Callable[[], Any]) -> Any:
        """Return ``compute()``, recorded as a region of the profile if the profiler works."""
        try:
            if self.recording is None:
                recording = Recording()
                recording.start()
                self.recording = recording  # only now: end() must not stop a recording that never started
            region = self.recording.region()
        except Exception as error:  # a profiler that cannot start is not the operator's fault
            watch.blind = type(error).__name__
            return compute()
        watch.left -= 1
        self.regions.append((watch, [Operand.of(tensor) for tensor in given]))
        with region:
            return compute()

    def end(self) -> None:
        """Stop the profile and store the host work found in each region."""
        if self.recording is None:
            return
        try:
            self.recording.stop()
            device = self.regions[0][0].device.type
            recorded = list(zip(self.regions, self.recording.calls(device), strict=True))
        except Exception as error:  # neither is a profiler that loses its records
            for watch, _ in self.regions:
                watch.blind = type(error).__name__
            return
        for (watch, given), calls in recorded:
            watch.found = watch.found or host_work(calls, device, given)


@dataclass
class Watches:
    """Watches for the forward and the backward of one cell."""

    forward: Watch
    backward: Watch
    session: ProfileSession | None = None

    @classmethod
    def on(cls, device: torch.device, calls: int) -> Watches:
        """Return watches that record up to ``calls`` calls in each direction."""
        return cls(Watch(device, calls), Watch(device, calls))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Record all calls inside in one profile: starting and stopping a profile takes longer than most calls."""
        self.session = ProfileSession()
        try:
            yield
        finally:
            session, self.session = self.session, None
            session.end()

    def span(self, samples: Sequence[Call]) -> int:
        """Return how many of these samples one profile has to span to see all forward calls that are to be recorded."""
        informative = 0
        for number, sample in enumerate(samples, 1):
            informative += not self.forward.is_idle(sample.tensors)
            if informative == self.forward.left:
                return number
        # With nothing to record, a profile need not span more than one sample.
        return 1 if informative == 0 else len(samples)

    def execute(self, function: Any, sample: Call, **extra: Any) -> Any:
        """Call the operator on the device, recorded if the forward watch still needs calls."""
        return self._run(self.forward, sample.tensors, lambda: execution.execute(function, sample, **extra))

    def gradients(self, outputs: Any, inputs: Any, cotangents: Any) -> Any:
        """Run backward on the device, recorded if the backward watch still needs calls."""
        given = tensors([outputs, inputs, cotangents])
        return self._run(self.backward, given, lambda: execution.gradients(outputs, inputs, cotangents))

    def _run(self, watch: Watch, given: Sequence[torch.Tensor], compute: Callable[[], Any]) -> Any:
        """Compute under a watch, in the session that runs or in one of its own; an idle watch records nothing."""
        if watch.is_idle(given):
            return compute()
        if self.session is not None:
            return self.session.run(watch, given, compute)
        with self.together():
            return self._run(watch, given, compute)

    def report(self, check: Checker) -> None:
        """Report which direction could not be recorded; fail the case if something was computed on the host."""
        sides = {"": self.forward, "backward: ": self.backward}
        blind = [f"{side}{watch.blind}" for side, watch in sides.items() if watch.blind]
        if blind:
            check.metric("placement_not_seen", ", ".join(blind))
        for side, watch in sides.items():
            if watch.found:
                check.metric("host_bytes", watch.found.to_host + watch.found.from_host)
                report(Reason.FALLBACK, f"{side}{watch.found}")
