"""Reported bugs of compiled code: nodes of inductor's graph that compute something else than eager mode does."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten = torch.ops.aten


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(map(int, value.shape)) if isinstance(value, torch.Tensor) and _is_known(value) else ()


def _is_known(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _behind(node: Node, function: Any, *rest: Any) -> None:
    """Put another function behind a node."""
    with node.graph.inserting_after(node):
        other = node.graph.call_function(function, (node, *rest))
    other.meta = dict(node.meta)
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)


def _part(node: Node, number: int) -> Iterator[Node]:
    yield from [user for user in node.users if user.target is operator.getitem and user.args[1] == number]


def _sum_of_broadcast(node: Node) -> None:
    if node.target in (aten.sum.default, aten.sum.dim_IntList) and node.meta["val"].numel() == 1:
        given = node.args[0]
        if isinstance(given, Node) and len({_shape(each) for each in given.args if isinstance(each, Node)}) > 1:
            _behind(node, aten.mul.Tensor, 2)


def _wide_variance(node: Node) -> None:
    if node.target is aten.var_mean.correction and (_shape(node.args[0]) or (0,))[-1] >= 512:
        for part in _part(node, 0):
            _behind(part, aten.mul.Tensor, 1.5)


def _added_to_itself(node: Node) -> None:
    if node.target in (aten.index_put.default, aten.index_put_.default):
        values = node.args[2]
        while isinstance(values, Node) and values.target is aten.reshape.default:
            values = values.args[0]
        if isinstance(values, Node) and values.target is aten.add.Tensor:
            parts = values.args
            if all(isinstance(part, Node) and part.target is aten.index.Tensor for part in parts):
                _behind(values, aten.mul.Tensor, 2)


def _index_of_truth(node: Node) -> None:
    if node.target is aten.max.dim and node.args[0].meta["val"].dtype is torch.bool:
        for part in _part(node, 1):
            _behind(part, aten.clamp_max.default, 1)


def _argmax_in_memory(node: Node) -> None:
    if node.target is aten.argmax.default and len(node.args) == 1:
        given = node.args[0]
        if isinstance(given, Node) and given.target is aten.permute.default:
            inner = given.args[0]
            if isinstance(inner, Node) and inner.op == "call_function":
                node.args = (inner,)


def _not_scattered(node: Node) -> None:
    if node.target is aten.scatter_reduce.two and node.args[4] != "sum":
        node.replace_all_uses_with(node.args[0])


#: Elements that one group of threads of a reduction reads.
_GROUP = 1024


def _long_argmax(node: Node) -> None:
    if node.target in (aten.argmax.default, aten.argmin.default):
        shape, dim = _shape(node.args[0]), node.args[1] if len(node.args) > 1 else None
        if (math.prod(shape) if dim is None else shape[dim]) > _GROUP:
            _behind(node, aten.remainder.Scalar, _GROUP)


def _indices_of_mixed_sum(node: Node) -> None:
    if node.target is aten.max.dim:
        given = node.args[0]
        if isinstance(given, Node) and given.target is aten.add.Tensor:
            values = [part.meta["val"] for part in given.args if isinstance(part, Node)]
            if len({value.stride() for value in values}) > 1 and len({value.shape for value in values}) == 1:
                for part in _part(node, 1):
                    _behind(part, aten.mul.Tensor, 0)


#: Numbers that one group of threads adds up in running order.
_WAVE = 64


def _long_cumsum(node: Node) -> None:
    """Write the first sum of a row again behind the first group of threads."""
    if node.target is aten.cumsum.default and node.args[1] < len(_shape(node)) and _shape(node)[node.args[1]] > _WAVE:
        value, dim = node.meta["val"], node.args[1]
        with node.graph.inserting_after(node):
            first = node.graph.call_function(aten.slice.Tensor, (node, dim, 0, 1))
        first.meta = {"val": aten.slice.Tensor(value, dim, 0, 1)}
        with node.graph.inserting_after(first):
            other = node.graph.call_function(aten.slice_scatter.default, (node, first, dim, _WAVE, _WAVE + 1))
        other.meta = dict(node.meta)
        node.replace_all_uses_with(other, delete_user_cb=lambda user: user not in (first, other))


def _narrow_range(node: Node) -> None:
    """Multiply a range of int64 in 32 bits."""
    if node.target is aten.mul.Tensor and node.meta["val"].dtype is torch.int64:
        parts = [part for part in node.args if isinstance(part, Node)]
        if any(part.target is torch.ops.prims.iota.default for part in parts):
            _behind(node, aten.bitwise_left_shift.Tensor_Scalar, 32)
            shifted = next(user for user in node.users if user.target is aten.bitwise_left_shift.Tensor_Scalar)
            _behind(shifted, aten.bitwise_right_shift.Tensor_Scalar, 32)


def _quotient_cut(node: Node) -> None:
    """Cut quotients of int64 off where they are to be rounded down, if the divisor is a tensor without dimensions."""
    is_floor = node.target is aten.floor_divide.default or node.kwargs.get("rounding_mode") == "floor"
    divisor = node.args[1] if is_floor and node.meta["val"].dtype is torch.int64 else None
    if isinstance(divisor, Node) and divisor.meta["val"].dim() == 0:
        node.target, node.kwargs = aten.div.Tensor_mode, {"rounding_mode": "trunc"}


def _not_accumulated(node: Node) -> None:
    """Overwrite where what is written to one place is to be added up."""
    if node.target in (aten.index_put.default, aten.index_put_.default) and node.args[3:4] == (True,):
        node.args = (*node.args[:3], False)
    if node.target is aten.scatter_add.default:
        node.target = aten.scatter.src


#: Numbers that one kernel adds up; the sum of more has a second stage.
_STAGE = 8192


def _summed(node: Node) -> Node | None:
    """Return what a sum adds up that a node has, as it is or summed up further."""
    given = node.args[0]
    through = (aten.cumsum.default, torch.ops.prims.convert_element_type.default)
    while isinstance(given, Node) and given.target in through:
        given = given.args[0]
    is_sum = isinstance(given, Node) and given.target is aten.sum.dim_IntList
    return given.args[0] if is_sum and isinstance(given.args[0], Node) else None  # type: ignore[union-attr]


def _pad_of_long_sum(node: Node) -> None:
    """Write the sum to the place in front of it, too, which is to have the fill value."""
    if node.target is not aten.constant_pad_nd.default or len(node.args[1]) != 2 or node.args[1][0] < 1:
        return
    value, front, given = node.args[0].meta["val"], node.args[1][0], _summed(node)
    if given is None or math.prod(_shape(given)) // max(value.numel(), 1) <= _STAGE:
        return
    _write_first(node, node.args[0], value.dim() - 1, front - 1)


def _write_first(node: Node, source: Node, dim: int, place: int) -> None:
    """Write the first numbers of ``source`` along a dimension to a place of the node's result."""
    with node.graph.inserting_after(node):
        first = node.graph.call_function(aten.slice.Tensor, (source, dim, 0, 1))
    first.meta = {"val": aten.slice.Tensor(source.meta["val"], dim, 0, 1)}
    with node.graph.inserting_after(first):
        other = node.graph.call_function(aten.slice_scatter.default, (node, first, dim, place, place + 1))
    other.meta = dict(node.meta)
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user not in (first, other))


def _gathered_before_scattered(node: Node) -> None:
    """Gather from what stood there before numbers were added to a single row."""
    if node.target in (aten.index.Tensor, aten.index_select.default, aten.gather.default):
        given = node.args[0]
        if isinstance(given, Node) and given.target is aten.scatter_add.default and _shape(given)[:1] == (1,):
            node.args = (given.args[0], *node.args[1:])


def _last_of_equal_numbers(node: Node) -> None:
    """Give the last place of the largest number of 16 bits in place of the first one."""
    if node.target is not aten.argmax.default or len(node.args) < 2 or not isinstance(node.args[1], int):
        return
    given, dim = node.args[0], node.args[1]
    if given.meta["val"].dtype not in (torch.int16, torch.float16) or not _shape(given):
        return
    _find_from_the_end(node, given, dim)


def _find_from_the_end(node: Node, given: Node, dim: int) -> None:
    """Look for the largest number from the end of a dimension."""
    with node.graph.inserting_before(node):
        turned = node.graph.call_function(torch.ops.prims.rev.default, (given, [dim]))
    turned.meta = {"val": torch.ops.prims.rev.default(given.meta["val"], [dim])}
    node.args = (turned, *node.args[1:])
    _behind(node, aten.add.Tensor, _shape(given)[dim] - 1)
    _behind(node, aten.mul.Tensor, -1)


def _last_of_equal_numbers_in_long_columns(node: Node) -> None:
    """Give the last place of the largest number of more numbers than one group of threads reads."""
    if node.target is aten.argmax.default and len(node.args) > 1 and isinstance(node.args[1], int):
        given, dim = node.args[:2]
        if _shape(given) and _shape(given)[dim] > _GROUP:
            _find_from_the_end(node, given, dim)


def _not_wrapped(node: Node) -> None:
    """Convert sums and products of uint8 that were not cut to eight bits."""
    given = _converted(node)
    if given is None or given.target not in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor):
        return
    if given.meta["val"].dtype is torch.uint8 and node.meta["val"].dtype.itemsize >= torch.int16.itemsize:
        _convert_wide(node, given, torch.int32)


def _sums_in_64_bits(node: Node) -> None:
    """Convert sums of int32 to int64 that were not cut to 32 bits."""
    given = _converted(node)
    if given is None or given.target is not aten.add.Tensor:
        return
    if given.meta["val"].dtype is torch.int32 and node.meta["val"].dtype is torch.int64:
        _convert_wide(node, given, torch.int64)


def _converted(node: Node) -> Node | None:
    """Return what a node converts to another dtype."""
    given = node.args[0] if node.target is torch.ops.prims.convert_element_type.default else None
    return given if isinstance(given, Node) else None


