"""Watching where a cell's first calls compute, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from conformance.finding import Reason, report
from conformance.numerics.placement import HostWork, Operand, Recording, host_work
from conformance.numerics.trees import tensors

from . import execution
from .execution import HOST, Sample


@dataclass
class Watch:
    """Records the first regions that have something to show. ``blind`` says why nothing could be recorded."""

    device: torch.device
    left: int
    found: HostWork | None = None
    blind: str = ""

    def run(self, given: Sequence[torch.Tensor], compute):
        """What ``compute`` returns; a profiler that fails changes nothing about it."""
        recording = None if self._is_idle(given) else self._recording()
        if recording is None:
            return compute()
        try:
            result = compute()
        finally:
            self._look(recording, given)
        return result

    def _is_idle(self, given: Sequence[torch.Tensor]) -> bool:
        """On the host nothing can fall back to it, and a single element proves nothing."""
        uninformative = bool(given) and all(tensor.numel() < 2 for tensor in given)
        done = self.left == 0 or self.found is not None or bool(self.blind)
        return self.device.type == HOST.type or done or uninformative

    def _recording(self) -> Recording | None:
        self.left -= 1
        try:
            recording = Recording()
            recording.start()
        except Exception as error:  # a profiler that cannot start is no fault of the operator
            self.blind = type(error).__name__
            return None
        return recording

    def _look(self, recording: Recording, given: Sequence[torch.Tensor]) -> None:
        try:
            recording.stop()
            calls = recording.calls(self.device.type)
        except Exception as error:  # nor is one that does not tell what it saw
            self.blind = type(error).__name__
            return
        self.found = host_work(calls, self.device.type, [Operand.of(tensor) for tensor in given])


@dataclass
class Watches:
    """The forward and the backward of one cell."""

    forward: Watch
    backward: Watch

    @classmethod
    def on(cls, device: torch.device, calls: int) -> Watches:
        """Each side records up to ``calls`` calls."""
        return cls(Watch(device, calls), Watch(device, calls))

    def execute(self, function, sample: Sample, **extra):
        return self.forward.run(sample.tensors, lambda: execution.execute(function, sample, **extra))

    def gradients(self, outputs, inputs, cotangents):
        given = tensors([outputs, inputs, cotangents])
        return self.backward.run(given, lambda: execution.gradients(outputs, inputs, cotangents))

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
