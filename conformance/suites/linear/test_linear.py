"""LoRA cases: products and gradients agree with float64, and frozen weights keep their bits."""

from __future__ import annotations

import copy
import functools
import io

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, Cell
from conformance.base.errors import UsageError
from conformance.kernels.linear import Codec, FrozenLinear, LoRALinear, Shards, StoredAs
from conformance.kernels.specifications.fp_quantization import format_of, round_trip
from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.ops.loading import functions

#: Neither groups nor ranks divide a weight of 33 × 47.
OUTPUTS, INPUTS, TOKENS = 33, 47, 5
RANK, ALPHA, GROUP = 4, 6.0, 48
BITS = [DTYPE.on("bfloat16"), DTYPE.on("uint8")]
KINDS = {"dtype": ("float32", "bfloat16")}


def quantizers(stored, *dtypes):
    """Return the cells of the kernels that store a bfloat16 weight, and dequantize it to each of the dtypes."""
    if stored == "whole":
        return ()
    if stored == "int8":
        # Integer codes are always dequantized to float32.
        return Cell("kernels.quantize", "bfloat16", "inference"), Cell(
            "kernels.dequantize_fp32", "float32", "inference"
        )
    decoding = (Cell("kernels.fp_dequantize", dtype, "inference") for dtype in dtypes or ("bfloat16",))
    return Cell("kernels.fp_quantize", "bfloat16", "inference"), *decoding


def stored_as(*formats, dtypes=()):
    """Return an axis of stored formats, with the kernels that each one needs."""
    return {"stored": {stored: quantizers(stored, *dtypes) for stored in formats}}


