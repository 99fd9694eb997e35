"""Calls of a model at their real sizes: recorded without numbers on the meta device, made on a device with new ones.

A call is judged by a sample of its result: some rows of a product, some elements of a pointwise kernel, some rows of a
normalisation. The sample is computed on the host from the inputs that it depends on, so judging costs less than the
call itself. Samples always have the first and the last ones, and those around powers of two, where kernels change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from conformance.base.errors import UsageError
from conformance.numerics.trees import mapped

from .kernels import base_name, bound, outputs_of
from .local import Before, Local, judge
from .memory import Place
from .recording import Recorder, Step, is_drawn

VERSION: Final = 1
#: Rows, and elements, that are judged of one result.
_ROWS, _ELEMENTS = 48, 4096
#: Elements of a result from which on only a sample is judged.
_WHOLE = 1 << 16
#: Arguments that hold positions, and the argument and the dimension that they count in ("dim" is an argument).
_POSITIONS: Final[dict[str, dict[str, tuple[str, Any]]]] = {
    "embedding": {"indices": ("weight", 0)},
    "embedding_dense_backward": {"indices": ("num_weights", None)},
    "index_select": {"index": ("self", "dim")},
    "gather": {"index": ("self", "dim")},
    "scatter": {"index": ("self", "dim")},
    "scatter_add": {"index": ("self", "dim")},
    "index_add": {"index": ("self", "dim")},
    "nll_loss_forward": {"target": ("self", 1)},
    "nll_loss_backward": {"target": ("self", 1)},
}
#: Kernels whose rows, along the first dimensions, depend on nothing but the same rows of their first argument.
_ROW_WISE: Final = frozenset(
    {"mm", "addmm", "_softmax", "_log_softmax", "_safe_softmax", "native_layer_norm", "_fused_rms_norm", "embedding"}
)


@dataclass(frozen=True)
class Spec:
    """One call without numbers. Tensors among its arguments are dicts with ``size``, ``stride`` and ``dtype``."""

    function: str
    args: Any
    kwargs: Any
    count: int = 1

    @property
    def elements(self) -> int:
        """Return the elements of all tensors that it gets."""
        return sum(math.prod(leaf["size"]) for leaf in _specs((self.args, self.kwargs)))

    def __str__(self) -> str:
        shown = ", ".join(f"{leaf['dtype']}{leaf['size']}" for leaf in _specs((self.args, self.kwargs)))
        return f"{self.function}({shown})"


def _specs(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "size" in value:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _specs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _specs(item)


def recorded(function: Any) -> list[Spec]:
    """Run a function on the meta device, which computes nothing, and return its calls, each once."""
    device = torch.device("meta")
    with torch.device(device), Recorder("meta") as recorder:
        function(device)
    return unique(recorder.trace.steps)


def unique(steps: Iterable[Step]) -> list[Spec]:
    """Return the calls of a run without their numbers; equal ones once, with their count."""
    counts: dict[str, int] = {}
    for step in steps:
        if step.is_view or step.meeting is not None or step.function.namespace != "aten" or is_drawn(step):
            continue
        try:
            text = json.dumps([step.name, *mapped([list(step.args), step.kwargs], _written)], sort_keys=True)
        except TypeError:
            continue  # an argument such as a generator
        counts[text] = counts.get(text, 0) + 1
    found = ((json.loads(text), count) for text, count in counts.items())
    return [Spec(name, args, kwargs, count) for (name, args, kwargs), count in found]


def _written(leaf: Any) -> Any:
    if isinstance(leaf, Place):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return {"size": list(leaf.size), "stride": list(leaf.stride), "dtype": dtype}
    if isinstance(leaf, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(leaf).removeprefix("torch.")}
    if isinstance(leaf, torch.device):
        return {"device": ""}
    if isinstance(leaf, torch.Size):
        return list(leaf)
    return leaf


def write(path: Path, calls: Iterable[Spec]) -> None:
    """Write calls as JSON."""
    rows = [[one.function, one.args, one.kwargs, one.count] for one in calls]
    document = {"version": VERSION, "torch": torch.__version__, "calls": rows}
    path.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def read(path: Path) -> list[Spec]:
    """Return the calls in a file. Raises UsageError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise UsageError(f"{path} has version {document['version']}; this suite reads {VERSION}. Write it again.")
        return [Spec(*row) for row in document["calls"]]
    except FileNotFoundError:
        raise UsageError(f"there is no {path}. To write one: conformance trace FILE.py:FUNCTION -o {path}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has no calls: {error}. To write it: conformance trace FILE.py:FUNCTION") from None


def function_of(spec: Spec) -> Any:
    """Return the overload that a call names; None if this torch has none of that name."""
    found: Any = torch.ops
    for part in spec.function.split("."):
        found = getattr(found, part, None)
    return found


