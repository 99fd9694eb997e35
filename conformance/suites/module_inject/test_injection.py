"""Injection cases: an injected model agrees with the original, and a fallback to the reference is reported."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.kernels.implementation import Implementation
from conformance.kernels.injection import Injector, inject
from conformance.numerics.budgets import load_table
from conformance.plan.case import About, case

from . import builders, models
from .models import exact_and_model

FLOATS = ["float32", "float16", "bfloat16"]
TOKENS, BATCH = 7, 2


def limit(dtype):
    return load_table(__file__, "limits.toml")[dtype]


@contextmanager
def injected(model, accelerator, dtype, device):
    """Yield the injection of a model that is moved to the device and the dtype, with a workspace allocated."""
    injection = inject(model.to(device, dtype), accelerator, models.rules())
    models.allocate(injection.injector, dtype, BATCH, TOKENS)
    try:
        with torch.no_grad():
            yield injection
    finally:
        models.release(injection.injector)


def judge(check, dtype, what, found, exact):
    """Check that the error against the original in float64 is within the dtype's limit, and keep it as a metric."""
    error = float((found.cpu().double() - exact).abs().max() / exact.abs().max())
    message = f"the error of {what} is {error:.3g} of the largest value; {limit(dtype)} is allowed"
    check.that(error <= limit(dtype), message)
    check.metric("relative_error", float(f"{error:.3g}"))


def keep_implementations(check, injection):
    """Keep as metrics which implementation of each kernel ran, and why."""
    for row in injection.told():
        check.metric(f"{row.kernel}.{row.dtype}", f"{row.implementation.value}: {row.reason}")


@case("module_inject.gpt", axes={"dtype": FLOATS}, requires=[OP_BUILDERS, DTYPE])
def test_gpt(accelerator, device, dtype, check):
    """An injected GPT agrees with the original on a whole sequence and token by token with a cache."""
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
    judge(check, dtype, "a prompt of 4 tokens and single tokens after it", torch.cat(steps, dim=1), wanted)
    keep_implementations(check, injection)


@case("module_inject.llama", axes={"dtype": FLOATS}, requires=[OP_BUILDERS, DTYPE])
def test_llama(accelerator, device, dtype, check):
    """An injected Llama agrees with the original, with whole layers replaced and with single modules replaced."""
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
    judge(check, dtype, "a prompt of 4 tokens and single tokens after it", torch.cat(parts, dim=1), wanted)
    judge(check, dtype, "the sequence with norms and products replaced one by one", leaves, wanted)
    keep_implementations(check, injection)


@case(
    "module_inject.fallback",
    axes={"kept_by": list(builders.UNREACHABLE)},
    requires=[OP_BUILDERS],
    about=About.PACKAGE,
)
def test_fallback(device, kept_by, check):
    """When a kernel is not available, the portable kernel computes and the reason is reported."""
    unusable, reason = builders.UNREACHABLE[kept_by]
    exact, model = exact_and_model(models.gpt, "float32")
    tokens = torch.randint(0, 37, (BATCH, TOKENS))
    wanted = exact(tokens).detach()

    with injected(model, unusable, torch.float32, device) as injection:
        found = injection.model(tokens.to(device))

    judge(check, "float32", "the whole sequence", found, wanted)
    rows = injection.told()
    called = {"layer_norm", "linear_layer", "vector_matmul", "softmax_context"}
    check.equal({row.kernel for row in rows}, called, "the kernels that were called")
    for row in rows:
        expected = (
            "takes other arguments" if kept_by == "other-arguments" and row.kernel == "softmax_context" else reason
        )
        message = f"{row.kernel} is reported as '{row.implementation.value}', although no vendor kernel is usable"
        check.that(row.implementation is Implementation.REFERENCE, message)
        message = f"the reason reported for {row.kernel} is {row.reason!r}; it should contain {expected!r}"
        check.that(expected in row.reason, message)


@case("module_inject.fallback_by_dtype", requires=[OP_BUILDERS], about=About.PACKAGE)
def test_fallback_by_dtype(device, check):
    """A kernel that takes one dtype computes that dtype, the reference computes the others, and both are reported."""
    injector = Injector(builders.BuilderOnlyAccelerator(lambda: builders.only_float32("layer_norm")))
    kernel = injector.kernel("layer_norm")

    for dtype in (torch.float32, torch.bfloat16):
        source = torch.tensor([[[1.0, 3.0]]], dtype=dtype, device=device)
        ones = torch.ones(2, dtype=dtype, device=device)
        found = kernel(source, ones, ones, 0.0)
        check.equal(found.cpu(), torch.tensor([[[0.0, 2.0]]], dtype=dtype), f"LayerNorm of 1 and 3, plus 1, in {dtype}")

    found = {row.dtype: row.implementation for row in injector.told()}
    expected = {"float32": Implementation.VENDOR, "bfloat16": Implementation.REFERENCE}
    check.equal(found, expected, "the implementation for each dtype")


@case("module_inject.errors_are_told", requires=[OP_BUILDERS], about=About.PACKAGE)
def test_errors_are_told(device, check):
    """An error of an available kernel reaches the caller, and no other implementation computes instead."""
    module = builders.SimpleNamespace(rms_norm=builders.raising(ILLEGAL_ADDRESS))
    broken = Injector(builders.BuilderOnlyAccelerator(lambda: module))
    ones = torch.ones(1, 1, 2, device=device)

    try:
        broken.kernel("rms_norm")(ones, ones.reshape(-1), 1e-5)
    except RuntimeError as error:
        seen = str(error)
    else:
        seen = "no error"

    check.equal(seen, str(ILLEGAL_ADDRESS), "the error that the caller gets")
    check.equal(broken.told(), [], "the implementations that are reported")


ILLEGAL_ADDRESS = RuntimeError("the device ran into an illegal address")


@case("module_inject.restored", requires=[OP_BUILDERS], about=About.PACKAGE)
def test_restored(accelerator, device, check):
    """Injection keeps the names of parameters, and restore() puts the original modules back."""
    model = models.gpt().to(device)
    before = dict(model.named_modules())
    names = list(model.state_dict())

    injection = inject(model, accelerator)
    replaced = [path for path, module in model.named_modules() if module is not before[path]]
    check.equal(list(model.state_dict()), names, "the names of parameters after injection")
    injection.restore()

    linear = ("qkv", "out", "up", "down", "head", "norm_attention", "norm_network", "norm")
    wanted = [path for path in before if path.rpartition(".")[2] in linear]
    check.equal(replaced, wanted, "the modules that were replaced")
    left = [path for path, module in model.named_modules() if module is not before[path]]
    check.equal(left, [], "the modules that restore() did not put back")
