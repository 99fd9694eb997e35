"""Cases of functions on lists: every overload, out of place and in place, on lists of unlike tensors."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass

import torch

from conformance.accelerators.capabilities import DENORMALS, Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.budgets import ELEMENTWISE_CLASSES, budget_of
from conformance.numerics.compare import Comparison, Exact, compare, plain
from conformance.numerics.nearness import Near, bound_of, near
from conformance.numerics.trees import tensors
from conformance.plan.case import Case, case, cases
from conformance.suites.operator_claims import claims
from conformance.suites.operators.calls import database
from conformance.suites.operators.calls.classes import op_class
from conformance.suites.operators.cell import quiet
from conformance.suites.threads import on_a_thread

from . import matrices, special_lists, special_operands
from .functions import Function, ListCall, functions
from .special_lists import strided as _strided

#: Reductions.
_REDUCING = ("max", "norm")
#: Multiplies the numbers for functions that take every number.
_WIDE = 9.0
#: Multiplies the numbers of a norm in float16: their squares are beyond it.
_SQUARED = 400.0
#: Longer than a block, along each axis.
_BLOCKS = ((3, 1367), (4159, 1))
#: More elements than one launch of a kernel works on, as in ``work.toml`` of the operators, and more rows than 2^16.
_LAUNCHES = ((3, ((1 << 20) + 77) // 3), (65_599, 1))
#: Relative change of the numbers by which the response of a function is measured, and elements of the largest tensor
#: whose elements are judged one by one.
_CHANGE, _MOST = 2.0**-26, 5 * 1367
#: Calls with such a list: one of each overload. The others are calls of the same overloads with other numbers.
_WITH_LONG = ("", "a list", "a number", "numbers", "a tensor")
DTYPES = ("float32", "bfloat16", "int64")
#: Further dtypes of a case, where the device has the operator in them.
_BESIDE = {"float32": "float64", "bfloat16": "float16"}


def generate() -> list[Case]:
    """Return a case for each function and dtype."""
    return [
        Case(
            id=f"foreach.{function.name}[{dtype}]",
            area="foreach",
            axes=(("dtype", dtype),),
            requires=(Cell(f"operators.{function.operator}", dtype, Mode.INFERENCE.value),),
            payload=function.name,
        )
        for function in functions().values()
        for dtype in DTYPES
        if dtype != "int64" or function.integers
    ]


@cases(generate)
def test_function(device, declaration, case, check):
    """A function on lists gives the results of its operator on each tensor, also with unlike shapes and strides.

    It keeps NaN, infinities and zeros with a sign, is exact for large integers, and refuses lists that do not fit.
    """
    check.subnormals = declaration.supports(DENORMALS.cell)
    function, dtype = functions()[case.payload], getattr(torch, case.dtype)
    for place in _places(function):
        if not function.exists(place):
            raise EnvironmentLacks(f"the installed torch has no _foreach_{function.name}{place}")
    with quiet():
        for each in (function, *function.kin):
            for call in (call for call in each.calls if call.fits(dtype)):
                places = [place for place in _places(each) if each.exists(place) and each.has(call, place)]
                if places:
                    _check_call(check, each, call, places, device, dtype)
        if function.name == "pow" and not dtype.is_floating_point:
            special_lists.check_large_exponents(check, device)
        if function.name == "norm" and dtype.itemsize < torch.float32.itemsize:
            _check_wider_norms(check, device, dtype)
        if function.name == "mul":
            matrices.check_products(check, device, dtype)
        _check_beside(check, declaration, function, device, case.dtype)
        if dtype is torch.float32:
            _check_alone(check, declaration, function, device)


def _check_wider_norms(check, device: torch.device, dtype: torch.dtype) -> None:
    """Check norms in float32 of narrow tensors: what is rounded to the narrow dtype in between has fewer bits."""
    host = [_numbers((length,), dtype, 1.0) for length in (33, 1, 4099)]
    for order in (1, 2, math.inf):
        found = torch._foreach_norm([tensor.to(device) for tensor in host], order, dtype=torch.float32)
        for tensor, norm in zip(host, found, strict=True):
            label = f"_foreach_norm of order {order} of {len(tensor)} elements of {dtype} in float32"
            check.equal(norm.dtype, torch.float32, f"{label}: the dtype")
            near(check, label, norm, torch.linalg.vector_norm(tensor.double(), order), Near.FORWARD)


def _places(function: Function) -> list[str]:
    return [*([""] if function.out_of_place else []), *(["_"] if function.in_place else [])]


def _check_call(
    check, function: Function, call: ListCall, places: list[str], device: torch.device, dtype: torch.dtype
) -> None:
    is_float32 = dtype is torch.float32
    _check(check, function, call, places, device, dtype, long=is_float32)
    if is_float32:
        _check_elsewhere(check, function, call, places, device)
    is_first = call is function.calls[0] and is_float32
    for place in places:
        special_lists.check_values(check, function, call, place, device, dtype)
        special_lists.check_refusals(check, function, call, place, device, dtype)
        if dtype.is_floating_point or function.name in special_operands.EXACT:
            special_operands.check_operands(check, function, call, place, device, dtype)
    for length in special_lists.LENGTHS if is_first else special_lists.ONE_LENGTH:
        host = list(_numbers((length, 3), dtype, 1.0).unbind())
        special_lists.check_long(check, function, call, places, device, host)


def _check_beside(check, declaration, function: Function, device: torch.device, dtype: str) -> None:
    """Check each overload in a further dtype, where the device has the operator in it."""
    other = _BESIDE.get(dtype)
    if other is None or not claims(declaration, function.operator, other):
        return
    for each in (function, *function.kin):
        for call in each.calls:
            places = [place for place in _places(each) if each.exists(place) and each.has(call, place)]
            if call.fits(getattr(torch, dtype)) and (call.label in _WITH_LONG or each.name in _REDUCING):
                _check(check, each, call, places, device, getattr(torch, other), long=False)
                for place in places:
                    special_lists.check_values(check, each, call, place, device, getattr(torch, other))


def _check_alone(check, declaration, function: Function, device: torch.device) -> None:
    """Check what some functions alone have: products of matrices on another thread, and integers for real numbers."""
    if function.name == "mul":
        for _ in range(2):
            on_a_thread(lambda: matrices.check_products(check, device, torch.float32))
    if not function.integers and claims(declaration, function.operator, "int64"):
        _check_integers(check, function, device)
    if claims(declaration, function.operator, "bfloat16"):
        for each in (function, *function.kin):
            _check_mixed(check, each, device)


def _check_integers(check, function: Function, device: torch.device) -> None:
    """Check the results of integers for a function of real numbers, which are in float32."""
    host = [torch.arange(411).reshape(3, 137), torch.arange(20).reshape(5, 4).t(), torch.arange(40)[3:]]
    host = [tensor * 40503 % 8191 % 7 + 1 for tensor in host[:1]] + [tensor % 7 + 1 for tensor in host[1:]]
    call = function.calls[0]
    others, run = call.arguments(host), function.run(call, "")
    try:
        usual = run(host, *others, **call.options)
    except (RuntimeError, TypeError):  # the host takes no integers
        return
    found = run([_strided(tensor, device) for tensor in host], *special_lists.arranged(others, host, device))
    for position, (actual, due) in enumerate(zip(found, usual, strict=True)):
        label = f"_foreach_{function.name} of integers, tensor {position}"
        _check_tensor(check, label, actual, _Due(function, call, host[position].double(), position, due.dtype), device)


def _check_mixed(check, function: Function, device: torch.device) -> None:
    """Check each overload with tensors of two dtypes in one list: the first is the wider one, or the narrower one."""
    size = _WIDE if function.integers else 1.0
    kinds = (torch.float32, torch.bfloat16)
    for call in (call for call in function.calls if all(map(call.fits, kinds))):
        places = [place for place in _places(function) if function.exists(place) and function.has(call, place)]
        for order, place in zip((kinds, kinds[::-1]), (places[:1] + places)[-2:], strict=False):
            shapes = ((33,), (5, 7), (1,), (4, 10))
            host = [_numbers(shape, kind, size) for shape, kind in zip(shapes, order * 2, strict=True)]
            host[-1] = host[-1][:, 1::2]
            due = [_Due(function, call, _wide(tensor), at, tensor.dtype) for at, tensor in enumerate(host)]
            _check_place(check, function, call, place, device, host, call.arguments(host), due, f", in {order}")


def _check_elsewhere(check, function: Function, call: ListCall, places: list[str], device: torch.device) -> None:
    """Check two calls on a thread of their own, with other numbers: a device may keep something for each thread.

    The second one is without gradients, as optimizers make it.
    """

    def work() -> None:
        for words, has_gradients in (("", True), (", without gradients", False)):
            with torch.set_grad_enabled(has_gradients):
                where = f", on another thread{words}"
                _check(check, function, call, places, device, torch.float32, long=False, where=where)

    on_a_thread(work)


def _check(
    check, function: Function, call: ListCall, places: list[str], device: torch.device, dtype: torch.dtype,
    *, long: bool, where: str = "",
) -> None:  # fmt: skip
    # Roundings of numbers below one are zeros, from which a part that nobody wrote does not differ.
    size = _WIDE if function.integers else 1.0
    size = _SQUARED if function.name == "norm" and dtype is torch.float16 else size
    # The largest of no elements does not exist; their sum is zero.
    is_largest = function.name == "max" or call.options.get("ord") == math.inf
    # The error of a sum grows with its length; the other functions have none.
    long = long and (is_largest or (call.label in _WITH_LONG and function.name not in _REDUCING))
    host = _tensors(dtype, size, without_empty=is_largest, long=long)
    for tensor in host if is_largest else ():
        tensor[(-1,) * tensor.dim()].fill_(2 * size)  # what is not read to its end has another largest element
    if function.name in _REDUCING:
        host.insert(0, host.pop(2))  # a small error of a long sum is none: the first result is that of a short tensor
    host[1:1] = [_numbers((40,), dtype, size)[3:36]]
    host[1:1] = [_numbers((5, 1), dtype, size).expand(5, 6)]
    due = [_Due(function, call, _wide(tensor), position, dtype) for position, tensor in enumerate(host)]
    others = call.arguments(host)
    for place in places:
        _check_place(check, function, call, place, device, host, others, due, where)


def _check_place(
    check, function: Function, call: ListCall, place: str, device: torch.device, host: list[torch.Tensor],
    others: tuple, due: list[_Due], where: str,
) -> None:  # fmt: skip
    # In place, several elements would be one: the other lists alone have an expanded tensor.
    first = [_strided(tensor.contiguous() if place and 0 in tensor.stride() else tensor, device) for tensor in host]
    arguments = special_lists.arranged(others, host, device)
    given = [plain(tensor).clone() for tensor in tensors(arguments)]
    found = function.run(call, place)(first, *arguments, **call.options)

    found = first if place else found
    check.equal(len(found), len(host), f"the number of results of {function.name}{place}")
    for position, (actual, right) in enumerate(zip(found, due, strict=True)):
        label = f"_foreach_{function.name}{place} with {call.label or 'a list'}, tensor {position}{where}"
        _check_tensor(check, label, actual, right, device)
    if place:
        with contextlib.suppress(NotImplementedError):  # a device without such a view, of which other cases tell
            outside, kept = (tensors[-1].as_strided((4, 5), (10, 2), 0) for tensors in (first, host))
            said = f"_foreach_{function.name}_: memory between the elements of a strided tensor"
            check.equal(plain(outside), kept, said)
    for position, (after, before) in enumerate(zip(tensors(arguments), given, strict=True)):
        check.equal(plain(after), before, f"_foreach_{function.name}{place}: tensor {position} of other lists after it")
    if not place:
        for position, (after, before) in enumerate(zip(first, host, strict=True)):
            check.equal(plain(after), before, f"_foreach_{function.name}: input {position} after the call")


@dataclass
class _Due:
    """What a function has to give for the tensor at a position, given in float64 or as integers, in a dtype."""

    function: Function
    call: ListCall
    tensor: torch.Tensor
    position: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Compute the exact result, and the one that is rounded to the dtype."""
        self.exact = self.call.single(self.tensor, self.position)
        self.rounded = self.exact.to(self.dtype)

    def near(self, value: torch.Tensor) -> Comparison:
        """Compare a result with this one, each element within the budget of the function's operator."""
        kind, wide = op_class(database.find(self.function.operator)), self.exact.double()
        once = kind in ELEMENTWISE_CLASSES
        rounding = budget_of(kind).relative(self.dtype, once=once)
        if bool(((value.double() - wide).abs() <= rounding * wide.abs()).all()):
            return Comparison()  # most are: their conditioning need not be known
        exact = Exact(wide, self._response, rounds=True, once=once)
        # The error of a sum grows with its length; the other functions have none.
        length = float(self.tensor.numel()) if self.function.name in _REDUCING else 1.0
        return compare(value, self.rounded, lambda: exact, kind, length)

    def _response(self) -> torch.Tensor:
        changed = self.call.single(self.tensor * (1 + _CHANGE), self.position)
        return ((changed - self.exact) / _CHANGE).double().abs()


