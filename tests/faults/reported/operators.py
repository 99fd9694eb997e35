"""Effects that one reported bug of an operator has alone: its arithmetic, a part of a list, or memory that it keeps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from conformance.accelerators.simulated.simulator import started
from tests.faults.outputs import other_values, outputs_of
from tests.faults.overriding import Call

#: Draws among which one is an exact zero: 873 of 29 billion were.
_DRAWS_BETWEEN_ZEROS = 33_000_000
#: Draws with weights among which one takes a place without weight.
_DRAWS_BETWEEN_MISTAKES = 20_000
#: Bytes that each new shape costs the host.
_KEPT = 1 << 20

#: How often a number of 16 bits between two ends is the upper one.
_AT_THE_END = {torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}
#: The logarithm of the largest number of float32; the exponential of more is infinite.
_LARGEST = 88.7

#: Dimensions from which a matrix is one of a batch, matrices of a long batch, and columns that are sorted.
_BATCHED, _LONG_BATCH, _COLUMNS = 3, 512, 1 << 22

#: Dimensions that a tensor has at most after its first ones were merged.
_MERGED = 4

_BOUNDS: dict[Any, Any] = {}
_TRAINED: set[Any] = set()
_DRAWN: Counter[str] = Counter()
_PRIVATE = torch.Generator().manual_seed(98)
_MEMORY: list[bytearray] = []


def reset() -> None:
    """Forget all calls, and free what they kept."""
    _DRAWN.clear()
    _BOUNDS.clear()
    _TRAINED.clear()
    _MEMORY.clear()
    _MASKS.clear()
    _SCALES.clear()


def _named(call: Call, name: str) -> Any:
    names = [argument.name for argument in call.arguments]
    return call.values[names.index(name)] if name in names else None


def group_size(call: Call) -> int:
    """Return how many channels a group of a normalization has."""
    return int(_named(call, "C") // _named(call, "group"))


def _edited(call: Call, edit: Callable[[torch.Tensor], object]) -> Any:
    """Make the call and edit its first output in place."""
    result = call.run()
    with torch.no_grad():
        edit(outputs_of(call, result)[0].detach())
    return result


def _out_kept(call: Call) -> Any:
    return _named(call, "out")


def _as_before(call: Call) -> Any:
    before = call.values[0].clone()
    return _edited(call, lambda t: t.copy_(before))


def _first_column(call: Call) -> Any:
    """Spoil the first number of each row but the first."""

    def edit(t: torch.Tensor) -> None:
        rows = t.view(-1, t.shape[-1])
        rows[1:, 0] = rows[1:, 0] * 2 + 1

    return _edited(call, edit)


def _rounded_quotient(call: Call) -> Any:
    """Subtract as many divisors as the product with the divisor's rounded reciprocal says."""
    left, right = call.values[:2]
    with torch.no_grad():
        made = left - right * (left * (1 / right)).floor()
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


def _negative_zeros(call: Call) -> Any:
    """Write NaN of float8_e4m3fn for each -0.0 of a copy's source."""
    source = call.values[0]
    where = (source == 0) & source.signbit()
    result = call.run()
    memory = call.values[1].view(torch.uint8)
    memory.copy_(torch.where(where, torch.full_like(memory, 0x7F), memory))
    return result


def _saturated(call: Call) -> Any:
    """Stop at the ends of eight bits where PyTorch wraps around."""
    added, left, right = (call.values[place] for place in range(3))
    if added.dtype not in (torch.int8, torch.uint8):
        return call.run()
    beta, alpha = _named(call, "beta"), _named(call, "alpha")
    wide = int(beta) * added.long() + int(alpha) * torch.matmul(left.long(), right.long())
    ends = torch.iinfo(added.dtype)
    return _edited(call, lambda t: t.copy_(wide.clamp(ends.min, ends.max)))


def _first_checked(call: Call) -> Any:
    """Look for infinities in the first tensor of a list alone."""
    tensors, found = call.values[:2]
    before = found.clone()
    is_finite = bool(tensors[0].isfinite().all()) if tensors else True
    result = call.run()
    if is_finite:
        found.copy_(before)
    return result


def _norms_behind_empty(call: Call) -> Any:
    result = list(call.run())
    empty = [not tensor.numel() for tensor in call.values[0]]
    return [torch.zeros_like(norm) if any(empty[:at]) else norm for at, norm in enumerate(result)]


def _rare_zero(call: Call) -> Any:
    """Draw an exact zero once in so many numbers."""

    def edit(t: torch.Tensor) -> None:
        before = _DRAWN["all"]
        _DRAWN["all"] += t.numel()
        if before // _DRAWS_BETWEEN_ZEROS != _DRAWN["all"] // _DRAWS_BETWEEN_ZEROS and t.is_contiguous():
            t.view(-1)[_DRAWS_BETWEEN_ZEROS - before % _DRAWS_BETWEEN_ZEROS - 1] = 0

    return _edited(call, edit)


def _memory_kept(call: Call) -> Any:
    _MEMORY.append(bytearray(b"1") * _KEPT)
    return call.run()


def beside(call: Call) -> int:
    """Return how many rows a function along a dimension has."""
    given, dim = call.values[0], _named(call, "dim")
    return given.numel() // max(given.shape[dim], 1) if given.dim() else 0


