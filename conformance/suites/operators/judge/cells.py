"""A cell of the matrix while it runs: an operator in one dtype and mode on one device, and what was counted in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from conformance.judging.checker import Checker
from conformance.numerics.budgets import OpClass
from conformance.numerics.transfer import copied
from conformance.process import last_call
from conformance.reports.calls import fields_of
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import class_in, is_uninitialised
from conformance.suites.operators.calls.work import Work, work

from .aspects import Aspect
from .judging import Judge
from .watching import Watches

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Failure:
    """A failed call of an operator, as it was made on the host.

    ``aspect`` is what is wrong with it. Of numbers, ``allowed`` is a difference that does not show the failure.
    """

    call: Call
    info: Any
    aspect: Aspect = Aspect.OTHER
    allowed: float = 0.0


@dataclass
class Tally:
    """Numbers of one cell. All its judges count here, whatever their budgets are."""

    compared: int = 0  # samples
    worst: float = 0.0  # the largest absolute error
    ratio: float = 0.0  # the largest error in budgets
    host_ratio: float = 0.0  # the same of PyTorch's CPU, measured against the oracle
    drawn: set[int] = field(default_factory=set)  # numbers of the samples for which the operator drew random numbers
    drew_on_host: int = 0  # elements other than zero among the drawn results that cannot be compared one by one
    drew_on_device: int = 0
    current: Call | None = None  # the call that ran on the device last, or is compared
    info: Any = None  # the operator or kernel of which it is a call
    aspect: Aspect = Aspect.OTHER  # what the current comparison looks at
    allowed: float = 0.0  # a difference that does not show its failure
    selected: Failure | None = None  # the last call of a selection


@dataclass
class Cell:
    """An operator, a dtype and a device, with the policy by which its results are judged.

    Without ``values`` only metadata is compared: the operator returns uninitialised memory. ``only`` are the words of
    the calls that were selected; without words, all calls are. A call that is not selected runs on the host, and is not
    judged.
    """

    info: Any
    dtype: torch.dtype
    device: torch.device
    check: Checker
    op_class: OpClass
    watches: Watches
    values: bool = True
    samples: list[Call] = field(default_factory=list)
    only: Mapping[str, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    seed: int = 0  # of the random numbers of all families
    found: dict[str, Any] = field(default_factory=dict)
    place: torch.device = HOST  # the device with the index that tensors get
    deep: bool = False  # of the deep tier

    @classmethod
    def of(
        cls,
        info: Any,
        dtype: torch.dtype,
        device: torch.device,
        check: Checker,
        samples: list[Call],
        *,
        watched: int = 0,
        deep: bool = False,
    ) -> Cell:
        """Return the cell of an operator. ``watched`` calls in each direction are recorded, to see where they run."""
        return cls(
            info,
            dtype,
            device,
            check,
            class_in(info, dtype),
            Watches.on(device, watched),
            values=not is_uninitialised(info),
            samples=samples,
            only=fields_of(check.calls),
            seed=int(torch.randint(2**31, ())),
            place=copied(torch.zeros(1), device).device,
            deep=deep,
        )

    @property
    def judge(self) -> Judge:
        """Return the judge of this cell's results."""
        return Judge(self)

    @property
    def work(self) -> Work:
        """Return the amount of work of this cell."""
        return work(self.deep)

    @property
    def is_first_dtype(self) -> bool:
        """Return whether this is the one dtype of further calls: float32, or else int64, or else the first by name.

        In the deep tier every dtype has them.
        """
        usual = [kind for kind in (torch.float32, torch.int64) if kind in self.info.dtypes]
        return self.deep or self.dtype is (usual or sorted(self.info.dtypes, key=str))[0]

    @contextmanager
    def reporting_calls(self) -> Iterator[None]:
        """Report the call that fails, if one does."""
        try:
            yield
        except Exception:
            self.check.failed = self.failure()
            raise
        if self.only:
            self.check.failed = self.tally.selected

    def failure(self) -> Failure | None:
        """Return the call that runs or is compared now, as a failure."""
        tally, current = self.tally, self.tally.current
        if current is None:
            return None
        return Failure(current.origin or current, tally.info, tally.aspect, tally.allowed)

    def kept(self, name: str, make: Callable[[], Kept]) -> Kept:
        """Return what ``make`` has returned for this name in this cell, and call it the first time."""
        if name not in self.found:
            self.found[name] = make()
        kept: Kept = self.found[name]
        return kept

    @property
    def fixed(self) -> list[Call]:
        """Return the samples for which the operator draws no random numbers."""
        return [sample for sample in self.samples if sample.number not in self.tally.drawn]

    def of_class(self, op_class: OpClass) -> Cell:
        """Return this cell with the budgets of another class."""
        return replace(self, op_class=op_class)

    def of_kernel(self, kernel: Any) -> Cell:
        """Return this cell for a kernel behind the operator."""
        return replace(self, info=kernel)

    def on(self, call: Call) -> Call:
        """Return a copy of a call on the device; on the host, if the call is not selected."""
        selected = self.selects(call)
        last_call.note(call.noted, last_call.COPYING)
        try:
            found = call.on(self.device if selected else HOST)
        except Exception:
            self.note(call)  # what is refused is a copy of this call, and nothing of the one before
            raise
        if selected:
            self.note(found)
        return found

    def note(self, call: Call, aspect: Aspect = Aspect.OTHER, allowed: float = 0.0) -> None:
        """Keep a call as the one that runs or is compared now, and what is compared."""
        self.tally.current, self.tally.info = call, self.info
        self.tally.aspect, self.tally.allowed = aspect, allowed
        last_call.note(call.noted, last_call.READING)
        if self.only and self.selects(call):
            self.tally.selected = self.failure()

    def selects(self, call: Call) -> bool:
        """Return whether a call is judged: its words are those that were selected.

        Words with a sample are the whole identity of a call; without one they are some of its fields.
        """
        if not self.only:
            return True
        return self.only == call.words if "sample" in self.only else self.only.items() <= call.words.items()
