"""Detection of operators that compute on the host although their tensors are on the device.

PyTorch's profiler records a region: every operator, from every library, with the devices of its tensors. The pure
function ``host_work`` judges such a record.

Tensors of one element are ignored. Operators read sizes and conditions from the device, and scalars are host tensors.
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
#: Operators that copy into another tensor, with the positions of source and destination among their tensors.
_COPIES: Final = {"aten::copy_": (1, 0), "aten::_copy_from": (0, 1), "aten::_copy_from_and_resize": (0, 1)}
#: Operators that move whole tensors; they call one of the operators above. They are allowed to copy to the host.
_MOVES: Final = frozenset({*_COPIES, "aten::to", "aten::_to_copy", "aten::_to_cpu"})
#: Dispatch keys of implementations that PyTorch shares between all devices.
_SHARED: Final = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
#: Name of an operator. Other events have names such as ``MmBackward0`` and
#: ``autograd::engine::evaluate_function: MmBackward0``.
_OPERATOR: Final = re.compile(r"\w+::\w+")
#: Name of the events that mark a region.
_REGION: Final = "conformance region"


@dataclass(frozen=True)
class Operand:
    """Argument tensor of an operator: device type, number of elements, size in bytes, and address of its memory."""

    device: str
    elements: int
    bytes: int
    address: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Operand:
        """Return the operand that describes a tensor, without its address."""
        return cls(tensor.device.type, tensor.numel(), tensor.numel() * tensor.element_size())


@dataclass(frozen=True)
class Call:
    """Call of an operator, with its operands and with the calls inside it.

    ``own`` is true if the device's implementation ran, and false if PyTorch's shared one ran. Other events of the
    profiler, such as nodes of a backward pass, are calls without a name.
    """

    name: str = ""
    operands: tuple[Operand, ...] = ()
    inside: tuple[Call, ...] = ()
    own: bool = True

    @property
    def below(self) -> Iterator[Call]:
        """Return the calls inside this one, at every depth."""
        for call in self.inside:
            yield call
            yield from call.below

    @property
    def base(self) -> str:
        """Return the operator's name without namespace and without the underscores that mark its variants."""
        return self.name.rpartition("::")[2].strip("_")


@dataclass(frozen=True)
class HostWork:
    """Operator that was computed on the host, and the number of bytes copied to the host and back."""

    operator: str
    to_host: int
    from_host: int

    def __str__(self) -> str:
        ran = f"{self.operator} ran" if self.operator else "code outside of any operator computed"
        return f"{ran} on the host: {self.to_host} bytes were copied there and {self.from_host} back"


def host_work(calls: Sequence[Call], device: str, given: Iterable[Operand]) -> HostWork | None:
    """Return the first operator, innermost first, that was computed on the host; None if all ran on the device.

    ``device`` is the device's type. ``given`` are the tensors that the region itself got.
    """
    given = tuple(given)
    is_factory = not _size(given, device)
    in_operator = next((work for call in calls for work in _of_call(call, device, is_factory)), None)
    return in_operator or _of_region(calls, device, given)


def _of_call(call: Call, device: str, is_factory: bool) -> Iterator[HostWork]:
    """Return the host work of a call and of the calls inside it.

    A call that makes a tensor from nothing is host work only if the whole region is such a factory. Inside another
    operator it makes a table, such as an index or a window, and the operands' arithmetic runs elsewhere.
    """
    for inner in call.inside:
        yield from _of_call(inner, device, is_factory)
    if call.name and (is_factory or _size(call.operands, device)) and _ran_on_host(call, device):
        yield HostWork(call.name, _to_host([call], device), _from_host(call, device))


