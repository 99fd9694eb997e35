"""False claims at random in a truthful declaration: what is made false, and what a run has to say about it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import parse_cell
from conformance.accelerators.declaration import Claim, ClaimSource, Declaration, Detail, State, supported, unsupported
from conformance.accelerators.registry import resolve
from conformance.plan.bundled import bundled_cases
from conformance.plan.case import Case
from conformance.reports.model import CaseRecord, Report
from conformance.reports.verdict import Outcome, Reason

from .lying_subjects import ON_HOST

STUBS = {"cpu": ("lazy-call", "rng.state"), "sim": ("lazy-call", "rng.state", "memory.stats")}
#: Probed without an answer on this machine: with one device, nothing can be said of several.
ABOUT_SEVERAL_DEVICES = ("device.multiple", "device.visibility", "rng.per-device")
PER_SEED = 20
HONEST = 40
#: Cells looked at before anything is made false: some that PyTorch's CPU has, and some that it has not.
POOL = 260
#: The same for a quick look.
FEW = 60


class Kind(Enum):
    """A way to lie."""

    OVER = "over"
    UNDER = "under"
    MODE = "wrong mode"
    DTYPE = "wrong dtype"
    STUB = "stub"
    FALLBACK = "host fallback"


#: How many of each kind a seed has, as far as there are candidates. The rest are denials of what works.
SHARES = {Kind.STUB: 2, Kind.FALLBACK: 3, Kind.MODE: 3, Kind.DTYPE: 4, Kind.OVER: 4}


@dataclass(frozen=True)
class Lie:
    """A false claim of one cell, the case that must name it, and the reason that it must give."""

    kind: Kind
    cell: Cell
    claim: Claim
    case: str
    reason: Reason


@dataclass(frozen=True)
class Candidate:
    """A cell, the case that is judged against its claim, and how that ended under a truthful declaration."""

    cell: Cell
    record: CaseRecord

    @property
    def works(self) -> bool:
        return self.record.outcome is Outcome.PASS

    @property
    def refusal(self) -> Reason | None:
        """How a claim of this cell has to fail, if it is not there."""
        saw = self.record.metrics.get("probe")
        return {
            "refused": Reason.OVER_DECLARED,
            "not implemented": Reason.OVER_DECLARED,
            "raised": Reason.RAISED,
            "stub": Reason.STUB,
        }.get(str(saw))

    @property
    def on_host(self) -> bool:
        """Whether it was seen to run on the host, as the truth says."""
        return self.record.reason is Reason.EMULATED and "host_bytes" in self.record.metrics

    @property
    def is_operator(self) -> bool:
        return self.cell.subject.startswith("operators.")


def truth(name: str) -> Declaration:
    """What is true of the stubbed accelerator: what the healthy one declares, without what is a stub."""
    reason = "the member does nothing"
    stubs = [(Cell(stub), unsupported(reason, Detail.NOT_YET, ClaimSource.FILE)) for stub in STUBS[name]]
    on_host = [(case.requires[0], supported(Detail.HOST, ClaimSource.FILE)) for case in _host_cases(name)]
    return resolve(name).static_declaration.overridden_by(Declaration.of([*stubs, *on_host]))


def _host_cases(name: str) -> list[Case]:
    """The cells of the operators that this accelerator computes on the host: none, where the host is the device."""
    if name == "cpu":
        return []
    subjects = {f"operators.{operator}" for operator in ON_HOST}
    cells = [one.case for one in bundled_cases(["operators"]) if one.case.adaptive and one.case.in_reference]
    return [case for case in cells if case.requires[0].subject in subjects]


def pool(name: str, draw: random.Random, size: int) -> list[Case]:
    """Every capability's probe, and operator cells of both sorts."""
    capabilities = [one.case for one in bundled_cases(["capabilities"]) if one.case.adaptive]
    cells = [one.case for one in bundled_cases(["operators"]) if one.case.adaptive]
    there = [case for case in cells if case.in_reference]
    absent = [case for case in cells if not case.in_reference]
    # Cells without gradients beside others with them are few; all of them are looked at.
    half = [case for case in absent if case.mode == "training" and _sibling(case, cells)]
    several = {} if name == "sim" else set(ABOUT_SEVERAL_DEVICES)
    kept = [case for case in capabilities if str(case.requires[0]) not in several]
    return [*kept, *half, *_host_cases(name), *draw.sample(there, size), *draw.sample(absent, size)]


