"""Variants of an operator call: inputs in other arrangements of memory, given outputs (``out=``), in place.

PyTorch's CPU computes the reference of each variant. A device may do more than the CPU: where the CPU raises and the
meta function does not, the device may raise too, or give the values of the operator's plain call.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics import layout, transfer
from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.layout import appears_contiguous, lies_in_order
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import Attempt, HostCall, attempt, call, host_call, processed, settled
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Oracle, of_forward
from conformance.suites.operators.judge.promises import is_excused, promises_refusal, reference_refuses

from . import arrangements, forms, tiers
from .arrangements import poisoned
from .families import Stage, source
from .kinds import representative, unlike

#: Relative and absolute difference of two results of the CPU that is nothing but rounding in any dtype.
_ROUNDED = 1e-2
#: Dtypes whose kernels have the source of others, and how many arrangements these have in a cell.
_SELDOM, _DRAWN = (torch.float64, torch.complex128, torch.int16, torch.int8), 4
#: What makes an output of one shape and dtype.
Build = Callable[[Any], torch.Tensor]


def both_answered(cell: Cell, form: Call, device_attempt: Attempt, host_attempt: Attempt | HostCall) -> bool:
    """Return whether both sides returned a value; raise the device's exception if only the device raised one.

    Fail if the device accepted a call that no device can give a meaning: the host and the meta function refuse it.
    """
    if host_attempt.error is not None:
        # A device whose tensors all appear contiguous has not got the layout that PyTorch refuses.
        is_meant = not appears_contiguous(cell.device) or all(map(lies_in_order, form.tensors))
        if cell.judge.counts(form) and device_attempt.error is None and is_meant and promises_refusal(cell.info, form):
            expected = type(host_attempt.error).__name__
            cell.judge.claim(form, False, f"accepted, although PyTorch raises {expected} here")
        return False
    if device_attempt.error is not None:
        raise device_attempt.error
    return True


def accepted_more(cell: Cell, form: Call, found: Any) -> None:
    """Compare what the device gives for a call that PyTorch's CPU does not support with the operator's plain result."""
    dense = arrangements.dense_of(form)
    usual = host_call(cell.info.op, dense)
    if usual.error is not None:
        return  # there is nothing to compare with
    pairs = zip(leaves(found), leaves(usual.value), strict=False)
    if all(isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (e.shape, e.dtype) for a, e in pairs):
        n = cell.judge.length(dense, usual.value)
        cell.judge.result(form, found, usual.value, of_forward(cell.info, dense), n)


# --- other arrangements of memory -----------------------------------------------------------------------------------


def rearranged(cell: Cell, sample: Call, names: Collection[str] = ()) -> None:
    """Check that inputs with the same values in other arrangements of memory, or in some by name, give one result.

    The memory between the elements of an input, and beside them, stays what it was.
    """
    check_arranged(cell, arrangements.of(cell.info, sample, names))


def check_arranged(cell: Cell, calls: Iterable[Call]) -> None:
    """Check calls whose inputs lie in memory in other ways."""
    excused = is_excused(cell.info, "test_noncontiguous_samples")
    for strided in calls:
        device, host_attempt = cell.on(strided), host_call(cell.info.op, strided)
        device_attempt = attempt(execution.execute, cell.info, device)
        if excused or host_attempt.error is not None:
            device_attempt = settled(device_attempt)
        if device_attempt.error is not None and (excused or reference_refuses(cell.info, strided)):
            cell.check.metric("non_contiguous", "refused")  # a note: PyTorch does not ask every device for it
            continue
        if both_answered(cell, strided, device_attempt, host_attempt):
            if is_sound(cell, strided, host_attempt.value, host_attempt.given):
                pairs = (device_attempt.value, device), (host_attempt.value, host_attempt.given)
                cell.judge.outcome(strided, *pairs, of_forward(cell.info, strided))
                _check_beside(cell, strided, device, host_attempt.given)
        elif device_attempt.error is None:
            accepted_more(cell, strided, device_attempt.value)


def _check_beside(cell: Cell, strided: Call, device: Call, host: Call) -> None:
    """Check the memory beside the inputs that are parts of a larger one."""
    for number, (found, due, before) in enumerate(zip(device.tensors, host.tensors, strided.tensors, strict=True)):
        if (
            before.layout is torch.strided
            and before.untyped_storage().nbytes() > before.numel() * before.element_size()
        ):
            _check_gaps(cell, strided, f"input {number}", found, due, before)


def is_sound(cell: Cell, strided: Call, value: Any, given: Call | None = None) -> bool:
    """Return whether PyTorch's CPU gives the same values for the arrangement as for contiguous inputs.

    Kernels that PyTorch calls with contiguous inputs alone, such as native_group_norm, read other memory, and
    rrelu_with_noise writes other memory. Then the host is no reference. ``given`` are its arguments after the call.
    """
    if facts(cell.info.name).by_memory:
        return True
    plain_attempt = host_call(cell.info.op, arrangements.dense_of(strided))
    if plain_attempt.error is not None:
        return True
    if given is not None and not all(map(_is_alike, given.tensors, plain_attempt.given.tensors)):
        return False
    oracle = of_forward(cell.info, strided)
    found_leaves, due = processed(strided, value), processed(strided, plain_attempt.value)
    pairs = zip(found_leaves, choices.settled(cell.info, strided, found_leaves, due), strict=True)
    n = cell.judge.length(strided, value)
    return all(
        found.shape == dense.shape
        and compare(plain(found), plain(dense), functools.partial(oracle.leaf, position), cell.op_class, n).right
        for position, (found, dense) in enumerate(pairs)
        if isinstance(dense, torch.Tensor)
    )


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two arguments have the same values; sums over them may have another order."""
    if one.layout is not torch.strided or one.is_quantized or one.shape != other.shape:
        return True
    return bool(torch.allclose(plain(one), plain(other), rtol=_ROUNDED, atol=_ROUNDED, equal_nan=True))


