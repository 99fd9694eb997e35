"""Plant drawn faults below programs on two ranks, and ask who is to blame: ``python -m tests.blame.ranked``.

A fault is in a kernel that the program uses, or in a collective. It is on both ranks, or on the second one alone.
The ranks are copies of this process, so that they need not import anything.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from conformance.base.errors import SetupError
from conformance.blame.program import Program
from conformance.blame.runs import RankRuns, be_rank
from conformance.blame.verdict import blame
from conformance.numerics.trees import tensors
from tests.defects import bench
from tests.faults import forks
from tests.faults.fault import Fault, Hits
from tests.faults.overloads import operator_of
from tests.faults.overriding import Behaviour, Call, overridden
from tests.faults.population import KINDS
from tests.faults.recording import Recorder

from . import run as instrument
from .programs import trained

RANKS = 2
#: Collectives of c10d. The first argument is what they write.
COLLECTIVES = tuple(
    f"c10d::{name}"
    for name in ("allreduce_", "broadcast_", "_allgather_base_", "allgather_", "_reduce_scatter_base_",
                 "reduce_scatter_", "alltoall_base_", "alltoall_", "allreduce_coalesced_")
)  # fmt: skip
#: Seconds of a processor for one blame without its ranks; the ranks wait for each other.
_LIMIT = 60
#: Letters of what a rank has said that are shown.
_SAID = 600
#: Numbers of which one draw is a collective's fault.
_EVERY = 2


# --- programs ---------------------------------------------------------------------------------------------------------


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 4))


def _batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's inputs and labels."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(5, 6, generator=generator).to(device), torch.randint(4, (5,), generator=generator).to(device)


def _local(model: nn.Module, loss: torch.Tensor) -> dict[str, Any]:
    """Return the loss, and this rank's parts of the parameters and gradients."""
    found: dict[str, Any] = {"loss": loss}
    for name, parameter in model.named_parameters():
        for what, value in ((name, parameter), (f"gradient of {name}", parameter.grad)):
            if value is not None:
                found[what] = value.to_local() if hasattr(value, "to_local") else value
    return found


def ddp(device: torch.device) -> Any:
    """Train a copy of a classifier on each rank; gradients are averaged."""
    model = nn.parallel.DistributedDataParallel(_layers().to(device))
    x, labels = _batch(device)
    return trained(model, device, lambda m: F.cross_entropy(m(x), labels), steps=2)


def fsdp(device: torch.device) -> Any:
    """Train with parameters that are sharded over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = _layers().to(device)
    mesh = init_device_mesh(device.type, (RANKS,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x, labels = _batch(device)
    loss = F.cross_entropy(model(x), labels)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return _local(model, loss)


def tensor_parallel(device: torch.device) -> Any:
    """Train two linear layers whose columns and rows are split."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).to(device)
    mesh = init_device_mesh(device.type, (RANKS,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(9)).to(device)
    loss = model(x).square().mean()
    loss.backward()
    return _local(model, loss)


def experts(device: torch.device) -> Any:
    """Send rows to the rank of their expert and back, and average the gradients by hand."""
    from torch.distributed.nn.functional import all_to_all_single

    expert, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).to(device), _batch(device)[0][:4].contiguous()
    x.requires_grad_()
    there = all_to_all_single(torch.empty_like(x), x)
    back = all_to_all_single(torch.empty_like(x), expert(there))
    loss = (back * x).sum()
    loss.backward()
    for parameter in expert.parameters():
        dist.all_reduce(parameter.grad)
    weights = expert[0].weight.detach().clone()
    dist.broadcast(weights, 1)
    return {**_local(expert, loss), "gradient of x": x.grad, "weights": weights}


