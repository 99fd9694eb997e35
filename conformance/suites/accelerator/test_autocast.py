"""Autocast: products in a 16-bit dtype inside the context, and no other change."""

from __future__ import annotations

import contextlib

import pytest
import torch

from conformance.accelerators.capabilities import AUTOCAST, DTYPE
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import case

SIXTEEN_BITS = ("float16", "bfloat16")


def autocast_to(accelerator, device, name):
    """Return the autocast context for a dtype name.

    Skip the case if the dtype is not in supported_dtypes(): the device may lack it on this machine.
    """
    dtype = getattr(torch, name)
    if dtype not in accelerator.supported_dtypes():
        environment_lacks(f"{name} is not in supported_dtypes() on this machine")
    return torch.autocast(device.type, dtype=dtype)


def small_integers(device, rows, columns):
    """Return a float32 matrix of the integers -3 to 3 on ``device``.

    They are exact in every float format, and so are products over a few columns.
    """
    return ((torch.arange(rows * columns) % 7) - 3).to(torch.float32).view(rows, columns).to(device)


@case("accelerator.autocast.products", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_products(accelerator, device, dtype):
    """Inside autocast, matrix products use the 16-bit dtype and are right, and sums of float32 stay float32."""
    products_agree(autocast_to(accelerator, device, dtype), device, dtype)
    _check_transforms(accelerator, device, dtype)


def _check_transforms(accelerator, device, dtype):
    """Check that autocast casts inside transforms of functions, attention of mixed dtypes among them."""
    rows, value = small_integers(device, 4, 8), small_integers(device, 4, 8).to(getattr(torch, dtype))

    def product(rows):
        return rows @ rows.mT

    def attention(rows):
        return torch.nn.functional.scaled_dot_product_attention(rows[None], rows[None], value[None])

    with autocast_to(accelerator, device, dtype):
        results = {
            "mm inside vmap": torch.func.vmap(product)(rows[None]),
            # PyTorch itself casts no attention that vmap has batched, on any device.
            **{f"{run.__name__} inside vjp": torch.func.vjp(run, rows)[0] for run in (product, attention)},
        }
    for name, result in results.items():
        assert result.dtype is getattr(torch, dtype), f"{name} under autocast({dtype}) is {result.dtype}"
        assert bool(result.isfinite().all()), f"{name} under autocast({dtype}) is not finite: {result.cpu().tolist()}"


def products_agree(context, device, dtype):
    """Check products and a sum inside an autocast context to the dtype of that name."""
    left, right = small_integers(device, 9, 5), small_integers(device, 5, 11)
    expected = small_integers("cpu", 9, 5) @ small_integers("cpu", 5, 11)

    with context:
        results = {
            "mm": left @ right,
            "linear": torch.nn.functional.linear(left, right.t()),
            "bmm": torch.bmm(left[None], right[None])[0],
        }
        # A sum is not on autocast's list of operations in lower precision.
        kept = left + left

    for name, result in results.items():
        if result.dtype is torch.float32:
            stub(f"autocast({dtype}) has no effect on {name}")
        assert result.dtype is getattr(torch, dtype), f"{name} inside autocast({dtype}) is {result.dtype}"
        wrong = int((result.cpu().float() != expected).sum())
        assert wrong == 0, f"{wrong} of {expected.numel()} elements of {name} are wrong"
    assert kept.dtype is torch.float32, f"a sum inside autocast({dtype}) is {kept.dtype}"


@case("accelerator.autocast.gradients", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_gradients(accelerator, device, dtype):
    """Gradients of float32 parameters are float32 and equal those of the same pass without autocast."""
    weight, source = small_integers(device, 5, 3), small_integers(device, 9, 5)
    gradients = []
    for enabled in (True, False):
        leaf = weight.clone().requires_grad_()
        # enable_grad() stands in for no context: gradients are enabled anyway.
        with autocast_to(accelerator, device, dtype) if enabled else torch.enable_grad():
            hidden = source @ leaf
        # Summed in float32, so that only the product differs between the two passes.
        hidden.float().sum().backward()
        gradients.append(leaf.grad.cpu())

    assert gradients[0].dtype is torch.float32, f"the gradient of a float32 parameter is {gradients[0].dtype}"
    expected = small_integers("cpu", 9, 5).sum(0).view(5, 1).expand(5, 3)
    assert torch.equal(gradients[1], expected), (
        f"without autocast {gradients[1].cpu().tolist()}, not {expected.tolist()}"
    )
    with_it, without = (gradient.cpu() for gradient in gradients)
    assert torch.equal(with_it, without), f"with autocast {with_it.tolist()}, without {without.tolist()}"


@case("accelerator.autocast.nested", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_nested(accelerator, device, dtype):
    """A disabled context inside an enabled one computes in float32, and the outer one works on after it."""
    matrix = small_integers(device, 5, 5)

    with autocast_to(accelerator, device, dtype):
        with torch.autocast(device.type, enabled=False):
            inner = matrix @ matrix
        outer = matrix @ matrix

    assert inner.dtype is torch.float32, f"a product with autocast disabled is {inner.dtype}"
    assert outer.dtype is getattr(torch, dtype), f"after a disabled context a product is {outer.dtype}"
    expected = small_integers("cpu", 5, 5) @ small_integers("cpu", 5, 5)
    for result in (inner, outer):
        assert torch.equal(result.cpu().float(), expected), f"the product is {result.cpu().tolist()}"


@case("accelerator.autocast.left_on_exception", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_left_on_exception(accelerator, device, dtype):
    """After an exception inside the context, products are float32 again."""
    matrix = small_integers(device, 5, 5)

    with pytest.raises(KeyError), autocast_to(accelerator, device, dtype):
        assert torch.is_autocast_enabled(device.type), f"inside autocast is_autocast_enabled({device.type!r}) is False"
        raise KeyError("on purpose")

    assert not torch.is_autocast_enabled(device.type), "autocast is still enabled after an exception"
    product, expected = matrix @ matrix, small_integers("cpu", 5, 5) @ small_integers("cpu", 5, 5)
    assert product.dtype is torch.float32, "products are still cast after an exception"
    assert torch.equal(product.cpu(), expected), f"after an exception a product is {product.cpu().tolist()}"


@case("accelerator.autocast.leaves_others", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_leaves_others(accelerator, device, dtype):
    """Autocast keeps the dtype of integers and parameters, and casts a changed weight again."""
    counts, weight = torch.arange(9, device=device), small_integers(device, 5, 5).requires_grad_()
    source = torch.eye(5).to(device)

    # Autocast caches cast weights inside a context. The cache must not survive into the next one.
    results = []
    for factor in (1.0, 2.0):
        with torch.no_grad():
            weight.mul_(factor)
        with autocast_to(accelerator, device, dtype):
            results.append((source @ weight).detach().float().cpu())
            total = counts + counts

    assert total.dtype is torch.int64 and weight.dtype is torch.float32, f"{total.dtype}, {weight.dtype}"
    assert torch.equal(results[0], small_integers("cpu", 5, 5)), f"a product with 1 is {results[0].cpu().tolist()}"
    assert torch.equal(results[1], 2 * results[0]), "the second context computed with the weights of the first context"


@case("accelerator.autocast.cache", requires=[AUTOCAST, DTYPE], axes={"dtype": SIXTEEN_BITS})
def test_cache(accelerator, device, check, dtype):
    """A weight that was cast without gradients, in a nested context, or before an error has its gradient afterwards."""
    source, expected = small_integers(device, 9, 5), small_integers("cpu", 9, 5).sum(0).view(5, 1).expand(5, 3)
    for before, prepare in _BEFORE.items():
        weight = small_integers(device, 5, 3).requires_grad_()
        with autocast_to(accelerator, device, dtype):
            prepare(device, source, weight)
            hidden = source @ weight
            # Autocast's list of casts is that of the context's own dtype again.
            check.equal(hidden.dtype, getattr(torch, dtype), f"the dtype of a product after {before}")
        check.that(hidden.requires_grad, f"a product after {before} has no gradient")
        hidden.float().sum().backward()

        check.that(weight.grad is not None, f"after {before} the weight has no gradient")
        check.equal(weight.grad.cpu(), expected, f"the gradient of a weight after {before}")
        product = small_integers("cpu", 9, 5) @ small_integers("cpu", 5, 3)
        check.equal(hidden.detach().cpu().float(), product, f"the product after {before}")
        after = (source @ weight).detach().cpu()
        check.equal(after, product, f"the product outside the context, after {before}")


def _without_gradients(device, source, weight):
    with torch.no_grad():
        source @ weight


def _without_gradients_twice(device, source, weight):
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type)):
        source @ weight


def _disabled_inside(device, source, weight):
    with torch.autocast(device.type, enabled=False):
        source @ weight


def _left_by_an_error(device, source, weight):
    # PyTorch's cache serves one dtype: a nested context of another one would leave its own casts to the outer context.
    dtype = torch.get_autocast_dtype(device.type)
    with contextlib.suppress(KeyError), torch.no_grad(), torch.autocast(device.type, dtype=dtype):
        source @ weight
        raise KeyError("on purpose")


#: Uses of a weight inside a context, before the one that has to have a gradient.
_BEFORE = {
    "a product in no_grad()": _without_gradients,
    "a product in a nested context in no_grad()": _without_gradients_twice,
    "a product in a disabled context": _disabled_inside,
    "a nested context that an error left": _left_by_an_error,
}