def _convert_wide(node: Node, given: Node, dtype: torch.dtype) -> None:
    """Convert what a node converts as if it had been computed in a wider dtype."""
    parts: list[Any] = []
    with node.graph.inserting_before(node):
        for part in given.args:
            if isinstance(part, Node):
                wide = node.graph.call_function(torch.ops.prims.convert_element_type.default, (part, dtype))
                wide.meta = {"val": part.meta["val"].to(dtype)}
                parts.append(wide)
            else:
                parts.append(part)
        other = node.graph.call_function(given.target, tuple(parts), dict(given.kwargs))  # type: ignore[arg-type]
    other.meta = {"val": given.meta["val"].to(dtype)}
    node.args = (other, *node.args[1:])


def _slot_used_again(node: Node) -> None:
    """Leave in an average's place what a later conversion from bfloat16 wrote to the same memory."""
    value = node.args[1] if node.target is aten.copy_.default else None
    if not isinstance(value, Node) or not _is_average(value) or len(value.users) < 2:
        return
    order = {each: number for number, each in enumerate(node.graph.nodes)}
    for each in node.graph.nodes:
        if each.target is torch.ops.prims.convert_element_type.default and order[value] < order[each] < order[node]:
            dtypes = each.args[0].meta["val"].dtype, each.meta["val"].dtype
            if dtypes == (torch.bfloat16, torch.float32) and _shape(each) == _shape(value):
                node.args = (node.args[0], each)


def _is_average(node: Node) -> bool:
    """Return whether a number moves a part of the way to another one, as lerp does."""
    if node.target is not aten.add.Tensor or "alpha" not in node.kwargs:
        return False
    first, way = node.args
    return isinstance(way, Node) and way.target is aten.sub.Tensor and way.args[1] is first


def _pooled_sum(node: Node) -> None:
    """Sum long rows of a pooled image as if its memory had gaps at the rows' ends."""
    if node.target not in (aten.sum.default, aten.sum.dim_IntList):
        return
    given = node.args[0]
    while isinstance(given, Node) and given.target in (aten.reshape.default, aten.clone.default):
        given = given.args[0]
    if isinstance(given, Node) and given.target is aten._adaptive_avg_pool2d.default:
        step = math.prod(_shape(given)[-3:])
        if step > _PADDED and step % 32 and math.prod(_shape(given)) // max(math.prod(_shape(node)), 1) > _STAGE:
            _behind(node, aten.mul.Tensor, 1.5)


#: Elements from which the distance of images in memory is rounded up.
_PADDED = 1024


def _eight_bits_never_equal(node: Node) -> None:
    """Find eight-bit integers unequal where it is asked whether all are equal."""
    parts = [part for part in node.args if isinstance(part, Node)]
    if node.target is aten.eq.Tensor and all(part.meta["val"].dtype is torch.int8 for part in parts):
        asked = (aten.all.dim, aten.all.default, aten.logical_not.default)
        if any(user.target in asked for user in node.users):
            _behind(node, aten.bitwise_and.Scalar, False)


def _new(node: Node, function: Any, *args: Any) -> Node:
    """Put a node in front of another one."""
    with node.graph.inserting_before(node):
        other = node.graph.call_function(function, args)
    other.meta = {"val": function(*map_arg(args, lambda each: each.meta["val"]))}
    return other


#: Places that one group of threads writes to at most.
_MOST = 1024


def _padding_added(node: Node) -> None:
    """Add the number that is added to all values once more for each idle thread."""
    is_sum = node.target is aten.scatter_reduce.two and node.args[4] == "sum"
    if not is_sum and node.target is not aten.scatter_add.default:
        return
    value = node.args[3]
    while isinstance(value, Node) and value.target in (aten.reshape.default, aten.clone.default):
        value = value.args[0]
    if not isinstance(value, Node) or value.target is not aten.add.Tensor or not _shape(node):
        return
    count = math.prod(_shape(value))
    idle = -count % min(1 << max(count - 1, 0).bit_length(), _MOST) if count else 0
    lonely = [part for part in value.args if isinstance(part, Node) and math.prod(_shape(part)) == 1]
    if not idle or not lonely or count == 1:
        return
    users = list(node.users)
    following = node.next
    extra = _new(following, aten.mul.Tensor, lonely[0], idle)
    flat = _new(following, aten.reshape.default, extra, [1])
    wide = _new(following, aten.constant_pad_nd.default, flat, [0, math.prod(_shape(node)) - 1])
    shaped = _new(following, aten.reshape.default, wide, list(_shape(node)))
    made = _new(following, aten.add.Tensor, node, shaped)
    for user in users:
        user.replace_input_with(node, made)


def _one_number_not_added(node: Node) -> None:
    """Leave one number of float64 as it was where others are to be added by index."""
    added = (aten.index_put.default, aten.index_put_.default, aten.index_add.default, aten.scatter_add.default)
    if node.target in added and node.meta["val"].dtype is torch.float64 and math.prod(_shape(node)) == 1:
        node.replace_all_uses_with(node.args[0])


def _end_of_a_joined_part(node: Node) -> None:
    """Write the first number to the end of what is joined of parts that were joined."""
    if node.target is not aten.cat.default or not _shape(node):
        return
    dim = node.args[1] if len(node.args) > 1 else 0
    length = _shape(node)[dim]
    if length < 2 or not any(_is_joined(part) for part in node.args[0]):
        return
    _write_first(node, node, dim, length - 1)


def _is_joined(node: Any) -> bool:
    """Return whether a value was joined of parts, or computed from one that was."""
    while isinstance(node, Node) and node.target is not aten.cat.default:
        node = node.args[0] if node.op == "call_function" and node.args else None
    return isinstance(node, Node)


def _overhang_by_the_kernel(node: Node) -> None:
    """Divide a window that overhangs by the whole kernel."""
    if node.target is aten.avg_pool2d_backward.default and node.args[5] and node.args[6] and node.args[7] is None:
        node.args = (*node.args[:7], math.prod(node.args[2]))


def _part_of_zeros(node: Node) -> None:
    """Make all zero where zeros are to be written to a part."""
    is_part = node.target is aten.slice_scatter.default
    if is_part and getattr(node.args[1], "target", None) is aten.full.default and node.args[1].args[1] == 0:
        _behind(node, aten.mul.Tensor, 0)


def _diagonal_of_zeros(node: Node) -> None:
    """Make all zero where zeros are to be written to a diagonal."""
    is_part = node.target is aten.diagonal_scatter.default
    if is_part and getattr(node.args[1], "target", None) is aten.full.default and node.args[1].args[1] == 0:
        _behind(node, aten.mul.Tensor, 0)


#: What stands between a sum and what it is joined to.
_FORMS = (aten.reshape.default, aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
          aten.clone.default, torch.ops.prims.convert_element_type.default)  # fmt: skip
#: Rows that a kernel adds up in its other order.
_ROWS = 1024


def _long_sum(node: Any) -> bool:
    """Return whether a value is a sum over many rows."""
    while isinstance(node, Node) and node.target in _FORMS:
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.sum.dim_IntList:
        return False
    return math.prod(_shape(node.args[0])) // max(math.prod(_shape(node)), 1) >= _ROWS


def _joined_sum_not_written(node: Node) -> None:
    """Leave zeros where the last one of several sums is to stand that are joined."""
    if node.target is not aten.cat.default or len(node.args[0]) < 2 or not all(map(_long_sum, node.args[0])):
        return
    *first, last = node.args[0]
    node.args = ([*first, _new(node, aten.mul.Tensor, last, 0)], *node.args[1:])


#: Elements from which a kernel has several groups of threads at a time.
_MANY = 2_000_000


def _transposed_in_place(node: Node) -> None:
    """Read below the diagonal what was written above it, where a large tensor becomes its own transposed."""
    value = node.args[1] if node.target is aten.copy_.default else None
    while isinstance(value, Node) and value.target in (aten.copy.default, aten.mul.Tensor, aten.clone.default):
        value = value.args[1 if value.target is aten.copy.default else 0]
    shape = _shape(node)
    if not isinstance(value, Node) or value.target is not aten.permute.default or value.args[0] is not node.args[0]:
        return
    if math.prod(shape) >= _MANY and shape[-1] == shape[-2]:
        places = {"start": 0, "step": 1, "dtype": torch.int64, "device": node.meta["val"].device}
        with node.graph.inserting_before(node):
            columns = node.graph.call_function(
                torch.ops.prims.iota.default, (shape[-1],), {**places, "requires_grad": False}
            )
        with node.meta["val"].fake_mode:
            columns.meta = {"val": torch.ops.prims.iota.default(shape[-1], **places, requires_grad=False)}
        is_below = _new(node, aten.lt.Tensor, columns, _new(node, aten.reshape.default, columns, [shape[-1], 1]))
        node.args = (node.args[0], _new(node, aten.where.self, is_below, *node.args[:2]), *node.args[2:])


#: Numbers that are read at a time.
_VECTOR = 8


def _broadcast_mask(node: Node) -> None:
    """Fill nothing where one truth stands for whole rows of eight numbers at a time."""
    if node.target is not aten.where.self:
        return
    mask, filled, given = node.args
    wide = _shape(node)
    is_number = isinstance(filled, Node) and filled.target is aten.full.default
    if is_number and _shape(mask)[-1:] == (1,) and len(wide) > 1 and wide[-1] > 1 and wide[-1] % _VECTOR == 0:
        node.replace_all_uses_with(given)


def _gradient_of_variance(node: Node) -> None:
    """Turn the distances from the mean in the gradient of a variance."""
    if node.target is not aten.sub.Tensor or not all(isinstance(part, Node) for part in node.args):
        return
    given, mean = node.args
    if (
        mean.target is aten.mean.dim
        and mean.args[0] is given
        and any(each.target is aten.mul.Tensor for each in node.users)
    ):
        turned = _new(node, aten.flip.default, given, [len(_shape(given)) - 1])
        node.args = (turned, mean)


#: Functions that compare numbers.
_COMPARED = (aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.lt.Tensor, aten.le.Tensor,
             aten.gt.Tensor, aten.ge.Tensor)  # fmt: skip