def _ran_on_host(call: Call, device: str) -> bool:
    to_host, from_host = _to_host([call], device), _from_host(call, device)
    if call.name in _MOVES:
        return call.own and to_host > 0 and from_host > 0  # to the host and back, so converted there
    given = _size(call.operands, device)
    repeated = [inner for inner in call.below if _repeats(inner, call, device)]
    # At least half of the operands' bytes: a part of a device's operator may work on a small table on the host.
    if 0 < given <= 2 * max((_new_host_bytes(inner, call) for inner in repeated), default=0):
        return True
    # PyTorch's shared implementations read lengths and build small tables on the host, whatever the device is.
    if not call.own:
        return False
    # At least half of the input bytes: an operator may read lengths or conditions from the device.
    took_inputs = 0 < given <= 2 * to_host
    made_result = (not given and from_host > 0) or (bool(repeated) and given <= 2 * from_host)
    return took_inputs or made_result


def _repeats(inner: Call, call: Call, device: str) -> bool:
    """Return whether ``inner`` is the operator of ``call`` again, without any tensor of the device."""
    return inner.base == call.base and all(operand.device != device for operand in inner.operands)


def _new_host_bytes(inner: Call, call: Call) -> int:
    """Return the size of the host tensors that ``inner`` works on and that ``call`` did not get."""
    known = {operand.address for operand in call.operands}
    return _size((operand for operand in inner.operands if operand.address not in known), _HOST)


def _of_region(calls: Sequence[Call], device: str, given: Iterable[Operand]) -> HostWork | None:
    """Return the work outside of operators, if at least half of what the region got was copied to the host there."""
    outside = list(_outside_operators(calls))
    to_host, size = _to_host(outside, device), _size(given, device)
    if not size or 2 * to_host < size:
        return None
    computing = (call for call in _named(calls) if call.name not in _MOVES and _size(call.operands, _HOST))
    name = next((call.name for call in computing if not _size(call.operands, device)), "")
    return HostWork(name, to_host, sum(source.bytes for source in _sources(outside, _HOST, device)))


def _named(calls: Iterable[Call]) -> Iterator[Call]:
    """Return the outermost operators."""
    for call in calls:
        if call.name:
            yield call
        else:
            yield from _named(call.inside)


