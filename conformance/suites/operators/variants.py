"""Variants of an operator call: inputs in other arrangements of memory, given outputs (``out=``), in place.

PyTorch's CPU computes the reference of each variant. A device may do more than the CPU: where the CPU raises and the
meta function does not, the device may raise too, or give the values of the operator's plain call.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from conformance.numerics import layout, transfer
from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors

from . import arrangements, choices, execution, sampling, special_inputs
from .arrangements import poisoned
from .execution import HOST, HostCall, OperatorSample, call, host_call, processed
from .oracle import of_forward
from .promises import is_excused, promises_refusal, reference_refuses

#: Relative and absolute difference of two results of the CPU that is nothing but rounding in any dtype.
_ROUNDED = 1e-2


@dataclass(frozen=True)
class Attempt:
    """Outcome of a call on one side: a value or an exception, and whether it warned about resizing."""

    value: object = None
    error: Exception | None = None
    resized: bool = False


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare the variants of an operator that the database lists, on one or two of the samples; in one dtype on more.

    The others have other kinds of arguments, or a tensor of no dimensions: they may reach other kernels.
    """
    if not judge.values:
        return
    samples = [sample for sample in samples if sample.number not in judge.drawn]
    if not samples:
        return  # the operator is random; each variant draws other numbers
    sample = representative(samples)
    rearranged(info, judge, sample)
    if info.supports_out:
        out_variants(info, judge, sample)
    for chosen in {id(candidate): candidate for candidate in (samples[0], sample)}.values():
        in_place(info, judge, chosen)
    if not sampling.is_first_dtype(info, dtype):
        return
    _in_place_rearranged(info, judge, sample)
    for other in _unlike(info, judge, samples, sample):
        rearranged(info, judge, other)
        if info.supports_out:
            out_variants(info, judge, other)
        in_place(info, judge, other)
        _in_place_rearranged(info, judge, other)


def _unlike(info, judge, samples: list[OperatorSample], first: OperatorSample) -> list[OperatorSample]:
    """Return samples with other kinds of arguments than ``first``, and one with a tensor of no dimensions."""
    without_dims = (sample for sample in samples if any(tensor.dim() == 0 for tensor in sample.tensors))
    found = [*special_inputs.unlike(info, judge, samples), *itertools.islice(without_dims, 1)]
    return [sample for sample in {id(sample): sample for sample in found}.values() if sample is not first]


def representative(samples: list[OperatorSample], *, plain: bool = False) -> OperatorSample:
    """Return the sample whose tensors have the most dimensions together; it has elements.

    Of several, it is the one with the most arguments; with ``plain``, the one with the fewest, which leaves the most
    defaults. If no input has several dimensions, it is the sample with the most elements.
    """
    several = [
        sample
        for sample in samples
        if isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1 and sample.input.numel() > 1
    ]
    filled = [sample for sample in several if all(tensor.numel() for tensor in sample.tensors)] or several
    if not filled:
        return max(samples, key=lambda sample: sum(tensor.numel() for tensor in sample.tensors))

    def breadth(sample: OperatorSample) -> tuple[int, int]:
        arguments = len(sample.args) + len(sample.kwargs)
        return sum(tensor.dim() for tensor in sample.tensors), -arguments if plain else arguments

    return max(filled, key=breadth)