def made(spec: Spec, function: Any, seed: int) -> Before:
    """Return new arguments on the host: small numbers of several signs, and positions that exist."""
    generator = torch.Generator().manual_seed(seed)
    places = _POSITIONS.get(base_name(function), {})
    limits = {name: _limit(spec, function, *place) for name, place in places.items()}
    schema = [argument.name for argument in function._schema.arguments]
    args = [_value(value, generator, limits.get(name, 2)) for name, value in zip(schema, spec.args, strict=False)]
    kwargs = {name: _value(value, generator, limits.get(name, 2)) for name, value in spec.kwargs.items()}
    return Before(tuple(args), kwargs)


def _limit(spec: Spec, function: Any, argument: str, dim: Any) -> int:
    names = bound(function, spec.args, spec.kwargs)
    value = names[argument]
    if isinstance(value, int):
        return value
    return int(value["size"][names["dim"] if dim == "dim" else dim])


def _value(value: Any, generator: torch.Generator, limit: int) -> Any:
    if isinstance(value, list):
        return [_value(item, generator, limit) for item in value]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return torch.device("cpu")
    dtype, size, stride = getattr(torch, value["dtype"]), value["size"], value["stride"]
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    if dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(extent, generator=generator, dtype=torch.float32).to(dtype)
    else:
        memory = torch.randint(0, max(1, limit), (extent,), generator=generator).to(dtype)
    return memory.as_strided(size, stride)


def on_device(spec: Spec, device: torch.device, seed: int = 0) -> Local:
    """Make a call on a device and judge a sample of its result. What the device raises is a finding."""
    function = function_of(spec)
    step = Step(seed, function, (), {})
    if function is None:
        return Local(step, unjudged=f"this torch has no {spec.function}")
    before = made(spec, function, seed)
    args, kwargs = mapped((before.args, before.kwargs), lambda leaf: _moved(leaf, device))
    try:
        result = function(*args, **kwargs)
    except torch.OutOfMemoryError:
        return Local(step, unjudged="it does not fit into the device's memory")
    except Exception as error:  # noqa: BLE001  a device raises what it likes
        return Local(step, finding=f"raised {type(error).__name__}: {str(error).splitlines()[0]}", ratio=math.inf)
    after = [tensor.detach().to("cpu", copy=True) for tensor in outputs_of(function, args, kwargs, result)]
    sampled = _sample(function, before, after)
    if sampled is None:
        return judge(step, before, after, [])
    return judge(step, *sampled, [])


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.device):
        return device
    if not isinstance(leaf, torch.Tensor):
        return leaf
    memory = leaf.as_strided((leaf.untyped_storage().nbytes() // leaf.element_size(),), (1,), 0)
    return memory.to(device, copy=True).as_strided(leaf.shape, leaf.stride(), 0)


# --- samples ----------------------------------------------------------------------------------------------------------


def _sample(function: Any, before: Before, after: list[torch.Tensor]) -> tuple[Before, list[torch.Tensor]] | None:
    """Return the arguments and results of a part of a call; None to judge all of it."""
    if not after or after[0].numel() < _WHOLE or len(after) > 3:
        return None
    name, first = base_name(function), after[0]
    if torch.Tag.pointwise in function.tags and len(after) == 1 and not function._schema.is_mutable:
        return _elements(before, first)
    if name in _ROW_WISE:
        return _rows(function, before, after)
    if name == "bmm":
        return _batches(before, first)
    return None


def chosen(size: int, most: int) -> torch.Tensor:
    """Return some positions below ``size``: the ends, those around powers of two, and others at even distances."""
    found = {0, size - 1, *range(0, size, max(1, size // most))}
    for power in range(4, size.bit_length()):
        found |= {position for position in (2**power - 1, 2**power) if position < size}
    return torch.tensor(sorted(found))


def _elements(before: Before, result: torch.Tensor) -> tuple[Before, list[torch.Tensor]]:
    positions = chosen(result.numel(), _ELEMENTS)

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        wide = leaf.expand(result.shape)
        return wide[torch.unravel_index(positions, result.shape)]

    part = mapped((before.args, before.kwargs), taken)
    return Before(*part), [result[torch.unravel_index(positions, result.shape)]]


def _rows(function: Any, before: Before, after: list[torch.Tensor]) -> tuple[Before, list[torch.Tensor]] | None:
    """Take rows of the argument that is followed row by row, and of the results."""
    name = base_name(function)
    place = {"addmm": 1, "embedding": 1}.get(name, 0)
    source = before.args[place]
    if source.dim() < 1 or source.shape[0] < 2 or (name.endswith("softmax") and before.args[1] in (0, -source.dim())):
        return None
    rows = chosen(source.shape[0], _ROWS)
    args = list(before.args)
    args[place] = source[rows]
    if name == "addmm" and args[0].dim() == 2 and args[0].shape[0] == source.shape[0]:
        args[0] = args[0][rows]
    return Before(tuple(args), before.kwargs), [result[rows] for result in after]


def _batches(before: Before, result: torch.Tensor) -> tuple[Before, list[torch.Tensor]]:
    batches, rows = chosen(result.shape[0], 8), chosen(result.shape[1], _ROWS)
    left, right = before.args
    return Before((left[batches][:, rows], right[batches]), before.kwargs), [result[batches][:, rows]]
