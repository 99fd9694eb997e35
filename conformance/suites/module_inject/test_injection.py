"""An injected model is the original one; where a kernel cannot be had, the reference computes, and that is said."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.case import case
from conformance.kernels.implementation import Implementation
from conformance.kernels.injection import Injector, inject
from conformance.numerics.beside import table_beside

from . import builders, models
from .models import exact_and_model

FLOATS = ["float32", "float16", "bfloat16"]
TOKENS, BATCH = 7, 2


def limit(dtype):
    return table_beside(__file__, "limits.toml")[dtype]


@contextmanager
def injected(model, accelerator, dtype, device):
    """The model on the device in that dtype, its layers by kernels, and a workspace."""
    injection = inject(model.to(device, dtype), accelerator, models.rules())
    models.allocate(injection.injector, dtype, BATCH, TOKENS)
    try:
        with torch.no_grad():
            yield injection
    finally:
        models.release(injection.injector)


def judge(check, dtype, what, found, exact):
    """Within the limit of that dtype of the original's values in float64."""
    error = float((found.cpu().double() - exact).abs().max() / exact.abs().max())
    check.that(error <= limit(dtype), f"{what} is off by {error:.3g} of the largest value, allowed {limit(dtype)}")
    check.metric("relative_error", float(f"{error:.3g}"))


def tell(check, injection):
    for row in injection.told():
        check.metric(f"{row.kernel}.{row.dtype}", f"{row.implementation.value}: {row.reason}")


@case("module_inject.gpt", axes={"dtype": FLOATS}, requires=[OP_BUILDERS, DTYPE])
def test_gpt(accelerator, device, dtype, check):
    """A prompt through LayerNorm, products and attention by kernels, and then token by token with their cache."""
    exact, model = exact_and_model(models.gpt, dtype)
    tokens = torch.randint(0, 37, (BATCH, TOKENS))
    wanted = exact(tokens).detach()
    tokens = tokens.to(device)

    with injected(model, accelerator, getattr(torch, dtype), device) as injection:
        whole = injection.model(tokens)
        logits, caches = injection.model.step(tokens[:, :4], None)
        steps = [logits]
        for place in range(4, TOKENS):
            logits, caches = injection.model.step(tokens[:, place : place + 1], caches)
            steps.append(logits)

    judge(check, dtype, "the whole sequence", whole, wanted)
    judge(check, dtype, "a prompt of 4 tokens and the next ones singly", torch.cat(steps, dim=1), wanted)
    tell(check, injection)


@case("module_inject.llama", axes={"dtype": FLOATS}, requires=[OP_BUILDERS, DTYPE])
def test_llama(accelerator, device, dtype, check):
    """RMSNorm, rotary positions, shared key heads and a gated network: whole layers by kernels, then parts."""
    exact, model = exact_and_model(models.Llama, dtype)
    source = torch.randn(BATCH, TOKENS, 32).to(getattr(torch, dtype))
    wanted = exact(source.double()).detach()
    source = source.to(device)

    with injected(model, accelerator, getattr(torch, dtype), device) as injection:
        whole = injection.model(source)
        parts = [injection.model(source[:, :4])] + [injection.model(source[:, at : at + 1]) for at in range(4, TOKENS)]

        injection.restore()
        with torch.no_grad():
            inject(injection.model, accelerator)
            leaves = injection.model(source)

    judge(check, dtype, "the whole sequence", whole, wanted)
    judge(check, dtype, "a prompt of 4 tokens and the next ones singly", torch.cat(parts, dim=1), wanted)
    judge(check, dtype, "norms and products by kernels, one by one", leaves, wanted)
    tell(check, injection)


@case("module_inject.fallback", axes={"kept_by": list(builders.UNREACHABLE)}, requires=[OP_BUILDERS])
def test_fallback(device, kept_by, check):
    """Whatever keeps a kernel away, the portable one is reached, and the reason is told."""
    other, reason = builders.UNREACHABLE[kept_by]
    exact, model = exact_and_model(models.gpt, "float32")
    tokens = torch.randint(0, 37, (BATCH, TOKENS))
    wanted = exact(tokens).detach()

    with injected(model, other, torch.float32, device) as injection:
        found = injection.model(tokens.to(device))

    judge(check, "float32", "the whole sequence", found, wanted)
    told = injection.told()
    asked = {"layer_norm", "linear_layer", "vector_matmul", "softmax_context"}
    check.equal({row.kernel for row in told}, asked, "the kernels that were called")
    for row in told:
        expected = (
            "takes other arguments" if kept_by == "other-arguments" and row.kernel == "softmax_context" else reason
        )
        check.that(
            row.implementation is Implementation.REFERENCE, f"{row.kernel} is told as {row.implementation.value}"
        )
        check.that(expected in row.reason, f"{row.kernel} is told with {row.reason!r}, and not with {expected!r}")


@case("module_inject.fallback_by_dtype", requires=[OP_BUILDERS])
def test_fallback_by_dtype(device, check):
    """A kernel that takes one dtype computes that one; the reference the others. Both are told."""
    injector = Injector(builders.Accelerator(lambda: builders.only_float32("layer_norm")))
    kernel = injector.kernel("layer_norm")

    for dtype in (torch.float32, torch.bfloat16):
        source = torch.tensor([[[1.0, 3.0]]], dtype=dtype, device=device)
        ones = torch.ones(2, dtype=dtype, device=device)
        found = kernel(source, ones, ones, 0.0)
        check.equal(found.cpu(), torch.tensor([[[0.0, 2.0]]], dtype=dtype), f"LayerNorm of 1 and 3, plus 1, in {dtype}")

    told = {row.dtype: row.implementation for row in injector.told()}
    expected = {"float32": Implementation.VENDOR, "bfloat16": Implementation.REFERENCE}
    check.equal(told, expected, "who computed")


@case("module_inject.errors_are_told", requires=[OP_BUILDERS])
def test_errors_are_told(device, check):
    """An error of a kernel that is there reaches the caller: nothing computes in its place."""
    broken = Injector(builders.Accelerator(lambda: builders.SimpleNamespace(rms_norm=builders.raising(OVERFLOW))))
    ones = torch.ones(1, 1, 2, device=device)

    try:
        broken.kernel("rms_norm")(ones, ones.reshape(-1), 1e-5)
    except RuntimeError as error:
        seen = str(error)
    else:
        seen = "nothing"

    check.equal(seen, str(OVERFLOW), "what the caller sees")
    check.equal(broken.told(), [], "who is said to have computed")


OVERFLOW = RuntimeError("the device ran into an illegal address")


@case("module_inject.restored", requires=[OP_BUILDERS])
def test_restored(accelerator, device, check):
    """What was replaced can be put back, with the parameters it had; names of parameters stay as they were."""
    model = models.gpt().to(device)
    before = dict(model.named_modules())
    names = list(model.state_dict())

    injection = inject(model, accelerator)
    replaced = [path for path, module in model.named_modules() if module is not before[path]]
    check.equal(list(model.state_dict()), names, "the names of parameters")
    injection.restore()

    linear = ("qkv", "out", "up", "down", "head", "norm_attention", "norm_network", "norm")
    wanted = [path for path in before if path.rpartition(".")[2] in linear]
    check.equal(replaced, wanted, "the modules that were replaced")
    check.that(all(module is before[path] for path, module in model.named_modules()), "the original modules are back")