def attempt(runner, function, sample: OperatorSample, **extra) -> Attempt:
    """Call the function and return its outcome; an exception is caught, not raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = runner(function, sample, **extra)
        except Exception as error:  # it is compared with the host's outcome
            return Attempt(error=error)
    return Attempt(value, resized=any("was resized" in str(warning.message) for warning in caught))


def settled(device_attempt: Attempt) -> Attempt:
    """Return the outcome after a read of the values: a device that queues its work raises only then."""
    try:
        for leaf in tensors(leaves(device_attempt.value)):
            plain(leaf)
    except Exception as error:  # as in attempt()
        return Attempt(error=error)
    return device_attempt


def both_answered(
    judge,
    label: str,
    sample: OperatorSample,
    function,
    device_attempt: Attempt,
    host_attempt: Attempt | HostCall,
    **extra,
) -> bool:
    """Return whether both sides returned a value; raise the device's exception if only the device raised one.

    Fail if the device accepted a call that no device can give a meaning: the host and the meta function refuse it.
    """
    if host_attempt.error is not None:
        judge.check.count += 1
        if device_attempt.error is None and promises_refusal(function, sample, **extra):
            expected = type(host_attempt.error).__name__
            judge.check.that(False, f"{label}: accepted, although PyTorch raises {expected} here")
        return False
    if device_attempt.error is not None:
        raise device_attempt.error
    return True


def accepted_more(info, judge, label: str, sample: OperatorSample, found) -> None:
    """Compare what the device gives for a call that PyTorch's CPU does not support with the operator's plain result."""
    usual = host_call(info.op, sample)
    if usual.error is not None:
        return  # there is nothing to compare with
    pairs = zip(leaves(found), leaves(usual.value), strict=False)
    if all(isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (e.shape, e.dtype) for a, e in pairs):
        n = judge.length(sample, usual.value)
        judge.result(label, sample, found, usual.value, of_forward(info, sample), n)


# --- other arrangements of memory -----------------------------------------------------------------------------------


def rearranged(info, judge, sample: OperatorSample) -> None:
    """Check that inputs with the same values in other arrangements of memory give the same result."""
    excused = is_excused(info, "test_noncontiguous_samples")
    for name, strided in arrangements.of(info, sample):
        device, host_attempt = strided.on(judge.device), host_call(info.op, strided)
        device_attempt = attempt(execution.execute, info.op, device)
        if excused or host_attempt.error is not None:
            device_attempt = settled(device_attempt)
        if device_attempt.error is not None and (excused or reference_refuses(info, strided)):
            judge.check.metric("non_contiguous", "refused")  # a note: PyTorch does not ask every device for it
            continue
        label = f"{strided}, {name}"
        if both_answered(judge, label, strided, info.op, device_attempt, host_attempt):
            if is_sound(info, judge, strided, host_attempt.value):
                oracle = of_forward(info, strided)
                pairs = (device_attempt.value, device), (host_attempt.value, host_attempt.given)
                judge.outcome(strided, *pairs, oracle, variant=name)
        elif device_attempt.error is None:
            accepted_more(info, judge, label, arrangements.dense_of(strided), device_attempt.value)


def is_sound(info, judge, strided: OperatorSample, value) -> bool:
    """Return whether PyTorch's CPU gives the same values for the arrangement as for contiguous inputs.

    Kernels that PyTorch calls with contiguous inputs alone, such as native_group_norm, read other memory. Then the host
    is no reference.
    """
    plain_attempt = host_call(info.op, arrangements.dense_of(strided))
    if plain_attempt.error is not None:
        return True
    oracle = of_forward(info, strided)
    found_leaves, due = processed(strided, value), processed(strided, plain_attempt.value)
    pairs = zip(found_leaves, choices.settled(info, strided, found_leaves, due), strict=True)
    n = judge.length(strided, value)
    return all(
        found.shape == dense.shape
        and compare(plain(found), plain(dense), functools.partial(oracle.leaf, position), judge.op_class, n).right
        for position, (found, dense) in enumerate(pairs)
        if isinstance(dense, torch.Tensor)
    )


# --- out= -----------------------------------------------------------------------------------------------------------


def out_variants(info, judge, sample: OperatorSample) -> None:
    """Check ``out=`` with outputs of the right size, of a wrong size (resized), and of an integer dtype."""
    usual = host_call(info.op, sample)
    if usual.error is not None or not _can_be_out(usual.value):
        return
    _into(info, judge, sample, usual.value, "out= variant", _alike)
    may_refuse = is_excused(info, "test_noncontiguous_samples")
    for name, arranged in _for_forms(info, sample):
        # Repeated values may give a result of another size.
        usual_of = host_call(info.op, arranged)
        if usual_of.error is None and is_sound(info, judge, arranged, usual_of.value):
            _into(info, judge, arranged, usual_of.value, f"out= variant, inputs {name}", _alike, may_refuse=may_refuse)
    if _has_gaps(usual.value, judge.device):
        _into(info, judge, sample, usual.value, "out= variant, outputs with gaps", _with_gaps, may_refuse=True)
    _into(info, judge, sample, usual.value, "out= variant with wrong-size outputs", _larger)
    if any(leaf.dtype.is_floating_point or leaf.dtype.is_complex for leaf in leaves(usual.value)):
        _into(info, judge, sample, usual.value, "out= variant with integer outputs", _integers)


def _for_forms(
    info, sample: OperatorSample, names: Collection[str] = arrangements.OF_FORMS, *, operands_only: bool = False
) -> Iterator[tuple[str, OperatorSample]]:
    """Yield the arrangements that PyTorch asks every device to take, or that its own tests excuse a device from."""
    for name, arranged in arrangements.of(info, sample, names, operands_only=operands_only):
        if not reference_refuses(info, arranged):
            yield name, arranged


def forms(info, judge, sample: OperatorSample) -> None:
    """Check the in-place and the ``out=`` form with one sample: their kernels may be others."""
    in_place(info, judge, sample)
    usual = host_call(info.op, sample).value if info.supports_out else None
    if usual is not None and _can_be_out(usual):
        _into(info, judge, sample, usual, "out= variant", _alike)


def _can_be_out(value) -> bool:
    return all(isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in leaves(value))


def _alike(leaf):
    return poisoned(leaf.shape, leaf.dtype)


def _with_gaps(leaf):
    return arrangements.with_gaps(_alike(leaf))


def _has_gaps(value, device: torch.device) -> bool:
    """Return whether the device can hold outputs with gaps: one without strided memory cannot."""
    try:
        _outputs(value, _with_gaps, device)
    except RuntimeError:
        return False
    return True


def _larger(leaf):
    return poisoned((*leaf.shape, 3), leaf.dtype)


def _integers(leaf):
    dtype = torch.int64 if leaf.dtype.is_floating_point or leaf.dtype.is_complex else leaf.dtype
    return poisoned(leaf.shape, dtype)


def _into(info, judge, sample: OperatorSample, value, variant: str, build, *, may_refuse: bool = False) -> None:
    host, device = sample.on(HOST), sample.on(judge.device)
    host_out, device_out = _outputs(value, build, HOST), _outputs(value, build, judge.device)
    addresses, strides = _addresses(device_out), _strides(device_out)
    host_attempt, device_attempt = (
        attempt(call, info.op, host, out=host_out),
        attempt(execution.execute, info.op, device, out=device_out),
    )
    label = f"{sample}, {variant}"
    if not _is_reference(info, build, (sample, value), (host, host_out), host_attempt):
        return
    if host_attempt.error is not None or build is _larger or may_refuse:
        device_attempt = settled(device_attempt)
    if may_refuse and device_attempt.error is not None:
        judge.check.metric("non_contiguous", "refused")  # a note, as in rearranged()
        return
    if build is _larger and device_attempt.error is not None and host_attempt.error is None:
        judge.check.metric("resize", "refused")  # a note: PyTorch deprecates that outputs with elements are resized
        return
    # The meta function is asked about a call that the host refuses.
    of_meta = {} if host_attempt.error is None else {"out": _outputs(value, build, torch.device("meta"))}
    if not both_answered(judge, label, sample, info.op, device_attempt, host_attempt, **of_meta):
        return
    oracle = of_forward(info, sample)
    n = judge.length(host, host_attempt.value)
    before = _outputs(value, build, HOST)
    # First of all: a call that wrote nothing is reported as a stub and not as wrong values.
    judge.effect(label, before, device_out, host_out)
    returned, written = host_attempt.value, host_out
    if _shapes(device_out) == _shapes(value) != _shapes(host_out):
        # The CPU keeps some empty outputs of a wrong size. A device that resizes them does what the documentation says.
        returned = written = value
    judge.metadata(label, device_out, written)
    contents = _rebuilt(device_out, value), _rebuilt(written, value)
    _judge_both(judge, label, "contents of out", sample, (device_attempt.value, returned), contents, oracle, n)
    judge.inputs(label, device, host, sample, n)
    for leaf, host_leaf, old in zip(*(leaves(each) for each in (device_out, host_out, before)), strict=True):
        _check_gaps(judge, f"{label}, out", leaf, host_leaf, old)
    if host_attempt.resized and not device_attempt.resized:
        judge.check.metric("resize_warning", "missing")  # a note: the values are right
    if build in (_alike, _with_gaps):
        judge.check.that(_addresses(device_out) == addresses, f"{label}: the outputs' memory was replaced")
        judge.check.that(_strides(device_out) == strides, f"{label}: the outputs' strides were changed")


def _judge_both(judge, label: str, name: str, sample: OperatorSample, returned, written, oracle, n: float) -> None:
    """Compare what a call returned, and what it wrote: pairs of the device's and the host's."""
    before = judge.check.count
    judge.result(label, sample, *returned, oracle, n)
    if judge.check.answers is None and all(map(_are_same_tensors, returned, written)):
        judge.check.count += judge.check.count - before  # each call returned what it wrote, which was just compared
        return
    judge.result(f"{label}, {name}", sample, *written, oracle, n)


def _are_same_tensors(left, right) -> bool:
    pairs = leaves(left), leaves(right)
    return len(pairs[0]) == len(pairs[1]) and all(one is other for one, other in zip(*pairs, strict=True))


def _are_alike(out, value) -> bool:
    """Return whether the outputs hold the plain call's result, apart from roundings."""
    pairs = zip(leaves(out), leaves(value), strict=True)
    return all(leaf.shape == usual.shape and _is_near(leaf, usual) for leaf, usual in pairs)