def _outside_operators(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        if call.name in _MOVES:
            yield call
        elif not call.name:
            yield from _outside_operators(call.inside)


def _size(operands: Iterable[Operand], device: str) -> int:
    return sum(operand.bytes for operand in operands if operand.device == device and operand.elements > 1)


def _to_host(calls: Iterable[Call], device: str) -> int:
    """Return the number of bytes that these calls copied from the device to the host."""
    return sum(source.bytes for source in _sources(calls, device, _HOST))


def _from_host(call: Call, device: str) -> int:
    """Return the number of bytes copied from the host to the device, without tensors that the call got on the host."""
    known = {operand.address for operand in call.operands}
    return sum(source.bytes for source in _sources([call], _HOST, device) if source.address not in known)


def _sources(calls: Iterable[Call], left: str, right: str) -> Iterator[Operand]:
    """Return the sources of copies from device type ``left`` to device type ``right``."""
    for source, target in (pair for call in calls for pair in _copies(call)):
        if source.elements > 1 and (source.device, target.device) == (left, right):
            yield source


def _copies(call: Call) -> Iterator[tuple[Operand, Operand]]:
    """Return source and destination of every copy between devices; a copy inside another copy counts once."""
    positions = _COPIES.get(call.name)
    if positions and len(call.operands) == len(positions):
        source, target = (call.operands[position] for position in positions)
        if source.device != target.device:
            yield source, target
            return
    for inner in call.inside:
        yield from _copies(inner)


# --- recording ------------------------------------------------------------------------------------------------------


class Recording:
    """Profile of regions between ``start`` and ``stop``, in this thread and in the threads of autograd.

    Several regions share one profile, because starting and stopping it takes longer than most operators.
    """

    def __init__(self) -> None:
        # Without device activities: PyTorch records the operators, and vendors' profilers are not under test here.
        self._config = _config()
        self._profile = torch.autograd.profiler.profile(
            use_kineto=True, record_shapes=True, experimental_config=self._config
        )

    def start(self) -> None:
        """Start the profiler; RuntimeError if another profiler runs in this process."""
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running; starting a second profiler would end it")
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Stop the profiler and keep its events."""
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def region(self) -> AbstractContextManager[object]:
        """Return a context that marks a region; events outside of every region are ignored."""
        return torch._C._profiler._RecordFunctionFast(_REGION)

    def calls(self, device: str) -> list[list[Call]]:
        """Return the calls of each region, in order, for a device of this type.

        The list of a region without host tensors is empty, because all of it ran on the device. RuntimeError if
        nothing was recorded.
        """
        results = self._profile.kineto_results
        if results is None:
            raise RuntimeError("the profiler recorded nothing")
        key = torch._C._dispatch_key_for_device(device)
        regions: list[list[Call]] = []
        for events in _regions(results.experimental_event_tree()):
            on_host = any(_has_host_tensor(event) for event in events)
            regions.append([_call(event, key, self._config is not None) for event in events] if on_host else [])
        return regions


def _regions(roots: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the events of each region: those inside it, and those that began meanwhile in other threads."""
    markers = sorted((event for event in roots if event.name == _REGION), key=lambda event: event.start_time_ns)
    for marker in markers:
        # Autograd runs backward passes in threads of its own, where their events have no parent.
        elsewhere = (event for event in roots if event.start_tid != marker.start_tid)
        began = [event for event in elsewhere if marker.start_time_ns <= event.start_time_ns <= marker.end_time_ns]
        yield [*marker.children, *began]


def _config() -> Any:
    """Return the settings that record overloads of operators, or None if torch (before 2.7) records only names."""
    try:
        return torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    except TypeError:
        return None


def _has_host_tensor(event: Any) -> bool:
    """Return whether an operator, here or inside, got a host tensor of more than one element.

    Most regions have none and need no further look, which saves most of the time.
    """
    inputs = _tensors(getattr(event.extra_fields, "inputs", ()))
    on_host = (tensor for tensor in inputs if tensor.device.type == _HOST)
    return any(math.prod(tensor.sizes) > 1 for tensor in on_host) or any(map(_has_host_tensor, event.children))


def _call(event: Any, key: str, with_overloads: bool) -> Call:
    inside = tuple(_call(child, key, with_overloads) for child in event.children)
    overloads = _overloads(event, with_overloads)
    if not overloads:
        return Call(inside=inside)
    operands = tuple(_operand(tensor) for tensor in _tensors(event.extra_fields.inputs))
    return Call(event.name, operands, inside, any(_is_own(name, key) for name in overloads))


def _overloads(event: Any, with_overloads: bool) -> list[str]:
    """Return the event's operator with its overload, or with all overloads if the record does not tell which."""
    if not hasattr(event.extra_fields, "inputs") or not _OPERATOR.fullmatch(event.name):
        return []
    if with_overloads:
        names = [event.overload_name]
    else:
        names = [schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(event.name)]
    qualified = [f"{event.name}.{name}" if name else event.name for name in names]
    return [name for name in qualified if torch._C._dispatch_has_kernel(name)]


def _tensors(inputs: Iterable[Any]) -> Iterator[Any]:
    for value in inputs:
        if isinstance(value, list):
            yield from _tensors(value)
        elif hasattr(value, "storage_data_ptr"):
            yield value


def _operand(tensor: Any) -> Operand:
    elements = math.prod(tensor.sizes)
    return Operand(tensor.device.type, elements, elements * tensor.dtype.itemsize, tensor.storage_data_ptr or 0)


def _is_own(name: str, key: str) -> bool:
    """Return whether the device's own implementation ran: it has one, or PyTorch has no shared one."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, key) or has(name, f"Autograd{key}") or not any(has(name, shared) for shared in _SHARED)