# --- out= -----------------------------------------------------------------------------------------------------------


def out_variants(cell: Cell, sample: Call) -> None:
    """Check ``out=`` with outputs of the right size, of a wrong size (resized), and of an integer dtype."""
    usual = host_call(cell.info.op, sample)
    if usual.error is not None or not _can_be_out(usual.value):
        return
    _into(cell, sample, usual.value, forms.OUT, _alike)
    may_refuse = is_excused(cell.info, "test_noncontiguous_samples")
    for arranged in _for_forms(cell.info, sample):
        # Repeated values may give a result of another size.
        usual_of = host_call(cell.info.op, arranged)
        if usual_of.error is None and is_sound(cell, arranged, usual_of.value):
            _into(cell, arranged.named(part="inputs"), usual_of.value, forms.OUT, _alike, may_refuse=may_refuse)
    if _can_hold(usual.value, _with_gaps, cell.device):
        _into(cell, sample, usual.value, f"{forms.OUT}, outputs with gaps", _with_gaps, may_refuse=True, gaps=True)
    if cell.is_first_dtype and _can_hold(usual.value, _within, cell.device):
        _into(cell, sample, usual.value, f"{forms.OUT}, outputs within other memory", _within, gaps=True)
    if cell.is_first_dtype and any(leaf.dim() > 1 for leaf in leaves(usual.value)):
        into_arranged(cell, sample, "outputs transposed in memory", arrangements.transposed)
    _into(cell, sample, usual.value, f"{forms.OUT} with wrong-size outputs", _larger)
    if any(leaf.dtype.is_floating_point or leaf.dtype.is_complex for leaf in leaves(usual.value)):
        _into(cell, sample, usual.value, f"{forms.OUT} with integer outputs", _integers)