def _sibling(case: Case, cells: Sequence[Case]) -> bool:
    wanted = Cell(case.requires[0].subject, case.dtype, "inference")
    return any(one.in_reference and one.requires[0] == wanted for one in cells)


def candidates(report: Report) -> list[Candidate]:
    """The cells of the run under the truth. The core cannot be lied away."""
    judged = [case for case in report.cases if case.adaptive and case.level != "core"]
    return [Candidate(parse_cell(case.requires[0]), case) for case in judged]


def invent(seed: int, found: Sequence[Candidate]) -> tuple[list[Lie], list[str]]:
    """The lies of one seed, and honest cases that must not be named."""
    draw = random.Random(seed)
    lies: list[Lie] = []
    used: set[Cell] = set()
    for kind in (*SHARES, Kind.UNDER):
        fresh = [one for one in found if one.cell not in used and _fits(kind, one)]
        chosen = draw.sample(fresh, min(SHARES.get(kind, PER_SEED - len(lies)), len(fresh)))
        lies += [_lie(kind, one) for one in chosen]
        used |= {one.cell for one in chosen}
    honest = [one.record.id for one in found if one.works and one.cell not in used]
    return lies, draw.sample(honest, HONEST)


def _fits(kind: Kind, one: Candidate) -> bool:
    if kind is Kind.FALLBACK or one.on_host:
        return kind is Kind.FALLBACK and one.on_host
    if kind is Kind.STUB:
        return one.refusal is Reason.STUB
    if kind is Kind.UNDER:
        return one.works
    if kind is Kind.MODE:
        # Gradients claimed where there are none, or denied where there are.
        return one.is_operator and one.cell.mode == "training" and (one.works or one.refusal is not None)
    absent = one.refusal in (Reason.OVER_DECLARED, Reason.RAISED)
    return absent and one.is_operator is (kind is Kind.DTYPE)


def _lie(kind: Kind, one: Candidate) -> Lie:
    if kind is Kind.FALLBACK:
        return Lie(kind, one.cell, supported(source=ClaimSource.FILE), one.record.id, Reason.FALLBACK)
    if one.works:
        claim = unsupported("it is said not to be there", Detail.HARDWARE, ClaimSource.FILE)
        return Lie(kind, one.cell, claim, one.record.id, Reason.UNDER_DECLARED)
    assert one.refusal is not None
    return Lie(kind, one.cell, supported(source=ClaimSource.FILE), one.record.id, one.refusal)


def told(declaration: Declaration, lies: Iterable[Lie]) -> Declaration:
    return declaration.overridden_by(Declaration.of((lie.cell, lie.claim) for lie in lies))


def named(report: Report) -> dict[str, Reason]:
    """What a run accuses."""
    return {case.id: case.reason for case in report.cases if case.outcome is Outcome.FAIL}


def states(declaration: Declaration) -> dict[Cell, tuple[State, Detail | None]]:
    """A declaration without its reasons."""
    cells = declaration.cells.items()
    return {cell: (claim.state, claim.detail) for cell, claim in cells if claim.state is not State.UNDECLARED}


def corrected(declaration: Declaration, lies: Iterable[Lie]) -> dict[Cell, tuple[State, Detail | None]]:
    """What a suggestion has to say: every lie taken back, and nothing else changed."""
    yes, no = (State.SUPPORTED, Detail.NATIVE), (State.UNSUPPORTED, Detail.NOT_YET)
    back = {lie.cell: yes if lie.claim.state is State.UNSUPPORTED else no for lie in lies}
    told_on = {lie.cell: (State.SUPPORTED, Detail.HOST) for lie in lies if lie.kind is Kind.FALLBACK}
    return {**states(declaration), **back, **told_on}