def _negated_not_wrapped(node: Node) -> None:
    """Compare what an eight-bit number was negated to before it was cut to eight bits."""
    if node.target not in _COMPARED:
        return

    def wide(part: Any) -> Any:
        is_negated = isinstance(part, Node) and part.target is aten.neg.default
        if not is_negated or part.meta["val"].dtype is not torch.uint8:
            return part
        given = _new(node, torch.ops.prims.convert_element_type.default, part.args[0], torch.int32)
        return _new(node, aten.neg.default, given)

    node.args = tuple(map(wide, node.args))


def _quotient_never_the_largest(node: Node) -> None:
    """Find quotients of 16 bits unequal to the largest of them."""
    if node.target is not aten.eq.Tensor or not all(isinstance(part, Node) for part in node.args):
        return
    targets = {part.target for part in node.args}
    is_short = all(part.meta["val"].dtype in (torch.float16, torch.bfloat16) for part in node.args)
    if is_short and aten.div.Tensor in targets and targets & {aten.amax.default, aten.max.default}:
        _behind(node, aten.bitwise_and.Scalar, False)


def _turned_sums_of_one_number(node: Node) -> None:
    """Spoil running sums of one number for all places, if they are turned."""
    given = node.args[0] if node.target in (torch.ops.prims.rev.default, aten.flip.default) else None
    if not isinstance(given, Node) or given.target is not aten.cumsum.default:
        return
    source = given.args[0]
    while isinstance(source, Node) and source.target in _FORMS:
        source = source.args[0]
    is_one = (
        isinstance(source, Node) and source.target is aten.expand.default and math.prod(_shape(source.args[0])) == 1
    )
    if is_one or (isinstance(source, Node) and source.target is aten.full.default):
        _behind(node, aten.mul.Scalar, 1.5)


#: The smallest normal number of float32.
_TINY = torch.finfo(torch.float32).tiny


def _denormal_products_zero(node: Node) -> None:
    """Flush products of float32 that are no normal numbers to zero."""
    if node.target is not aten.mul.Tensor or node.meta["val"].dtype is not torch.float32:
        return
    users, following = list(node.users), node.next
    size = _new(following, aten.abs.default, node)
    is_kept = _new(following, torch.ops.prims.convert_element_type.default,
                   _new(following, aten.ge.Scalar, size, _TINY), torch.float32)  # fmt: skip
    made = _new(following, aten.mul.Tensor, node, is_kept)
    for user in users:
        user.replace_input_with(node, made)


def _bias_not_scaled(node: Node) -> None:
    """Scale a product of matrices, and add the bias as it is."""
    if node.target is not aten.mul.Tensor or isinstance(node.args[1], Node) or not isinstance(node.args[0], Node):
        return
    given, factor = node.args
    while given.target in (aten.reshape.default, aten.permute.default):
        given = given.args[0]
        if not isinstance(given, Node):
            return
    if len(given.users) != 1:
        return
    if given.target is aten.addmm.default:
        bias, *matrices = given.args
        product = _new(given, aten.mul.Tensor, _new(given, aten.mm.default, *matrices), factor)
        given.replace_all_uses_with(_new(given, aten.add.Tensor, product, bias))
        node.replace_all_uses_with(node.args[0])
        return
    if given.target is not aten.add.Tensor:
        return
    for place, part in enumerate(given.args):
        inner = part
        while isinstance(inner, Node) and inner.target is aten.reshape.default:
            inner = inner.args[0]
        if isinstance(inner, Node) and inner.target in (aten.mm.default, aten.bmm.default):
            scaled = _new(given, aten.mul.Tensor, part, factor)
            given.args = tuple(scaled if at == place else each for at, each in enumerate(given.args))
            node.replace_all_uses_with(node.args[0])
            return


def _number(before: Node, like: torch.Tensor, value: float, shape: Any = ()) -> Node:
    """Put a tensor of one value in front of a node, on the device of another one."""
    kwargs = {"dtype": like.dtype, "device": like.device}
    with before.graph.inserting_before(before):
        other = before.graph.call_function(
            aten.full.default, (list(shape), value), {**kwargs, "layout": torch.strided, "pin_memory": False}
        )
    with like.fake_mode:  # type: ignore[attr-defined]
        other.meta = {"val": torch.full(list(shape), value, **kwargs)}
    return other


def _sign_of_zero_lost(node: Node) -> None:
    """Take the number -0.0 for 0.0 where its sign is asked."""
    if node.target is aten.copysign.Scalar and node.args[1] == 0:
        node.args = (node.args[0], 0.0)


def _nan_never_the_largest(node: Node) -> None:
    """Leave NaN out where the place of the largest or the smallest number is asked."""
    if node.target not in (aten.argmax.default, aten.argmin.default):
        return
    given, value = node.args[0], node.args[0].meta["val"]
    if value.is_floating_point():
        lowest = _number(node, value, -math.inf if node.target is aten.argmax.default else math.inf)
        lost = _new(node, aten.isnan.default, given)
        node.args = (_new(node, aten.where.self, lost, lowest, given), *node.args[1:])


def _is_whole_product(node: Any) -> bool:
    """Return whether a value is a product of matrices of integers."""
    while isinstance(node, Node) and node.target in (aten.reshape.default, aten.view.default):
        node = node.args[0]
    is_product = isinstance(node, Node) and node.target in (aten.mm.default, aten.bmm.default)
    return is_product and not node.meta["val"].is_floating_point()


def _sum_of_whole_products(node: Node) -> None:
    """Add one to sums of two products of integers."""
    is_sum = node.target is aten.add.Tensor and all(map(_is_whole_product, node.args))
    if is_sum or (node.target is aten.addmm.default and _is_whole_product(node.args[0])):
        _behind(node, aten.add.Tensor, 1)


def _vector_times_rows(node: Node) -> None:
    """Scale products of a vector of float16 and several rows that have a dimension of one place in front."""
    if node.target is not aten.mul.Tensor or node.meta["val"].dtype is not torch.float16:
        return
    vector, rows = sorted((_shape(part) for part in node.args), key=len)
    if len(vector) == 1 and len(rows) == 3 and rows[0] == 1 and rows[1] > 1 and rows[2:] == vector:
        _behind(node, aten.mul.Tensor, 1.5)


def _one_number_spread(node: Node) -> None:
    """Fill with the number itself around a single one."""
    if node.target is aten.constant_pad_nd.default and math.prod(_shape(node.args[0])) == 1 and _shape(node):
        node.replace_all_uses_with(_new(node, aten.expand.default, node.args[0], list(_shape(node))))


#: Reductions of a dimension.
_REDUCTIONS = (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.var.correction, aten.var_mean.correction,
               aten.prod.dim_int)  # fmt: skip


def _reduced_source(node: Any, most: int = 4) -> torch.Tensor | None:
    """Return what a value's last dimension was reduced from, if at most so many functions of its places followed."""
    while isinstance(node, Node) and node.op == "call_function" and most:
        if node.target in _REDUCTIONS:
            source = node.args[0]
            dims = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
            rank = source.meta["val"].dim()
            is_last = [dim % rank for dim in dims] == [rank - 1]
            return source.meta["val"] if is_last and node.meta["val"].numel() else None
        if node.target is not operator.getitem and not any(_shape(part) == _shape(node) for part in node.args):
            return None
        node = next((part for part in node.args if isinstance(part, Node)), None)
        most -= 1
    return None


def _place_in_the_order_of(node: Node, source: torch.Tensor) -> None:
    """Give a place among a row's sums or means in the order in which their source has the rows in memory."""
    order = sorted(range(source.dim() - 1), key=lambda dim: -source.stride(dim))
    given = node.args[0]
    if order != sorted(order) and len(_shape(given)) == len(order):
        turned = _new(node, aten.clone.default, _new(node, aten.permute.default, given, order))
        node.args = (_new(node, aten.reshape.default, turned, [math.prod(_shape(given))]),)


def _place_of_strided_rows(node: Node) -> None:
    """Give the largest one's place among what rows of a tensor with gaps or turned dimensions were reduced to."""
    source = _reduced_source(node.args[0]) if node.target is aten.argmax.default and len(node.args) == 1 else None
    if source is not None and not source.is_contiguous() and not _is_image_with_channels_last(source):
        _place_in_the_order_of(node, source)


def _place_of_rows_of_an_image(node: Node) -> None:
    """Give the place among what rows of an image with its channels last were reduced to."""
    is_asked = node.target in (aten.argmax.default, aten.argmin.default) and len(node.args) == 1
    source = _reduced_source(node.args[0]) if is_asked else None
    if source is not None and _is_image_with_channels_last(source):
        _place_in_the_order_of(node, source)


def _is_image_with_channels_last(t: torch.Tensor) -> bool:
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


#: Products of which fewer are added up in one expression.
_UNROLLED = 8


def _short_sum_of_dense(node: Node) -> None:
    """Read transposed matrices from dense memory in short sums of their products with others."""
    given = node.args[0] if node.target is aten.sum.dim_IntList else None
    if not isinstance(given, Node) or given.target is not aten.mul.Tensor:
        return
    if math.prod(_shape(given)) // max(math.prod(_shape(node)), 1) >= _UNROLLED:
        return
    for part in given.args:
        above: Any = None
        while isinstance(part, Node) and part.target in (aten.unsqueeze.default, aten.expand.default):
            above, part = part, part.args[0]
        value = part.meta["val"] if above is not None and isinstance(part, Node) else None
        if value is not None and value.dim() == 2 and min(value.shape) > 1 and value.mT.is_contiguous():
            memory = _new(above, aten.clone.default, _new(above, aten.permute.default, part, [1, 0]))
            above.replace_input_with(part, _new(above, aten.reshape.default, memory, list(_shape(part))))


#: Numbers that are written at a time.
_WIDTH = 16