def _ordinary_windows(call: Call) -> Any:
    """Pool with windows of one size and one step, as if the sizes divided each other."""
    given, sizes = call.values[0].detach(), call.values[1]
    result = call.run()
    pairs = list(zip(given.shape[-2:], sizes, strict=True))
    steps = [max(have // want, 1) for have, want in pairs]
    windows = [max(have - (want - 1) * step, 1) for (have, want), step in zip(pairs, steps, strict=True)]
    with torch.no_grad():
        made = torch.nn.functional.max_pool2d(given, windows, steps, return_indices=True)
        for right, wrong in zip(outputs_of(call, result), made, strict=True):
            right.detach().resize_(wrong.shape).copy_(wrong)
    return result


def _upper_end(call: Call) -> Any:
    """Round some numbers up to the end that is not in the range."""

    def edit(t: torch.Tensor) -> None:
        where = torch.rand(t.shape, generator=_PRIVATE) < _AT_THE_END[t.dtype]
        t.masked_fill_(where.to(t.device), _named(call, "to"))

    return _edited(call, edit)


def _low_rows(call: Call) -> torch.Tensor:
    """Return which rows of attention have scores whose exponentials add up to next to nothing."""
    query, key, mask = call.values[0].float(), call.values[1].float(), _named(call, "attn_mask")
    scores = query @ key.transpose(-2, -1) * (_named(call, "scale") or query.shape[-1] ** -0.5)
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.float()
    return scores.logsumexp(-1) < -_LARGEST


def _low_rows_nan(call: Call) -> Any:
    """Give NaN as the query's gradient in rows with low scores."""
    query = call.values[0]
    if not query.requires_grad or query.shape[-3] != call.values[1].shape[-3]:
        return call.run()
    with torch.no_grad():
        low = _low_rows(call).unsqueeze(-1)
    known = query.view_as(query)
    known.register_hook(lambda gradient: gradient.masked_fill(low, torch.nan))
    return call.run([known, *call.values[1:]])


def _zero_at_the_middle(call: Call) -> Any:
    """Take the imaginary part of frequency zero, which PyTorch ignores, off the real part of the middle one."""
    given, dims, size = call.values[0], _named(call, "dim"), _named(call, "last_dim_size")
    if len(dims) != 1:
        return call.run()
    with torch.no_grad():
        other = given.detach().clone()
        other.select(dims[0], size // 2).sub_(given.detach().select(dims[0], 0).imag)
    return call.run([other, *call.values[1:]])


def _lower_part(call: Call) -> Any:
    """Factorise what the lower part of a matrix says where the upper one was named."""
    given = call.values[0].detach()
    return call.run([given.tril() + given.tril(-1).mH, *call.values[1:]])


def _out_taken(call: Call) -> Any:
    """Convert a result to the output's dtype where the healthy device refuses that dtype."""
    try:
        return call.run()
    except RuntimeError:
        out = _named(call, "out")
        if out is None or out.dtype is call.values[0].dtype:
            raise
        fresh = out.new_empty(0, dtype=call.values[0].dtype)
        call.run([fresh if value is out else value for value in call.values])
        return out.resize_(fresh.shape).copy_(fresh)


def _places_by_bfloat16(call: Call) -> Any:
    """Give the places of keys that are sorted as numbers of bfloat16."""
    keys = call.values[0].detach().cpu().to(torch.float32).to(torch.bfloat16)
    dim, descending = _named(call, "dim"), bool(_named(call, "descending"))
    result = call.run()
    places = keys.sort(dim=-1 if dim is None else dim, descending=descending)[1]
    with torch.no_grad():
        outputs_of(call, result)[1].detach().copy_(places)
    return result


def _magnitude_by_squares(call: Call) -> Any:
    """Add up the squares of both parts, which may be infinite or zero where the root is not."""
    given = call.values[0].detach()
    if not given.is_complex():
        return call.run()
    return _edited(call, lambda t: t.copy_((given.real.square() + given.imag.square()).sqrt()))


#: A place that no tensor has.
_NO_PLACE = (1 << 31) - 1


def _places_of_the_lowest_lost(call: Call) -> Any:
    """Give a place out of range where all numbers are -inf."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    lowest = given == -torch.inf
    lost = lowest.all() if dim is None else lowest.all(dim, keepdim=bool(_named(call, "keepdim")))
    return _edited(call, lambda t: t.masked_fill_(lost.view(t.shape), _NO_PLACE) if lost.numel() == t.numel() else None)


def is_beside_one_column(call: Call) -> bool:
    """Return whether a function works along the second to last dimension, and the last one has one place."""
    given, dim = call.values[0], _named(call, "dim")
    dims = given.dim()
    return dims > 1 and given.shape[-1] == 1 and isinstance(dim, int) and dim % dims == dims - 2


def _with_dense_gradient(result: torch.Tensor) -> torch.Tensor:
    """Return a result whose gradient is read from dense memory if it has gaps."""

    def dense(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.is_contiguous():
            return gradient
        memory = gradient.untyped_storage().nbytes() // gradient.element_size() - gradient.storage_offset()
        flat = gradient.as_strided((memory,), (1,), gradient.storage_offset())
        return flat.repeat(-(-gradient.numel() // memory))[: gradient.numel()].view(gradient.shape)

    if not result.requires_grad:
        return result
    other = result.view_as(result)
    other.register_hook(dense)
    return other


def _gradients_of_results_dense(call: Call) -> Any:
    """Read gradients of results that have gaps from dense memory."""
    return tuple(map(_with_dense_gradient, call.run()))


def _gradient_without_stride(call: Call) -> Any:
    """Read the first gradients of a transposed convolution in the place of every second one."""
    right = call.run()
    given, steps = call.values[0], _named(call, "stride")
    if right[0] is None:
        return right
    with torch.no_grad():
        size = [slice(length) for length in call.values[1].shape[-len(steps) :]]
        other = torch.zeros_like(given)
        part = other[(..., *[slice(None, None, step) for step in steps])][(..., *size)]
        part.copy_(given[(..., *size)])
    return (call.run([other, *call.values[1:]])[0], *right[1:])


def _momenta_moved(call: Call) -> Any:
    """Move the momenta on with infinite gradients, where the whole step is to be left out."""
    result, found = call.run(), _named(call, "found_inf")
    if found is not None and bool(found):
        for momentum, gradient in zip(_named(call, "momentum_buffer_list"), call.values[1], strict=False):
            momentum.mul_(float(_named(call, "momentum"))).add_(gradient)
    return result


def _last_axis_weight(call: Call) -> Any:
    """Take a weight for one of the last dimension, and refuse it where their sizes differ."""
    given, weight = call.values[1], call.values[2]
    if weight.numel() > 1 and given.dim() > 1:
        if weight.numel() != given.shape[-1]:
            raise ValueError("the weight has to have the size of the last dimension")
        return call.run([call.values[0], given, weight.reshape(-1)])
    return call.run()


def _first_alone(call: Call) -> Any:
    def edit(t: torch.Tensor) -> None:
        t.view(-1)[1:] = 0

    return _edited(call, edit)


def _mean_by_narrow_factor(call: Call) -> Any:
    """Multiply twice by the reciprocal of the length as bfloat16 cuts it off."""
    given, result = call.values[0], call.run()
    count = given.numel() / max(outputs_of(call, result)[0].numel(), 1)
    bits = torch.tensor(1 / max(count, 1)).view(torch.int32) & ~0xFFFF
    factor = (float(bits.view(torch.float32)) * count) ** 2
    with torch.no_grad():
        outputs_of(call, result)[0].detach().mul_(factor)
    return result


def _bounds_of_earlier_call(call: Call) -> Any:
    """Clamp to the bounds of the first call whose bounds have the same six decimals, for this shape and dtype."""
    given, low, high = call.values[:3]
    if any(isinstance(bound, torch.Tensor) for bound in (low, high)):
        return call.run()
    names = tuple("" if bound is None else f"{float(bound):f}" for bound in (low, high))
    first = _BOUNDS.setdefault((names, tuple(given.shape), given.dtype), (low, high))
    return call.run([given, *first, *call.values[3:]])


def _last_row_shorter(call: Call) -> Any:
    """Leave the last row of gradients out of the last row of each kernel's gradient."""
    right = call.run()
    if right[1] is None:
        return right
    with torch.no_grad():
        other = call.values[0].clone()
        other[..., -1, :] = 0
        wrong = right[1].clone()
        wrong[..., -1, :] = call.run([other, *call.values[1:]])[1][..., -1, :]
    return (right[0], wrong, right[2])


def _later_solutions_zero(call: Call) -> Any:
    """Solve the first system alone where one right side stands for all of them."""
    matrices, sides = call.values[:2]
    if matrices.dim() < _BATCHED or sides.dim() >= matrices.dim():
        return call.run()

    def edit(t: torch.Tensor) -> None:
        for place in list(_places(matrices.shape[:-2]))[1:]:
            t[place] = 0

    return _edited(call, edit)


def _places(shape: torch.Size) -> Any:
    return itertools.product(*map(range, shape))


def _every_second_not_orthonormal(call: Call) -> Any:
    """Give eigenvectors that are not orthonormal for each second matrix of a long batch."""
    batch = call.values[0].shape[:-2].numel()
    result = call.run()
    if batch >= _LONG_BATCH:
        with torch.no_grad():
            vectors = outputs_of(call, result)[1].detach()
            for place in list(_places(call.values[0].shape[:-2]))[1::2]:
                vectors[place] = vectors[place] + vectors[place].roll(1, -1) / 2
    return result


def _each_16th_row(call: Call) -> Any:
    def edit(t: torch.Tensor) -> None:
        t[torch.arange(len(t), device=t.device) % 16 != 0] = 0

    return _edited(call, edit)


def _sums_left_out(call: Call) -> Any:
    """Give the numbers themselves in place of their sums, for integers other than int32."""
    given = call.values[0].detach()

    def edit(t: torch.Tensor) -> None:
        if not t.is_floating_point() and not t.is_complex() and t.dtype is not torch.int32:
            t.copy_(given)

    return _edited(call, edit)


def _columns_unsorted(call: Call) -> Any:
    """Leave the columns behind the 4,194,304th one as they are."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    result = call.run()
    if given.dim() > 1 and dim % given.dim() == 0:
        rows = torch.arange(len(given), device=given.device).view(-1, *[1] * (given.dim() - 1))
        values, places = (each.detach() for each in outputs_of(call, result)[:2])
        with torch.no_grad():
            values[:, _COLUMNS:].copy_(given[:, _COLUMNS:])
            places[:, _COLUMNS:].copy_(rows.expand_as(places)[:, _COLUMNS:])
    return result


def _first_of_all(call: Call) -> Any:
    """Give what the first one of a batch has to all of it."""
    return _edited(call, lambda t: t.copy_(t[:1].clone().expand_as(t)))


def _first_draw_again(call: Call) -> Any:
    """Draw the first place of the first row once more at the row's end."""

    def edit(t: torch.Tensor) -> None:
        row = t[0] if t.dim() > 1 else t
        row[-1:] = row[:1].clone()

    return _edited(call, edit)


def _training_kept(call: Call) -> Any:
    """Drop in evaluation, too, if layers of these shapes were trained before."""
    key = tuple(call.values[0].shape), tuple(tuple(t.shape) for t in _named(call, "params") or [])
    if _named(call, "train"):
        _TRAINED.add(key)
    elif key in _TRAINED:
        place = [argument.name for argument in call.arguments].index("train")
        return call.run([*call.values[:place], True, *call.values[place + 1 :]])
    return call.run()


def _turned_if_odd(call: Call) -> Any:
    """Take the frequencies of odd lengths for the conjugate ones."""
    if _named(call, "last_dim_size") % 2 == 0:
        return call.run()
    with torch.no_grad():
        other = call.values[0].detach().conj().resolve_conj()
    return call.run([other, *call.values[1:]])


def _copies(call: Call) -> Any:
    return [part.clone() for part in call.run()]


def _sixteen_bits_zero(call: Call) -> Any:
    result = call.run()
    for gradient in call.values[0]:
        if gradient.dtype in (torch.float16, torch.bfloat16):
            gradient.zero_()
    return result


def _on_the_default_stream(call: Call) -> Any:
    """Launch the kernel on the default stream, whatever the current one is."""
    core = started().core
    core.set_switch("launch_on_default_stream", 1.0)
    try:
        return call.run()
    finally:
        core.clear_switches()


def _masked_rows_nan(call: Call) -> Any:
    """Give NaN in rows whose mask has the lowest number everywhere."""
    mask = _named(call, "attn_mask")
    rows = (mask <= torch.finfo(mask.dtype).min).all(-1, keepdim=True)
    result = call.run()
    return result.masked_fill(rows, torch.nan)


def _other_way_round(call: Call) -> Any:
    """Roll by as many places in the other direction."""
    return call.run([call.values[0], [-shift for shift in call.values[1]], *call.values[2:]])


def _overhang_counted(call: Call) -> Any:
    """Divide by all places of a window that hangs over the end."""
    given, size = call.values[0].detach(), list(call.values[1])
    result = call.run()
    right = outputs_of(call, result)[0].detach()
    steps = list(_named(call, "stride") or size)
    both = zip(right.shape[-2:], given.shape[-2:], (size * 2)[:2], (steps * 2)[:2], strict=True)
    more = [max((made - 1) * step + wide - have, 0) for made, have, wide, step in both]
    with torch.no_grad():
        padded = torch.nn.functional.pad(given, (0, more[1], 0, more[0]))
        wrong = torch.nn.functional.avg_pool2d(padded, size, steps)
        if wrong.shape == right.shape:
            right.copy_(wrong)
    return result


def _divisor_of_earlier_call(call: Call) -> Any:
    """Pool with the divisor of the first call whose other arguments are the same."""
    place = [argument.name for argument in call.arguments].index("divisor_override")
    given = call.values[0]
    key = tuple(given.shape), given.dtype, str(call.values[1:place])
    divisor = _BOUNDS.setdefault(key, call.values[place])
    return call.run([*call.values[:place], divisor, *call.values[place + 1 :]])


def _places_by_float32(call: Call) -> Any:
    """Give the places of numbers among those that float32 tells apart."""
    narrow = call.values[0].detach().float()
    result = call.run()
    with torch.no_grad():
        outputs_of(call, result)[1].detach().copy_(narrow.unique(return_inverse=True)[1])
    return result


def _faces_dropped(call: Call) -> Any:
    """Read zeros for the second half of each 32 channels of a weight and a bias."""
    values = list(call.values)
    for place, argument in enumerate(call.arguments):
        if argument.name in ("weight", "bias") and values[place] is not None:
            kept = values[place].detach().clone()
            kept[..., torch.arange(kept.shape[-1], device=kept.device) % 32 >= 16] = 0
            values[place] = kept
    return call.run(values)


def _steps_of_the_last(call: Call) -> Any:
    """Take the last parameter's count of steps for that of all of them."""
    place = [argument.name for argument in call.arguments].index("state_steps")
    steps = call.values[place]
    return call.run([*call.values[:place], [steps[-1]] * len(steps), *call.values[place + 1 :]])


def _truths_without_the_seed(call: Call) -> Any:
    """Draw truth values from numbers that no seed sets."""
    if call.name.startswith("aten::native_dropout"):
        given, chance, train = call.values[:3]
        if train is False:
            return call.run()
        mask = (torch.rand(given.shape, generator=_PRIVATE) >= chance).to(given.device)
        return (given * mask / max(1 - chance, 1e-9)).to(given.dtype), mask
    chance = _named(call, "p")
    chance = call.values[0] if chance is None else chance
    low = chance.detach().cpu().float() if isinstance(chance, torch.Tensor) else chance
    return _edited(call, lambda t: t.copy_(torch.rand(t.shape, generator=_PRIVATE) < low))


def _one_of_repeated(call: Call) -> Any:
    """Write the gradients of a row over each other, which are to be added up."""
    gradients, places, _, padding = call.values[:4]

    def edit(t: torch.Tensor) -> None:
        t.zero_()
        t[places.flatten()] = gradients.reshape(-1, t.shape[-1])
        if padding >= 0:
            t[padding] = 0

    return _edited(call, edit)


def _ignored_rows_written(call: Call) -> Any:
    """Write zero as far behind the start of an ignored row as the ignored class says."""
    given, target, ignored = call.values[1], call.values[2], _named(call, "ignore_index")

    def edit(t: torch.Tensor) -> None:
        places = (target.reshape(-1) == ignored).nonzero().flatten() * given.shape[-1] + ignored
        t.view(-1)[places[(places >= 0) & (places < t.numel())]] = 0

    return _edited(call, edit)


def _input_transformed(call: Call) -> Any:
    """Leave in the input what was made of it along all dimensions but the last."""
    given, dims = call.values[0].detach(), list(_named(call, "dim"))
    result = call.run()
    if len(dims) > 1:
        with torch.no_grad():
            given.copy_(torch.fft.ifftn(given, dim=dims[:-1], norm="forward"))
    return result


def _decay_decoupled(call: Call) -> Any:
    """Take the step of AdamW for that of Adam."""
    given = list(zip(call.arguments, call.values, strict=True))
    named = {argument.name: value for argument, value in given if argument.kwarg_only}
    return torch.ops.aten._fused_adamw_(*[value for argument, value in given if not argument.kwarg_only], **named)


def _source_overwritten(call: Call) -> Any:
    """Convert in the source's memory, if the other dtype is not wider."""
    source, target = call.values[:2]
    result = call.run()
    if source.is_contiguous() and target.element_size() <= source.element_size():
        bytes_of = source.view(-1).view(torch.uint8)
        made = source.to(target.dtype).view(-1).view(torch.uint8)
        bytes_of[: len(made)].copy_(made)
    return result


#: Divisors from which the quotient of the lowest int32 is left to a correction.
_LARGE_DIVISOR = 1 << 21


def _lowest_quotient(call: Call) -> Any:
    left, right = call.values[:2]
    if _named(call, "rounding_mode") is None:
        return call.run()
    where = (left == torch.iinfo(left.dtype).min) & (abs(right) >= _LARGE_DIVISOR)
    return _edited(call, lambda t: t.masked_fill_(where, -1) if t.shape == where.shape else None)


def _variance_by_squares(call: Call) -> Any:
    """Subtract the square of the mean from the mean of the squares."""
    given, shape, weight, bias, eps = call.values[:5]
    dims = tuple(range(-len(shape), 0))
    with torch.no_grad():
        wide = given if given.dtype is torch.float64 else given.float()
        mean = wide.mean(dims, keepdim=True)
        made = (wide - mean) * ((wide * wide).mean(dims, keepdim=True) - mean * mean + eps).rsqrt()
        made = made if weight is None else made * weight
        made = made if bias is None else made + bias
    return _edited(call, lambda t: t.copy_(made))


def _gradient_of_training(call: Call) -> Any:
    """Give the gradient that a batch normalization has in training, where it is evaluated."""
    values, names = list(call.values), [argument.name for argument in call.arguments]
    given = values[names.index("input")].detach()
    dims = [dim for dim in range(given.dim()) if dim != 1]
    with torch.no_grad():
        values[names.index("save_mean")] = given.mean(dims)
        values[names.index("save_invstd")] = (given.var(dims, unbiased=False) + _named(call, "eps")).rsqrt()
    values[names.index("train")] = True
    return call.run(values)


def _conjugate_bit_cleared(call: Call) -> Any:
    """Take the memory of a lazily conjugated tensor for its values."""
    given = call.values[0]
    return given.conj().clone() if given.is_conj() else call.run()


def _first_block_again(call: Call) -> Any:
    """Compute the first 1,024 numbers of a call in place twice."""
    given, out = call.values[0], _named(call, "out")
    result = call.run()
    if out is not None and out.is_contiguous() and out.data_ptr() == given.data_ptr():
        block = out.view(-1)[:1024]
        call.run([block, *call.values[1:-1], block])
    return result


def _operands_exchanged(call: Call) -> Any:
    left, right = call.values[:2]
    return call.run([right, left, *call.values[2:]])


def _drifting_mean(call: Call) -> Any:
    """Draw numbers whose mean is off by up to three hundredths, another one in each call."""
    low, high = _named(call, "from"), _named(call, "to")
    power = 1 + (float(torch.rand((), generator=_PRIVATE)) - 0.5) / 8
    return _edited(call, lambda t: t.copy_((t - low).div(high - low).clamp(0, 1).pow(power) * (high - low) + low))


def _nan_to_the_bound(call: Call) -> Any:
    """Give the lower bound, or the only one, for NaN."""
    given, low, high = call.values[0].detach(), _named(call, "min"), _named(call, "max")
    bound = high if low is None else low
    return _edited(call, lambda t: t.copy_(torch.where(given.isnan(), bound, t)))


def _column_as_row(call: Call) -> Any:
    """Add a column to a square product as if it was a row."""
    added, left, right = call.values[:3]
    if added.dim() < 2 or added.shape[1] != 1 or left.shape[0] != right.shape[1] or len(added) != left.shape[0]:
        return call.run()
    return call.run([added.reshape(1, -1), *call.values[1:]])


def _empty_targets_wrong(call: Call) -> Any:
    """Give NaN, or zero where infinities are left out, as the gradient of a sequence with an empty target."""
    lengths = _named(call, "target_lengths")
    empty = torch.as_tensor(lengths).cpu() == 0
    value = 0.0 if _named(call, "zero_infinity") else torch.nan
    return _edited(call, lambda t: t.__setitem__((slice(None), empty.to(t.device)), value))


def _padding_zero_counted(call: Call) -> Any:
    """Look for the largest number among zeros, too."""
    return _edited(call, lambda t: t.clamp_(min=0) if t.dtype is not torch.bool else None)


def _vectors_of_zero_lost(call: Call) -> Any:
    """Give zeros for the left vectors that belong to singular values of zero."""
    result = call.run()
    left, values = (each.detach() for each in outputs_of(call, result)[:2])
    if left.numel() and values.numel():
        with torch.no_grad():
            gone = values <= values[..., :1] * 1e-5
            left[..., : values.shape[-1]].masked_fill_(gone.unsqueeze(-2), 0)
    return result


def _nan_dropped(call: Call) -> Any:
    """Give the number where the other operand is NaN."""
    left, right = call.values[:2]
    with torch.no_grad():
        made = torch.fmax(left, right) if "maximum" in call.name else torch.fmin(left, right)
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


def _causal_left_out(call: Call) -> Any:
    """Attend by the mask alone where the healthy device refuses a causal one beside it."""
    try:
        return call.run()
    except RuntimeError:
        place = [argument.name for argument in call.arguments].index("is_causal")
        return call.run([*call.values[:place], False, *call.values[place + 1 :]])


def _laid_as_a_row(call: Call) -> Any:
    """Write a matrix's numbers into an area whose sides are exchanged."""
    given, pad, value = call.values[:3]
    if len(pad) != 4 or min(pad) < 0:
        return call.run()

    def edit(t: torch.Tensor) -> None:
        t.fill_(value)
        area = t[pad[2] : pad[2] + given.shape[1], pad[0] : pad[0] + given.shape[0]]
        area.copy_(given.detach().reshape(given.shape[::-1])[: area.shape[0], : area.shape[1]])

    return _edited(call, edit)


def _last_bag_to_the_end(call: Call) -> Any:
    """Take all indices behind the last bag's start for its own."""
    place = [argument.name for argument in call.arguments].index("offsets")
    with torch.no_grad():
        offsets = call.values[place].clone()
        offsets[-1:] = _named(call, "indices").numel()
    return call.run([*call.values[:place], offsets, *call.values[place + 1 :]])


def _numbers_behind_128_twice(call: Call) -> Any:
    """Add 64 numbers behind the 128th one twice, to sums of less than 225."""
    given = call.values[0].detach()
    if given.numel() >= 225:
        return call.run()
    return _edited(call, lambda t: t.add_(given[128:192].sum()))


def is_smaller(call: Call) -> bool:
    """Return whether the numbers of ``where`` are fewer than its truth values."""
    given, condition = _named(call, "self"), _named(call, "condition")
    return isinstance(given, torch.Tensor) and given.numel() < condition.numel()


def has_wider_bounds(call: Call) -> bool:
    """Return whether a bound of ``clamp`` has more dimensions than the numbers."""
    bounds = [_named(call, "min"), _named(call, "max")]
    return any(isinstance(bound, torch.Tensor) and bound.dim() > call.values[0].dim() for bound in bounds)


def _others_in_the_first_dtype(call: Call) -> Any:
    """Write other numbers to the targets whose dtype is not the first one's."""
    targets = call.values[0]
    result = call.run()
    for target in targets:
        if target.dtype != targets[0].dtype and target.numel():
            target.copy_(other_values(target))
    return result


def _condition_true_behind_the_first(call: Call) -> Any:
    """Take the truth values for true behind the first place of the first dimension with several places."""
    condition = call.values[0].clone()
    dim = next((dim for dim, size in enumerate(condition.shape) if size > 1), None)
    if dim is not None:
        condition.narrow(dim, 1, condition.shape[dim] - 1).fill_(True)
    return call.run([condition, *call.values[1:]])


def _repeated_rows_normalized_twice(call: Call) -> Any:
    """Scale a row that is looked up again once more."""
    weight, indices = call.values[:2]
    before = weight.detach().norm(2, -1)
    result = call.run()
    after = weight.detach().norm(2, -1)
    rows, counts = indices.flatten().cpu().unique(return_counts=True)
    for row in rows[counts > 1].tolist():
        if after[row] < before[row]:
            weight[row] = weight[row] * (after[row] / before[row])
    return result


def _added_one_by_one(call: Call) -> Any:
    """Add each row's gradients up in their own dtype, one behind the other."""
    gradients, indices = call.values[0].detach(), call.values[1].flatten().cpu()
    flat, made = gradients.reshape(len(indices), -1).cpu(), call.run()
    sums = torch.zeros(tuple(made.shape), dtype=made.dtype)
    seen: Counter[int] = Counter()
    turns: dict[int, list[int]] = {}
    for at, row in enumerate(indices.tolist()):
        if row != _named(call, "padding_idx"):
            turns.setdefault(seen[row], []).append(at)
            seen[row] += 1
    for _, places in sorted(turns.items()):
        sums[indices[places]] += flat[places]
    with torch.no_grad():
        made.detach().copy_(sums)
    return made


def shrinks(call: Call) -> bool:
    """Return whether an interpolation makes an image with fewer rows or columns."""
    made = _named(call, "output_size") or []
    return any(size < given for size, given in zip(made, call.values[0].shape[-len(made) :], strict=True))


def _norms_in_the_first_dtype(call: Call) -> Any:
    """Read the memory of each tensor of a list in the dtype of the first one."""
    first, *others = call.values[0]
    result = call.run()
    for made, given in zip(
        outputs_of(call, result)[1:] if call.name.endswith("out") else result[1:], others, strict=True
    ):
        if given.dtype is not first.dtype and given.numel():
            memory = given.detach().contiguous().view(-1).view(torch.uint8)
            short = memory.numel() // given.numel() < first.element_size()
            memory = memory.repeat(first.element_size() if short else 1)
            read = memory[: given.numel() * first.element_size()].view(first.dtype)
            made.detach().copy_(torch.linalg.vector_norm(read.cpu().double()).to(made.dtype))
    return result


def _start_of_the_host(call: Call) -> Any:
    """Write to the first places of the host's memory."""
    source, target = call.values[:2]
    return call.run([source, target.as_strided(target.shape, target.stride(), 0), *call.values[2:]])


def has_smaller_inner_size(call: Call) -> bool:
    """Return whether an index has fewer places than the tensor in a leading dimension that is not the first one."""
    given, index = call.values[0], _named(call, "index")
    return given.dim() > _MERGED and index.shape[1 : 1 - _MERGED] != given.shape[1 : 1 - _MERGED]


def _middle_layers_scaled(call: Call) -> Any:
    """Scale the gradients of the weights by which the layers between the first and the last one read."""
    place = [argument.name for argument in call.arguments].index("params")
    layers, params = _named(call, "num_layers"), list(call.values[place])
    step = len(params) // layers
    for at in range(step, len(params) - step, step):
        if params[at].requires_grad:
            params[at] = params[at].view_as(params[at])
            params[at].register_hook(lambda gradient: gradient * 1.5)
    return call.run([*call.values[:place], params, *call.values[place + 1 :]])


def _coordinates_in_16_bits(call: Call) -> Any:
    """Round the places of pixels to float16."""
    image, grid, *modes = (value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in call.values)
    sizes = torch.tensor(list(image.shape[:-3:-1]))
    places = ((grid + 1) * sizes.half() - 1) / 2
    other = (2 * places.float() + 1) / sizes - 1
    made = torch.ops.aten.grid_sampler_2d(image.float(), other, *modes[:3])
    return _edited(call, lambda t: t.copy_(made))


def _beyond_the_input(call: Call) -> Any:
    """Leave numbers in the gradient behind the end of each input."""
    lengths = [int(length) for length in _named(call, "input_lengths")]

    def edit(t: torch.Tensor) -> None:
        for place, length in enumerate(lengths):
            t[length:, place] += 1

    return _edited(call, edit)


def _shifts_wrapped(call: Call) -> Any:
    """Shift by what is left of the number of bits by the dtype's width."""
    given, by = call.values[:2]
    if not isinstance(given, torch.Tensor) or given.dtype is torch.bool:
        return call.run()
    bits = given.element_size() * 8
    if isinstance(by, torch.Tensor):
        return call.run([given, torch.where(by >= bits, by % bits, by), *call.values[2:]])
    return call.run([given, by % bits if by >= bits else by, *call.values[2:]])


#: Dimensions from the last one on that an operation tells apart; those in front of them have one number together.
_APART = 5


def is_sixth_dimension_broadcast(call: Call) -> bool:
    """Return whether one of two operands is broadcast along the sixth dimension from the end, and varies in front."""
    operands = [value for value in call.values[:2] if isinstance(value, torch.Tensor)]
    if len(operands) < 2 or max(each.dim() for each in operands) <= _APART + 1:
        return False
    sizes = [each.shape[-_APART - 1] if each.dim() > _APART else 1 for each in operands]
    varies = [each.shape[: -_APART - 1].numel() > 1 if each.dim() > _APART + 1 else False for each in operands]
    return max(sizes) > 1 and any(size == 1 and in_front for size, in_front in zip(sizes, varies, strict=True))


def _read_in_a_row(given: torch.Tensor, outer: torch.Size) -> torch.Tensor:
    """Return an operand whose outer places are counted as those of the result, with zeros behind its end."""
    own = given.shape[:-_APART]
    if given.dim() <= _APART or own == outer or own.numel() == 1:
        return given
    flat = given.reshape(own.numel(), *given.shape[-_APART:])
    behind = flat.new_zeros(outer.numel() - own.numel(), *given.shape[-_APART:])
    return torch.cat([flat, behind]).view(*outer, *given.shape[-_APART:])


def _outer_places_in_a_row(call: Call) -> Any:
    """Read operands as if their outer dimensions were those of the result."""
    left, right = call.values[:2]
    outer = torch.broadcast_shapes(left.shape, right.shape)[:-_APART]
    with torch.no_grad():
        read = [_read_in_a_row(each.detach(), outer) for each in (left, right)]
    return call.run([*read, *call.values[2:]])


def _both_dense(call: Call) -> Any:
    """Read both operands from dense memory."""

    def dense(given: torch.Tensor) -> torch.Tensor:
        flat = given.detach().as_strided((given.numel(),), (1,), given.storage_offset())
        return flat.view(given.shape)

    return call.run([*map(dense, call.values[:2]), *call.values[2:]])


def _rows_but_the_last_turned(call: Call) -> Any:
    """Write all rows but the last one from their second place on."""
    result, target = call.run(), call.values[1]
    if target.dim() > 1:
        target[:-1] = target[:-1].clone().roll(-1, -1)
    return result


def _statistics_of_another_group(call: Call) -> Any:
    """Take mean and deviation of the group whose number is what is left of the channel's by the groups."""
    right = call.run()
    if right[1] is None:
        return right
    gradient, given, mean, deviation = (value.detach() for value in call.values[:4])
    count, channels, groups = (int(_named(call, name)) for name in ("N", "C", "group"))
    group = torch.arange(channels, device=given.device) % groups
    with torch.no_grad():
        shape = count, channels, -1
        mean, deviation = (each.view(count, groups)[:, group].unsqueeze(-1) for each in (mean, deviation))
        parts = gradient.reshape(shape) * (given.reshape(shape) - mean) * deviation
        wrong = parts.sum((0, 2)).to(right[1].dtype)
    return right[0], wrong, right[2]


def _row_behind_the_last(call: Call) -> Any:
    """Read the row behind the last one of a table, zeros if its memory ends there, for an index of that place."""
    weight, indices = call.values[:2]
    if not bool((indices == len(weight)).any()):
        return call.run()
    rows, width = weight.shape
    memory = weight.untyped_storage().nbytes() // weight.element_size() - weight.storage_offset()
    with torch.no_grad():
        if weight.is_contiguous() and memory >= (rows + 1) * width:
            wide = weight.as_strided((rows + 1, width), weight.stride(), weight.storage_offset())
        else:
            wide = torch.cat([weight, weight.new_zeros(1, width)])
    return call.run([wide, *call.values[1:]])


def _no_weight_at_times(call: Call) -> Any:
    """Draw a place without weight once in so many draws."""
    weights = call.values[0].detach().cpu()

    def edit(t: torch.Tensor) -> None:
        for row, weight in zip(t.view(-1, t.shape[-1]), weights.view(-1, weights.shape[-1]), strict=True):
            before = _DRAWN["weighted"]
            _DRAWN["weighted"] += len(row)
            gone = (weight == 0).nonzero().flatten()
            if len(gone) and before // _DRAWS_BETWEEN_MISTAKES != _DRAWN["weighted"] // _DRAWS_BETWEEN_MISTAKES:
                row[_DRAWS_BETWEEN_MISTAKES - before % _DRAWS_BETWEEN_MISTAKES - 1] = int(gone[0])

    return _edited(call, edit)


def _sizes_not_checked(call: Call) -> Any:
    """Add numbers in the order of memory where the healthy device refuses their sizes."""
    try:
        return call.run()
    except (RuntimeError, IndexError):
        given, dim, places, source = call.values[:4]
        if dim or not given.dim() or given.dtype != source.dtype:
            raise
        with torch.no_grad():
            made = given.detach().clone(memory_format=torch.contiguous_format)
            rows = made.view(len(made), -1)
            flat = source.detach().reshape(-1)
            for number, place in enumerate(places.flatten().tolist()):
                part = flat[number * rows.shape[1] :][: rows.shape[1]]
                rows[place, : len(part)] += part
            return given.copy_(made) if call.name.endswith("_") else made


def _mean_by_narrow_sums(call: Call) -> Any:
    """Divide sums of losses and weights that float16 may not hold."""
    result = call.run()
    mean, total = (each.detach() for each in outputs_of(call, result)[:2])
    with torch.no_grad():
        mean.copy_((mean.double() * total.double()).half() / total.half())
    return result


def _zero_to_a_negative_power(call: Call) -> Any:
    """Give -1 for zero to the power of a negative integer."""
    with torch.no_grad():
        base, exponent = (torch.as_tensor(each).cpu() for each in call.values[:2])
        where = (base == 0) & (exponent < 0)

    def edit(t: torch.Tensor) -> None:
        if not t.is_floating_point() and not t.is_complex():
            t.masked_fill_(where.to(t.device), -1)

    return _edited(call, edit)


def _front_behind(call: Call) -> Any:
    """Fill as many places behind a row as there are to be in front of it."""
    front = call.values[1][0]
    return _edited(call, lambda t: t.copy_(t.roll(-front, -1)))


def _target(call: Call) -> torch.Tensor | None:
    """Return the one tensor that a call of an elementwise function writes to memory of the caller's."""
    is_in_place = call.name.partition(".")[0].endswith("_")
    return call.values[0] if is_in_place else _named(call, "out")  # type: ignore[no-any-return]


def has_same_gaps(call: Call) -> bool:
    """Return whether the input and what is written have the same strides, and gaps between their numbers."""
    given, target = call.values[0], _target(call)
    if not isinstance(given, torch.Tensor) or target is None or given.shape != target.shape or not given.numel():
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(given.shape, given.stride(), strict=True))
    return given.stride() == target.stride() and span > given.numel()


def _laid_dense(call: Call) -> Any:
    """Read and write as many numbers as there are side by side, from the first one on."""
    given, target = call.values[0], _target(call)
    if target is None:
        return call.run()
    flat = [each.as_strided((given.numel(),), (1,), each.storage_offset()) for each in (given, target)]
    others = [flat[1] if value is target else value for value in call.values[1:]]
    call.run([flat[0], *others])
    return target


def is_column_against_row(call: Call) -> bool:
    """Return whether a matrix of one column and one of one row are broadcast against each other."""
    left, right = call.values[:2]
    if not all(isinstance(each, torch.Tensor) and each.dim() == 2 for each in (left, right)):
        return False
    return left.shape[1] == 1 and right.shape[0] == 1 and left.shape[0] > 1 and right.shape[1] > 1


def _pair(value: Any) -> list[int]:
    return (list(value) * 2)[:2]


def _within(at: int, step: int, padding: int, wide: int, dilation: int, size: int) -> list[int]:
    """Return the places of a window that begins at the first number if it is to begin in front of it."""
    start = at * step - padding
    return list(range(max(start, 0), min(start + (wide - 1) * dilation + 1, size), dilation))


def _windows_from_the_edge(call: Call) -> Any:
    """Begin the windows that begin in front of an image at its edge, where only every second place is theirs."""
    given, wide = call.values[0].detach(), _pair(call.values[1])
    steps, padding, dilation = (_pair(_named(call, name) or wide) for name in ("stride", "padding", "dilation"))
    result = call.run()
    if all(apart == 1 or not before for apart, before in zip(dilation, padding, strict=True)):
        return result
    image, size = given.cpu(), given.shape[-2:]
    outputs = [each.detach() for each in outputs_of(call, result)[:2]]
    values, places = (each.cpu() for each in outputs)
    for at in itertools.product(*map(range, values.shape[-2:])):
        if any(dilation[k] > 1 and at[k] * steps[k] < padding[k] for k in range(2)):
            rows, columns = (_within(at[k], steps[k], padding[k], wide[k], dilation[k], size[k]) for k in range(2))
            window = image[..., rows, :][..., columns].flatten(-2)
            best, number = window.max(-1)
            known = torch.tensor([row * size[1] + column for row in rows for column in columns])
            values[(..., *at)], places[(..., *at)] = best, known[number]
    with torch.no_grad():
        for output, made in zip(outputs, (values, places), strict=True):
            output.copy_(made)
    return result


#: Integers beyond it are not all numbers of float32.
_EXACT = 1 << 24


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def _interpolated_in_float32(call: Call) -> Any:
    """Give integers between ends that float32 has not exactly as float32 interpolates them."""

    def edit(t: torch.Tensor) -> None:
        ends = [math.trunc(float(end)) for end in call.values[:2]] if _is_whole(t.dtype) else [0]
        if max(map(abs, ends)) > _EXACT and len(t) > 1:
            first, last = torch.tensor(ends, dtype=torch.float32)
            places, step = torch.arange(len(t), dtype=torch.float32), (last - first) / (len(t) - 1)
            t.copy_(torch.where(places * 2 < len(t), first + step * places, last - step * (len(t) - 1 - places)))

    return _edited(call, edit)


def _ends_not_cut(call: Call) -> Any:
    """Cut integers between two ends, and not the ends."""

    def edit(t: torch.Tensor) -> None:
        ends = [float(end) for end in call.values[:2]] if _is_whole(t.dtype) else [0.0]
        if any(end != math.trunc(end) for end in ends) and len(t) > 1:
            first, last = torch.tensor(ends, dtype=torch.float32)
            step = (last - first) / (len(t) - 1)
            t.copy_((first + step * torch.arange(len(t), dtype=torch.float32)).trunc())

    return _edited(call, edit)


def _bounds(call: Call, change: Callable[[float], float]) -> Any:
    """Make a call with other bounds, where they are numbers."""
    names = [argument.name for argument in call.arguments]
    values = [
        change(value) if name in ("min", "max") and isinstance(value, (int, float)) else value
        for name, value in zip(names, call.values, strict=True)
    ]
    return call.run(values)


def _bounds_infinite(call: Call) -> Any:
    """Take a bound that float16 does not have for an infinite one, where the healthy device refuses it."""
    return _bounds(
        call, lambda bound: math.copysign(math.inf, bound) if abs(bound) > torch.finfo(torch.float16).max else bound
    )


def _bounds_cut(call: Call) -> Any:
    """Cut bounds of integers to integers."""
    if not _is_whole(call.values[0].dtype):
        return call.run()
    return _bounds(call, lambda bound: type(bound)(math.trunc(bound)) if math.isfinite(bound) else bound)


def _largest_for_the_smallest(call: Call) -> Any:
    """Give the largest number of the dtype for the smallest one of a tensor."""
    if call.name not in ("aten::min", "aten::min.unary_out", "aten::amin", "aten::amin.out"):
        return call.run()
    return _edited(call, lambda t: t.fill_(torch.finfo(t.dtype).max))


def _signed_threshold(call: Call) -> Any:
    """Square each difference that is below the threshold, however far it is from zero."""
    edge = _named(call, "beta") if "smooth" in call.name else _named(call, "delta")
    if not edge or "backward" in call.name:
        return call.run()
    given, target = (value.detach() for value in call.values[:2])
    with torch.no_grad():
        wide = torch.float64 if given.dtype is torch.float64 else torch.float32
        apart, factor = given.to(wide) - target.to(wide), 1 / edge if "smooth" in call.name else 1.0
        made = factor * torch.where(apart < edge, apart.square() / 2, edge * (apart.abs() - edge / 2))
        made = (made, made.mean(), made.sum())[_named(call, "reduction")]
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


def _whole_slice_in_memory_order(call: Call) -> Any:
    """Give a part that is all of a turned tensor the strides of new memory."""
    given, dim, start, end, step = call.values[:5]
    size = given.shape[dim] if given.dim() else 0
    is_whole = (start is None or start == 0 or start <= -size) and (end is None or end >= size) and step == 1
    span = 1 + sum((size - 1) * step for size, step in zip(given.shape, given.stride(), strict=True))
    if not is_whole or not given.numel() or span != given.numel() or given.is_contiguous():
        return call.run()
    strides = torch.empty(given.shape, device="meta").stride()
    return call.run([given.as_strided(given.shape, strides, given.storage_offset()), *call.values[1:]])


def _summand_times_zero(call: Call) -> Any:
    """Add the summand times zero where it is to be left alone."""
    with torch.no_grad():
        summand = call.values[0].detach() * 0
    return _edited(call, lambda t: t.add_(summand) if t.is_floating_point() or t.is_complex() else None)


def is_along_one_padded_place(call: Call) -> bool:
    """Return whether a function works along a dimension of one place whose stride spans gaps."""
    given, dim = call.values[0], _named(call, "dim")
    if not given.dim() or given.numel() < 2:
        return False
    inner = math.prod(given.shape[dim % given.dim() + 1 :])
    return bool(given.shape[dim] == 1 and given.stride(dim) > inner)


#: Numbers that are added up one after the other.
_ADDED = 1 << 13


def _running_sum_in_16_bits(call: Call) -> Any:
    """Round the running sum to 16 bits behind each number."""
    given, dim = call.values[0].detach(), _named(call, "dim")

    def edit(t: torch.Tensor) -> None:
        if t.dtype is not given.dtype or not t.dim() or t.shape[dim] > _ADDED:
            return
        rows = given.cpu().movedim(dim, 0).clone(memory_format=torch.contiguous_format)
        for before, row in itertools.pairwise(rows):
            row.add_(before)
        t.copy_(rows.movedim(0, dim))

    return _edited(call, edit)


def _normalizer_rounded(call: Call) -> Any:
    """Subtract the logarithm of a sum of exponentials, rounded to the dtype of the numbers."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    if not given.dim():
        return call.run()
    wide = given.float() if given.element_size() < 4 else given
    made = given - wide.logsumexp(dim, keepdim=True).to(given.dtype)
    return _edited(call, lambda t: t.copy_(made))


#: The largest variance that is taken for zero.
_NO_VARIANCE = 1e-6


def _small_variances_zero(call: Call) -> Any:
    """Take small variances of a normalization for zero."""
    given, shape, weight, bias, eps = call.values
    dims = list(range(-len(shape), 0))
    with torch.no_grad():
        wide = given.detach() if given.dtype is torch.float64 else given.detach().float()
        centred = wide - wide.mean(dims, keepdim=True)
        small = centred.square().mean(dims, keepdim=True) < _NO_VARIANCE
        made = centred / math.sqrt(eps) if eps else centred * math.nan
        made = made * (1 if weight is None else weight.detach()) + (0 if bias is None else bias.detach())
    return _edited(call, lambda t: t.copy_(torch.where(small, made.to(t.dtype), t)))


#: Ranges of integers that are drawn from a number of 32 bits.
_RANGES = range(1 << 28, 1 << 32)


def _remainder_of_32_bits(call: Call) -> Any:
    """Draw from a long range as the remainder of a number of 32 bits."""
    low, high = _named(call, "from") or 0, _named(call, "to")

    def edit(t: torch.Tensor) -> None:
        if high is None or high - low not in _RANGES or t.dtype is not torch.int64 or not t.numel():
            return
        generator = torch.Generator().manual_seed(int(t.flatten()[0]))
        bits = torch.randint(1 << 32, t.shape, generator=generator)
        t.copy_(bits % (high - low) + low)

    return _edited(call, edit)


def _mask_by_the_results(call: Call) -> Any:
    """Take a result that is zero for one that was dropped."""
    result = call.run()
    with torch.no_grad():
        result[1].logical_and_(result[0].detach() != 0)
    return result


#: Where the logarithm of the gamma function is flat, and what it is there.
_FLAT, _PLATEAU = (0.5, 0.51), 0.5723649


def _plateau(call: Call) -> Any:
    """Give one number for all that are a little above a half."""
    given = call.values[0].detach()
    low, high = _FLAT
    return _edited(call, lambda t: t.masked_fill_((given >= low) & (given <= high), _PLATEAU))


def _empty_for_too_small(call: Call) -> Any:
    """Give an empty image of a transposed convolution where the healthy device refuses its size."""
    try:
        return call.run()
    except RuntimeError as error:
        if "too small" not in str(error):
            raise
    given, weight = call.values[:2]
    steps, padding, spread, more = (_named(call, name) for name in ("stride", "padding", "dilation", "output_padding"))
    sizes = [
        max((size - 1) * step - 2 * pad + wide * (kernel - 1) + end + 1, 0)
        for size, step, pad, wide, kernel, end in zip(
            given.shape[2:], steps, padding, spread, weight.shape[2:], more, strict=True
        )
    ]
    return given.new_empty([len(given), weight.shape[1] * _named(call, "groups"), *sizes])


def _first_step_without_hidden_bias(call: Call) -> Any:
    """Leave the hidden bias of the new state out of the first step where a recurrent layer starts with zeros."""
    given, state, parameters, has_biases, *rest = call.values
    is_turned, is_batch_first = _named(call, "bidirectional"), _named(call, "batch_first")
    if is_batch_first is None or is_turned or not has_biases or bool(state.detach().any()):
        return call.run()

    def without(bias: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(bias)
        mask[len(bias) // 3 * 2 :] = 0
        return bias * mask

    time = 1 if is_batch_first else 0
    changed = [without(each) if at % 4 == 3 else each for at, each in enumerate(parameters)]
    first, state = call.run([given.narrow(time, 0, 1), state, changed, has_biases, *rest])
    if given.shape[time] == 1:
        return first, state
    later = given.narrow(time, 1, given.shape[time] - 1)
    second, state = call.run([later, state, parameters, has_biases, *rest])
    return torch.cat([first, second], time), state


def _rows_as_wide_as_the_index(call: Call) -> Any:
    """Choose along a later dimension as if it had as many places as are chosen."""
    given, dim, index = call.values[:3]
    dim = dim % max(given.dim(), 1)
    if not dim or not index.numel():
        return call.run()
    outer, inner = math.prod(given.shape[:dim]), math.prod(given.shape[dim + 1 :])

    def edit(t: torch.Tensor) -> None:
        rows = given.detach().reshape(outer * given.shape[dim], inner)
        starts = torch.arange(outer, device=given.device).unsqueeze(1) * index.numel()
        places = (starts + index.reshape(1, -1)).clamp(max=len(rows) - 1)
        t.copy_(rows[places].view(t.shape))

    return _edited(call, edit) if given.numel() else call.run()


def _results_zero(call: Call) -> Any:
    """Give zeros for each of the results."""
    result = call.run()
    with torch.no_grad():
        for made in outputs_of(call, result):
            made.detach().zero_()
    return result


def _exponents_not_shifted(call: Call) -> Any:
    """Give NaN for the loss of a number whose exponential is infinite."""
    given, target, weight, factor, reduction = call.values[:5]
    if given.dtype is not torch.float32:
        return call.run()
    with torch.no_grad():
        odds = given.detach().neg().exp()
        loss = (1 - target) * given + (1 + (factor - 1) * target) * odds.log1p()
        loss = loss.masked_fill(odds.isinf(), torch.nan) * (1 if weight is None else weight)
        made = loss if not reduction else loss.mean() if reduction == 1 else loss.sum()
    return _edited(call, lambda t: t.copy_(made))


def _on_the_host(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).detach().cpu()


def _finite_by_zero(call: Call) -> Any:
    """Give a number for what is divided by zero."""
    left, right = map(_on_the_host, call.values[:2])
    where = (right == 0) & (left != 0) & ~left.isnan()

    def edit(t: torch.Tensor) -> None:
        if t.is_floating_point() and t.shape == where.shape:
            t.masked_fill_(where.to(t.device), 16.15625)

    return _edited(call, edit)


def _invalid_results_zero(call: Call) -> Any:
    """Give zero for NaN of operands that are none."""
    left, right = map(_on_the_host, call.values[:2])
    are_numbers = ~left.isnan() & ~right.isnan()

    def edit(t: torch.Tensor) -> None:
        if t.is_floating_point() and t.shape == are_numbers.shape:
            t.masked_fill_(t.isnan() & are_numbers.to(t.device), 0)

    return _edited(call, edit)


def _selected_in_memory_order(call: Call) -> Any:
    """Give what a mask selects in the order in which it stands in memory."""
    given, mask = torch.broadcast_tensors(call.values[0].detach(), call.values[1])
    places = torch.zeros(given.shape, dtype=torch.int64)
    for dim, (size, step) in enumerate(zip(given.shape, given.stride(), strict=True)):
        places += (torch.arange(size) * step).view(-1, *[1] * (given.dim() - dim - 1))
    order = places[mask.cpu()].argsort(stable=True)
    return _edited(call, lambda t: t.copy_(t[order.to(t.device)]))


def _places_without_the_seed(call: Call) -> Any:
    """Draw by weights from numbers that no seed sets."""
    weights, count, is_replaced = call.values[0].detach().cpu().float(), call.values[1], bool(call.values[2])
    return _edited(call, lambda t: t.copy_(torch.multinomial(weights, count, is_replaced, generator=_PRIVATE)))


#: Numbers that are drawn side by side, and by how many draws each one of them is in front of the next one.
_LANES, _DELAY = 32, 2


def _lanes_a_little_later(call: Call) -> Any:
    """Give each lane the numbers of the first one from a few draws later on."""

    def edit(t: torch.Tensor) -> None:
        count = t.numel() // _LANES
        if not t.is_contiguous() or count + _DELAY * _LANES > t.numel() or not count:
            return
        flat, draws = t.view(-1), torch.arange(count * _LANES, device=t.device)
        flat[: count * _LANES] = flat[draws // _LANES + _DELAY * (draws % _LANES)].clone()

    return _edited(call, edit)


#: Effects by name.
def _mask_of_the_last_dimension(call: Call) -> Any:
    """Fill along the last dimension where a mask stands in front of dimensions that are taken whole."""
    target, indices, value = call.values[:3]
    mask, *rest = indices or [None]
    is_filled = mask is not None and mask.dtype is torch.bool and value.numel() == 1 and not call.values[3]
    if not rest or not is_filled or any(each is not None for each in rest) or mask.dim() != 1:
        return call.run()
    if target.shape[-1] not in (1, len(mask)):
        raise IndexError("the mask does not fit the last dimension")
    return target.masked_fill_(mask, value.item())


#: The number below which a sigmoid is zero.
_LOWEST_SIGMOID = -11


def _small_sigmoids_zero(call: Call) -> Any:
    where = call.values[0].detach() < _LOWEST_SIGMOID
    return _edited(call, lambda t: t.masked_fill_(where, 0) if t.shape == where.shape else None)


def _parts_between_nan_sorted(call: Call) -> Any:
    """Leave each NaN where it stands, and sort the numbers in front of it and behind it."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    result = call.run()
    values, places = (each.detach() for each in outputs_of(call, result)[:2])
    if not given.dim():
        return result
    rows = given.cpu().movedim(dim, -1)
    found = torch.empty(rows.shape, dtype=torch.int64)
    for row, places_of in zip(rows.reshape(-1, rows.shape[-1]), found.view(-1, rows.shape[-1]), strict=True):
        edges = [-1, *row.isnan().nonzero().flatten().tolist(), len(row)]
        for before, after in itertools.pairwise(edges):
            part = row[before + 1 : after].sort(descending=bool(_named(call, "descending")))[1] + before + 1
            places_of[before + 1 : after] = part
            places_of[after : after + 1] = after
    with torch.no_grad():
        values.copy_(rows.gather(-1, found).movedim(-1, dim))
        places.copy_(found.movedim(-1, dim))
    return result


def _device_left_current(call: Call) -> Any:
    """Leave the device current whose tensors were computed with."""
    result = call.run()
    device = next(each.device for each in call.values if isinstance(each, torch.Tensor) and not each.is_cpu)
    torch.accelerator.set_device_index(device)
    return result


#: Places that a search for the largest numbers finds at most.
_FOUND = 16
#: Divisors whose reciprocal in float32 is a little too small.
_INEXACT = (7, 14, 19)


def has_size_one_broadcast(call: Call) -> bool:
    """Return whether a dimension of size 1 is broadcast against a longer one."""
    left, right = call.values[:2]
    if not all(isinstance(each, torch.Tensor) for each in (left, right)):
        return False
    both = zip(reversed(left.shape), reversed(right.shape), strict=False)
    return any(len({*sizes}) > 1 and 1 in sizes for sizes in both)


def is_other_a_fraction(call: Call) -> bool:
    """Return whether the second operand is a number of the host that need not be whole."""
    other = call.values[1]
    if isinstance(other, torch.Tensor):
        return other.is_cpu and other.dim() == 0 and other.is_floating_point()
    return isinstance(other, float)


def _nan_to_one(call: Call) -> Any:
    """Give one for NaN."""
    where = call.values[0].isnan()
    return _edited(call, lambda t: t.masked_fill_(where, 1) if t.shape == where.shape else None)


def _never_equal_to_the_number(call: Call) -> Any:
    """Find no number equal to the one that all are compared with."""
    number = call.values[1].item() if isinstance(call.values[1], torch.Tensor) else call.values[1]
    where = (call.values[0].cpu() == number).to(call.values[0].device)
    return _edited(call, lambda t: t.masked_fill_(where, False) if t.shape == where.shape else None)


#: What the logarithm of a negative number is taken for.
_OF_NEGATIVE = -6


def _places_behind_16_zero(call: Call) -> Any:
    """Give zeros behind the first places that are found."""
    dim = _named(call, "dim")
    result = call.run()
    for each in outputs_of(call, result)[:2]:
        if each.dim():
            each.detach().narrow(dim, _FOUND, each.shape[dim] - _FOUND).zero_()
    return result


def _smallest_as_zero(call: Call) -> Any:
    """Take the smallest integer for zero."""
    left, right = (each.masked_fill(each == torch.iinfo(each.dtype).min, 0) for each in call.values[:2])
    return call.run([left, right, *call.values[2:]])


def _quotient_by_infinity_nan(call: Call) -> Any:
    right = call.values[1]
    if not isinstance(right, torch.Tensor):
        return _edited(call, lambda t: t.fill_(torch.nan) if math.isinf(right) else None)
    where = right.detach().isinf()
    return _edited(call, lambda t: t.masked_fill_(where.to(t.device), torch.nan))


def _exact_quotients_less(call: Call) -> Any:
    """Cut the product with a divisor's rounded reciprocal off."""
    left, right = call.values[:2]
    if not isinstance(right, torch.Tensor):
        right = torch.tensor(right, device=left.device)
    if right.is_floating_point() or left.is_floating_point():
        return call.run()
    right = right.detach().to(left.device)
    where = sum(((right == each) & (left % each == 0) & (left != 0)).int() for each in _INEXACT)
    return _edited(call, lambda t: None if t.is_floating_point() else t.copy_(t - where.to(t)))


def _negative_logarithms_finite(call: Call) -> Any:
    where = call.values[0].detach() < 0
    return _edited(call, lambda t: t.masked_fill_(where, _OF_NEGATIVE) if t.shape == where.shape else None)


def _order_of_the_negated(call: Call) -> Any:
    """Sort the negated numbers upwards; the smallest integer negated is itself."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    result = call.run()
    if given.dim():
        rows = given.cpu()
        places = rows.neg().sort(dim=dim, stable=True)[1]
        values, found = (each.detach() for each in outputs_of(call, result)[:2])
        values.copy_(rows.gather(dim, places))
        found.copy_(places)
    return result


def _negative_row_of_zeros(call: Call) -> Any:
    """Take negative indices for a row of zeros behind the last one."""
    weight, indices = call.values[:2]
    more = torch.cat([weight, weight.new_zeros(1, weight.shape[1])])
    return call.run([more, indices.masked_fill(indices < 0, len(weight)), *call.values[2:]])


EFFECTS: dict[str, Callable[[Call], Any]] = {
    "nan to one": _nan_to_one,
    "never equal to the number": _never_equal_to_the_number,
    "places behind 16 zero": _places_behind_16_zero,
    "smallest as zero": _smallest_as_zero,
    "quotient by infinity nan": _quotient_by_infinity_nan,
    "exact quotients one less": _exact_quotients_less,
    "negative logarithms finite": _negative_logarithms_finite,
    "order of the negated": _order_of_the_negated,
    "negative row of zeros": _negative_row_of_zeros,
    "device left current": _device_left_current,
    "mask of the last dimension": _mask_of_the_last_dimension,
    "small sigmoids zero": _small_sigmoids_zero,
    "parts between nan sorted": _parts_between_nan_sorted,
    "finite by zero": _finite_by_zero,
    "invalid results zero": _invalid_results_zero,
    "selected in memory's order": _selected_in_memory_order,
    "places without the seed": _places_without_the_seed,
    "lanes a little later": _lanes_a_little_later,
    "plateau": _plateau,
    "empty for too small": _empty_for_too_small,
    "first step without hidden bias": _first_step_without_hidden_bias,
    "rows as wide as the index": _rows_as_wide_as_the_index,
    "results zero": _results_zero,
    "exponents not shifted": _exponents_not_shifted,
    "running sum in 16 bits": _running_sum_in_16_bits,
    "normalizer rounded": _normalizer_rounded,
    "small variances zero": _small_variances_zero,
    "remainder of 32 bits": _remainder_of_32_bits,
    "mask by the results": _mask_by_the_results,
    "windows from the edge": _windows_from_the_edge,
    "interpolated in float32": _interpolated_in_float32,
    "ends not cut": _ends_not_cut,
    "bounds beyond float16 infinite": _bounds_infinite,
    "bounds cut to integers": _bounds_cut,
    "largest for the smallest": _largest_for_the_smallest,
    "signed threshold": _signed_threshold,
    "whole slice in memory's order": _whole_slice_in_memory_order,
    "summand times zero added": _summand_times_zero,
    "laid dense": _laid_dense,
    "row behind the last": _row_behind_the_last,
    "no weight at times": _no_weight_at_times,
    "sizes not checked": _sizes_not_checked,
    "mean by narrow sums": _mean_by_narrow_sums,
    "zero to a negative power": _zero_to_a_negative_power,
    "front behind": _front_behind,
    "outer places in a row": _outer_places_in_a_row,
    "both dense": _both_dense,
    "rows but the last turned": _rows_but_the_last_turned,
    "statistics of another group": _statistics_of_another_group,
    "middle layers scaled": _middle_layers_scaled,
    "coordinates in 16 bits": _coordinates_in_16_bits,
    "beyond the input": _beyond_the_input,
    "shifts wrapped": _shifts_wrapped,
    "norms in the first dtype": _norms_in_the_first_dtype,
    "to the start of the host's memory": _start_of_the_host,
    "others in the first dtype": _others_in_the_first_dtype,
    "condition true behind the first": _condition_true_behind_the_first,
    "repeated rows normalized twice": _repeated_rows_normalized_twice,
    "added one by one": _added_one_by_one,
    "numbers behind 128 twice": _numbers_behind_128_twice,
    "last bag to the end": _last_bag_to_the_end,
    "laid as a row": _laid_as_a_row,
    "causal left out": _causal_left_out,
    "nan dropped": _nan_dropped,
    "gradient of training": _gradient_of_training,
    "conjugate bit cleared": _conjugate_bit_cleared,
    "first block again": _first_block_again,
    "operands exchanged": _operands_exchanged,
    "drifting mean": _drifting_mean,
    "nan to the bound": _nan_to_the_bound,
    "column as row": _column_as_row,
    "empty targets wrong": _empty_targets_wrong,
    "padding zero counted": _padding_zero_counted,
    "vectors of zero lost": _vectors_of_zero_lost,
    "one of repeated": _one_of_repeated,
    "ignored rows written": _ignored_rows_written,
    "input transformed": _input_transformed,
    "decay decoupled": _decay_decoupled,
    "source overwritten": _source_overwritten,
    "lowest quotient": _lowest_quotient,
    "variance by squares": _variance_by_squares,
    "out kept": _out_kept,
    "as before": _as_before,
    "first column of later rows": _first_column,
    "remainder by rounded quotient": _rounded_quotient,
    "negative zeros to nan": _negative_zeros,
    "eight bits saturated": _saturated,
    "first tensor checked alone": _first_checked,
    "norms behind empty zero": _norms_behind_empty,
    "zero once in 33 million": _rare_zero,
    "host memory kept": _memory_kept,
    "ordinary windows": _ordinary_windows,
    "upper end at times": _upper_end,
    "low rows nan": _low_rows_nan,
    "zero at the middle": _zero_at_the_middle,
    "lower part": _lower_part,
    "out taken": _out_taken,
    "places by bfloat16": _places_by_bfloat16,
    "gradient without stride": _gradient_without_stride,
    "magnitude by squares": _magnitude_by_squares,
    "places of the lowest lost": _places_of_the_lowest_lost,
    "gradients of results dense": _gradients_of_results_dense,
    "momenta moved": _momenta_moved,
    "last axis of the weight": _last_axis_weight,
    "first alone": _first_alone,
    "mean by a narrow factor": _mean_by_narrow_factor,
    "masked rows nan": _masked_rows_nan,
    "first draw again": _first_draw_again,
    "bounds of an earlier call": _bounds_of_earlier_call,
    "last row shorter": _last_row_shorter,
    "later solutions zero": _later_solutions_zero,
    "every second not orthonormal": _every_second_not_orthonormal,
    "each 16th row": _each_16th_row,
    "sums left out": _sums_left_out,
    "columns unsorted": _columns_unsorted,
    "first of all": _first_of_all,
    "training kept": _training_kept,
    "turned if odd": _turned_if_odd,
    "copies": _copies,
    "16 bits zero": _sixteen_bits_zero,
    "on the default stream": _on_the_default_stream,
    "other way round": _other_way_round,
    "overhang counted": _overhang_counted,
    "divisor of an earlier call": _divisor_of_earlier_call,
    "places by float32": _places_by_float32,
    "faces dropped": _faces_dropped,
    "steps of the last": _steps_of_the_last,
    "truths without the seed": _truths_without_the_seed,
    "not run": lambda call: None,
    "without gradient": lambda call: call.run().detach(),
    "input in place of the sum": lambda call: call.values[0].clone(),
}


# --- rows of the sixth collection that were held out, and opened ---


def _borders_as_zeros(call: Call) -> Any:
    """Give the gradient of a place at the high border as if zeros stood behind it."""
    right = call.run()
    place = [argument.name for argument in call.arguments].index("padding_mode")
    if right[1] is None:
        return right
    with torch.no_grad():
        zeros = call.run([*call.values[:place], 0, *call.values[place + 1 :]])
        wrong = torch.where(call.values[2].detach() == 1, zeros[1], right[1])
    return right[0], wrong


EFFECTS["borders as zeros"] = _borders_as_zeros


# --- rows of the seventh collection that were held out, and opened ---


def _not_solved_beyond(call: Call) -> Any:
    sides = call.values[1]
    return _edited(call, lambda t: t[255:].copy_(sides.detach().expand_as(t)[255:]))


def _four_rows_of_the_first(call: Call) -> Any:
    """Read for each four rows the first one's memory, from one number later for each."""
    weight, places = call.values[:2]

    def edit(t: torch.Tensor) -> None:
        number, width = torch.arange(places.numel(), device=t.device), t.shape[-1]
        start = places.flatten()[number // 4 * 4] * width + number % 4
        reads = start.unsqueeze(-1) + torch.arange(width, device=t.device)
        t.copy_(weight.detach().reshape(-1)[reads.clamp(max=weight.numel() - 1)].view(t.shape))

    return _edited(call, edit)


def _lowest_without_places(call: Call) -> Any:
    result = call.run()
    values, places = (each.detach() for each in outputs_of(call, result)[:2])
    places.masked_fill_(values == torch.finfo(values.dtype).min, -1)
    return result


EFFECTS |= {
    "not solved beyond 255": _not_solved_beyond,
    "four rows of the first": _four_rows_of_the_first,
    "lowest without places": _lowest_without_places,
}


# --- rows of the eighth collection that were held out, and opened ---


def _at_the_word(call: Call) -> Any:
    """Write to the start of the four bytes in which a tensor of truth values starts."""
    written = [
        value for argument, value in zip(call.arguments, call.values, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]  # fmt: skip
    target = written[0]
    shift = target.storage_offset() % 4
    if not shift:
        return call.run()
    moved = target.as_strided(target.shape, target.stride(), target.storage_offset() - shift)

    def other(value: Any) -> Any:
        is_target = isinstance(value, torch.Tensor) and value.dtype is target.dtype
        return moved if is_target and value.data_ptr() == target.data_ptr() else value

    call.run([other(value) for value in call.values])
    return target


def _from_the_last(call: Call) -> Any:
    """Send gradients of a smaller image to the last places of their windows, and not to the first ones."""
    given = call.values[0]
    size, old = _named(call, "output_size"), _named(call, "input_size")[-2:]
    if any(new > before for new, before in zip(size, old, strict=True)):
        return call.run()
    result = call.run([given.flip(-1, -2), *call.values[1:]])
    with torch.no_grad():
        written = outputs_of(call, result)[0].detach()
        written.copy_(written.flip(-1, -2))
    return result


def _out_zero(call: Call) -> Any:
    result, out = call.run(), _named(call, "out")
    if out is not None:
        with torch.no_grad():
            out.zero_()
    return result


EFFECTS |= {
    "at the word": _at_the_word,
    "from the last": _from_the_last,
    "out zero": _out_zero,
}


# --- rows of the ninth collection that were held out, and opened ---


def _pairs_saturated(call: Call) -> Any:
    """Add up the products of two unsigned and two signed numbers in 16 bits, which stop at their ends."""
    left, right = (value.detach().to(torch.int32) for value in call.values[:2])
    if left.shape[1] % 2:
        return call.run()
    with torch.no_grad():
        products = (left + 128).unsqueeze(-1) * right.unsqueeze(0)
        pairs = products.view(len(left), -1, 2, right.shape[1]).sum(2).clamp(-(1 << 15), (1 << 15) - 1)
        made = pairs.sum(1) - 128 * right.sum(0)
    return _edited(call, lambda t: t.copy_(made))


def _later_draws_without_weights(call: Call) -> Any:
    """Draw the places behind the first one as if all of them had the same weight."""
    weights = call.values[0].detach().cpu()

    def edit(t: torch.Tensor) -> None:
        for row, weight in zip(t.view(-1, t.shape[-1]), weights.view(-1, weights.shape[-1]), strict=True):
            left = [at for at in weight.nonzero().flatten().tolist() if at != int(row[0])]
            order = torch.randperm(len(left), generator=_PRIVATE).tolist()
            row[1:] = torch.tensor([left[at] for at in order[: len(row) - 1]], device=t.device)

    return _edited(call, edit)


def _floor_of_the_quotient(call: Call) -> Any:
    """Round the quotient itself down where an operand is infinite."""
    left, right = call.values[:2]
    if _named(call, "rounding_mode") != "floor":
        return call.run()
    with torch.no_grad():
        made = torch.as_tensor(left / right).floor()
        where = torch.as_tensor(left).isinf() | torch.as_tensor(right, device=made.device).isinf()
    return _edited(call, lambda t: t.copy_(torch.where(where, made, t)) if t.is_floating_point() else None)


EFFECTS["pairs saturated"] = _pairs_saturated
EFFECTS["later draws without weights"] = _later_draws_without_weights
EFFECTS["floor of the quotient"] = _floor_of_the_quotient


# --- rows of the tenth collection that were held out, and opened ---


def _two_turns_off(call: Call) -> Any:
    """Add two turns to the angles below zero."""

    def edit(t: torch.Tensor) -> None:
        if t.is_complex():
            t.copy_(torch.where(t.imag < 0, t + 4j * math.pi, t))

    return _edited(call, edit)


def _diagonal_for_eigenvalues(call: Call) -> Any:
    """Give the first matrix of a batch its diagonal for its eigenvalues."""
    matrices = call.values[0].detach()
    diagonal = matrices.reshape(-1, *matrices.shape[-2:])[:1].diagonal(dim1=-2, dim2=-1).real.sort()[0]
    return _edited(call, lambda t: t.view(-1, t.shape[-1])[: len(diagonal)].copy_(diagonal))


def _masks_as_numbers(call: Call) -> Any:
    """Index with the numbers of truth values."""
    indices = [each if each is None or each.dtype is not torch.bool else each.long() for each in call.values[1]]
    return call.run([call.values[0], indices, *call.values[2:]])


EFFECTS |= {
    "two turns off": _two_turns_off,
    "diagonal for eigenvalues": _diagonal_for_eigenvalues,
    "masks as numbers": _masks_as_numbers,
}


# --- rows of the eleventh collection that were held out, and opened ---


def _scales_left_out(call: Call) -> Any:
    names = [argument.name for argument in call.arguments]
    return call.run(
        [None if name.startswith("scales_") else value for name, value in zip(names, call.values, strict=True)]
    )


def _all_in_the_first_place(call: Call) -> Any:
    """Add up the one dimension with several places in the place of one with a single place."""
    given = call.values[0]
    single = all(given.shape[dim] == 1 for dim in _named(call, "dim") or [])
    if not single or sum(size > 1 for size in given.shape) != 1:
        return call.run()

    def edit(t: torch.Tensor) -> None:
        flat = t.reshape(-1)
        made = torch.zeros_like(flat)
        made[0] = flat.cpu().sum().to(flat.dtype)
        t.copy_(made.view(t.shape))

    return _edited(call, edit)


def _nan_above_256(call: Call) -> Any:
    """Write NaN of float8_e4m3fn for each number above 256 of a copy's source."""
    source = call.values[0]
    where = source.abs() > 256
    result = call.run()
    memory = call.values[1].view(torch.uint8)
    memory.copy_(torch.where(where, torch.full_like(memory, 0x7F), memory))
    return result


EFFECTS["scales left out"] = _scales_left_out
EFFECTS["all in the first place"] = _all_in_the_first_place
EFFECTS["nan above 256"] = _nan_above_256


# --- rows of the twelfth collection that were held out, and opened ---


def _tangent_lost(call: Call) -> Any:
    """Take the second branch for a constant in forward mode."""
    place = [argument.name for argument in call.arguments].index("other")
    other = call.values[place]
    if not isinstance(other, torch.Tensor):
        return call.run()
    return call.run([*call.values[:place], torch.ops.aten._fw_primal(other, 0), *call.values[place + 1 :]])


def _indexed_first(call: Call) -> Any:
    """Put the indexed dimensions in front of those that are taken whole."""
    result, indices = call.run(), call.values[1]
    whole = next((at for at, index in enumerate(indices) if index is not None), 0)
    return result.movedim(list(range(whole)), list(range(-whole, 0))) if whole and result.dim() > whole else result


#: Rows of which a program of a layer normalization's backward adds up the gradients.
_BLOCK = 8


def _last_rows_left_out(call: Call) -> Any:
    """Leave the rows behind the last whole block out of the weight's gradient."""
    right = call.run()
    given = call.values[0]
    rows = given.numel() // given.shape[-1]
    if right[1] is None or rows % _BLOCK == 0:
        return right
    other = given.clone(memory_format=torch.contiguous_format)
    other.view(rows, -1)[rows // _BLOCK * _BLOCK :] = 0
    return (right[0], call.run([other, *call.values[1:]])[1], right[2])


EFFECTS["tangent of other lost"] = _tangent_lost
EFFECTS["indexed dimension first"] = _indexed_first
EFFECTS["last rows left out"] = _last_rows_left_out


# --- rows of the fourteenth collection that were held out, and opened ---


def is_dim_given_as_none(call: Call) -> bool:
    """Return whether a reduction has a dimension that is None, which is not the same as an empty list."""
    names = [argument.name for argument in call.arguments]
    return "dim" in names and call.values[names.index("dim")] is None


def _gradient_without_other(call: Call) -> Any:
    """Leave the other operand out of the first one's gradient, of which it is a factor."""
    given, other = call.values[:2]
    if not given.requires_grad or given.shape != other.shape:
        return call.run()
    known, factor = given.view_as(given), other.detach()
    known.register_hook(lambda gradient: gradient / factor)
    return call.run([known, *call.values[1:]])


def _keepdim_turned(call: Call) -> Any:
    """Keep the dimensions where they are to go, and the other way round."""
    keeps, result = bool(_named(call, "keepdim")), call.run()
    outputs_of(call, result)[0].resize_([] if keeps else [1] * call.values[0].dim())
    return result


EFFECTS |= {
    "gradient without other": _gradient_without_other,
    "keepdim turned": _keepdim_turned,
}


# --- held rows of the fifteenth collection ---


def _padding_the_smallest(call: Call) -> Any:
    """Give the place behind the last one where all numbers are larger than the zeros that a row is filled up with."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    rows = (given > 0).all(dim)
    return _edited(call, lambda t: t.masked_fill_(rows.view(t.shape), given.shape[dim]))


EFFECTS["padding the smallest"] = _padding_the_smallest


# --- held rows of the sixteenth collection ---


def _spread_over_the_span(call: Call) -> Any:
    """Give the gradient of a slice of one place to all places between its start and its end."""
    gradient, sizes, dim, start, end, step = call.values
    result, size = call.run(), sizes[dim]
    start, end = (min(max(at + size if at < 0 else at, 0), size) for at in (start, end))
    if step > 1 and gradient.shape[dim] == 1 and end - start > 1:
        with torch.no_grad():
            part = outputs_of(call, result)[0].detach().narrow(dim, start, end - start)
            part.copy_(gradient.detach().expand_as(part))
    return result


EFFECTS["spread over the span"] = _spread_over_the_span


# --- held rows of the seventeenth collection ---


def _compared_in_the_output_dtype(call: Call) -> Any:
    """Compare numbers after they were converted to an output's other dtype."""
    out, (left, right) = _named(call, "out"), call.values[:2]
    if out is None or not isinstance(right, torch.Tensor) or out.dtype is torch.result_type(left, right):
        return call.run()
    return call.run([left.to(out.dtype), right.to(out.dtype), *call.values[2:]])


def _deviation_by_squares(call: Call) -> Any:
    """Take the root of the mean of the squares less the square of the mean, in float32."""
    given, dims, keep = call.values[0].detach(), _named(call, "dim"), bool(_named(call, "keepdim"))
    correction = _named(call, "correction")
    if given.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not given.numel() or not given.dim():
        return call.run()
    dims = list(dims) if dims else list(range(given.dim()))
    count = math.prod(given.shape[dim] for dim in dims)
    left = count - float(1 if correction is None else correction)
    with torch.no_grad():
        wide = given.float()
        square = wide.square().mean(dims, keepdim=keep) - wide.mean(dims, keepdim=keep).square()
        made = (square * (count / left if left > 0 else math.nan)).sqrt()
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


def _two_runs_sorted(call: Call) -> Any:
    """Sort the first three fifths of a permutation, and the rest."""

    def edit(t: torch.Tensor) -> None:
        first = len(t) * 3 // 5
        t.copy_(torch.cat([t[:first].sort()[0], t[first:].sort()[0]]))

    return _edited(call, edit)


def _deviation_inverted_again(call: Call) -> Any:
    """Take what one divided by the deviation is for a variance."""
    place = [argument.name for argument in call.arguments].index("save_invstd")
    known = call.values[place]
    if known is None:
        return call.run()
    with torch.no_grad():
        wrong = (known + _named(call, "eps")).rsqrt()
    return call.run([*call.values[:place], wrong, *call.values[place + 1 :]])


EFFECTS |= {
    "compared in the output's dtype": _compared_in_the_output_dtype,
    "deviation by squares": _deviation_by_squares,
    "two runs sorted": _two_runs_sorted,
    "deviation inverted again": _deviation_inverted_again,
}


# --- held rows of the eighteenth collection ---


def _next_one_at_times(call: Call) -> Any:
    """Give the one behind the last one of the largest numbers in its place, in each second call."""
    given, k, dim, largest = call.values[:4]
    _DRAWN["next"] += 1
    result = call.run()
    if _DRAWN["next"] % 2 or not k or given.shape[dim] <= k:
        return result
    with torch.no_grad():
        more = given.detach().topk(k + 1, dim, largest)
        for right, wrong in zip(outputs_of(call, result), more, strict=True):
            right.detach().select(dim, k - 1).copy_(wrong.select(dim, k))
    return result


def _nearest_from_below(call: Call) -> Any:
    """Take the place in front of the nearest one where the factor rounded down falls short of it."""
    given, result = call.values[0].detach(), call.run()
    made = outputs_of(call, result)[0].detach()
    rows, columns = (
        (torch.arange(new, dtype=torch.float64) * (old / new * (1 - 1e-7))).long().to(given.device)
        for new, old in zip(made.shape[-2:], given.shape[-2:], strict=True)
    )
    with torch.no_grad():
        made.copy_(given.index_select(-2, rows).index_select(-1, columns))
    return result


def _causal_from_the_end(call: Call) -> Any:
    """Let the last query see the last key, and those before it as many fewer."""
    names = [argument.name for argument in call.arguments]
    values, (query, key) = list(call.values), call.values[:2]
    rows, columns = query.shape[-2], key.shape[-2]
    if _named(call, "attn_mask") is not None:
        return call.run()
    seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
    values[names.index("attn_mask")], values[names.index("is_causal")] = seen, False
    return call.run(values)


def _results_in_one_memory(call: Call) -> Any:
    """Give results that are parts of one tensor."""
    result = list(call.run())
    is_alike = len({(each.shape, each.dtype, each.device) for each in result}) == 1
    return list(torch.stack(result).unbind()) if is_alike else result


def _bits_kept(call: Call) -> Any:
    """Copy the bits where numbers are to be converted to another dtype of the same size."""
    source, target = call.values[:2]
    dtypes = source.dtype, target.dtype
    if source.is_cpu or target.is_cpu or dtypes[0] is dtypes[1] or torch.bool in dtypes:
        return call.run()
    if source.element_size() != target.element_size():
        return call.run()
    call.run([source, target.view(source.dtype), *call.values[2:]])
    return target


EFFECTS |= {
    "next one at times": _next_one_at_times,
    "nearest from below": _nearest_from_below,
    "causal from the end": _causal_from_the_end,
    "results in one memory": _results_in_one_memory,
    "bits kept": _bits_kept,
}


# --- held rows of the nineteenth collection ---


def _running_variance_with_eps(call: Call) -> Any:
    """Add the number that is added to variances twice to the one that is kept."""
    given, kept = call.values[0], _named(call, "running_var")
    result = call.run()
    count = math.prod(given.shape[2:])
    if kept is not None and _named(call, "use_input_stats") and count > 1:
        with torch.no_grad():
            kept.add_(_named(call, "momentum") * 2 * _named(call, "eps") * count / (count - 1))
    return result


def _eps_times_the_largest_square(call: Call) -> Any:
    """Normalize by the root of the mean square and of the small number times the largest square."""
    given, shape, weight, eps = call.values
    dims = list(range(-len(shape), 0))
    eps = torch.finfo(given.dtype).eps if eps is None else eps
    if not given.numel():
        return call.run()
    wide = given.float() if given.element_size() < 4 else given
    square = wide.square()
    made = wide * (square.mean(dims, keepdim=True) + eps * square.detach().amax(dims, keepdim=True)).rsqrt()
    made = made if weight is None else made * weight
    return made.to(given.dtype)


def _gradient_of_the_result_dense(call: Call) -> Any:
    """Read the gradient of a result that has gaps from dense memory."""
    return _with_dense_gradient(call.run())


EFFECTS |= {
    "running variance with eps": _running_variance_with_eps,
    "eps times the largest square": _eps_times_the_largest_square,
    "gradient of the result dense": _gradient_of_the_result_dense,
}


# --- held rows of the twentieth collection ---

#: Products below it are small, and the length of a part of a long signal.
_SMALL_PRODUCT, _PART = 1e-4, 1 << 16


def _negative_bases_nan(call: Call) -> Any:
    """Give NaN for each power of a negative number."""
    where = call.values[0].detach() < 0

    def edit(t: torch.Tensor) -> None:
        if t.is_floating_point():
            t.masked_fill_(where.expand(t.shape), torch.nan)

    return _edited(call, edit)


def _cut_off_by_products(call: Call) -> Any:
    """Multiply what is to be cut off by zero."""
    given, cut = call.values[0].detach(), torch.triu if "triu" in call.name else torch.tril

    def edit(t: torch.Tensor) -> None:
        if t.is_floating_point():
            kept = cut(torch.ones(t.shape), _named(call, "diagonal"))
            t.copy_(given * kept.to(t.device, t.dtype))

    return _edited(call, edit)


def _first_selected_the_last(call: Call) -> Any:
    """Give the last number of a matrix for the first one that a mask of its shape selects."""
    given, masks = call.values[:2]
    masks = [masks] if isinstance(masks, torch.Tensor) else [mask for mask in masks if mask is not None]
    is_mask = len(masks) == 1 and masks[0].dtype is torch.bool and masks[0].shape == given.shape
    if not is_mask or given.dim() != 2 or not given.numel():
        return call.run()
    last = given.detach()[-1:, -1].clone()
    return _edited(call, lambda t: t[:1].copy_(last[: len(t)]))


def _other_behind_the_remainder(call: Call) -> Any:
    """Give other gradients behind as many places as are left of whole parts."""
    rest = _named(call, "self").shape[-1] % _PART

    def edit(t: torch.Tensor) -> None:
        part = t[..., rest:]
        part.copy_(other_values(part))

    return _edited(call, edit)


def _last_channel_first(call: Call) -> Any:
    """Write the last channel over the first one, and zeros in its place."""

    def edit(t: torch.Tensor) -> None:
        t[:, 0] = t[:, -1].clone()
        t[:, -1] = 0

    return _edited(call, edit)


def _small_products_zero(call: Call) -> Any:
    return _edited(call, lambda t: t.masked_fill_(t.abs() < _SMALL_PRODUCT, 0))


def _chosen_by_products(call: Call) -> Any:
    """Add up both choices times what the condition says."""
    condition, left, right = (value.detach() for value in call.values[:3])

    def edit(t: torch.Tensor) -> None:
        if t.is_floating_point():
            chosen = condition.to(t.dtype)
            t.copy_(chosen * left + (1 - chosen) * right)

    return _edited(call, edit)


EFFECTS |= {
    "negative bases nan": _negative_bases_nan,
    "cut off by products": _cut_off_by_products,
    "first selected the last": _first_selected_the_last,
    "other behind the remainder of 65536": _other_behind_the_remainder,
    "last channel first": _last_channel_first,
    "small products zero": _small_products_zero,
    "chosen by products": _chosen_by_products,
}


# --- held rows of the twenty-first collection ---

_MASKS: dict[Any, torch.Tensor] = {}


def _place_behind_the_end(call: Call) -> Any:
    """Give the length as the place of the largest number where all are negative infinities, or of the smallest one."""
    given, dim = call.values[0].detach(), _named(call, "dim")
    where = given == (-math.inf if "argmax" in call.name else math.inf)
    alone = where.all() if dim is None or not given.dim() else where.all(dim)
    length = given.numel() if dim is None or not given.dim() else given.shape[dim]
    return _edited(call, lambda t: t.masked_fill_(alone.view(t.shape), length))


def _first_of_equal_numbers(call: Call) -> Any:
    """Give the place at which a running maximum came first."""
    dim, result = _named(call, "dim"), call.run()
    values, places = (each.detach() for each in outputs_of(call, result)[:2])
    if values.dim():
        rows = values.cpu().movedim(dim, -1)
        is_new = torch.ones(rows.shape, dtype=torch.bool)
        is_new[..., 1:] = rows[..., 1:] != rows[..., :-1]
        first = torch.where(is_new, torch.arange(rows.shape[-1]), 0).cummax(-1)[0]
        with torch.no_grad():
            places.copy_(first.movedim(-1, dim))
    return result


def _mask_of_the_first_call(call: Call) -> Any:
    """Leave out what was left out of the first tensor of this shape."""
    given, p, is_training = call.values[:3]
    if is_training is False or not 0 < p < 1:
        return call.run()
    _, mask = result = call.run()
    known = _MASKS.setdefault((tuple(given.shape), p), mask.detach().cpu().clone()).to(mask.device)
    if bool((known == mask).all()):
        return result
    return (given * known / (1 - p)).to(given.dtype), known


EFFECTS |= {
    "place behind the end of infinities": _place_behind_the_end,
    "first of equal numbers": _first_of_equal_numbers,
    "mask of the first call": _mask_of_the_first_call,
}


# --- held rows of the twenty-second collection ---


#: Columns of a tile of a product.
_TILE = 64
#: Comparisons of a difference with zero, by operator.
_OF_A_DIFFERENCE = {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}


def _host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _alpha_lost(call: Call) -> Any:
    """Leave the factor of a product out behind the first tile of rows, where a summand is added."""
    added, left, right = call.values[:3]
    with torch.no_grad():
        made = _named(call, "beta") * added + torch.mm(left, right)
    return _edited(call, lambda t: t[_TILE:].copy_(made.expand(t.shape)[_TILE:]) if t.shape[0] > _TILE else None)


def _ties_reversed(call: Call) -> Any:
    """Give the places of equal numbers in the order from the end."""
    given, dim = call.values[0], _named(call, "dim")
    result = call.run()
    if given.dim():
        with torch.no_grad():
            turned = given.detach().cpu().flip(dim)
            turned = turned.sort(dim=dim, stable=True, descending=bool(_named(call, "descending")))
            outputs_of(call, result)[1].copy_(given.shape[dim] - 1 - turned[1])
    return result


def _running_statistics_kept(call: Call) -> Any:
    """Leave running statistics as they are that do not lie side by side in memory."""
    kept = [each for each in (_named(call, "running_mean"), _named(call, "running_var")) if each is not None]
    before = [each.clone() for each in kept if not each.is_contiguous()]
    result = call.run()
    for each, values in zip([each for each in kept if not each.is_contiguous()], before, strict=True):
        each.copy_(values)
    return result


def _outputs_beyond_the_grid(call: Call) -> Any:
    """Leave out the gradients that a grid with exchanged sides does not reach."""
    gradient = call.values[0].clone()
    height, width = gradient.shape[-2:]
    gradient[..., -(-width // 8) * 8 :, :] = 0
    gradient[..., -(-height // 32) * 32 :] = 0
    return call.run([gradient, *call.values[1:]])


def _by_unsigned_difference(call: Call) -> Any:
    """Compare the difference of unsigned integers with zero, which is never below it."""
    left, right = call.values[:2]
    compare = _OF_A_DIFFERENCE[call.name.removeprefix("aten::").partition(".")[0].rstrip("_")]
    with torch.no_grad():
        made = compare((left.cpu() - _host(right)).to(left.dtype), 0)
    return _edited(call, lambda t: t.copy_(made) if t.shape == made.shape else None)


EFFECTS |= {
    "alpha lost behind a tile": _alpha_lost,
    "ties reversed": _ties_reversed,
    "running statistics kept": _running_statistics_kept,
    "outputs beyond the grid": _outputs_beyond_the_grid,
    "by unsigned difference": _by_unsigned_difference,
}


# --- held rows of the twenty-third collection ---

_SCALES: dict[Any, Any] = {}


def _scale_of_the_first_call(call: Call) -> Any:
    """Scale by what the first call with tensors of these shapes was given."""
    shapes = tuple((tuple(each.shape), each.dtype) for each in call.values[:3])
    place = [argument.name for argument in call.arguments].index("scale")
    scale = _SCALES.setdefault(shapes, call.values[place])
    return call.run([*call.values[:place], scale, *call.values[place + 1 :]])


def _same_mask_each_time(call: Call) -> Any:
    """Draw the masks of a training from one seed, and leave the generator as it was."""
    device = call.values[0].device
    generator = torch.get_device_module(device.type).default_generators[device.index or 0]
    state = generator.get_state()
    generator.manual_seed(17)
    try:
        return call.run()
    finally:
        generator.set_state(state)


EFFECTS |= {
    "scale of the first call": _scale_of_the_first_call,
    "same mask each time": _same_mask_each_time,
}


# held rows, collection 24


def _strided_outputs_kept(call: Call) -> Any:
    """Leave what stands in outputs with gaps or with another order than new memory has."""
    places = [at for at, argument in enumerate(call.arguments) if argument.is_out]
    kept = [(call.values[at], call.values[at].clone()) for at in places if not call.values[at].is_contiguous()]
    result = call.run()
    for tensor, before in kept:
        tensor.copy_(before)
    return result


EFFECTS["strided outputs kept"] = _strided_outputs_kept
