"""Where faults of engines and collectives are planted, and how they change a tensor; the draw of some by a seed.

A seam is a place below an engine at which a tensor passes: a bucket, a collective, an edge of a pipeline. The processes
of the ranks record the truth: the step, and for DDP the parameter and the element.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.parallel_faults.faults import _done, _local, _mean, around

RANKS = 2
#: Families that DDP and FSDP2 train, and schedules of pipelines.
FAMILIES = ("bent", "squares", "images", "signal", "volumes", "bags", "linear-attention", "recurrent", "mixer", "graph")
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")


# --- changes --------------------------------------------------------------------------------------------------------


def _place(tensor: torch.Tensor, draw: random.Random) -> int:
    """Return the flat place of an element that is not zero."""
    places = tensor.detach().flatten().nonzero().flatten()
    return int(places[draw.randrange(len(places))]) if len(places) else 0


def _lost(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.flatten()[_place(tensor, draw)] = 0.0


def _twice(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.flatten()[_place(tensor, draw)] *= 2.0


def _negated(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.flatten()[_place(tensor, draw)] *= -1.0


def _last_bit(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.flatten()[_place(tensor, draw)] *= 1.0 + 2.0**-23


def _swapped(tensor: torch.Tensor, draw: random.Random) -> None:
    flat, one, two = tensor.flatten(), _place(tensor, draw), draw.randrange(tensor.numel())
    flat[[one, two]] = flat[[two, one]].clone()


def _rounded(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.copy_(tensor.bfloat16().to(tensor.dtype))


def _halved(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.mul_(0.5)


def _doubled(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.mul_(2.0)


def _tail_zero(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.flatten()[-max(1, tensor.numel() // 4) :] = 0.0


def _rolled(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.copy_(tensor.flatten().roll(1).view_as(tensor))


def _zeroed(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.zero_()


def _opposite(tensor: torch.Tensor, draw: random.Random) -> None:
    tensor.neg_()


def _stale(tensor: torch.Tensor, draw: random.Random) -> None:
    """Give what the same seam gave before, of the same shape."""
    before = _BEFORE.get(tuple(tensor.shape))
    if before is not None:
        tensor.copy_(before)


def _own(tensor: torch.Tensor, draw: random.Random) -> None:
    """Leave one element out of an all-reduce."""
    places = (tensor != _ASIDE["own"]).flatten().nonzero().flatten()
    if len(places):
        place = places[draw.randrange(len(places))]
        tensor.flatten()[place] = _ASIDE["own"].flatten()[place]


def _narrow(tensor: torch.Tensor, draw: random.Random) -> None:
    """Add in bfloat16 inside of an all-reduce of float32."""
    tensor.copy_(_ASIDE["narrow"])


def _neighbour(tensor: torch.Tensor, draw: random.Random) -> None:
    """Be off by one rank in a reduce-scatter."""
    tensor.copy_(_ASIDE["neighbour"])


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(everyone, tensor.contiguous())
    return everyone


#: What a seam puts aside for a change that needs more than the result: by its name.
_ASIDE: dict[str, torch.Tensor] = {}
#: The last result of each shape, for stale ones.
_BEFORE: dict[tuple[int, ...], torch.Tensor] = {}
ONE_ELEMENT = (_lost, _twice, _negated, _swapped)
MANY = (_halved, _doubled, _tail_zero, _rolled, _stale, _rounded)
#: Changes of gradients, whose every bit is compared, and of what is computed with afterwards: there a last bit is
#: lost in the rounding of a later sum, before anything is compared.
OF_GRADIENTS, OF_VALUES = (*ONE_ELEMENT, _last_bit, *MANY), (*ONE_ELEMENT, *MANY)
#: Changes of what the backward pass uses: others may lie where its gradient is zero.
OF_KEPT = (_zeroed, _opposite, _rolled, _stale)


@dataclass(frozen=True)
class Drawn:
    """One drawn fault."""

    number: int
    seam: str
    subject: str
    change: Callable[[torch.Tensor, random.Random], None]
    ranks: tuple[int, ...]
    call: int

    def __str__(self) -> str:
        hit = "all ranks" if len(self.ranks) == RANKS else f"rank {self.ranks[0]}"
        change = self.change.__name__.strip("_")
        return f"{self.number:2} {self.seam} of {self.subject}: {change}, {hit}, from call {self.call}"


class Spoiler:
    """Changes one tensor on the ranks of a fault, once, and keeps the truth."""

    def __init__(self, fault: Drawn, folder: Path) -> None:
        self._fault, self._folder, self._calls, self._made = fault, folder, 0, False

    def __call__(
        self, tensor: torch.Tensor, place: Callable[[int], str] = lambda flat: "", step: int | None = None
    ) -> None:
        """Change the tensor if this is the call, and the change changes it. ``step`` is that of the first effect."""
        if not tensor.is_floating_point() or not tensor.numel():
            return
        self._calls += 1
        kept = tensor.detach().clone()
        if not self._made and self._calls >= self._fault.call and dist.get_rank() in self._fault.ranks:
            with torch.no_grad():
                self._fault.change(tensor, random.Random(self._fault.number))
            changed = (tensor.detach() != kept).flatten().nonzero().flatten()
            if len(changed):
                self._made = True
                # Which of the changed elements is named first depends on the order of the parameters.
                places = sorted({place(flat) for flat in changed.tolist()})
                truth = {"step": step or STEP[0], "places": places, "rank": dist.get_rank()}
                Path(self._folder, f"truth-{dist.get_rank()}").write_text(json.dumps(truth))
        _BEFORE[tuple(tensor.shape)] = kept


#: The step of the training that runs, from 1 on.
STEP = [1]


def count_steps() -> None:
    def stepped(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        STEP[0] += 1
        return result

    around(torch.optim.SGD, "step", stepped)


# --- seams ----------------------------------------------------------------------------------------------------------


def _below_ddp(spoil: Spoiler) -> None:
    from torch.nn.parallel import DistributedDataParallel

    initialise = DistributedDataParallel.__init__

    def plant(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, model, *args, **kwargs)
        names = {id(parameter): name for name, parameter in model.named_parameters()}

        def reduce(bucket: Any) -> Any:
            _ASIDE["own"] = bucket.buffer().clone()
            narrow = sum(part.bfloat16() for part in _gathered(bucket.buffer()))
            _ASIDE["narrow"] = narrow.to(bucket.buffer().dtype) / RANKS  # type: ignore[union-attr]
            buffer = _mean(bucket.buffer())
            spoil(buffer, lambda flat: _in_bucket(bucket, names, flat))
            return _done(buffer)

        # DDP refuses a hook with other annotations than its own.
        self.register_comm_hook(None, lambda state, bucket: reduce(bucket))

    DistributedDataParallel.__init__ = plant  # type: ignore[method-assign]


def _in_bucket(bucket: Any, names: dict[int, str], flat: int) -> str:
    """Return the parameter and the element at a place of a bucket."""
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        offset = gradient.storage_offset() - bucket.buffer().storage_offset()
        if offset <= flat < offset + gradient.numel():
            return _element(names[id(parameter)], flat - offset, parameter.shape)
    return ""


def _element(name: str, flat: int, shape: torch.Size) -> str:
    index = torch.unravel_index(torch.tensor(flat), shape)
    return f"{name}[{', '.join(str(int(each)) for each in index)}]"


def _below_collective(name: str) -> Callable[[Spoiler], None]:
    def plant(spoil: Spoiler) -> None:
        def change(original: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["async_op"] = False
            work = original(*args, **kwargs)
            first = args[0] if args else None
            output = next((kwargs[key] for key in ("output", "output_tensor", "tensor") if key in kwargs), first)
            if "scatter" in name:
                _ASIDE["neighbour"] = _gathered(output)[dist.get_rank() - 1]
            spoil(output)
            return work

        around(dist, name, change)

    return plant


def _below_functional(name: str) -> Callable[[Spoiler], None]:
    def plant(spoil: Spoiler) -> None:
        def change(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = functional.wait_tensor(original(*args, **kwargs))
            # The training adds its losses up by another collective.
            with torch.no_grad():
                spoil(result)
            return result

        around(functional, name, change)

    return plant


def _below_edge(name: str) -> Callable[[Spoiler], None]:
    def plant(spoil: Spoiler) -> None:
        from torch.distributed.pipelining.stage import _PipelineStageBase

        def change(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            calls = original(self, *args, **kwargs)
            for call in calls:
                call.tensor = call.tensor.detach().clone()
                spoil(call.tensor)
            return calls

        around(_PipelineStageBase, name, change)

    return plant


def _below_load(spoil: Spoiler) -> None:
    import torch.distributed.checkpoint as dcp

    def change(original: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        before = {name: _local(value).detach().clone() for name, value in state["model"].items()}
        original(state, *args, **kwargs)
        loaded = {**state["model"], **{n: v for n, v in state["optimizer"].items() if n.endswith("momentum_buffer")}}
        for name in sorted(loaded):
            tensor = _local(loaded[name])
            if name in before:
                _BEFORE[tuple(tensor.shape)] = before[name]
            # Weights and momenta are compared as soon as they are loaded, after step 2.
            place = re.sub(r"^state\.|\.momentum_buffer$", "", name)
            spoil(tensor, lambda flat, place=place: place, 2)  # type: ignore[misc]

    around(dcp, "load", change)


def _below_shift(spoil: Spoiler) -> None:
    """Spoil a block of the ring that this rank uses: those of later ranks are masked."""
    from conformance.suites import rank_functions

    def change(original: Any, x: torch.Tensor, group: Any, step: int, shape: Any) -> Any:
        result = original(x, group, step, shape)
        if step < 0 or group.number > 0:
            spoil(result)
        return result

    around(rank_functions, "_shifted", change)


def _below_list(spoil: Spoiler) -> None:
    """Spoil the first rank's block in a gather of blocks: every rank uses it."""

    def change(original: Any, parts: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        work = original(parts, *args, **kwargs)
        spoil(parts[0])
        return work

    around(dist, "all_gather", change)


def _below_average(spoil: Spoiler) -> None:
    """Spoil a gradient that context parallelism has averaged."""
    from conformance.suites.workloads.exact import context

    def change(original: Any, model: Any, group: Any) -> None:
        original(model, group)
        for name, parameter in model.named_parameters():
            spoil(parameter.grad, lambda flat, name=name, shape=parameter.shape: _element(name, flat, shape))  # type: ignore[misc]

    around(context, "_average", change)


def _below_host(spoil: Spoiler) -> None:
    """Spoil what comes back from the host for the backward pass."""
    from torch.autograd.graph import save_on_cpu

    initialise = save_on_cpu.__init__

    def plant(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        unpack = self.unpack_hook

        def unpacked(packed: Any) -> torch.Tensor:
            # On the host, what was kept is the tensor itself.
            result: torch.Tensor = unpack(packed).clone()
            spoil(result)
            return result

        self.unpack_hook = unpacked

    save_on_cpu.__init__ = plant  # type: ignore[method-assign]


SEAMS: dict[str, tuple[Callable[[Spoiler], None], tuple[str, ...], tuple[Any, ...], str, int]] = {
    # name: the planter, its subjects, changes, the tolerant twin, and calls among which the first one is drawn
    "ddp's bucket": (_below_ddp, FAMILIES, (*OF_GRADIENTS, _own, _narrow), "ddp[2]", 6),
    "fsdp2's reduce-scatter": (
        _below_collective("reduce_scatter_single"), FAMILIES, (*OF_GRADIENTS, _neighbour), "fsdp2[2]", 3,
    ),
    "fsdp2's gather": (_below_collective("all_gather_single"), FAMILIES, OF_VALUES[:-1], "fsdp2[2]", 2),
    "tp's all-reduce": (_below_functional("all_reduce"), ("tp",), OF_VALUES, "tp[2]", 30),
    "sp's reduce-scatter": (_below_functional("reduce_scatter_single"), ("sp",), OF_VALUES, "sp[2]", 30),
    "sp's gather": (_below_functional("all_gather_single"), ("sp",), OF_VALUES, "sp[2]", 30),
    "a pipeline's activations": (_below_edge("get_fwd_send_ops"), SCHEDULES, OF_VALUES, "1f1b[2]", 10),
    "a pipeline's gradients": (_below_edge("get_bwd_send_ops"), SCHEDULES, OF_VALUES, "1f1b[2]", 10),
    "a checkpoint's load": (_below_load, ("fsdp2 as tp", "ddp as fsdp2"), OF_GRADIENTS, "fsdp2.resume[2-tp@2]", 30),
    "the experts' exchange": (_below_functional("all_to_all_single_autograd"), ("ep",), ONE_ELEMENT + MANY[:-1], "", 4),
    "the ring's blocks": (_below_shift, ("cp ring",), MANY[:-1], "", 8),
    "the blocks of a gather": (_below_list, ("cp gather",), MANY[:-1], "", 4),
    "averages of context parallelism": (_below_average, ("cp ring", "cp gather"), OF_GRADIENTS, "", 40),
    "a compiled ddp's bucket": (_below_ddp, ("compiled ddp",), (*OF_GRADIENTS, _own, _narrow), "", 6),
    "a compiled fsdp2's reduce-scatter": (
        _below_collective("reduce_scatter_single"), ("compiled fsdp2",), (*OF_GRADIENTS, _neighbour), "", 3,
    ),
    "a compiled fsdp2's gather": (_below_collective("all_gather_single"), ("compiled fsdp2",), OF_VALUES[:-1], "", 2),
    "an offloaded fsdp2's reduce-scatter": (
        _below_collective("reduce_scatter_single"), ("offloaded fsdp2",), (*OF_GRADIENTS, _neighbour), "", 3,
    ),
    "an offloaded fsdp2's gather": (
        _below_collective("all_gather_single"), ("offloaded fsdp2",), OF_VALUES[:-1], "", 2,
    ),
    "activations from the host": (_below_host, ("offloaded ddp",), OF_KEPT, "", 6),
}  # fmt: skip
if importlib.util.find_spec("deepspeed"):
    SEAMS["autotp's all-reduce"] = (_below_collective("all_reduce"), ("autotp",), OF_VALUES, "", 30)
#: Seams at which what one rank gets reaches only that rank's gradients in the same step.
NAMES_RANK = (
    "ddp's bucket", "fsdp2's reduce-scatter", "averages of context parallelism", "a compiled ddp's bucket",
    "a compiled fsdp2's reduce-scatter", "an offloaded fsdp2's reduce-scatter",
)  # fmt: skip


def draws(seed: str) -> Iterator[Drawn]:
    """Yield faults without end, from every seam in turn."""
    for number in itertools.count():
        rng = random.Random(f"{seed} {number}")
        seam = sorted(SEAMS)[number % len(SEAMS)]
        _, subjects, changes, _, calls = SEAMS[seam]
        hit = rng.choice([(0,), (1,), tuple(range(RANKS))])
        yield Drawn(number, seam, rng.choice(subjects), rng.choice(changes), hit, rng.randint(1, calls))