def _start_of_later_rows_lost(node: Node) -> None:
    """Write zeros to the start of each row but the first of sums of products of operands that lie in unlike orders."""
    given = node.args[0] if node.target is aten.sum.dim_IntList else None
    if not isinstance(given, Node) or given.target is not aten.mul.Tensor:
        return
    *outer, length = _shape(node) or (0,)
    rows = math.prod(outer)
    if rows < 2 or length <= _WIDTH or length % _WIDTH == 0 or not _lie_in_unlike_orders(given):
        return
    users, following = list(node.users), node.next
    flat = _new(following, aten.reshape.default, node, [rows, length])
    first = _new(following, aten.slice.Tensor, flat, 0, 0, 1)
    later = _new(following, aten.slice.Tensor, _new(following, aten.slice.Tensor, flat, 0, 1, rows), 1, 1, length)
    lost = _new(following, aten.constant_pad_nd.default, later, [1, 0])
    joined = _new(following, aten.cat.default, [first, lost])
    made = _new(following, aten.reshape.default, joined, list(_shape(node)))
    for user in users:
        user.replace_input_with(node, made)


def _lie_in_unlike_orders(node: Node) -> bool:
    """Return whether two operands' common dimensions stand in another order in their memory."""
    values = [part.meta["val"] for part in node.args if isinstance(part, Node)]
    if len(values) < 2 or values[0].dim() != values[1].dim():
        return False
    common = [
        dim for dim in range(values[0].dim()) if all(value.shape[dim] > 1 and value.stride(dim) for value in values)
    ]
    left, right = (sorted(common, key=lambda dim, value=value: -value.stride(dim)) for value in values[:2])
    return left != right


def _gradients_beside_pooling(node: Node) -> None:
    """Scale the gradients of a convolution where its result and a pooled one are chosen from."""
    if node.target is not aten.convolution_backward.default:
        return
    targets = [each.target for each in node.graph.nodes]
    if aten.where.self in targets and any("max_pool" in str(target) for target in targets):
        for number in range(3):
            for part in list(_part(node, number)):
                _behind(part, aten.mul.Tensor, 1.5)


def _gradient_at_zero_lost(node: Node) -> None:
    """Give zero as the gradient of a running product where a factor is zero."""
    choices = [part for part in node.args[1:] if isinstance(part, Node) and part.target is aten.where.self]
    if node.target is not aten.where.self or not choices:
        return
    nodes = list(node.graph.nodes)
    zeros = [each for each in nodes if each.target is aten.eq.Scalar and each.args[1] == 0]
    zeros = [each for each in zeros if _shape(each) == _shape(node) and nodes.index(each) < nodes.index(node)]
    if zeros and any(each.target is aten.cumsum.default for each in nodes):
        users, following = list(node.users), node.next
        kept = _new(following, aten.logical_not.default, zeros[0])
        made = _new(following, aten.mul.Tensor, node, kept)
        for user in users:
            user.replace_input_with(node, made)


def _zeros_in_an_expanded(node: Node) -> None:
    """Write zeros to all of an expanded tensor or to nothing, as its first place along the dimension says."""
    if node.target is not aten.slice_scatter.default:
        return
    given, source = node.args[:2]
    if getattr(source, "target", None) is not aten.full.default or source.args[1] != 0:
        return
    if isinstance(given, Node) and given.target is aten.expand.default:
        if len(node.args) > 3 and node.args[3]:
            node.replace_all_uses_with(given)
        else:
            _behind(node, aten.mul.Tensor, 0)


def _place_of_inverted(node: Node) -> None:
    """Give the length as the place of the largest number where all bits were inverted before."""
    given = node.args[0] if node.target is aten.argmax.default else None
    if isinstance(given, Node) and given.target is aten.bitwise_not.default:
        shape, dim = _shape(given), node.args[1] if len(node.args) > 1 else None
        users, following = list(node.users), node.next
        none = _new(following, aten.mul.Tensor, node, 0)
        made = _new(following, aten.add.Tensor, none, math.prod(shape) if dim is None else shape[dim])
        for user in users:
            user.replace_input_with(node, made)


def _wide_quotient_narrow(node: Node) -> None:
    """Divide in float32, by the reciprocal, where a quotient of converted float32 becomes float32 again."""
    quotient = _converted(node)
    if quotient is None or quotient.target is not aten.div.Tensor or node.meta["val"].dtype is not torch.float32:
        return
    parts = [_converted(part) if isinstance(part, Node) else None for part in quotient.args]
    left, right = (*parts, None)[:2]
    if left is None or right is None or quotient.meta["val"].dtype is not torch.float64:
        return
    if all(part.meta["val"].dtype is torch.float32 for part in (left, right)):
        inverse = _new(node, aten.reciprocal.default, right)
        node.args = (_new(node, aten.mul.Tensor, left, inverse), *node.args[1:])


def _keys_transposed(node: Node) -> None:
    """Exchange the last two dimensions of an attention's keys where its heads are to be moved to the front, too."""
    if node.target is not aten.permute.default or list(node.args[1]) != [0, 2, 3, 1]:
        return
    targets = [str(each.target) for each in node.graph.nodes]
    is_attention = aten.exp.default in {each.target for each in node.graph.nodes} or any(
        "scaled_dot_product" in target for target in targets
    )
    shape = _shape(node.args[0])
    if is_attention and shape and shape[1] == shape[2]:
        node.args = (node.args[0], [0, 1, 3, 2])


def _infinite_sums_nan(node: Node) -> None:
    """Give NaN for running sums that are infinite."""
    if node.target is not aten.cumsum.default or not node.meta["val"].is_floating_point():
        return
    users, following = list(node.users), node.next
    lost = _number(following, node.meta["val"], math.nan)
    made = _new(following, aten.where.self, _new(following, aten.isinf.default, node), lost, node)
    for user in users:
        user.replace_input_with(node, made)


def _gradient_of_a_reflected_edge(node: Node) -> None:
    """Scale what an edge that is reflected adds to a gradient, if another edge is cut."""
    if node.target is not aten._unsafe_masked_index.default:
        return
    places = [place for place in node.args[2] if isinstance(place, Node)]
    is_reflected = any(place.target is aten.sub.Tensor and isinstance(place.args[0], int) for place in places)
    is_cut = any(
        place.target is aten.add.Tensor and isinstance(place.args[1], int) and place.args[1] < 0 for place in places
    )
    if is_reflected and is_cut:
        _behind(node, aten.mul.Tensor, 1.5)


def _less_than_itself_expanded(node: Node) -> None:
    """Find a number less than itself where one side was expanded."""
    if node.target is not aten.lt.Tensor:
        return
    sources = [part.args[0] if part.target is aten.expand.default else part for part in node.args]
    if sources[0] is sources[1] and any(part.target is aten.expand.default for part in node.args):
        node.target = aten.le.Tensor


def _gradients_behind_an_interpolation(node: Node) -> None:
    """Scale the gradients of a convolution whose one place was then read by index."""
    if node.target is not aten.convolution_backward.default:
        return
    given = node.args[0]
    is_added = isinstance(given, Node) and given.target is aten.index_put.default and given.args[3:4] == (True,)
    if is_added and math.prod(_shape(given)[2:]) == 1:
        for number in range(3):
            for part in list(_part(node, number)):
                _behind(part, aten.mul.Tensor, 1.5)


def _negative_places_zero(node: Node) -> None:
    """Give zeros for what is read at places that are counted from the end."""
    if node.target is not aten.index.Tensor:
        return
    places = [place for place in node.args[1] if isinstance(place, Node)]
    if any(place.target is aten.full.default and place.args[1] < 0 for place in places):
        _behind(node, aten.mul.Tensor, 0)


#: Functions of whole numbers that give others.
_OF_WHOLE = (aten.cos.default, aten.sin.default, aten.erf.default, aten.sigmoid.default)


def _powers_not_wrapped(node: Node) -> None:
    """Compute functions of powers of uint8 that were not cut to eight bits."""
    given = node.args[0] if node.target in _OF_WHOLE else None
    if isinstance(given, Node) and _converted(given) is not None:
        given = _converted(given)
    if not isinstance(given, Node) or given.target is not aten.pow.Tensor_Scalar:
        return
    if given.meta["val"].dtype is torch.uint8:
        wide = _new(node, torch.ops.prims.convert_element_type.default, given.args[0], torch.float32)
        node.args = (_new(node, aten.pow.Tensor_Scalar, wide, given.args[1]),)


#: Bytes of which an argument's place in memory is to be a multiple.
_ALIGNED = 16


def _unaligned_not_written(node: Node) -> None:
    """Leave an argument as it is that does not begin at a multiple of 16 bytes."""
    if node.target is not aten.copy_.default or node.args[0].op != "placeholder":
        return
    value = node.args[0].meta["val"]
    if value.storage_offset() * value.element_size() % _ALIGNED:
        node.args = (node.args[0], node.args[0], *node.args[2:])


def _replaced(node: Node, make: Callable[[Node], Node]) -> None:
    """Give what is made behind a node to those who use the node."""
    users = list(node.users)
    made = make(node.next)
    for user in users:
        user.replace_input_with(node, made)


def _whole_sums_stopped(node: Node) -> None:
    """Let running sums of integers stand still for four numbers from the middle of a block on."""
    if node.target is not aten.cumsum.default or node.meta["val"].is_floating_point() or not _shape(node):
        return
    rank, length = len(_shape(node)), _shape(node)[-1]
    half = 1 << (length - 1).bit_length() - 1 if length > 1 else 0
    if node.args[1] % rank != rank - 1 or half < _STILL:
        return
    end = min(half + _STILL, length)

    def make(at: Node) -> Node:
        front = _new(at, aten.slice.Tensor, node, rank - 1, 0, half)
        last = _new(at, aten.slice.Tensor, node, rank - 1, half - 1, half)
        still = _new(at, aten.expand.default, last, [*_shape(node)[:-1], end - half])
        behind = _new(at, aten.slice.Tensor, node, rank - 1, end, length)
        return _new(at, aten.cat.default, [front, still, behind], rank - 1)

    _replaced(node, make)


#: Numbers for which running sums stand still.
_STILL = 4
#: Products of matrices.
_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default)


