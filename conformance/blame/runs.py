"""Runs of a program: in this process, or on several ranks; on the device, and on the host."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from conformance.base.errors import SetupError
from conformance.numerics.compare import plain
from conformance.process.python import child_python

from .local import Local
from .program import Program
from .recording import Step, Trace
from .watching import Meet, Watched, outputs_of_run, watch

#: Seconds that a rank waits for another one, before it says at which call.
_PATIENCE = 60.0
_RANK = "from conformance.blame.runs import rank_main; rank_main()"

#: Ends of a run by name, on the host; or what was raised.
Ends = list[tuple[str, torch.Tensor]] | str


@dataclass
class Seen:
    """What the watched runs of all ranks have shown. The ends have the rank in their names, if there are several."""

    traces: list[Trace] = field(default_factory=list)
    judged: list[Local] = field(default_factory=list)
    ends: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    @property
    def wrong(self) -> list[Local]:
        """Return the calls whose results are wrong."""
        return [local for local in self.judged if local.wrong]

    @property
    def names(self) -> list[str]:
        """Return the names of the ends that the recorded calls have made, in the order of the traces."""
        several = len(self.traces) > 1
        return [_named(name, rank, several) for rank, one in enumerate(self.traces) for name, _ in one.ends]

    @property
    def places(self) -> list[Any]:
        """Return where these ends lie."""
        return [place for trace in self.traces for _, place in trace.ends]


def _named(name: str, rank: int, several: bool) -> str:
    return f"rank {rank}: {name}" if several else name


def seen(watched: Sequence[Watched]) -> Seen:
    """Return the watched runs of all ranks as one."""
    found = Seen(seconds=max(one.seconds for one in watched))
    for rank, one in enumerate(watched):
        found.traces.append(one.trace)
        for local in one.judged:
            local.rank = rank
        found.judged += one.judged
        found.ends += [(_named(name, rank, len(watched) > 1), on_host(value)) for name, value in one.ends]
        if one.error:
            found.error = found.error or _named(one.error, rank, len(watched) > 1)
    return found


def on_host(value: Any) -> torch.Tensor:
    """Return an end as a tensor on the host."""
    return plain(value).clone() if isinstance(value, torch.Tensor) else torch.as_tensor(value)


class Runs(Protocol):
    """Ways to run a program."""

    several: bool

    def watched(self, *, mended: bool = False) -> Seen:
        """Run on the device, watched; if ``mended``, wrong results are replaced by right ones."""

    def plain(self) -> Ends:
        """Run on the device without looking."""

    def host(self) -> Ends:
        """Run on the host."""

    def outputs(self) -> list[tuple[Step, list[bytes]]]:
        """Run on the device; return a digest of the outputs of each call."""


@dataclass
class LocalRuns:
    """Runs in this process."""

    program: Program
    device: torch.device
    seed: int = 0
    several: bool = False

    def watched(self, *, mended: bool = False) -> Seen:
        """Run on the device, watched."""
        return seen([watch(self.program, self.device, seed=self.seed, mended=mended)])

    def plain(self) -> Ends:
        """Run on the device without looking."""
        return ends_of(self.program, self.device, self.seed)

    def host(self) -> Ends:
        """Run on the host."""
        return ends_of(self.program, torch.device("cpu"), self.seed)

    def outputs(self) -> list[tuple[Step, list[bytes]]]:
        """Run on the device; return a digest of the outputs of each call."""
        return outputs_of_run(self.program, self.device, self.seed)


def ends_of(program: Program, device: torch.device, seed: int) -> Ends:
    """Run without looking; return the ends on the host, or what was raised."""
    try:
        return [(name, on_host(value)) for name, value in program.run(device, seed)]
    except Exception as error:  # noqa: BLE001  what the program raises is a result
        return f"{type(error).__name__}: {error}"


# --- ranks ------------------------------------------------------------------------------------------------------------


@dataclass
class RankRuns:
    """Runs on several ranks, each a process with a process group of the accelerator's backend."""

    program: str
    accelerator: str
    ranks: int
    seed: int = 0
    limit: float = 600.0
    several: bool = True

    def watched(self, *, mended: bool = False) -> Seen:
        """Run on the device, watched."""
        return seen(self._made("mended" if mended else "watched", self.accelerator))

    def plain(self) -> Ends:
        """Run on the device without looking."""
        return self._ends(self.accelerator)

    def host(self) -> Ends:
        """Run on the host."""
        return self._ends("cpu")

    def outputs(self) -> list[tuple[Step, list[bytes]]]:
        """Return the digests of rank 0."""
        found: list[tuple[Step, list[bytes]]] = self._made("outputs", self.accelerator)[0]
        return found

    def _ends(self, accelerator: str) -> Ends:
        found = self._made("plain", accelerator)
        if error := next((one for one in found if isinstance(one, str)), ""):
            return str(error)
        return [(_named(name, rank, True), value) for rank, one in enumerate(found) for name, value in one]

    def _made(self, what: str, accelerator: str) -> list[Any]:
        """Start the ranks, wait for them, and return what each one has found."""
        with tempfile.TemporaryDirectory(prefix="conformance-blame-") as folder:
            shared = [self.program, accelerator, str(self.ranks), str(self.seed), what, folder]
            logs = [Path(folder, f"{rank}.log").open("wb") for rank in range(self.ranks)]  # noqa: SIM115
            started = [
                subprocess.Popen(child_python(_RANK, str(rank), *shared), stdout=log, stderr=log)  # noqa: S603
                for rank, log in enumerate(logs)
            ]
            try:
                _wait(started, self.limit)
            finally:
                for process, log in zip(started, logs, strict=True):
                    with contextlib.suppress(OSError):
                        process.kill()
                    process.wait()
                    log.close()
            return [self._read(Path(folder), rank, process) for rank, process in enumerate(started)]

    def _read(self, folder: Path, rank: int, process: subprocess.Popen[bytes]) -> Any:
        file = folder / f"{rank}.pickle"
        if file.exists():
            return pickle.loads(file.read_bytes())  # noqa: S301 - our own process has written it
        last = (folder / f"{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        at = folder / f"{rank}.at"
        where = f" at {at.read_text(encoding='utf-8')}" if at.exists() else ""
        ended = "did not end in time" if process.returncode == -9 else f"ended with status {process.returncode}"
        raise SetupError(f"rank {rank} {ended}{where}: {''.join(last) or 'it printed nothing'}")


def _wait(started: Sequence[subprocess.Popen[bytes]], limit: float) -> None:
    """Wait until all processes have ended, or one has failed and the others had time to say where they are."""
    until, failed = time.monotonic() + limit, False
    while time.monotonic() < until and any(process.poll() is None for process in started):
        time.sleep(0.02)
        if not failed and any(process.poll() not in (None, 0) for process in started):
            failed, until = True, min(until, time.monotonic() + 5)


def rank_main() -> None:
    """Be one rank: read the program and what to do from the command line."""
    rank, text, name, world, seed, what, folder = sys.argv[1:]
    be_rank(int(rank), Program.load(text), name, int(world), seed=int(seed), what=what, folder=Path(folder))


def be_rank(
    rank: int, program: Program, accelerator: str, ranks: int, *, seed: int, what: str, folder: Path
) -> NoReturn:
    """Run the program as asked, write what was found, and end this process."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore, PrefixStore

    from conformance.accelerators.registry import resolve
    from conformance.ranks.group import set_rank_environment

    set_rank_environment(rank, ranks)
    loaded = resolve(accelerator).load()
    if count := loaded.device_count():
        loaded.set_device(rank % count)
    device = torch.device(loaded.current_device_name())
    store = FileStore(str(folder / "store"), ranks)
    dist.init_process_group(
        str(loaded.communication_backend_name()),
        store=PrefixStore("group", store),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=_PATIENCE),
    )
    meet = _Store(store, rank, folder)
    work: dict[str, Callable[[], Any]] = {
        "watched": lambda: _detached(watch(program, device, seed=seed, meet=meet)),
        "mended": lambda: _detached(watch(program, device, seed=seed, meet=meet, mended=True)),
        "plain": lambda: ends_of(program, device, seed),
        "outputs": lambda: outputs_of_run(program, device, seed),
    }
    found = work[what]()
    (folder / f"{rank}.part").write_bytes(pickle.dumps(found))
    (folder / f"{rank}.part").rename(folder / f"{rank}.pickle")
    os._exit(0)  # what is left of the group must not decide how this ends


def _detached(watched: Watched) -> Watched:
    watched.ends = [(name, on_host(value)) for name, value in watched.ends]
    return watched


class _Store(Meet):
    """Exchange of what collectives read, over a store that all ranks share."""

    def __init__(self, store: Any, rank: int, folder: Path) -> None:
        self._store, self._rank, self._at = store, rank, folder / f"{rank}.at"
        self._counts: dict[str, int] = {}

    def exchange(self, step: Step, tensors: list[torch.Tensor]) -> list[tuple[str, list[torch.Tensor]]]:
        """Return what each rank of the group reads, with the name of its collective, in the group's order."""
        met = step.meeting
        count = self._counts[met.group] = self._counts.get(met.group, 0) + 1
        key = f"blame/{met.group}/{count}"
        self._at.write_text(f"{step.name} (call {step.number})", encoding="utf-8")
        self._store.set(f"{key}/{self._rank}", pickle.dumps((f"{met.name} {met.operation}", tensors)))
        self._store.set_timeout(timedelta(seconds=_PATIENCE))
        return [self._from(other, f"{key}/{other}", step) for other in met.ranks]

    def _from(self, other: int, key: str, step: Step) -> tuple[str, list[torch.Tensor]]:
        try:
            found: tuple[str, list[torch.Tensor]] = pickle.loads(self._store.get(key))  # noqa: S301 - our own ranks
        except RuntimeError:
            where = f"{step.name} (call {step.number})"
            raise RuntimeError(f"rank {self._rank} waits for rank {other} at {where}") from None
        return found