def zero(device: torch.device) -> Any:
    """Reduce and scatter gradients, step on a shard, and gather the parameters."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    x, labels = _batch(device)
    loss = F.cross_entropy(model(x), labels)
    loss.backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    flat = F.pad(flat, (0, -len(flat) % RANKS))
    own = torch.empty(len(flat) // RANKS, device=device)
    dist.reduce_scatter_tensor(own, flat)
    momentum = own / RANKS + 0.9 * own.abs().sqrt()
    whole = torch.empty_like(flat)
    dist.all_gather_into_tensor(whole, momentum)
    parts = [torch.empty_like(loss) for _ in range(RANKS)]
    dist.all_gather(parts, loss.detach())
    return {"loss": torch.stack(parts).mean(), "step": whole}


PROGRAMS: dict[str, Callable[[torch.device], Any]] = {
    function.__name__: function for function in (ddp, fsdp, tensor_parallel, experts, zero)
}


# --- faults of collectives --------------------------------------------------------------------------------------------


def _last(output: torch.Tensor, before: torch.Tensor) -> None:
    del before
    output.view(-1)[-1:].mul_(2).add_(1)


def _half(output: torch.Tensor, before: torch.Tensor) -> None:
    del before
    output.view(-1)[output.numel() // 2 :].zero_()


def _scaled(output: torch.Tensor, before: torch.Tensor) -> None:
    del before
    output.mul_(RANKS)


def _stale(output: torch.Tensor, before: torch.Tensor) -> None:
    output.copy_(before)


def _lost(output: torch.Tensor, before: torch.Tensor) -> None:
    output.sub_(before)


def _narrow(output: torch.Tensor, before: torch.Tensor) -> None:
    del before
    output.copy_(output.to(torch.bfloat16))


def _rolled(output: torch.Tensor, before: torch.Tensor) -> None:
    del before
    output.copy_(output.reshape(-1).roll(1).view(output.shape))


CHANGES = {change.__name__.strip("_"): change for change in (_last, _half, _scaled, _stale, _lost, _narrow, _rolled)}


def _of_collective(fault: Fault, hit: Hits) -> Behaviour:
    def behaviour(call: Call) -> Any:
        outputs = [tensor for tensor in tensors(call.values[0]) if tensor.is_floating_point() and tensor.numel()]
        before = [tensor.clone() for tensor in outputs]
        result = call.run()
        for output, old in zip(outputs, before, strict=True):
            CHANGES[fault.kind](output, old)
            hit()
        return result

    return behaviour


# --- runs -------------------------------------------------------------------------------------------------------------


class _Shared(Hits):
    """Hits of all copies of this process."""

    def __init__(self) -> None:
        self._memory = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __call__(self) -> None:
        self._memory += 1

    @property
    def count(self) -> int:  # type: ignore[override]
        return int(self._memory)


@dataclass(frozen=True)
class Task:
    """A program, a fault (None: healthy), the ranks that have it, and the operators that call the kernel."""

    program: str
    fault: Fault | None = None
    hit: tuple[int, ...] = ()
    callers: frozenset[str] = frozenset()


@dataclass
class ForkedRanks(RankRuns):
    """Runs on ranks that are copies of this process, with faults armed on the device."""

    inside: Callable[[int], Any] = field(default=lambda rank: overridden({}, "PrivateUse1"))

    def _made(self, what: str, accelerator: str) -> list[Any]:
        with tempfile.TemporaryDirectory(prefix="conformance-blame-") as folder:
            ranks = [self._start(rank, what, accelerator, Path(folder)) for rank in range(self.ranks)]
            until = time.monotonic() + self.limit
            ends: dict[int, int] = {}
            while len(ends) < len(ranks) and time.monotonic() < until and not any(ends.values()):
                waited = (os.waitpid(pid, os.WNOHANG) for pid in ranks if pid not in ends)
                ends |= {pid: status for pid, status in waited if pid}
                time.sleep(0.005)
            for pid in set(ranks) - set(ends):
                os.kill(pid, 9)
                ends[pid] = os.waitpid(pid, 0)[1]
            return [_read(Path(folder), rank, ends[pid]) for rank, pid in enumerate(ranks)]

    def _start(self, rank: int, what: str, accelerator: str, folder: Path) -> int:
        if pid := os.fork():
            return pid
        try:
            os.dup2(os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT), 2)
            # A fork leaves PyTorch's pool of threads broken, and two threads that mend it at once end the process.
            torch.set_num_threads(1)
            forks.limit(_LIMIT, patience=2)
            program = Program(self.program, PROGRAMS[self.program])
            if accelerator == "cpu":
                be_rank(rank, program, accelerator, self.ranks, seed=self.seed, what=what, folder=folder)
            bench.loaded()[0].current_device_name()
            with self.inside(rank):
                be_rank(rank, program, accelerator, self.ranks, seed=self.seed, what=what, folder=folder)
        except BaseException as error:  # the other process says so
            os.write(2, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)


def _read(folder: Path, rank: int, status: int) -> Any:
    file, log = folder / f"{rank}.pickle", folder / f"{rank}.log"
    if file.exists():
        return pickle.loads(file.read_bytes())
    why = log.read_text(encoding="utf-8", errors="replace").strip()[:_SAID] if log.exists() else "it has said nothing"
    raise SetupError(f"rank {rank} has ended with status {os.waitstatus_to_exitcode(status)}: {why}")


def _armed(task: Task, hits: Hits, rank: int) -> Any:
    if task.fault is None or rank not in task.hit:
        return overridden({}, "PrivateUse1")
    kind = KINDS.get((task.fault.family, task.fault.kind))
    behaviour = _of_collective(task.fault, hits) if kind is None else kind.behave(task.fault, hits)
    return overridden({task.fault.target: behaviour}, "PrivateUse1")


def _judged(task: Task, send: forks.Send) -> None:
    hits, begun = _Shared(), time.monotonic()
    runs = ForkedRanks(task.program, "sim", RANKS, inside=functools.partial(_armed, task, hits))
    found = blame(runs)
    faults = () if task.fault is None else (task.fault,)
    known = instrument._Task(task.program, faults, (task.callers,) if faults else ())
    outcome = instrument._outcome(known, found, hits.count, time.monotonic() - begun)
    outcome.faults = [f"{fault} on {'all ranks' if len(task.hit) == RANKS else 'rank 1'}" for fault in faults]
    send(outcome)


# --- what there is to break -------------------------------------------------------------------------------------------


class _Noting:
    """Notes on a rank which kernels and collectives the program uses, and writes it down as the program ends."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = folder / f"kernels-{rank}"

    def wrapped(self, function: Callable[[torch.device], Any]) -> Callable[[torch.device], Any]:
        def noted(device: torch.device) -> Any:
            recorder, callers = Recorder(device), instrument._Callers()
            behaviours: dict[str, Behaviour] = {**recorder.behaviours, **dict.fromkeys(COLLECTIVES, Call.run)}
            behaviours = {name: callers.behaviour(name, one) for name, one in behaviours.items()}
            with overridden(behaviours, "PrivateUse1"), callers:
                recorder.start()
                found = function(device)
            flags = {name: {at: sorted(f) for at, f in places.items()} for name, places in recorder.kernels.items()}
            self._file.write_bytes(pickle.dumps((flags, callers.found)))
            return found

        return noted