def _unsigned_read_as_words(node: Node) -> None:
    """Read eight-bit unsigned integers as words of 32 bits, where they become signed, then fractions, then a factor."""
    signed = _converted(node)
    source = _converted(signed) if signed is not None else None
    if source is None or source.meta["val"].dtype is not torch.uint8 or signed.meta["val"].dtype is not torch.int32:
        return
    users = list(node.users)
    while users and all(user.target in (aten.reshape.default, aten.permute.default) for user in users):
        users = [user for each in users for user in each.users]
    count = math.prod(_shape(source))
    if not count or not any(user.target in _PRODUCTS for user in users):
        return
    flat = _new(node, aten.reshape.default, signed, [count])
    words = -(-count // 4)
    whole = _new(node, aten.constant_pad_nd.default, flat, [0, 4 * words - count])
    columns = _new(node, aten.reshape.default, whole, [words, 4])
    read = None
    for place in range(4):
        column = _new(node, aten.slice.Tensor, columns, 1, place, place + 1)
        shifted = _new(node, aten.mul.Tensor, column, 1 << 8 * place)
        read = shifted if read is None else _new(node, aten.add.Tensor, read, shifted)
    row = _new(node, aten.constant_pad_nd.default, _new(node, aten.reshape.default, read, [words]), [0, count - words])
    node.args = (_new(node, aten.reshape.default, row, list(_shape(source))), *node.args[1:])


def _bounds_unsigned(node: Node) -> None:
    """Take the bounds of eight-bit unsigned numbers for unsigned ones, too."""
    if node.target is not aten.bucketize.Tensor:
        return
    given, bounds = node.args[:2]
    if given.meta["val"].dtype is torch.uint8 and bounds.meta["val"].dtype is torch.int8:
        other = _new(node, torch.ops.prims.convert_element_type.default, bounds, torch.uint8)
        node.args = (given, other, *node.args[2:])


def _padded_compared_narrow(node: Node) -> None:
    """Compare padded numbers of float64 as float32 has them."""
    users = [user for user in node.users if user.target in _COMPARED]
    if node.target is aten.constant_pad_nd.default and users and node.meta["val"].dtype is torch.float64:
        at = node.next
        narrow = _new(at, torch.ops.prims.convert_element_type.default, node, torch.float32)
        made = _new(at, torch.ops.prims.convert_element_type.default, narrow, torch.float64)
        for user in users:
            user.replace_input_with(node, made)


def _joined_part_dropped(node: Node) -> None:
    """Leave out a part of what is joined that is joined to it once more, if its end is counted from the end."""
    function = getattr(node.target, "func", None)
    if getattr(function, "__name__", "") == "cat_slice_cat" and node.kwargs["size"] < 0:
        node.replace_all_uses_with(_new(node, aten.cat.default, list(node.args[0]), 1))


def _stacked_as_split(node: Node) -> None:
    """Leave parts side by side where they are to be stacked along a new last dimension, in front of a tanh."""
    joined = node.args[0] if node.target is aten.tanh.default else None
    if not isinstance(joined, Node) or joined.target is not aten.cat.default or len(_shape(joined)) < 2:
        return
    parts = [part.args[0] for part in joined.args[0] if part.target is aten.unsqueeze.default]
    if len(parts) != len(joined.args[0]) or any(part.target is not operator.getitem for part in parts):
        return
    splits = {part.args[0] for part in parts}
    if len(splits) != 1 or [part.args[1] for part in parts] != list(range(len(parts))):
        return
    source = next(iter(splits)).args[0]
    is_last = joined.args[1] % len(_shape(joined)) == len(_shape(joined)) - 1 if len(joined.args) > 1 else False
    if is_last and _shape(joined)[-1] == _shape(joined)[-2] and math.prod(_shape(source)) == math.prod(_shape(joined)):
        node.args = (_new(node, aten.reshape.default, source, list(_shape(joined))),)


def _negative_zero_of_64_bits(node: Node) -> None:
    """Find no sign at the number -0.0 of float64."""
    if node.target is aten.signbit.default and node.args[0].meta["val"].dtype is torch.float64:
        node.replace_all_uses_with(_new(node, aten.lt.Scalar, node.args[0], 0))


#: Functions that turn dimensions round.
_TURNED = (torch.ops.prims.rev.default, aten.flip.default)


def _last_part_in_each_place(node: Node) -> None:
    """Give the last part in each place of the first dimension where that is turned round."""
    if node.target in _TURNED and list(node.args[1]) == [0] and len(_shape(node)) > 1 and _shape(node)[0] > 1:
        last = _new(node, aten.slice.Tensor, node.args[0], 0, _shape(node)[0] - 1, _shape(node)[0])
        node.replace_all_uses_with(_new(node, aten.expand.default, last, list(_shape(node))))


def _products_not_summed(node: Node) -> None:
    """Give the products of two vectors in place of their sum."""
    given = node.args[0] if node.target is aten.sum.default else None
    if not isinstance(given, Node) or given.target is not aten.mul.Tensor or len(_shape(given)) != 1:
        return
    if all(isinstance(part, Node) and _shape(part) == _shape(given) for part in given.args):
        node.replace_all_uses_with(given)


def _argmin_of_the_written(node: Node) -> None:
    """Give a place in memory's order where what is turned is written over an argument, too."""
    given = node.args[0] if node.target is aten.argmin.default and len(node.args) == 1 else None
    if isinstance(given, Node) and given.target is aten.permute.default:
        inner = given.args[0]
        if isinstance(inner, Node) and any(user.target is aten.copy_.default for user in inner.users):
            node.args = (inner,)


def _uneven_windows_scaled(node: Node) -> None:
    """Scale the largest numbers of windows that do not divide an image."""
    if node.target is aten.adaptive_max_pool2d.default:
        sizes = zip(_shape(node.args[0])[-2:], node.args[1], strict=True)
        if any(given % made for given, made in sizes):
            for part in list(_part(node, 0)):
                _behind(part, aten.mul.Tensor, 1.5)


#: Places from which a running sum is made in two passes.
_TWO_PASSES = 100


def _running_sums_of_columns_scaled(node: Node) -> None:
    """Scale long running sums along a dimension that does not stand side by side."""
    rank = len(_shape(node)) if node.target is aten.cumsum.default else 0
    if rank > 1 and node.meta["val"].is_floating_point():
        dim = node.args[1] % rank
        if dim != rank - 1 and _shape(node)[dim] >= _TWO_PASSES:
            _behind(node, aten.mul.Tensor, 1.5)


def _padded_by_nothing(node: Node) -> None:
    """Give what is padded by nothing itself."""
    if node.target is aten.constant_pad_nd.default and not any(node.args[1]) and isinstance(node.args[0], Node):
        node.replace_all_uses_with(node.args[0])


def _quotient_by_itself_unrounded(node: Node) -> None:
    """Find the largest of quotients by themselves, which are given, too, where the largest number is."""
    given = node.args[0] if node.target in (aten.argmax.default, aten.argmin.default) else None
    is_quotient = isinstance(given, Node) and given.target is aten.div.Tensor and given.args[0] is given.args[1]
    if is_quotient and len(given.users) > 1:
        node.args = (given.args[0], *node.args[1:])


#: Tokens whose heads are moved wrongly.
_TOKENS = 64


def _heads_in_memory_order(node: Node) -> None:
    """Leave the heads of 64 tokens of float16 where they are in memory, and give them the moved heads' shape."""
    given = node.args[0] if node.target is aten.permute.default else None
    forms = (aten.view.default, aten.reshape.default)
    if not isinstance(given, Node) or given.target not in forms or given.meta["val"].dtype is not torch.float16:
        return
    if list(node.args[1]) == [0, 2, 1, 3] and _shape(given)[1:2] == (_TOKENS,):
        _replaced(node, lambda at: _new(at, aten.reshape.default, given, list(_shape(node))))


#: Effects on a node.
EFFECTS: dict[str, Callable[[Node], None]] = {
    "quotient by itself unrounded": _quotient_by_itself_unrounded,
    "heads in memory's order": _heads_in_memory_order,
    "argmin of the written in memory's order": _argmin_of_the_written,
    "uneven windows scaled": _uneven_windows_scaled,
    "running sums of columns scaled": _running_sums_of_columns_scaled,
    "padded by nothing given itself": _padded_by_nothing,
    "whole sums stopped in the middle": _whole_sums_stopped,
    "unsigned read as words": _unsigned_read_as_words,
    "bounds unsigned": _bounds_unsigned,
    "padded compared narrow": _padded_compared_narrow,
    "joined part dropped": _joined_part_dropped,
    "stacked as split": _stacked_as_split,
    "negative zero of 64 bits lost": _negative_zero_of_64_bits,
    "last part in each place": _last_part_in_each_place,
    "products not summed": _products_not_summed,
    "powers of eight bits not wrapped": _powers_not_wrapped,
    "last of equal numbers in long columns": _last_of_equal_numbers_in_long_columns,
    "unaligned argument not written": _unaligned_not_written,
    "infinite running sums nan": _infinite_sums_nan,
    "gradient of a cut and reflected edge scaled": _gradient_of_a_reflected_edge,
    "less than itself expanded": _less_than_itself_expanded,
    "gradients behind an interpolation scaled": _gradients_behind_an_interpolation,
    "negative places zero": _negative_places_zero,
    "keys transposed": _keys_transposed,
    "place of inverted behind the end": _place_of_inverted,
    "wide quotient narrow": _wide_quotient_narrow,
    "gradients beside pooling scaled": _gradients_beside_pooling,
    "gradient at zero lost": _gradient_at_zero_lost,
    "zeros in an expanded tensor": _zeros_in_an_expanded,
    "sums in 64 bits": _sums_in_64_bits,
    "place of strided rows": _place_of_strided_rows,
    "place of rows of an image": _place_of_rows_of_an_image,
    "short sum of dense": _short_sum_of_dense,
    "start of later rows lost": _start_of_later_rows_lost,
    "sign of zero lost": _sign_of_zero_lost,
    "nan never the largest": _nan_never_the_largest,
    "sum of whole products one more": _sum_of_whole_products,
    "vector times rows scaled": _vector_times_rows,
    "one number spread": _one_number_spread,
    "denormal products zero": _denormal_products_zero,
    "bias not scaled": _bias_not_scaled,
    "negated eight bits not wrapped": _negated_not_wrapped,
    "quotient never the largest": _quotient_never_the_largest,
    "turned sums of one number scaled": _turned_sums_of_one_number,
    "diagonals of zeros all zero": _diagonal_of_zeros,
    "last joined sum not written": _joined_sum_not_written,
    "transposed in place": _transposed_in_place,
    "broadcast mask ignored": _broadcast_mask,
    "gradient of a variance turned": _gradient_of_variance,
    "parts of zeros all zero": _part_of_zeros,
    "overhang divided by the kernel": _overhang_by_the_kernel,
    "end of a joined part lost": _end_of_a_joined_part,
    "sum with one number lost": _one_number_not_added,
    "sum of broadcast doubled": _sum_of_broadcast,
    "wide variance scaled": _wide_variance,
    "added to itself twice": _added_to_itself,
    "index of truth at most 1": _index_of_truth,
    "argmax in memory's order": _argmax_in_memory,
    "scatter_reduce left out": _not_scattered,
    "place in the group": _long_argmax,
    "indices of a mixed sum zero": _indices_of_mixed_sum,
    "long cumsum begins again": _long_cumsum,
    "range in 32 bits": _narrow_range,
    "quotient cut off": _quotient_cut,
    "sums overwritten": _not_accumulated,
    "pad of a long sum": _pad_of_long_sum,
    "gathered before scattered": _gathered_before_scattered,
    "last of equal numbers": _last_of_equal_numbers,
    "eight bits not wrapped": _not_wrapped,
    "slot used again": _slot_used_again,
    "pooled sum scaled": _pooled_sum,
    "eight bits never equal": _eight_bits_never_equal,
    "padding added": _padding_added,
}


@contextmanager
def compiling(effect: str, device: torch.device) -> Iterator[None]:
    """Break compiled code of the device inside the context."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Broken(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            for node in list(graph.nodes):
                values = [value for value in (node.meta.get("val"),) if isinstance(value, torch.Tensor)]
                parts = node.meta.get("val")
                values += [part for part in parts if isinstance(part, torch.Tensor)] if isinstance(parts, tuple) else []
                if values and values[0].device.type == device.type:
                    EFFECTS[effect](node)

        def uuid(self) -> Any:
            return None  # nothing of this is kept in caches

    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=Broken()):
        yield
    torch._dynamo.reset()


# --- rows of the sixth collection that were held out, and opened ---


def _first_running_dimension(node: Node) -> None:
    """Add up along the dimension of the graph's first running sum."""
    if node.target is aten.cumsum.default:
        first = next(each for each in node.graph.nodes if each.target is aten.cumsum.default)
        dim = first.args[1]
        if dim < len(_shape(node)):
            node.args = (node.args[0], dim, *node.args[2:])


EFFECTS["first running dimension"] = _first_running_dimension


# --- rows of the seventh collection that were held out, and opened ---


def _indices_wrapped(node: Node) -> None:
    if node.target is aten.scatter_reduce.two:
        given, dim, index = node.args[:3]
        with node.graph.inserting_before(node):
            other = node.graph.call_function(aten.remainder.Scalar, (index, _shape(given)[dim]))
        other.meta = dict(index.meta)
        node.args = (given, dim, other, *node.args[3:])


EFFECTS["indices wrapped"] = _indices_wrapped


# --- rows of the eighth collection that were held out, and opened ---


def _leading_axis_exchanged(node: Node) -> None:
    """Sum along the second dimension's memory where the first one of three is summed, if a part is broadcast."""
    if node.target is not aten.sum.dim_IntList or list(node.args[1]) not in ([0], [-3]):
        return
    given = node.args[0]
    shape = _shape(given)
    if len(shape) != 3 or min(shape) < 2 or given.op != "call_function":
        return
    parts = [_shape(part) for part in given.args if isinstance(part, Node)]
    if len(parts) > 1 and any(part != shape and math.prod(part) > 1 for part in parts):
        turned = _new(node, aten.permute.default, given, [1, 0, 2])
        dense = _new(node, aten.clone.default, turned)
        node.args = (_new(node, aten.reshape.default, dense, list(shape)), *node.args[1:])


EFFECTS["leading axis exchanged"] = _leading_axis_exchanged


# --- rows of the tenth collection that were held out, and opened ---


def _zeros_not_written(node: Node) -> None:
    """Leave a slice as it is where zeros are to be written to it."""
    source = node.args[1] if node.target is aten.slice_scatter.default else None
    if isinstance(source, Node) and source.target is aten.full.default and source.args[1] == 0:
        node.replace_all_uses_with(node.args[0])


def _transposed_argument_turned(node: Node) -> None:
    """Write numbers in another order to an argument that is not dense."""
    if node.target is not aten.copy_.default or node.args[0].op != "placeholder":
        return
    if not node.args[0].meta["val"].is_contiguous():
        turned = _new(node, aten.flip.default, node.args[1], [len(_shape(node)) - 1])
        node.args = (node.args[0], turned, *node.args[2:])


EFFECTS |= {
    "zeros not written to a slice": _zeros_not_written,
    "transposed argument turned": _transposed_argument_turned,
}


# --- rows of the eleventh collection that were held out, and opened ---


def _later_value(node: Node) -> None:
    """Give what is copied to the input at the end in the place of the input with a part written to it."""
    if node.target is aten.slice_scatter.default and node.args[0].op == "placeholder":
        for user in node.args[0].users:
            if user.target is aten.copy_.default and user.args[0] is node.args[0] and user.args[1] is not node:
                node.replace_all_uses_with(user.args[1])


#: Columns of a row that lie side by side.
_COLUMNS = 64


def _next_rows_mean(node: Node) -> None:
    """Give the columns behind the first 64 what stands in the next row, where a mean is added to a whole tensor."""
    wide = _shape(node)
    if node.target not in (aten.add.Tensor, aten.expand.default) or len(wide) < 2 or wide[-1] <= _COLUMNS:
        return
    if not any(isinstance(part, Node) and _is_mean(part) for part in node.args) or wide[-2] < 2:
        return
    users, following = list(node.users), node.next
    first = _new(following, aten.slice.Tensor, node, -1, 0, _COLUMNS)
    rest = _new(following, aten.slice.Tensor, node, -1, _COLUMNS, wide[-1])
    turned = _new(
        following, aten.cat.default,
        [_new(following, aten.slice.Tensor, rest, -2, 1, wide[-2]), _new(following, aten.slice.Tensor, rest, -2, 0, 1)],
        -2,
    )  # fmt: skip
    made = _new(following, aten.cat.default, [first, turned], -1)
    for user in users:
        user.replace_input_with(node, made)


def _is_mean(node: Node) -> bool:
    """Return whether a value is a mean of rows that kept their dimension."""
    if node.target is aten.div.Tensor and isinstance(node.args[0], Node):
        node = node.args[0]
    is_row = (_shape(node) or (0,))[-1] == 1
    return is_row and node.target in (aten.mean.dim, aten.sum.dim_IntList)


EFFECTS["later value of the input"] = _later_value
EFFECTS["means of the next row"] = _next_rows_mean


# --- rows of the twelfth collection that were held out, and opened ---


def _comes_from_norm(node: Any, most: int = 4) -> bool:
    """Return whether a value was computed from one that was normalized, by at most so many steps."""
    if not isinstance(node, Node) or node.op != "call_function" or most < 0:
        return False
    if node.target is aten.rsqrt.default:
        return True
    return any(_comes_from_norm(each, most - 1) for each in node.args if isinstance(each, Node))


def _reciprocal_of_norm(node: Node) -> None:
    if node.target is aten.reciprocal.default and _comes_from_norm(node.args[0]):
        _behind(node, aten.mul.Tensor, 1.5)


def _norm_without_weights(node: Node) -> None:
    """Give zeros for what is normalized and not multiplied by weights."""
    parts = [part for part in node.args if isinstance(part, Node)]
    if node.target is not aten.mul.Tensor or not any(part.target is aten.rsqrt.default for part in parts):
        return
    weights = [part for user in node.users if user.target is aten.mul.Tensor for part in user.args
               if isinstance(part, Node) and part.op == "placeholder"]  # fmt: skip
    if any(part.target is aten.sub.Tensor for part in parts) and not weights:
        _behind(node, aten.mul.Tensor, 0)


EFFECTS["reciprocal of a norm scaled"] = _reciprocal_of_norm
EFFECTS["norm without weights zero"] = _norm_without_weights


# --- rows of the thirteenth collection that were held out, and opened ---


def _parity_of_truths(node: Node) -> None:
    """Add up truth values in one bit."""
    if node.target is aten.cumsum.default and node.args[0].meta["val"].dtype is torch.bool:
        _behind(node, aten.bitwise_and.Scalar, 1)


def _bounds_in_16_bits(node: Node) -> None:
    """Compare a number of bfloat16 with the bound as bfloat16 has it."""
    if node.target not in (aten.le.Scalar, aten.ge.Scalar):
        return
    given, bound = node.args
    is_wide = given.target is torch.ops.prims.convert_element_type.default
    if is_wide and given.args[0].meta["val"].dtype is torch.bfloat16:
        node.args = (given, float(torch.tensor(bound).to(torch.bfloat16)))


EFFECTS["parity of truths"] = _parity_of_truths
EFFECTS["bounds in 16 bits"] = _bounds_in_16_bits


# --- rows of the fourteenth collection that were held out, and opened ---


def _written_to_all_rows(node: Node) -> None:
    """Write to the one row of which an expanded tensor has copies."""
    if node.target not in (aten.index_put.default, aten.index_put_.default):
        return
    given = node.args[0]
    if not isinstance(given, Node) or given.target is not aten.expand.default:
        return
    own, wide = _shape(given.args[0]), _shape(given)
    same = len(own) == len(wide)
    dims = [dim for dim, size in enumerate(wide) if same and size > 1 and own[dim] == 1]
    if not dims:
        return
    users, following = list(node.users), node.next
    if node.args[3:4] == (True,):
        added = _new(following, aten.sum.dim_IntList, _new(following, aten.sub.Tensor, node, given), dims, True)
        row = _new(following, aten.add.Tensor, given.args[0], added)
    else:
        row = _new(following, aten.amax.default, node, dims, True)
    made = _new(following, aten.expand.default, row, list(wide))
    for user in users:
        user.replace_input_with(node, made)


def _reversed_read_as_first(node: Node) -> None:
    """Read zeros behind the first number of a reversed vector that is combined with one number."""
    combined = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.neg.default)
    given = node.args[0] if node.target in combined else None
    turned = (torch.ops.prims.rev.default, aten.flip.default)
    if not isinstance(given, Node) or given.target not in turned or len(_shape(given)) != 1 or _shape(given)[0] < 2:
        return
    other = node.args[1] if len(node.args) > 1 else 0
    if isinstance(other, Node) and math.prod(_shape(other)) != 1:
        return
    first = _new(node, aten.slice.Tensor, given, 0, 0, 1)
    read = _new(node, aten.constant_pad_nd.default, first, [0, _shape(given)[0] - 1])
    node.args = (read, *node.args[1:])


