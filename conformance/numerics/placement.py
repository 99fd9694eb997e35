"""Where operators computed: on the device, or on the host behind the device's back.

A region is recorded by PyTorch's own profiler, which sees every operator with the devices of its tensors, whichever
library it comes from. ``host_work`` judges such a record; it is a function of values.

Tensors of one element prove nothing: operators read sizes and conditions from the device, and scalars live on the host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

_HOST: Final = "cpu"
#: Operators that copy into another tensor, with the places of source and destination among their tensors.
_COPIES: Final = {"aten::copy_": (1, 0), "aten::_copy_from": (0, 1), "aten::_copy_from_and_resize": (0, 1)}
#: Operators that move whole tensors; the copy itself is one of the above, inside. A copy to the host is theirs to make.
_MOVES: Final = frozenset({*_COPIES, "aten::to", "aten::_to_copy", "aten::_to_cpu"})
#: Dispatch keys of implementations that PyTorch shares between all devices.
_SHARED: Final = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
#: Other events have names of other kinds: ``MmBackward0``, ``autograd::engine::evaluate_function: MmBackward0``.
_OPERATOR: Final = re.compile(r"\w+::\w+")
#: The name of the events that hold a region.
_REGION: Final = "conformance region"


@dataclass(frozen=True)
class Operand:
    """A tensor as an operator got it: the type of its device, its elements, its bytes, and its memory's address."""

    device: str
    elements: int
    bytes: int
    address: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Operand:
        return cls(tensor.device.type, tensor.numel(), tensor.numel() * tensor.element_size())


@dataclass(frozen=True)
class Call:
    """An operator that ran, what it got, and what ran inside it.

    ``own`` says whether the device's implementation ran, rather than one that PyTorch shares between devices. Other
    things that a profiler records, such as the nodes of a backward pass, are calls without a name.
    """

    name: str = ""
    operands: tuple[Operand, ...] = ()
    inside: tuple[Call, ...] = ()
    own: bool = True

    @property
    def below(self) -> Iterator[Call]:
        for call in self.inside:
            yield call
            yield from call.below

    @property
    def base(self) -> str:
        """The name without the underscores that tell an operator's variants apart."""
        return self.name.rpartition("::")[2].strip("_")


@dataclass(frozen=True)
class HostWork:
    """An operator that was computed on the host, and how much was copied for it, in bytes."""

    operator: str
    to_host: int
    from_host: int

    def __str__(self) -> str:
        what = f"{self.operator} ran" if self.operator else "the call around the operators computed"
        return f"{what} on the host: {self.to_host} bytes were copied there and {self.from_host} back"


def host_work(calls: Sequence[Call], device: str, given: Iterable[Operand]) -> HostWork | None:
    """The first operator, innermost first, that a device of type ``device`` left to the host; None if all ran on it.

    ``given`` are the tensors that the region itself got.
    """
    found = next((work for call in calls for work in _of_call(call, device)), None)
    return found or _of_region(calls, device, given)


def _of_call(call: Call, device: str) -> Iterator[HostWork]:
    for inner in call.inside:
        yield from _of_call(inner, device)
    if call.name and _ran_on_host(call, device):
        yield HostWork(call.name, _to_host([call], device), _from_host(call, device))


def _ran_on_host(call: Call, device: str) -> bool:
    to_host, from_host = _to_host([call], device), _from_host(call, device)
    if call.name in _MOVES:
        return call.own and to_host > 0 and from_host > 0  # there and back: converted or laid out anew on the host
    given = _size(call.operands, device)
    repeated = [inner for inner in call.below if _repeats(inner, call, device)]
    if given and any(_strangers(inner, call) for inner in repeated):
        return True
    # What PyTorch shares between devices may read lengths on the host, and build small tables there, on every device.
    if not call.own:
        return False
    took_inputs = 0 < given <= 2 * to_host
    made_result = from_host > 0 and (bool(repeated) or not given)
    return took_inputs or made_result


def _repeats(inner: Call, call: Call, device: str) -> bool:
    """Whether it is the same operator once more, without any tensor of the device."""
    return inner.base == call.base and all(operand.device != device for operand in inner.operands)


def _strangers(inner: Call, call: Call) -> bool:
    """Whether it works on host tensors that its caller did not get."""
    known = {operand.address for operand in call.operands}
    return any(one.device == _HOST and one.elements > 1 and one.address not in known for one in inner.operands)


def _of_region(calls: Sequence[Call], device: str, given: Iterable[Operand]) -> HostWork | None:
    """Copies that no operator made, but the code around them: at least half of what the region got."""
    outside = list(_outside_operators(calls))
    to_host, size = _to_host(outside, device), _size(given, device)
    if not size or 2 * to_host < size:
        return None
    return HostWork("", to_host, sum(source.bytes for source in _sources(outside, _HOST, device)))