def _is_near(leaf: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether two results of the CPU differ by roundings alone; most have equal bits, which takes no time."""
    if same_bits(plain(leaf), plain(usual)):
        return True
    wide = torch.complex128 if leaf.is_complex() or usual.is_complex() else torch.float64
    return torch.allclose(leaf.to(wide), usual.to(wide), rtol=_ROUNDED, atol=_ROUNDED, equal_nan=True)


def _is_reference(info, build, plain_call, call_into, host_attempt: Attempt) -> bool:
    """Return whether the CPU's ``out=`` form gave what its plain call gives, and left the inputs as that leaves them.

    Each call is a pair of a sample and outputs; the plain call gets contiguous inputs. The CPU writes some outputs as
    if they had no gaps, and native_batch_norm reads other memory.
    """
    (sample, value), (host, out) = plain_call, call_into
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


def _check_gaps(judge, label: str, written: torch.Tensor, host: torch.Tensor, before: torch.Tensor) -> None:
    """Check that memory which belongs to no element of a tensor still holds what it held before the call."""
    same = lambda tensor: (tensor.shape, tensor.stride(), tensor.storage_offset())  # noqa: E731
    if before.layout is not torch.strided or before.is_neg() or before.is_conj() or same(host) != same(before):
        return
    if same(written) != same(before):
        return
    whole = transfer.memory_behind(before)
    # Most tensors fill their memory; then there is nothing to look for.
    gaps = None if before.is_contiguous() and before.numel() == whole.numel() else _gaps_of(before, whole)
    # The CPU itself writes to the gaps of an output in few operators, such as avg_pool3d.
    if gaps is not None and not same_bits(transfer.memory_behind(host)[gaps], whole[gaps]):
        return
    try:
        found = transfer.memory_behind(written)
    except Exception:  # a device of Python wrappers may show no memory, and says so as it likes
        return
    if found.shape == whole.shape:
        kept = gaps is None or same_bits(plain(found)[gaps], whole[gaps])
        judge.check.that(kept, f"{label}: the call wrote to memory between its elements, or beside them")


def _gaps_of(tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return which elements of the whole memory are no elements of the tensor."""
    gaps = torch.ones(whole.shape, dtype=torch.bool)
    gaps.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return gaps


def _addresses(out) -> list[int | None]:
    return [layout.storage_address(leaf) for leaf in leaves(out)]


def _strides(out) -> list[tuple[int, ...]]:
    return [layout.significant_strides(leaf) for leaf in leaves(out)]


def _shapes(out) -> list[torch.Size]:
    return [leaf.shape for leaf in leaves(out)]


def _outputs(value, build, device: torch.device):
    """Return fresh outputs for a result, made on the host and copied to ``device``."""

    def made_of(leaf: torch.Tensor) -> torch.Tensor:
        built = build(leaf)
        return built if device == HOST else copied(built, device)

    if isinstance(value, torch.Tensor):
        return made_of(value)
    made = [made_of(leaf) for leaf in leaves(value)]
    return tuple(made) if isinstance(value, tuple) else made


def _rebuilt(out, value):
    """Return the outputs as the result's own named tuple: a sample's post-processing may use its field names."""
    return type(value)(out) if isinstance(value, tuple) and type(value) is not tuple else out


# --- in place -------------------------------------------------------------------------------------------------------


def in_place(info, judge, sample: OperatorSample) -> None:
    """Check that the in-place variant, if there is one, writes the same values into its own input and returns it."""
    if info.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        _in_place(info, judge, sample, "in-place variant")


def _in_place_rearranged(info, judge, sample: OperatorSample) -> None:
    """Check the in-place variant with its operands, and with its own input, in other arrangements of memory."""
    if info.inplace_variant is None or not isinstance(sample.input, torch.Tensor):
        return
    for name, arranged in _for_forms(info, sample, arrangements.OF_INPUTS):
        if attempt(call, info.inplace_variant, arranged.on(HOST)).error is None:
            _in_place(info, judge, arranged, f"in-place variant, inputs {name}", may_refuse=True)
    may_refuse = is_excused(info, "test_noncontiguous_samples")
    for name, arranged in _for_forms(info, sample, operands_only=True):
        _in_place(info, judge, arranged, f"in-place variant, operands {name}", may_refuse=may_refuse)


def _in_place(info, judge, sample: OperatorSample, variant: str, *, may_refuse: bool = False) -> None:
    host, device = sample.on(HOST), sample.on(judge.device)
    address = layout.storage_address(device.input)
    host_attempt = attempt(call, info.inplace_variant, host)
    device_attempt = attempt(execution.execute, info.inplace_variant, device)
    if host_attempt.error is not None or may_refuse:
        device_attempt = settled(device_attempt)
    if may_refuse and device_attempt.error is not None:
        judge.check.metric("non_contiguous", "refused")  # a note, as in rearranged()
        return
    if host.input.shape != sample.input.shape and settled(device_attempt).error is not None:
        judge.check.metric("in_place_resize", "refused")  # a note: an input does not change its shape, by documentation
        return
    label = f"{sample}, {variant}"
    if not both_answered(judge, label, sample, info.inplace_variant, device_attempt, host_attempt):
        return
    oracle, n = of_forward(info, sample), judge.length(host, host_attempt.value)
    # First of all: a call that wrote nothing is reported as a stub and not as wrong values.
    judge.effect(label, sample.input, device.input, host.input)
    values = device_attempt.value, host_attempt.value
    _judge_both(judge, label, "its input", sample, values, (device.input, host.input), oracle, n)
    _check_gaps(judge, f"{label}, its input", device.input, host.input, sample.input)
    # The device has to keep the input's memory only where the host keeps it, and does not resize it.
    if layout.shares_memory(host_attempt.value, host.input) and host.input.shape == sample.input.shape:
        same = layout.shares_memory(device_attempt.value, device.input)
        judge.check.that(same is not False, f"{label}: returned a copy instead of its input")
        judge.check.that(address == layout.storage_address(device.input), f"{label}: the input's memory was replaced")