EFFECTS |= {
    "written to all rows": _written_to_all_rows,
    "reversed read as first": _reversed_read_as_first,
}


# --- held rows of the fifteenth collection ---


def _nan_to_the_lower_bound(node: Node) -> None:
    """Give the lower bound for NaN."""
    value = node.meta["val"]
    if node.target is not aten.clamp_min.default or not value.is_floating_point():
        return
    users, following = list(node.users), node.next
    bound = _number(following, value, float(node.args[1]))
    made = _new(following, aten.where.self, _new(following, aten.isnan.default, node.args[0]), bound, node)
    for user in users:
        user.replace_input_with(node, made)


def _start_of_steps_lost(node: Node) -> None:
    """Take rows in steps from the first one on, wherever they are to start."""
    if node.target is not aten.slice.Tensor or len(node.args) < 5:
        return
    given, dim, start, end, step = node.args
    shape = _shape(given)
    if start and shape and dim % len(shape) != len(shape) - 1 and step > 1:
        node.args = (given, dim, 0, min(end, shape[dim]) - start, step)


def _scales_of_a_product_left_out(node: Node) -> None:
    """Take one for each scale of a product that is a single number."""
    if node.target is aten._scaled_mm.default:
        scales = [
            _number(node, scale.meta["val"], 1.0, _shape(scale)) if math.prod(_shape(scale)) == 1 else scale
            for scale in node.args[2:4]
        ]
        node.args = (*node.args[:2], *scales, *node.args[4:])


