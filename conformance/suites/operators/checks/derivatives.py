"""Derivatives beyond one backward for all inputs.

They are: one input alone, cotangents and inputs in other arrangements of memory, second derivatives, forward mode, and
vmap. PyTorch's CPU computes the reference of each. Where the device refuses second derivatives, forward mode or vmap,
the cell gets a note and no failure, because no declaration names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import plain
from conformance.numerics.modes import has_dispatch_modes
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, mapped, tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_a, op_class
from conformance.suites.operators.calls.execution import call, host_gradients, processed
from conformance.suites.operators.calls.passes import PLAIN, Pass, cotangents, unique
from conformance.suites.operators.inputs import arrangements
from conformance.suites.operators.judge import choices, promises
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Oracle

#: Dtypes of the further derivatives. In 16 bits, each operator of a formula rounds its result anew.
_PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
#: Inputs up to which subsets of all but one are differentiated: lists of tensors have more.
_MOST_INPUTS = 4
#: What is added to the name of the first and the second backward for the same inputs.
_TIMES = ("", ", again")
#: Multiplies the length of second derivatives of a factorisation. Its response to two perturbations says too little:
#: it differs much from one cotangent to the next.
_OF_FACTORS = 8
#: Rows of a matrix whose cotangent is expanded.
_ROWS = 4
#: A number of eleven bits; its product with a number of bfloat16 is a number of float32.
_ELEVEN_BITS = 1365 / 1024


def passes(info: Any, sample: Call) -> Iterator[Call]:
    """Yield the sample with every further backward."""
    yield from passes_of_subsets(sample)
    # Other cotangents are numbers of bfloat16: a kernel that narrows these shows here alone.
    is_precise = sample.tensors and sample.tensors[0].dtype in _PRECISE
    gaps = Pass(_finer_with_gaps if is_precise else arrangements.with_gaps)
    yield sample.named(change="cotangents with gaps", backward=gaps)
    yield sample.named(change="cotangents expanded from one number", backward=Pass(_expanded_from_one))
    for name, expand in (("first", arrangements.expanded_first), ("last", arrangements.expanded_last)):
        change = f"cotangents expanded along the {name} dimension"
        yield _with_rows(info, sample).named(change=change, backward=Pass(expand))


def _with_rows(info: Any, sample: Call) -> Call:
    """Return the sample with a matrix in the place of a vector, for a function of single elements: it has rows."""
    vector = sample.input
    if not is_a(info, "UnaryUfuncInfo") or vector.dim() != 1 or vector.numel() % _ROWS or vector.numel() == _ROWS:
        return sample
    matrix = vector.detach().reshape(_ROWS, -1).clone()
    return sample.with_tensor(vector, matrix.requires_grad_(vector.requires_grad))


def passes_of_subsets(sample: Call) -> Iterator[Call]:
    """Yield the sample with the passes in which some inputs alone require a gradient."""
    trained = unique(tensor for tensor in sample.tensors if tensor.requires_grad)
    for name, chosen in _subsets(trained) if len(trained) > 1 else ():
        # The second cotangent shows a gradient that is kept from the first.
        for time in _TIMES if trained[0].dtype is torch.float32 else ("",):
            yield _only(sample, chosen).named(change=f"{name}{time}")


def _subsets(trained: list[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield each input alone, and of three inputs or more all but one."""
    for number, tensor in enumerate(trained):
        yield f"gradient of input {number} alone", [tensor]
    for number in range(len(trained) if 2 < len(trained) <= _MOST_INPUTS else 0):
        yield f"gradients of all inputs but {number}", [*trained[:number], *trained[number + 1 :]]


def _only(sample: Call, chosen: list[torch.Tensor]) -> Call:
    """Return the sample in which the chosen tensors alone require a gradient."""
    kept = {id(tensor) for tensor in chosen}
    memo: dict[int, torch.Tensor] = {}

    def leaf_of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) in kept or not leaf.requires_grad:
            return leaf
        return memo.setdefault(id(leaf), leaf.detach())

    return sample.with_arguments(mapped(sample.arguments, leaf_of))


