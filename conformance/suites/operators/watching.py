"""Watching where a cell's first calls compute, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from conformance.finding import Reason, report
from conformance.numerics.placement import HostWork, Operand, Recording, host_work
from conformance.numerics.trees import tensors

from . import execution
from .execution import HOST, Sample


@dataclass
class Watch:
    """What the first calls that have something to show were seen to do. ``blind`` says why nothing could be seen."""

    device: torch.device
    left: int
    found: HostWork | None = None
    blind: str = ""

    def is_idle(self, given: Sequence[torch.Tensor]) -> bool:
        """On the host nothing can fall back to it, and a single element proves nothing."""
        uninformative = bool(given) and all(tensor.numel() < 2 for tensor in given)
        done = self.left == 0 or self.found is not None or bool(self.blind)
        return self.device.type == HOST.type or done or uninformative


@dataclass
class Session:
    """One profile of several calls. It begins with the first that is recorded; its failure changes no result."""

    recording: Recording | None = None
    regions: list[tuple[Watch, list[Operand]]] = field(default_factory=list)

    def run(self, watch: Watch, given: Sequence[torch.Tensor], compute):
        try:
            if self.recording is None:
                recording = Recording()
                recording.start()
                self.recording = recording
            region = self.recording.region()
        except Exception as error:  # a profiler that cannot start is no fault of the operator
            watch.blind = type(error).__name__
            return compute()
        watch.left -= 1
        self.regions.append((watch, [Operand.of(tensor) for tensor in given]))
        with region:
            return compute()

    def end(self) -> None:
        if self.recording is None:
            return
        try:
            self.recording.stop()
            device = self.regions[0][0].device.type
            seen = list(zip(self.regions, self.recording.calls(device), strict=True))
        except Exception as error:  # nor is one that does not tell what it saw
            for watch, _ in self.regions:
                watch.blind = type(error).__name__
            return
        for (watch, given), calls in seen:
            watch.found = watch.found or host_work(calls, device, given)


@dataclass
class Watches:
    """The forward and the backward of one cell."""

    forward: Watch
    backward: Watch
    session: Session | None = None

    @classmethod
    def on(cls, device: torch.device, calls: int) -> Watches:
        """Each side records up to ``calls`` calls."""
        return cls(Watch(device, calls), Watch(device, calls))

    @contextmanager
    def together(self) -> Iterator[None]:
        """One profile for all calls inside: beginning and ending one takes longer than most of them."""
        self.session = Session()
        try:
            yield
        finally:
            session, self.session = self.session, None
            session.end()

    def span(self, samples: Sequence[Sample]) -> int:
        """How many of these samples one profile has to span to see all forward calls that are to be recorded."""
        informative = 0
        for number, sample in enumerate(samples, 1):
            informative += not self.forward.is_idle(sample.tensors)
            if informative == self.forward.left:
                return number
        return 1 if informative == 0 else len(samples)

    def execute(self, function, sample: Sample, **extra):
        return self._run(self.forward, sample.tensors, lambda: execution.execute(function, sample, **extra))

    def gradients(self, outputs, inputs, cotangents):
        given = tensors([outputs, inputs, cotangents])
        return self._run(self.backward, given, lambda: execution.gradients(outputs, inputs, cotangents))

    def _run(self, watch: Watch, given: Sequence[torch.Tensor], compute):
        if watch.is_idle(given):
            return compute()
        if self.session is not None:
            return self.session.run(watch, given, compute)
        with self.together():
            return self._run(watch, given, compute)

    def report(self, check) -> None:
        """Say what could not be seen; end the case when something was computed on the host."""
        sides = {"": self.forward, "backward: ": self.backward}
        blind = [f"{side}{watch.blind}" for side, watch in sides.items() if watch.blind]
        if blind:
            check.metric("placement_not_seen", ", ".join(blind))
        for side, watch in sides.items():
            if watch.found:
                check.metric("host_bytes", watch.found.to_host + watch.found.from_host)
                report(Reason.FALLBACK, f"{side}{watch.found}")