def into_arranged(cell: Cell, sample: Call, name: str, arrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Check ``out=`` with outputs in another arrangement of memory, which the device may refuse."""

    def build(leaf: Any) -> torch.Tensor:
        return arrange(_alike(leaf))

    usual = host_call(cell.info.op, sample)
    if usual.error is None and _can_be_out(usual.value) and _can_hold(usual.value, build, cell.device):
        _into(cell, sample, usual.value, f"{forms.OUT}, {name}", build, may_refuse=True, gaps=True)


def _for_forms(
    info: Any, sample: Call, names: Collection[str] = arrangements.OF_FORMS, *, operands_only: bool = False
) -> Iterator[Call]:
    """Yield the arrangements that PyTorch asks every device to take, or that its own tests excuse a device from."""
    for arranged in arrangements.of(info, sample, names, operands_only=operands_only):
        if not reference_refuses(info, arranged):
            yield arranged


def check_forms(cell: Cell, sample: Call) -> None:
    """Check the in-place and the ``out=`` form with one sample: their kernels may be others."""
    in_place(cell, sample)
    usual = host_call(cell.info.op, sample).value if cell.info.supports_out else None
    if usual is not None and _can_be_out(usual):
        _into(cell, sample, usual, forms.OUT, _alike)


def _can_be_out(value: Any) -> bool:
    """Return whether a result consists of dense tensors, which can be outputs."""
    return all(isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in leaves(value))


def _alike(leaf: Any) -> torch.Tensor:
    """Return an output with the shape and dtype of a result, filled with wrong numbers."""
    return poisoned(leaf.shape, leaf.dtype)


def _with_gaps(leaf: Any) -> torch.Tensor:
    """Return an output of which every second element of a larger memory is used."""
    return arrangements.with_gaps(_alike(leaf))


def _within(leaf: Any) -> torch.Tensor:
    """Return a dense output in the middle of a larger tensor, as a row of a buffer is."""
    return arrangements.with_offset(_alike(leaf))


def _can_hold(value: Any, build: Build, device: torch.device) -> bool:
    """Return whether the device can hold the outputs that ``build`` makes: one without strides holds none with gaps."""
    try:
        _outputs(value, build, device)
    except RuntimeError:
        return False
    return True


def _larger(leaf: Any) -> torch.Tensor:
    """Return an output with a dimension too many, which has to be resized."""
    return poisoned((*leaf.shape, 3), leaf.dtype)


def _integers(leaf: Any) -> torch.Tensor:
    """Return an output of int64 for a result of floating-point or complex numbers, else one of the result's dtype."""
    dtype = torch.int64 if leaf.dtype.is_floating_point or leaf.dtype.is_complex else leaf.dtype
    return poisoned(leaf.shape, dtype)


def _judge_effect(cell: Cell, made: Call, before: Any, outs: tuple[Any, Any]) -> None:
    """Report a call that wrote nothing into its output. True over True does not show it."""
    if not all(out.dtype is torch.bool and bool(out.all()) for out in tensors(outs[1])):
        cell.judge.effect(made, before, *outs)


def _into(
    cell: Cell,
    sample: Call,
    value: Any,
    form: str,
    build: Build,
    *,
    may_refuse: bool = False,
    gaps: bool = False,
) -> None:
    """Compare a call into outputs that ``build`` makes of its result; with ``may_refuse``, a refusal is a note."""
    made = sample.into(form, cell.info.op, out=_outputs(value, build, HOST))
    host, device = made.on(HOST), cell.on(made)
    host_out, device_out, before = host.extra["out"], device.extra["out"], made.extra["out"]
    addresses, strides = _addresses(device_out), _strides(device_out)
    host_attempt, device_attempt = attempt(call, cell.info, host), attempt(execution.execute, cell.info, device)
    if not _is_reference(cell.info, _with_gaps if gaps else build, (sample, value), host, host_attempt):
        return
    if host_attempt.error is not None or build is _larger or may_refuse:
        device_attempt = settled(device_attempt)
    if may_refuse and device_attempt.error is not None:
        cell.check.metric("non_contiguous", "refused")  # a note, as in rearranged()
        return
    if build is _larger and device_attempt.error is not None and host_attempt.error is None:
        cell.check.metric("resize", "refused")  # a note: PyTorch deprecates that outputs with elements are resized
        return
    if not both_answered(cell, made, device_attempt, host_attempt):
        return
    oracle = of_forward(cell.info, sample)
    n = cell.judge.length(host, host_attempt.value)
    # First of all: a call that wrote nothing is reported as a stub and not as wrong values.
    _judge_effect(cell, made, before, (device_out, host_out))
    returned, written = host_attempt.value, host_out
    if _shapes(device_out) == _shapes(value) != _shapes(host_out):
        # The CPU keeps some empty outputs of a wrong size. A device that resizes them does what the documentation says.
        returned = written = value
    cell.judge.metadata(made, device_out, written, own=False)
    contents = _rebuilt(device_out, value), _rebuilt(written, value)
    _judge_both(cell, made, "contents of out", (device_attempt.value, returned), contents, oracle, n)
    cell.judge.inputs(made, device, host, n)
    for leaf, host_leaf, old in zip(*(leaves(each) for each in (device_out, host_out, before)), strict=True):
        _check_gaps(cell, made, "out", leaf, host_leaf, old)
    if host_attempt.resized and not device_attempt.resized:
        cell.check.metric("resize_warning", "missing")  # a note: the values are right
    if gaps or build is _alike:
        cell.judge.claim(made, _addresses(device_out) == addresses, "the outputs' memory was replaced")
        cell.judge.claim(made, _strides(device_out) == strides, "the outputs' strides were changed")


def _judge_both(
    cell: Cell, form: Call, name: str, returned: tuple[Any, Any], written: tuple[Any, Any], oracle: Oracle, n: float
) -> None:
    """Compare what a call returned, and what it wrote: pairs of the device's and the host's."""
    before = cell.check.count
    cell.judge.result(form, *returned, oracle, n)
    if cell.check.answers is None and all(map(_are_same_tensors, returned, written)):
        cell.check.count += cell.check.count - before  # each call returned what it wrote, which was just compared
        return
    cell.judge.result(form, *written, oracle, n, part=name)


def _are_same_tensors(left: Any, right: Any) -> bool:
    """Return whether two results are the same objects, leaf by leaf."""
    pairs = leaves(left), leaves(right)
    return len(pairs[0]) == len(pairs[1]) and all(one is other for one, other in zip(*pairs, strict=True))


def _are_alike(out: Any, value: Any) -> bool:
    """Return whether the outputs hold the plain call's result, apart from roundings."""
    pairs = zip(leaves(out), leaves(value), strict=True)
    return all(leaf.shape == usual.shape and _is_equal_but_for_rounding(leaf, usual) for leaf, usual in pairs)


def _is_equal_but_for_rounding(leaf: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether two results of the CPU differ by roundings alone; most have equal bits, which takes no time."""
    if same_bits(plain(leaf), plain(usual)):
        return True
    wide = torch.complex128 if leaf.is_complex() or usual.is_complex() else torch.float64
    return torch.allclose(leaf.to(wide), usual.to(wide), rtol=_ROUNDED, atol=_ROUNDED, equal_nan=True)


def _is_reference(info: Any, build: Build, plain_run: tuple[Call, Any], host: Call, host_attempt: Attempt) -> bool:
    """Return whether the CPU's ``out=`` form gave what its plain call gives, and left the inputs as that leaves them.

    ``plain_run`` is a sample and its result; the plain call gets contiguous inputs. The CPU writes some outputs as if
    they had no gaps, and native_batch_norm reads other memory.
    """
    (sample, value), out = plain_run, host.extra["out"]
    if build is _with_gaps:
        return _are_alike(out, value)
    if build is not _alike or host_attempt.error is not None:
        return True
    if not _are_alike(out, value):
        return False
    usual = host_call(info.op, arrangements.dense_of(sample))
    if usual.error is not None:
        return True
    pairs = [
        (plain(after), plain(due))
        for after, due in zip(host.tensors, usual.given.tensors, strict=True)
        if after.layout is torch.strided and not after.is_quantized
    ]
    return _are_alike([after for after, _ in pairs], [due for _, due in pairs])


def _check_gaps(
    cell: Cell, form: Call, what: str, written: torch.Tensor, host: torch.Tensor, before: torch.Tensor
) -> None:
    """Check that memory which belongs to no element of a tensor still holds what it held before the call."""

    def same(tensor: torch.Tensor) -> tuple[Any, ...]:
        return tensor.shape, tensor.stride(), tensor.storage_offset()

    if before.layout is not torch.strided or before.is_neg() or before.is_conj() or same(host) != same(before):
        return
    if same(written) != same(before):
        return
    whole = transfer.memory_behind(before)
    # Most tensors fill their memory; then there is nothing to look for.
    gaps = None if before.is_contiguous() and before.numel() == whole.numel() else _gaps_of(before, whole)
    on_host = transfer.memory_behind(host)
    # The CPU itself writes to the gaps of an output in few operators, such as avg_pool3d.
    if gaps is not None and (on_host.shape != whole.shape or not same_bits(on_host[gaps], whole[gaps])):
        return
    try:
        found = transfer.memory_behind(written)
    except Exception:  # a device of Python wrappers may show no memory, and says so as it likes
        return
    if found.shape == whole.shape:
        kept = gaps is None or same_bits(plain(found)[gaps], whole[gaps])
        cell.judge.claim(form, kept, "the call wrote to memory between its elements, or beside them", what)


def _gaps_of(tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return which elements of the whole memory are no elements of the tensor."""
    gaps = torch.ones(whole.shape, dtype=torch.bool)
    gaps.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return gaps


def _addresses(out: Any) -> list[int | None]:
    """Return the address of each output's memory; None for an output without elements, whose address says nothing."""
    return [layout.storage_address(leaf) if leaf.numel() else None for leaf in leaves(out)]


def _strides(out: Any) -> list[tuple[int, ...]]:
    """Return the strides of each output along dimensions of more than one element."""
    return [layout.significant_strides(leaf) for leaf in leaves(out)]


def _shapes(out: Any) -> list[torch.Size]:
    """Return the shape of each output."""
    return [leaf.shape for leaf in leaves(out)]


def _outputs(value: Any, build: Build, device: torch.device) -> Any:
    """Return fresh outputs for a result, made on the host and copied to ``device``."""

    def made_of(leaf: torch.Tensor) -> torch.Tensor:
        built = build(leaf)
        found: torch.Tensor = built if device == HOST else copied(built, device)
        return found

    if isinstance(value, torch.Tensor):
        return made_of(value)
    made = [made_of(leaf) for leaf in leaves(value)]
    return tuple(made) if isinstance(value, tuple) else made


def _rebuilt(out: Any, value: Any) -> Any:
    """Return the outputs as the result's own named tuple: a sample's post-processing may use its field names."""
    return type(value)(out) if isinstance(value, tuple) and type(value) is not tuple else out


# --- in place -------------------------------------------------------------------------------------------------------


def in_place(cell: Cell, sample: Call) -> None:
    """Check that the in-place variant, if there is one, writes the same values into its own input and returns it."""
    if cell.info.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        _in_place(cell, sample)


def in_place_rearranged(cell: Cell, sample: Call) -> None:
    """Check the in-place variant with its operands, and with its own input, in other arrangements of memory."""
    in_place_of(cell, sample, arrangements.OF_INPUTS)
    if cell.info.inplace_variant is None or not isinstance(sample.input, torch.Tensor):
        return
    may_refuse = is_excused(cell.info, "test_noncontiguous_samples")
    for arranged in _for_forms(cell.info, sample, operands_only=True):
        _in_place(cell, arranged, may_refuse=may_refuse)


def in_place_of(cell: Cell, sample: Call, names: Collection[str]) -> None:
    """Check the in-place variant with its inputs in these arrangements of memory."""
    if cell.info.inplace_variant is None or not isinstance(sample.input, torch.Tensor):
        return
    for arranged in _for_forms(cell.info, sample, names):
        _in_place_of_arranged(cell, arranged)


def _in_place_of_arranged(cell: Cell, arranged: Call) -> None:
    """Compare the in-place form of a call whose inputs are arranged, where the host computes it."""
    if cell.info.inplace_variant is None or not isinstance(arranged.input, torch.Tensor):
        return
    given = arranged.named(part="inputs").into(forms.IN_PLACE, cell.info.inplace_variant)
    if attempt(call, cell.info, given.on(HOST)).error is None:
        _in_place(cell, given, may_refuse=True)


def _in_place(cell: Cell, sample: Call, *, may_refuse: bool = False) -> None:
    """Compare the in-place form: its values, and that it writes to the input's own memory."""
    form = sample.into(forms.IN_PLACE, cell.info.inplace_variant)
    host, device = form.on(HOST), cell.on(form)
    address = layout.storage_address(device.input)
    host_attempt, device_attempt = attempt(call, cell.info, host), attempt(execution.execute, cell.info, device)
    if host_attempt.error is not None or may_refuse:
        device_attempt = settled(device_attempt)
    if may_refuse and device_attempt.error is not None:
        cell.check.metric("non_contiguous", "refused")  # a note, as in rearranged()
        return
    if host.input.shape != sample.input.shape and settled(device_attempt).error is not None:
        cell.check.metric("in_place_resize", "refused")  # a note: an input does not change its shape, by documentation
        return
    if not both_answered(cell, form, device_attempt, host_attempt):
        return
    oracle, n = of_forward(cell.info, sample), cell.judge.length(host, host_attempt.value)
    # First of all: a call that wrote nothing is reported as a stub and not as wrong values.
    cell.judge.effect(form, sample.input, device.input, host.input)
    values: tuple[Any, Any] = device_attempt.value, host_attempt.value
    _judge_both(cell, form, "its input", values, (device.input, host.input), oracle, n)
    _check_gaps(cell, form, "its input", device.input, host.input, sample.input)
    # The device has to keep the input's memory only where the host keeps it, and does not resize it.
    if layout.shares_memory(values[1], host.input) and host.input.shape == sample.input.shape:
        same = layout.shares_memory(values[0], device.input)
        cell.judge.claim(form, same is not False, "returned a copy instead of its input")
        replaced = address != layout.storage_address(device.input)
        cell.judge.claim(form, not replaced, "the input's memory was replaced")


def forms_of(cell: Cell, arranged: Call) -> None:
    """Check the in-place and the ``out=`` form of a call whose inputs lie in memory in some way."""
    if reference_refuses(cell.info, arranged):
        return
    usual = host_call(cell.info.op, arranged)
    has_outputs = usual.error is None and cell.info.supports_out and _can_be_out(usual.value)
    if has_outputs and is_sound(cell, arranged, usual.value):
        _into(cell, arranged.named(part="inputs"), usual.value, forms.OUT, _alike, may_refuse=True)
    _in_place_of_arranged(cell, arranged)


# --- families ---------------------------------------------------------------------------------------------------------


def _rearranged_as_often_used(cell: Cell, sample: Call) -> None:
    """Check every arrangement, or in a dtype that few models use some of them, drawn by the cell."""
    names: Collection[str] = ()
    if cell.dtype in _SELDOM and not cell.deep:
        chance = random.Random(f"{cell.info.full_name} {cell.dtype} arrangements")
        names = chance.sample([*arrangements.ARRANGEMENTS, *arrangements.REPETITIONS], _DRAWN)
    rearranged(cell, sample, names)


@source(Mode.INFERENCE, _rearranged_as_often_used, stage=Stage.FORMS, fixed=True)
def arrangements_of_some(cell: Cell) -> list[Call]:
    """Return one sample, and in one dtype others, whose inputs are laid out in memory in other ways."""
    return _chosen(cell)


def _check_written(cell: Cell, sample: Call) -> None:
    """Check that what a call writes beside its first tensor may lie in memory in other ways than the rest."""
    check_arranged(cell, arrangements.of_written(cell.info, sample))


@source(Mode.INFERENCE, _check_written, stage=Stage.FORMS, fixed=True)
def written_arguments(cell: Cell) -> list[Call]:
    """Return a few samples of which that alone is laid out otherwise what the call writes, such as running means."""
    return _chosen(cell)


@source(Mode.INFERENCE, out_variants, stage=Stage.FORMS, fixed=True)
def given_outputs(cell: Cell) -> list[Call]:
    """Return a few samples for the ``out=`` form, if the operator has one."""
    return _chosen(cell) if cell.info.supports_out else []


@source(Mode.INFERENCE, in_place, stage=Stage.FORMS, fixed=True)
def in_place_of_some(cell: Cell) -> Iterator[Call]:
    """Yield the first sample and a few others for the in-place form."""
    chosen = (cell.fixed[0], *_chosen(cell))
    yield from {id(candidate): candidate for candidate in chosen}.values()


@source(Mode.INFERENCE, in_place_rearranged, stage=Stage.FORMS, fixed=True, once=True)
def in_place_rearranged_of_some(cell: Cell) -> list[Call]:
    """Return a few samples whose in-place form is compared in other arrangements of memory."""
    return _chosen(cell)


def _chosen(cell: Cell) -> list[Call]:
    """Return the few samples for other forms and arrangements, chosen once in a cell: each keeps the host's results."""
    return cell.kept("variants", lambda: list(_choose(cell)))


def image_of(cell: Cell) -> Call | None:
    """Return a sample of four dimensions for a function of single elements, if the host computes it and draws none."""
    image = tiers.image(cell.info, cell.dtype)
    return image if image is not None and host_call(cell.info.op, image).comparable else None


def _choose(cell: Cell) -> Iterator[Call]:
    """Yield one sample; in one dtype also those with other kinds of arguments, and one without dimensions.

    Those may reach other kernels.
    """
    first = representative(cell.fixed)
    if not (isinstance(first.input, torch.Tensor) and first.input.dim() > 1):
        # A vector has no rows that may lie apart, and no channels that may be last.
        first = image_of(cell) or first
    yield first
    if not cell.is_first_dtype:
        return
    without_dims = (sample for sample in cell.fixed if any(tensor.dim() == 0 for tensor in sample.tensors))
    found = [*unlike(cell, cell.fixed), *itertools.islice(without_dims, 1)]
    yield from (sample for sample in {id(sample): sample for sample in found}.values() if sample is not first)