def finer(cotangent: torch.Tensor) -> torch.Tensor:
    """Return products of the cotangent: numbers of 20 bits, the same ones in float32 and in float64."""
    return cotangent * _ELEVEN_BITS


def _finer_with_gaps(cotangent: torch.Tensor) -> torch.Tensor:
    return arrangements.with_gaps(finer(cotangent))


def _expanded_from_one(cotangent: torch.Tensor) -> torch.Tensor:
    """Return the first number of the cotangent in its shape, with stride 0, as the backward of ``sum`` gives it."""
    if cotangent.numel() < 2:
        return cotangent
    return cotangent.reshape(-1)[:1].clone().reshape((1,) * cotangent.dim()).expand(cotangent.shape)


#: Arrangements of cotangents, with the words for them.
COTANGENTS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("", PLAIN.arrange),
    ("cotangents with gaps", arrangements.with_gaps),
    ("cotangents with a storage offset", arrangements.with_offset),
    ("cotangents transposed in memory", arrangements.transposed),
    ("cotangents expanded from one number", _expanded_from_one),
    ("cotangents expanded along the first dimension", arrangements.expanded_first),
    ("cotangents expanded along the last dimension", arrangements.expanded_last),
)


# --- second derivatives, forward mode, vmap ---------------------------------------------------------------------------


def check_further(cell: Cell, sample: Call) -> None:
    """Compare second derivatives, tangents and batched results with the host's."""
    if sample.tensors and sample.tensors[0].dtype not in _PRECISE:
        return
    # Another choice among equal elements has other derivatives, as has another order of eigenvalues.
    if not _choose_alike(cell, sample):
        cell.check.metric("further_derivatives", "another choice")
        return
    # The error of a formula of several operators is bounded by the size of the whole result.
    loose = cell.of_class(OpClass.ITERATIVE)
    kinds: dict[str, tuple[bool, Callable[..., list[Any]]]] = {
        "second_order": (cell.info.supports_gradgrad, _second_derivatives),
        "forward_mode": (cell.info.supports_forward_ad, _tangents),
        "vmap": (isinstance(sample.input, torch.Tensor), _batched),
    }
    for name, (supported, compute) in kinds.items():
        if supported:
            _compare(loose, sample, name, compute)
    if cell.info.supports_forward_ad:
        _check_single_tangents(loose, sample)


def _check_single_tangents(cell: Cell, sample: Call) -> None:
    """Compare tangents where one input alone has one.

    A formula for all tangents may add up to the right sum where one of them is wrong. Computed in Python, a missing
    tangent beside a number ends the process, on every device: PyTorch 2.13 gives it no memory.
    """
    trained = unique(tensor for tensor in sample.tensors if tensor.requires_grad)
    if has_dispatch_modes() or not 1 < len(trained) <= _MOST_INPUTS:
        return
    if any(type(tensor) is not torch.Tensor for tensor in cell.on(sample).tensors):
        return
    for number, tensor in enumerate(trained):
        alone = _only(sample, [tensor]).named(change=f"tangent of input {number} alone")
        _compare(cell, alone, "forward_mode", _tangents)


def _choose_alike(cell: Cell, sample: Call) -> bool:
    """Return whether the device makes the host's choices for a sample, if the operator has any."""
    if not choices.may_choose(cell.info):
        return True
    host, device = sample.on(HOST), cell.on(sample)
    found, wanted = execution.execute(cell.info.op, device), call(cell.info.op, host)
    return choices.agree(cell.info, sample, processed(sample, found), processed(sample, wanted))