def _check_tensor(check, label: str, actual, due: _Due, device: torch.device) -> None:
    """Check one result: its error by its largest element, and if it is no longer than a block that of each element."""
    right = due.rounded
    dtype = right.dtype
    check.equal(actual.device.type, device.type, f"{label}: the device")
    check.equal(actual.dtype, dtype, f"{label}: the dtype")
    check.equal(actual.shape, right.shape, f"{label}: the shape")
    value = plain(actual)
    if not dtype.is_floating_point:
        check.equal(value, right, label)
        return
    if torch.equal(value, right):
        return  # most are, and the error of a million of elements takes longer than the function
    found = due.near(value) if right.numel() <= _MOST else None
    value, right = value.double(), right.double()
    check.equal(value.isnan(), right.isnan(), f"{label}: where it is NaN")
    value, right = value.nan_to_num(), right.nan_to_num()
    size = float(right.abs().max()) if right.numel() else 0.0
    error = float((value - right).abs().max()) / (size or 1.0) if right.numel() else 0.0
    bound = bound_of(Near.FORWARD, dtype)
    check.that(error <= bound, f"{label} is off by {error:.3g} of its largest element, allowed {bound:.3g}")
    check.that(found is None or found.right, f"{label}: {found}")


def _tensors(dtype: torch.dtype, size: float, *, without_empty: bool, long: bool) -> list[torch.Tensor]:
    """Return tensors of unlike shapes and strides on the host, two longer than a block, or with ``long`` a launch."""
    shapes = (
        *(_LAUNCHES if long else _BLOCKS),
        (33,),
        (5, 7),
        (),
        (1,),
        (0,),
        (7, 3, 4),
    )
    kept = [shape for shape in shapes if not (without_empty and 0 in shape)]
    found = [_numbers(shape, dtype, size) for shape in kept]
    return [*found, _numbers((6, 9), dtype, size).t(), _numbers((4, 10), dtype, size)[:, 1::2]]


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, size: float) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, dtype=dtype)
    # Numbers of float64 are none of float32.
    drawn = torch.rand(shape, dtype=torch.promote_types(dtype, torch.float32))
    return ((drawn * 0.7 + 0.2) * size).to(dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _needs(*operators: str, mode: Mode = Mode.INFERENCE) -> list[Cell]:
    return [Cell(f"operators.{operator}", "float32", mode.value) for operator in operators]


@case(
    "foreach.lists.mixed_dtypes",
    requires=[
        Cell(f"operators.{name}", dtype, Mode.INFERENCE.value)
        for name, dtype in itertools.product(("add", "mul"), ("float32", "bfloat16", "int64"))
    ],
)
def test_mixed_dtypes(device, check):
    """Tensors of several dtypes in one list keep their dtypes and get the results of each dtype."""
    kinds = (torch.float32, torch.int64, torch.bfloat16, torch.float32)
    host = [(torch.arange(1, 34 + i) % 7).to(kind) for i, kind in enumerate(kinds)]
    first = [tensor.to(device, copy=True) for tensor in host]

    sums = torch._foreach_add(first, first)
    torch._foreach_mul_(first, 3)

    for i, (before, total, product) in enumerate(zip(host, sums, first, strict=True)):
        check.equal(total.cpu(), before + before, f"_foreach_add, tensor {i} of {before.dtype}")
        check.equal(product.cpu(), before * 3, f"_foreach_mul_, tensor {i} of {before.dtype}")
    sources = [torch.arange(5).to(torch.bfloat16), torch.arange(33) / 3, torch.arange(7) + (1 << 24)]
    for order in (sources, sources[::-1]):
        targets = [torch.zeros_like(tensor, device=device) for tensor in order]
        torch._foreach_copy_(targets, [tensor.to(device, copy=True) for tensor in order])
        for target, source in zip(targets, order, strict=True):
            check.equal(target.cpu(), source, f"_foreach_copy_ behind {order[0].dtype}, the tensor of {source.dtype}")


@case("foreach.lists.lengths", requires=_needs("add"), axes={"function": ["add", "addcmul", "lerp"]})
def test_lengths(device, function, check):
    """Lists of unlike lengths are refused, and no tensor is changed."""
    before = [torch.arange(1.0, 34.0), torch.arange(5.0, 9.0)]
    first = [tensor.to(device, copy=True) for tensor in before]
    short = [torch.ones(33, device=device)]
    arguments = {"add": (short,), "addcmul": (short, short), "lerp": (short, 0.5)}[function]

    try:
        getattr(torch, f"_foreach_{function}_")(first, *arguments)
        first[0].cpu()  # a device that queues its work refuses when it is waited for
    except RuntimeError:
        refused = True
    else:
        refused = False

    check.that(refused, f"_foreach_{function}_ took lists of 2 and 1 tensors")
    for i, (after, old) in enumerate(zip(first, before, strict=True)):
        check.equal(after.cpu(), old, f"tensor {i} after the refusal")
    total = torch._foreach_add(first, first)
    for after, old in zip(total, before, strict=True):
        check.equal(after.cpu(), old + old, "a sum after the refusal")


@case("foreach.lists.gradients", requires=_needs("mul", "exp", "addcmul", mode=Mode.TRAINING))
def test_gradients(device, check):
    """Gradients flow through functions on lists to each tensor."""
    host = [torch.rand(7, 3), torch.rand(65), torch.rand(4, 5).t()]

    found, exact = (
        _gradients([tensor.detach().to(place, dtype).requires_grad_() for tensor in host])
        for place, dtype in ((device, torch.float32), ("cpu", torch.float64))
    )

    for i, (actual, right) in enumerate(zip(found, exact, strict=True)):
        near(check, f"the gradient of tensor {i}", actual, right, Near.GRADIENTS)


def _gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    products = torch._foreach_mul(torch._foreach_exp(tensors), tensors)
    results = torch._foreach_addcmul(products, tensors, products, value=0.5)
    weights = [torch.arange(1, tensor.numel() + 1).reshape(tensor.shape) for tensor in results]
    total = sum((result * weight.to(result)).sum() for result, weight in zip(results, weights, strict=True))
    return list(torch.autograd.grad(total, tensors))