def _outside_operators(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        if call.name in _MOVES:
            yield call
        elif not call.name:
            yield from _outside_operators(call.inside)


def _size(operands: Iterable[Operand], device: str) -> int:
    return sum(operand.bytes for operand in operands if operand.device == device and operand.elements > 1)


def _to_host(calls: Iterable[Call], device: str) -> int:
    """Bytes copied from the device to the host in these calls."""
    return sum(source.bytes for source in _sources(calls, device, _HOST))


def _from_host(call: Call, device: str) -> int:
    """Bytes copied from the host to the device, other than of tensors that the call got on the host."""
    known = {operand.address for operand in call.operands}
    return sum(source.bytes for source in _sources([call], _HOST, device) if source.address not in known)


def _sources(calls: Iterable[Call], left: str, right: str) -> Iterator[Operand]:
    """What was copied from one type of device to another."""
    for source, target in (pair for call in calls for pair in _copies(call)):
        if source.elements > 1 and (source.device, target.device) == (left, right):
            yield source


def _copies(call: Call) -> Iterator[tuple[Operand, Operand]]:
    """Source and destination of every copy between devices; one that is carried out by another counts once."""
    places = _COPIES.get(call.name)
    if places and len(call.operands) == len(places):
        source, target = (call.operands[place] for place in places)
        if source.device != target.device:
            yield source, target
            return
    for inner in call.inside:
        yield from _copies(inner)


# --- recording ------------------------------------------------------------------------------------------------------


class Recording:
    """A profile of regions between ``start`` and ``stop``, in this thread and in the threads of autograd.

    Several regions share one, as starting and stopping it takes longer than most operators do.
    """

    def __init__(self) -> None:
        # Without the device's own part: operators are recorded by PyTorch, and vendors' profilers are not under test.
        self._config = _config()
        self._profile = torch.autograd.profiler.profile(
            use_kineto=True, record_shapes=True, experimental_config=self._config
        )

    def start(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is at work; starting a second one would end it")
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def region(self) -> AbstractContextManager[object]:
        """What runs inside belongs together; what runs outside every region is not looked at."""
        return torch._C._profiler._RecordFunctionFast(_REGION)

    def calls(self, device: str) -> list[list[Call]]:
        """What ran in each region, judged for a device of this type.

        Nothing for a region where no host tensor appears, for then all of it ran on the device.
        """
        results = self._profile.kineto_results
        if results is None:
            raise RuntimeError("the profiler recorded nothing")
        key = torch._C._dispatch_key_for_device(device)
        found = []
        for events in _regions(results.experimental_event_tree()):
            host = any(_sees_host(event) for event in events)
            found.append([_call(event, key, self._config is not None) for event in events] if host else [])
        return found


def _regions(roots: Sequence[Any]) -> Iterator[list[Any]]:
    """The events of each region: those inside it, and those of other threads that began meanwhile."""
    markers = sorted((one for one in roots if one.name == _REGION), key=lambda one: one.start_time_ns)
    for marker in markers:
        elsewhere = (one for one in roots if one.start_tid != marker.start_tid)
        began = [one for one in elsewhere if marker.start_time_ns <= one.start_time_ns <= marker.end_time_ns]
        yield [*marker.children, *began]


def _config() -> Any:
    """Asks for the overloads of operators; None where torch (before 2.7) records no more than their names."""
    try:
        return torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    except TypeError:
        return None


def _sees_host(event: Any) -> bool:
    """Whether a host tensor of more than one element is an operator's; asking this first saves most of the time."""
    found = (one for one in _tensors(getattr(event.extra_fields, "inputs", ())) if one.device.type == _HOST)
    return any(math.prod(one.sizes) > 1 for one in found) or any(_sees_host(child) for child in event.children)


def _call(event: Any, key: str, with_overloads: bool) -> Call:
    inside = tuple(_call(child, key, with_overloads) for child in event.children)
    overloads = _overloads(event, with_overloads)
    if not overloads:
        return Call(inside=inside)
    operands = tuple(_operand(one) for one in _tensors(event.extra_fields.inputs))
    return Call(event.name, operands, inside, any(_is_own(name, key) for name in overloads))


def _overloads(event: Any, with_overloads: bool) -> list[str]:
    """The operator that an event is about, with its overload; with each of them where the record does not say which."""
    if not hasattr(event.extra_fields, "inputs") or not _OPERATOR.fullmatch(event.name):
        return []
    if with_overloads:
        names = [event.overload_name]
    else:
        names = [schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(event.name)]
    qualified = [f"{event.name}.{name}" if name else event.name for name in names]
    return [name for name in qualified if torch._C._dispatch_has_kernel(name)]


def _tensors(inputs: Iterable[Any]) -> Iterator[Any]:
    for one in inputs:
        if isinstance(one, list):
            yield from _tensors(one)
        elif hasattr(one, "storage_data_ptr"):
            yield one


def _operand(tensor: Any) -> Operand:
    elements = math.prod(tensor.sizes)
    return Operand(tensor.device.type, elements, elements * tensor.dtype.itemsize, tensor.storage_data_ptr or 0)


def _is_own(name: str, key: str) -> bool:
    """Whether the device has an implementation of its own, or could have no other: PyTorch shares none for it."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, key) or has(name, f"Autograd{key}") or not any(has(name, shared) for shared in _SHARED)