def _compare(cell: Cell, sample: Call, name: str, compute: Callable[..., list[Any]]) -> None:
    """Compare one kind of further derivative; a refusal by the device is a note."""
    given = sample.named(form=name.replace("_", " "), backward=Pass(of=name), seed=cell.seed)
    try:
        expected = compute(cell.info, call, sample.on(HOST), cell.seed)
    except Exception:
        return
    try:
        actual = compute(cell.info, execution.execute, cell.on(given), cell.seed)
    except Exception as error:
        cell.check.metric(name, f"not supported: {type(error).__name__}")
        return
    # A derivative that vanishes is what is left of terms as large as the other results.
    scales = dict.fromkeys(range(len(expected)), torch.tensor(_largest(expected), dtype=torch.float64))
    # Each operator of a formula rounds its result, and terms of second derivatives cancel: x + s for log_ndtr.
    composed = name == "second_order"
    oracle = Oracle(
        lambda wide, _: compute(cell.info, call, wide, cell.seed), sample, scales=scales, rounds_between=composed
    )
    n = cell.judge.length(sample, expected)
    if composed and op_class(cell.info) is OpClass.ITERATIVE:
        n *= _OF_FACTORS
    found_results = len(actual) == len(expected)
    cell.judge.claim(given, found_results, f"{len(actual)} results, expected {len(expected)}")
    for position, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
        part = f"result {position}"
        if wanted is None or found is None:
            cell.judge.claim(given, found is wanted, "None on one side only", part)
            continue
        differs = name == "vmap" and min(found.dim(), wanted.dim()) > 0 and found.shape != wanted.shape
        pair = (found.detach()[0], wanted.detach()[0]) if differs and len(found) and len(wanted) else None
        if pair and promises.describes(cell.info, sample.on(HOST), position, *pair):
            continue  # the meta function gives each output of the batch this shape
        cell.judge.metadata(given, found.detach(), wanted.detach(), part=part, own=False)
        cell.judge.leaf(given, found, wanted, oracle, position, n, part=part)


def _largest(results: list[torch.Tensor | None]) -> float:
    """Return the largest finite absolute value of all results; 0 if there is none."""
    found = (result.detach().abs().double() for result in results if result is not None and result.numel())
    return max((float(torch.nan_to_num(values, nan=0.0, posinf=0.0).max()) for values in found), default=0.0)


def _second_derivatives(info: Any, run: Any, sample: Call, seed: int) -> list[torch.Tensor | None]:
    """Return the gradients of the gradients by inputs and cotangents; empty if the operator is linear in everything."""
    result = run(info.op, sample)
    outputs = [leaf for leaf in processed(sample, result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = unique(tensor for tensor in sample.tensors if tensor.requires_grad)
    if not outputs or not inputs:
        return []
    given = [cotangent.requires_grad_() for cotangent in cotangents(outputs, seed)]
    first = torch.autograd.grad(outputs, inputs, given, allow_unused=True, create_graph=True)
    kept = [gradient for gradient in first if gradient is not None and gradient.requires_grad]
    if not kept:
        return []
    return list(host_gradients(kept, [*inputs, *given], cotangents(kept, seed + 1)))


def _tangents(info: Any, run: Any, sample: Call, seed: int) -> list[torch.Tensor | None]:
    """Return the outputs' tangents for seeded tangents of all inputs that require a gradient (forward mode)."""
    inputs = unique(tensor for tensor in sample.tensors if tensor.requires_grad)
    with forward_ad.dual_level():
        duals = {
            id(tensor): forward_ad.make_dual(tensor.detach(), tangent)  # type: ignore[no-untyped-call]  # of torch
            for tensor, tangent in zip(inputs, cotangents(inputs, seed), strict=True)
        }
        dual = sample.with_arguments(mapped(sample.arguments, lambda leaf: duals.get(id(leaf), leaf)))
        found = [leaf for leaf in processed(sample, run(info.op, dual)) if isinstance(leaf, torch.Tensor)]
        unpack: Callable[[torch.Tensor], Any] = forward_ad.unpack_dual
        return [unpack(leaf).tangent for leaf in found]


def _batched(info: Any, run: Any, sample: Call, seed: int) -> list[torch.Tensor]:
    """Return the outputs for a batch of two inputs, the second one reversed along its first dimension."""
    # Made on the host: the device need not claim what joins them.
    first = plain(sample.input.detach())
    second = first.flip(0) if first.dim() else first
    batch = copied(torch.stack((first, second)), sample.input.device)
    detached = sample.with_arguments(mapped(sample.arguments, _detached))

    def one(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensors(leaves(processed(sample, run(info.op, replace(detached, input=value))))))

    return list(torch.func.vmap(one)(batch))


def _detached(leaf: Any) -> Any:
    """Return a tensor without its graph; another value as it is."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