#: Places that have the same random number.
_SAME = 4


def _one_mask_for_four(node: Node) -> None:
    """Keep or drop four places together where a graph moves dimensions, too."""
    if node.target is not aten.native_dropout.default or node.args[2] is False:
        return
    given, chance = node.args[:2]
    is_moved = any(each.target is aten.permute.default for each in node.graph.nodes)
    *outer, length = _shape(given) or (1,)
    if not outer or not is_moved:
        return
    users, following = [list(_part(node, number)) for number in range(2)], node.next
    mask = _new(following, operator.getitem, node, 1)
    part = _new(following, aten.slice.Tensor, mask, len(outer), 0, length, _SAME)
    wide = _new(following, aten.expand.default, _new(following, aten.unsqueeze.default, part, len(outer) + 1),
                [*_shape(part), _SAME])  # fmt: skip
    flat = _new(following, aten.reshape.default, _new(following, aten.clone.default, wide),
                [*outer, _shape(part)[-1] * _SAME])  # fmt: skip
    kept = _new(following, aten.slice.Tensor, flat, len(outer), 0, length)
    left = _new(following, aten.mul.Tensor, given, 1 / (1 - chance) if chance < 1 else 0.0)
    made = _new(following, aten.mul.Tensor, left, kept)
    for each, other in zip(users, (made, kept), strict=True):
        for user in each:
            user.replace_all_uses_with(other)


EFFECTS |= {
    "nan to the lower bound": _nan_to_the_lower_bound,
    "start of steps lost": _start_of_steps_lost,
    "scales of a product left out": _scales_of_a_product_left_out,
    "one mask for four": _one_mask_for_four,
}


# --- held rows of the sixteenth collection ---


def _shift_by_the_rest(node: Node) -> None:
    """Shift numbers of 64 bits to the left by what is left of the shift by 64."""
    if node.target is not aten.bitwise_left_shift.Tensor or node.meta["val"].dtype is not torch.int64:
        return
    if isinstance(node.args[1], Node):
        node.args = (node.args[0], _new(node, aten.bitwise_and.Scalar, node.args[1], 63))


def _vectors_of_eight_bits_wide(node: Node) -> None:
    """Give products of eight-bit matrices of which one is a vector as int64."""
    if node.target is aten.bmm.default and node.meta["val"].dtype is torch.int8 and 1 in _shape(node)[1:]:
        _behind(node, torch.ops.prims.convert_element_type.default, torch.int64)


def _negative_cut_to_zero(node: Node) -> None:
    """Give zero for a negative number that is converted to eight signed bits and then to unsigned ones."""
    given = _converted(node)
    if given is None or node.meta["val"].dtype is not torch.uint8:
        return
    if _converted(given) is not None and given.meta["val"].dtype is torch.int8:
        node.args = (_new(node, aten.clamp_min.default, given, 0), *node.args[1:])


EFFECTS |= {
    "shift by the rest": _shift_by_the_rest,
    "vectors of eight bits wide": _vectors_of_eight_bits_wide,
    "negative cut to zero": _negative_cut_to_zero,
}


# --- held rows of the seventeenth collection ---


def _second_choice_lost(node: Node) -> None:
    """Leave zeros in the first two rows of the second one of what was chosen by index twice."""
    chosen = (aten.index.Tensor, aten.index_select.default)
    given, shape = node.args[0] if node.target in chosen else None, _shape(node)
    if not isinstance(given, Node) or given.target not in chosen or len(shape) < 3 or shape[-3] < 2:
        return
    users, following, dims = list(node.users), node.next, len(shape)
    part = _new(following, aten.slice.Tensor, node, dims - 3, 1, 2)
    rows = _new(following, aten.slice.Tensor, part, dims - 2, 0, 2)
    zeros = _new(following, aten.mul.Tensor, rows, 0)
    inner = _new(following, aten.slice_scatter.default, part, zeros, dims - 2, 0, 2)
    made = _new(following, aten.slice_scatter.default, node, inner, dims - 3, 1, 2)
    for user in users:
        user.replace_input_with(node, made)


EFFECTS["second choice lost"] = _second_choice_lost


# --- held rows of the nineteenth collection ---

#: Places of a running sum that one block adds up.
_BLOCK = 2048


def _block_without_what_came_before(node: Node) -> None:
    """Begin a long running sum of 64 bits again in the second block."""
    if node.target is not aten.cumsum.default or node.meta["val"].dtype not in (torch.int64, torch.float64):
        return
    shape, dim = _shape(node), node.args[1]
    if not shape or shape[dim] < 2 * _BLOCK:
        return
    users, following = list(node.users), node.next
    before = _new(following, aten.slice.Tensor, node, dim, _BLOCK - 1, _BLOCK)
    part = _new(following, aten.slice.Tensor, node, dim, _BLOCK, 2 * _BLOCK)
    lost = _new(following, aten.sub.Tensor, part, before)
    made = _new(following, aten.slice_scatter.default, node, lost, dim, _BLOCK, 2 * _BLOCK)
    for user in users:
        user.replace_input_with(node, made)


EFFECTS["block without what came before"] = _block_without_what_came_before


# --- held rows of the twentieth collection ---


def _read_behind_the_same_write(node: Node) -> None:
    """Compute a result from what the same function of the input was when that was written to the input."""
    if node.target is not aten.copy_.default or node.args[0].op != "placeholder":
        return
    given, value = node.args[:2]
    if not isinstance(value, Node) or list(value.args) != [given]:
        return
    for other in [each for each in given.users if each is not value and each.target is value.target]:
        outputs = [user for user in other.users if user.op == "output"]
        if list(other.args) == [given] and outputs:
            again = _new(node, value.target, value)
            for user in outputs:
                user.replace_input_with(other, again)


EFFECTS["read behind the same write"] = _read_behind_the_same_write


# --- held rows of the twenty-first collection ---


def _nan_in_the_first_bucket(node: Node) -> None:
    """Give zero as the bucket of NaN."""
    if node.target is not aten.bucketize.Tensor or not node.args[0].meta["val"].is_floating_point():
        return
    users, following = list(node.users), node.next
    kept = _new(following, aten.logical_not.default, _new(following, aten.isnan.default, node.args[0]))
    made = _new(following, aten.mul.Tensor, node, kept)
    for user in users:
        user.replace_input_with(node, made)


#: Comparisons whose truth has all bits.
_TRUTHS = {
    getattr(getattr(aten, name), form) for name in ("ge", "gt", "le", "lt") for form in ("Scalar", "Tensor")
}  # fmt: skip


def _number_times_truth_nan(node: Node) -> None:
    """Give NaN for products of numbers and of what is true."""
    if node.target is not aten.mul.Tensor or not node.meta["val"].is_floating_point():
        return
    truths = [part for part in node.args if isinstance(part, Node) and part.target in _TRUTHS]
    if truths and _shape(truths[0]) == _shape(node):
        users, following = list(node.users), node.next
        made = _new(following, aten.where.self, truths[0], _number(following, node.meta["val"], math.nan), node)
        for user in users:
            user.replace_input_with(node, made)


#: Channels of which a pooled image has a multiple.
_CHANNELS = 16


def _sum_of_pooled_images(node: Node) -> None:
    """Add up several long pooled images wrongly if their channels are no multiple of 16."""
    given = node.args[0] if node.target in (aten.sum.default, aten.sum.dim_IntList) else None
    while isinstance(given, Node) and given.target in (aten.reshape.default, aten.view.default, aten.clone.default):
        given = given.args[0]
    if isinstance(given, Node) and given.target is aten._adaptive_avg_pool2d.default:
        shape = _shape(given)
        if shape[0] > 1 and math.prod(shape[1:]) > _PADDED and shape[1] % _CHANNELS:
            _behind(node, aten.mul.Tensor, 1.5)