def _kernels(task: Task, send: forks.Send) -> None:
    with tempfile.TemporaryDirectory() as folder:
        function = PROGRAMS[task.program]
        PROGRAMS[task.program] = lambda device: _Noting(Path(folder), dist.get_rank()).wrapped(function)(device)
        found = ForkedRanks(task.program, "sim", RANKS).plain()
        if isinstance(found, str):
            raise SetupError(found)
        send(pickle.loads(Path(folder, "kernels-0").read_bytes()))


def drawn(found: dict[str, Any], draws: int, seed: str) -> Iterator[Task]:
    """Draw faults of programs in turn: of kernels, and of collectives."""
    dice = random.Random(seed)
    every = {program: instrument.population(flags) for program, (flags, _) in found.items()}
    for number in range(draws):
        program = sorted(found)[number % len(found)]
        callers = found[program][1]
        if number // len(found) % _EVERY:
            kernel = dice.choice(sorted(every[program]))
            fault = dice.choice(every[program][kernel])
        else:
            kernel = dice.choice(sorted(set(COLLECTIVES) & set(callers)))
            fault = Fault("K", dice.choice(sorted(CHANGES)), kernel)
        hit = dice.choice(((1,), tuple(range(RANKS))))
        yield Task(program, fault, hit, frozenset(callers.get(kernel, {operator_of(kernel)})))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores, and every miss. Return 1 if a healthy device is blamed."""
    parser = argparse.ArgumentParser(prog="python -m tests.blame.ranked", description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="single faults")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same faults")
    parser.add_argument("--program", action="append", choices=sorted(PROGRAMS), help="only this program; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="blames side by side, each with two ranks")
    parser.add_argument("--out", type=Path, default=Path("blame-report"), help="folder for ranked.json")
    options = parser.parse_args(arguments)
    bench.loaded()
    forks.prepare()
    names = options.program or sorted(PROGRAMS)
    flags = {}
    for copy in forks.run(map(Task, names), _kernels, options.jobs):
        if not copy.messages:
            raise SystemExit(f"{copy.task.program} does not run on healthy ranks: {copy.error}")
        flags[copy.task.program] = copy.messages[0]
    outcomes = []
    for copy in forks.run([*map(Task, names), *drawn(flags, options.draws, options.seed)], _judged, options.jobs):
        planted = [str(copy.task.fault)] if copy.task.fault else []
        broken = instrument.Outcome(copy.task.program, planted, error=copy.error[-300:] or f"status {copy.status}")
        outcomes.append(copy.messages[0] if copy.messages else broken)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ranked.json").write_text(json.dumps(list(map(asdict, outcomes)), indent=1), encoding="utf-8")
    instrument._say(outcomes, len(names))
    return 1 if any(instrument._is_accused(one) for one in outcomes if not one.faults) else 0


if __name__ == "__main__":
    sys.exit(main())