def numbers(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(dtype, device, bias=False):
    """Return an nn.Linear with fixed values."""
    layer = nn.Linear(INPUTS, OUTPUTS, bias=bias, dtype=dtype, device=device)
    with torch.no_grad():
        layer.weight.copy_(numbers(OUTPUTS, INPUTS, seed=1) / 7)
        if bias:
            layer.bias.copy_(numbers(OUTPUTS, seed=2))
    # Cases compare results with these weights, so they have to be there.
    wrong = int((layer.weight.detach().cpu() != (numbers(OUTPUTS, INPUTS, seed=1) / 7).to(dtype)).sum())
    assert not wrong, f"{wrong} weights on the device differ from those that were written"
    return layer


def codec(accelerator, stored):
    """Return a codec that uses the accelerator's quantizers, or None for an unquantized weight."""
    if stored == "whole":
        return None
    return Codec(StoredAs[stored.upper()], GROUP, functools.partial(functions, accelerator))


def tuned(base):
    """Return a LoRA layer on ``base`` whose matrices are not zero; a fresh one has B = 0."""
    layer = LoRALinear(base, RANK, ALPHA)
    with torch.no_grad():
        layer.down.copy_(numbers(RANK, INPUTS, seed=3) / 7)
        layer.up.copy_(numbers(OUTPUTS, RANK, seed=4) / 2)
    return layer


def exactly(layer, source, upstream, weight):
    """Return the output and the gradients of the input, of A and of B, by the formulas in float64.

    y = x W^T + s (x A^T) B^T with s = alpha / rank (Hu et al., 2021, arXiv:2106.09685).
    """
    x, dy, w = (tensor.detach().cpu().double() for tensor in (source, upstream, weight))
    a, b = (matrix.detach().cpu().double() for matrix in (layer.down, layer.up))
    s = ALPHA / RANK
    return {
        "the output": x @ w.T + s * (x @ a.T) @ b.T,
        "the input's gradient": dy @ w + s * (dy @ b) @ a,
        "A's gradient": s * (dy @ b).T @ x,
        "B's gradient": s * dy.T @ (x @ a.T),
    }


def check_trained(check, layer, device, weight, *, by_device=False):
    """Check one forward and backward pass of a layer against float64, with ``weight`` as the expected base weight.

    ``by_device`` says that the device computed ``weight``, as it does with quantized weights.
    """
    source = numbers(TOKENS, INPUTS, seed=5).to(device, layer.base.dtype).requires_grad_()
    upstream = numbers(TOKENS, OUTPUTS, seed=6).to(device, layer.base.dtype)

    output = layer(source)
    output.backward(upstream)

    found = dict(zip(exactly(layer, source, upstream, weight).items(),
                     (output, source.grad, layer.down.grad, layer.up.grad), strict=True))  # fmt: skip
    for (what, exact), actual in found.items():
        check.equal(actual.dtype, layer.base.dtype, f"the dtype of {what}")
        kind = Near.FORWARD if what == "the output" else Near.GRADIENTS
        near(check, what, actual, exact, kind, by_device=by_device)
    trained = {name for name, parameter in layer.named_parameters() if parameter.grad is not None}
    check.equal(trained, {"down", "up"}, "names of the parameters with a gradient")


@case("linear.lora", requires=[DTYPE], axes=KINDS)
def test_lora(check, device, dtype):
    """A LoRA layer computes its output and all gradients correctly, and a fresh one gives the output of its base."""
    base = plain(getattr(torch, dtype), device, bias=True)
    fresh = LoRALinear(FrozenLinear(base), RANK, ALPHA)
    source = numbers(TOKENS, INPUTS, seed=5).to(device, base.weight.dtype)

    check.agree(fresh(source).detach().cpu(), base(source).detach().cpu(), "the output of a fresh layer")
    check.that(bool(fresh.down.any()) and not fresh.up.any(), "in a fresh layer A must not be zero, and B must be zero")
    check_trained(check, tuned(plain(base.weight.dtype, device)), device, base.weight)


@case("linear.merged", requires=[DTYPE], axes=KINDS)
def test_merged(check, device, dtype):
    """A merged layer gives the same output, and unmerging restores the layer bit for bit."""
    layer = tuned(plain(getattr(torch, dtype), device))
    source = numbers(TOKENS, INPUTS, seed=5).to(device, layer.base.dtype)
    before, kept = layer(source).detach().cpu(), layer.base.full_weight().cpu().clone()
    exact = exactly(layer, source, layer(source), kept)["the output"]

    layer.merge()
    merged, as_one = layer(source), layer.merged
    layer.unmerge()

    check.that(as_one and not layer.merged, f"'merged' is {as_one} after merge() and {layer.merged} after unmerge()")
    near(check, "the merged output", merged, exact, Near.FORWARD)
    check.agree(layer(source).detach().cpu(), before, "the output after unmerge()")
    check.equal(layer.base.full_weight().cpu(), kept, "the base after unmerge()")


@case("linear.frozen", requires=BITS, axes=stored_as("whole", "int8", "fp8"))
def test_frozen(accelerator, check, device, stored):
    """Optimizer steps on all parameters change only the LoRA matrices, and the base keeps its bits."""
    layer = tuned(FrozenLinear(plain(torch.bfloat16, device, bias=True), codec(accelerator, stored)))
    before = {name: value.detach().cpu().clone() for name, value in layer.state_dict().items()}
    source = numbers(TOKENS, INPUTS, seed=5).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.1)

    for _ in range(3):
        optimizer.zero_grad()
        layer(source).square().sum().backward()
        optimizer.step()

    after = {name: value.detach().cpu() for name, value in layer.state_dict().items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    check.equal(changed, {"down", "up"}, "names of the tensors that three steps changed")
    trainable = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    check.equal(trainable, {"down", "up"}, "names of the parameters that require a gradient")


def allowed_error(weight, stored):
    """Return the expected dequantized weights and their allowed errors, both flat and in float64.

    The error is half a step of the format for each number, plus roundings.
    """
    rows = nn.functional.pad(weight.reshape(-1), (0, -weight.numel() % GROUP)).view(-1, GROUP)
    if stored != "int8":
        back = round_trip(rows, format_of(*StoredAs[stored.upper()].value), torch.bfloat16)
        return back.value.view(-1)[: weight.numel()], back.allowed.view(-1)[: weight.numel()]
    exact = rows.double()
    step = exact.abs().amax(1, keepdim=True) / 128
    # The largest positive number has no code of its own: the nearest code is 127 steps.
    error = torch.maximum(step / 2, exact - 127 * step) + unit_roundoff(torch.bfloat16) * (exact.abs() + step)
    return exact.view(-1)[: weight.numel()], error.view(-1)[: weight.numel()]


@case("linear.quantized", requires=BITS, axes=stored_as("int8", "fp6", "fp8", "fp12"))
def test_quantized(accelerator, check, device, stored):
    """A quantized weight is stored in few bytes, is dequantized within its format's step, and is used in products."""
    source = plain(torch.bfloat16, device)
    layer = tuned(FrozenLinear(source, codec(accelerator, stored)))
    bits = layer.base.codec.stored_as.value[0]
    exact, allowed = allowed_error(source.weight.detach().cpu(), stored)

    back = layer.base.full_weight()

    error = (back.cpu().double().view(-1) - exact).abs()
    wrong = int((error > allowed).sum())
    worst = float((error / allowed).max())
    check.equal(wrong, 0, f"number of wrong weights, where the worst error is {worst:.3g} times the allowed one")
    groups = -(-OUTPUTS * INPUTS // GROUP)
    # Each group has a float32 scale of 4 bytes.
    check.equal(layer.base.weight.nbytes, groups * (GROUP * bits // 8 + 4), "number of bytes of the weight")
    check_trained(check, layer, device, back, by_device=True)


@case("linear.saved", requires=BITS, axes=stored_as("whole", "int8", "fp6"))
def test_saved(accelerator, check, device, stored):
    """A layer loaded from a file has the same bits, and a checkpoint of the whole weight is quantized when loaded."""
    source = plain(torch.bfloat16, device)
    layer, file = tuned(FrozenLinear(source, codec(accelerator, stored))), io.BytesIO()
    other = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16, device=device)
    again, whole = (LoRALinear(FrozenLinear(other, codec(accelerator, stored)), RANK, ALPHA) for _ in range(2))
    torch.save(layer.state_dict(), file)
    file.seek(0)

    again.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    whole.base.load_state_dict(source.state_dict())
    twin = copy.deepcopy(layer)

    x = numbers(TOKENS, INPUTS, seed=5).to(device, torch.bfloat16)
    expected = layer(x).detach().cpu()
    check.agree(again(x).detach().cpu(), expected, "the output of a layer loaded from a file")
    check.agree(twin(x).detach().cpu(), expected, "the output of a deep copy")
    check.agree(whole.base.weight.cpu(), layer.base.weight.cpu(), "the stored weight after loading a whole one")


@case(
    "linear.dtype",
    requires=[*BITS, DTYPE.on("float16")],
    axes=stored_as("whole", "int8", "fp8", dtypes=("bfloat16", "float16")),
)
def test_dtype(accelerator, check, device, stored):
    """The output has the layer's dtype, also after a conversion, and stored bytes of a weight are not converted."""
    layer = FrozenLinear(plain(torch.bfloat16, device, bias=True), codec(accelerator, stored))
    kept, wide = layer.weight.cpu().clone(), layer.full_weight().cpu().double()
    x = numbers(TOKENS, INPUTS, seed=5)

    first = layer(x.to(device, torch.bfloat16))
    second = layer.to(torch.float16)(x.to(device, torch.float16))

    check.equal((first.dtype, second.dtype), (torch.bfloat16, torch.float16), "dtypes of the outputs")
    if stored != "whole":
        check.agree(layer.weight.cpu(), kept, "the stored bytes after the conversion")
    exact = x.half().double() @ wide.T + layer.bias.detach().cpu().double()
    near(
        check,
        "the output in float16",
        second,
        exact,
        Near.FORWARD,
        dtype=torch.bfloat16,
        by_device=stored != "whole",
    )


@case("linear.refuses", requires=[*BITS, *quantizers("int8"), *quantizers("fp8")])
def test_refuses(accelerator, check, device):
    """A layer refuses invalid arguments and checkpoints of floats for stored bytes, and changes nothing."""
    whole = plain(torch.float32, device)
    calls = {
        "rank": lambda: LoRALinear(whole, 0),
        "group_size": lambda: Codec(StoredAs.FP6, 10),
        "weight": lambda: FrozenLinear(whole, codec(accelerator, "fp8")),
    }
    for argument, call in calls.items():
        error = raised(call)
        message = f"an invalid {argument} gives {error!r}; a UsageError that names {argument} is needed"
        check.that(isinstance(error, UsageError) and argument in str(error), message)
    layer = FrozenLinear(plain(torch.bfloat16, device), codec(accelerator, "int8"))
    kept = layer.weight.cpu().clone()

    error = raised(lambda: layer.load_state_dict({"weight": torch.ones(tuple(layer.weight.shape))}))

    message = f"loading floats into stored bytes gives {error!r}; a RuntimeError with 'weight holds floats' is needed"
    check.that(isinstance(error, RuntimeError) and "weight holds floats" in str(error), message)
    check.agree(layer.weight.cpu(), kept, "the stored bytes after the refused load")


def raised(call):
    """Return the error that the call raises, or None."""
    try:
        call()
    except (UsageError, RuntimeError) as error:
        return error
    return None


@case(
    "linear.sharded",
    requires=[*BITS, COMM, COMM_DTYPE.on("bfloat16"), COMM_DTYPE.on("uint8")],
    axes=stored_as("whole", "fp8"),
    world_size=2,
)
def test_sharded(accelerator, check, device, stored, rank, world_size, group):
    """Each rank stores its shard of the weight, computes with the whole weight, and loads whole checkpoints."""
    source = plain(torch.bfloat16, device)
    layer = tuned(FrozenLinear(source, codec(accelerator, stored), Shards(group)))
    other = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16, device=device)
    loaded = FrozenLinear(other, codec(accelerator, stored), Shards(group))

    found = layer.base.full_weight()
    loaded.load_state_dict(source.state_dict())

    part = -(-OUTPUTS * INPUTS // world_size)
    expected = source.weight.detach()
    if stored != "whole":
        # Each rank quantizes its shard by itself, so the expected weight is quantized shard by shard too.
        flat = nn.functional.pad(expected.reshape(-1), (0, part * world_size - expected.numel())).view(world_size, part)
        alone = [nn.Linear(part, 1, bias=False, dtype=torch.bfloat16, device=device) for _ in flat]
        for linear, row in zip(alone, flat, strict=True):
            linear.weight.data.copy_(row)
        parts = [FrozenLinear(linear, codec(accelerator, stored)).full_weight().view(-1) for linear in alone]
        expected = torch.cat(parts)[: source.weight.numel()].view(OUTPUTS, INPUTS)
        part = -(-part // GROUP) * (GROUP + 4)
    check.equal(layer.base.weight.numel(), part, "number of elements or bytes that a rank stores")
    check.same_on_all_ranks("weight", found)
    check.agree(found.cpu(), expected.cpu(), "the whole weight")
    check.agree(loaded.weight.cpu(), layer.base.weight.cpu(), "the stored shard after loading a whole checkpoint")
    check_trained(check, layer, device, expected, by_device=stored != "whole")