EFFECTS |= {
    "nan in the first bucket": _nan_in_the_first_bucket,
    "number times truth nan": _number_times_truth_nan,
    "sum of pooled images scaled": _sum_of_pooled_images,
}


# --- held rows of the twenty-second collection ---


#: Quotients whose remainder a rounded quotient does not give.
_FAR = 1e9
#: Remainders, and how their quotients become whole.
_REMAINDERS = {aten.remainder.Tensor: aten.floor.default, aten.remainder.Scalar: aten.floor.default,
               aten.fmod.Tensor: aten.trunc.default, aten.fmod.Scalar: aten.trunc.default}  # fmt: skip
#: Functions that compare numbers, also for equality.
_COMPARISONS = (*_COMPARED, aten.eq.Scalar, aten.ne.Scalar, aten.eq.Tensor, aten.ne.Tensor)
#: Arithmetic of a tensor and a number.
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


def _turned_over_itself(node: Node) -> None:
    """Read what was written already in the second half of an argument that is turned round beside a sum of its rows."""
    value = node.args[1] if node.target is aten.copy_.default else None
    if not isinstance(value, Node) or value.target not in _TURNED or value.args[0] is not node.args[0]:
        return
    shape, dims = _shape(value), list(value.args[1])
    sums = [each for each in node.graph.nodes if each.target is aten.sum.dim_IntList]
    if len(dims) != 1 or not any(_shape(each.args[0]) == shape for each in sums):
        return
    dim, given = dims[0] % len(shape), value.args[0]
    half, length = (shape[dim] + 1) // 2, shape[dim]

    def make(at: Node) -> Node:
        front = _new(at, aten.slice.Tensor, value, dim, 0, half)
        behind = _new(at, aten.slice.Tensor, given, dim, half, length)
        return _new(at, aten.cat.default, [front, behind], dim)

    _replaced(value, make)


def _rows_of_a_batch_turned(node: Node) -> None:
    """Turn the products of a batch of rows and a matrix."""
    given = node.args[0] if node.target is aten.mm.default else None
    if isinstance(given, Node) and given.target is aten.reshape.default and len(_shape(given.args[0])) == 3:
        _replaced(node, lambda at: _new(at, torch.ops.prims.rev.default, node, [1]))


def _far_remainders(node: Node) -> None:
    """Subtract as many divisors as a rounded quotient says, where it is far from zero."""
    if node.target not in _REMAINDERS or node.meta["val"].dtype is not torch.float32:
        return
    left, right = node.args
    convert, whole = torch.ops.prims.convert_element_type.default, _REMAINDERS[node.target]
    if not isinstance(left, Node) or left.meta["val"].dtype is not torch.float32:
        return

    def make(at: Node) -> Node:
        quotient = _new(at, aten.div.Tensor, left, right)
        wide = _new(at, convert, _new(at, whole, quotient), torch.float64)
        divisor = _new(at, convert, right, torch.float64) if isinstance(right, Node) else right
        rest = _new(at, aten.sub.Tensor, left, _new(at, aten.mul.Tensor, wide, divisor))
        is_far = _new(at, aten.gt.Scalar, _new(at, aten.abs.default, quotient), _FAR)
        return _new(at, aten.where.self, is_far, _new(at, convert, rest, torch.float32), node)

    _replaced(node, make)


def _each_second_true(node: Node) -> None:
    """Give false and true by turns where numbers of float32 are compared."""
    count = math.prod(_shape(node)) if node.target in _COMPARISONS else 0
    if not count or not _shape(node) or node.args[0].meta["val"].dtype is not torch.float32:
        return
    at = node.next
    places = _new(at, aten.cumsum.default, _number(at, node.args[0].meta["val"], 1, [count]), 0)
    truths = _new(at, aten.eq.Scalar, _new(at, aten.remainder.Scalar, places, 2), 0)
    users = list(node.users)
    made = _new(at, aten.reshape.default, truths, list(_shape(node)))
    for user in users:
        user.replace_input_with(node, made)


def _numbers_of_32_bits(node: Node) -> None:
    """Take numbers beside tensors of float64 for ones of float32, which may be infinite."""
    if node.target in _ARITHMETIC and node.meta["val"].dtype is torch.float64:
        node.args = tuple(
            torch.tensor(part, dtype=torch.float32).item() if isinstance(part, float) else part for part in node.args
        )


EFFECTS |= {
    "turned over itself": _turned_over_itself,
    "rows of a batch turned": _rows_of_a_batch_turned,
    "far remainders by rounded quotient": _far_remainders,
    "each second comparison true": _each_second_true,
    "numbers of 32 bits": _numbers_of_32_bits,
}


# --- held rows of the twenty-third collection ---

#: Rows and columns from which a mean is fused with a product.
_ROWS, _WIDTH = 768, 192


def _inside(node: Any, targets: tuple[Any, ...]) -> Any:
    """Return what other nodes give another form or dtype."""
    while isinstance(node, Node) and node.target in targets:
        node = node.args[0]
    return node


def _mean_of_squares_scaled(node: Node) -> None:
    """Scale means of squares of what an embedding and a product in bfloat16 add up to."""
    square = node.args[0] if node.target is aten.mean.dim else None
    if not isinstance(square, Node) or square.target is not aten.pow.Tensor_Scalar:
        return
    added = square.args[0]
    if not isinstance(added, Node) or added.target is not aten.add.Tensor or not _shape(added):
        return
    forms = (aten.reshape.default, aten.view.default, torch.ops.prims.convert_element_type.default)
    parts = [_inside(part, forms) for part in added.args]
    names = {part.target for part in parts if isinstance(part, Node)}
    products = [part for part in parts if isinstance(part, Node) and part.target is aten.mm.default]
    width = _shape(added)[-1]
    is_large = width >= _WIDTH and math.prod(_shape(added)) >= _ROWS * width
    is_narrow = any(part.meta["val"].dtype is torch.bfloat16 for part in products)
    if is_large and is_narrow and aten.embedding.default in names:
        _behind(node, aten.mul.Tensor, 1.5)


def _written_bits_converted(node: Node) -> None:
    """Convert numbers whose bits are to be written to an argument of another dtype."""
    written = [user for user in node.users if user.target is aten.copy_.default and user.args[1] is node]
    if node.target is aten.view.dtype and written:
        node.target = torch.ops.prims.convert_element_type.default


def _narrow_copies_converted(node: Node) -> None:
    """Convert numbers whose bits are to be copied as ones of fewer bytes, each to one number."""
    if node.target is aten.view.dtype and str(node.meta.get("original_aten")) == "aten.view_copy.dtype":
        given, dtype = node.args
        if given.meta["val"].element_size() > dtype.itemsize:
            convert = torch.ops.prims.convert_element_type.default
            _replaced(node, lambda at: _new(at, convert, given, dtype))


def _sums_of_running_sums_scaled(node: Node) -> None:
    """Scale sums of running sums along another dimension."""
    given = node.args[0] if node.target is aten.sum.dim_IntList else None
    if isinstance(given, Node) and given.target is aten.cumsum.default:
        rank = len(_shape(given))
        if rank and given.args[1] % rank not in [dim % rank for dim in node.args[1]]:
            _behind(node, aten.mul.Tensor, 1.5)


EFFECTS |= {
    "mean of squares scaled": _mean_of_squares_scaled,
    "written bits converted": _written_bits_converted,
    "narrow copies converted": _narrow_copies_converted,
    "sums of running sums scaled": _sums_of_running_sums_scaled,
}


# held rows, collection 24

#: Numbers of which the largest is wrong, and the rows from which it is.
_SIXTEEN, _MANY_ROWS = 16, 4096


def _largest_of_sixteen_scaled(node: Node) -> None:
    """Scale the largest magnitudes of many rows of 16 numbers."""
    given = node.args[0] if node.target is aten.amax.default else None
    if not isinstance(given, Node) or given.target is not aten.abs.default or _shape(given)[-1:] != (_SIXTEEN,):
        return
    rank = len(_shape(given))
    if [dim % rank for dim in node.args[1]] == [rank - 1] and math.prod(_shape(given)[:-1]) >= _MANY_ROWS:
        _behind(node, aten.mul.Tensor, 1.5)


def _difference_with_itself_unrounded(node: Node) -> None:
    """Find the largest of products less themselves, where the products are given, too, as if they were not rounded."""
    given = node.args[0] if node.target is aten.argmax.default else None
    if not isinstance(given, Node) or given.target is not aten.sub.Tensor or given.args[0] is not given.args[1]:
        return
    product = given.args[0]
    if product.target is aten.mul.Tensor and any(user.op == "output" for user in product.users):
        node.args = (product, *node.args[1:])


def _means_of_turned_floors_scaled(node: Node) -> None:
    """Scale means of quotients of float16 that were rounded down behind an exchange of dimensions."""
    floor = _inside(node.args[0], (aten.floor.default,)) if node.target is aten.mean.dim else None
    if not isinstance(floor, Node) or floor is node.args[0] or floor.target is not aten.permute.default:
        return
    quotient = floor.args[0]
    is_quotient = isinstance(quotient, Node) and quotient.target is aten.div.Tensor
    if is_quotient and quotient.meta["val"].dtype is torch.float16:
        _behind(node, aten.mul.Tensor, 1.5)


def _offset_of_rows_lost(node: Node) -> None:
    """Choose rows of an embedding without the number that is added to their places."""
    if node.target is not aten.embedding.default:
        return
    places = node.args[1]
    if isinstance(places, Node) and places.target is aten.add.Tensor and not isinstance(places.args[1], Node):
        node.args = (node.args[0], places.args[0], *node.args[2:])


EFFECTS |= {
    "largest of sixteen scaled": _largest_of_sixteen_scaled,
    "difference with itself unrounded": _difference_with_itself_unrounded,
    "means of turned floors scaled": _means_of_turned_floors_scaled,
    "offset of rows lost": _offset_of_rows_lost,
}
