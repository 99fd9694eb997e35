"""Autocast cases, operator by operator: those that PyTorch documents in one list for the CPU, for CUDA and for XPU.

https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference; a device of another type that claims autocast is
held to what these lists have in common. The CPU leaves more functions in 16 bits than all other devices do. These are
also held to those of AT_FORALL_FP32 of ATen/autocast_mode.h that vendors' own lists have, too: not to sums and norms.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from conformance.accelerators.capabilities import AUTOCAST, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.accelerator.test_autocast import SIXTEEN_BITS, autocast_to
from conformance.suites.operator_claims import claims
from conformance.suites.shared_bodies import HOST


def filled(*shape):
    """Return numbers of several sizes that are not symmetric and that every 16-bit dtype represents exactly."""
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * 37 % 23 - 9) / 8).view(shape)


#: Operators in the 16-bit dtype: a function of the inputs, and the inputs.
LOWER = {
    "mm": (torch.mm, (5, 7), (7, 3)),
    "matmul": (torch.matmul, (2, 5, 7), (7, 3)),
    "bmm": (torch.bmm, (2, 5, 7), (2, 7, 3)),
    "addmm": (torch.addmm, (5, 3), (5, 7), (7, 3)),
    "addbmm": (torch.addbmm, (5, 3), (2, 5, 7), (2, 7, 3)),
    "baddbmm": (torch.baddbmm, (2, 5, 3), (2, 5, 7), (2, 7, 3)),
    "linear": (F.linear, (5, 7), (3, 7), (3,)),
    "conv1d": (F.conv1d, (2, 3, 9), (4, 3, 3)),
    "conv2d": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 3)),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 3, 5), (3, 4, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 4, 4), (3, 4, 3, 3)),
    "conv_transpose3d": (F.conv_transpose3d, (1, 2, 3, 3, 3), (2, 3, 2, 2, 2)),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 4)),
}


#: Operators in float32: a function of 16-bit inputs. Labels stand inside the functions.
FULL = {
    "mse_loss": (F.mse_loss, (5, 7), (5, 7)),
    "l1_loss": (F.l1_loss, (5, 7), (5, 7)),
    "smooth_l1_loss": (F.smooth_l1_loss, (5, 7), (5, 7)),
    "huber_loss": (F.huber_loss, (5, 7), (5, 7)),
    "kl_div": (lambda x, y: F.kl_div(x, y.abs() + 0.5, reduction="sum"), (5, 7), (5, 7)),
    "nll_loss": (lambda x: F.nll_loss(x, labels(x)), (5, 7)),
    "cosine_embedding_loss": (lambda x, y: F.cosine_embedding_loss(x, y, signs(x)), (5, 7), (5, 7)),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, signs(x).view(-1, 1)), (5, 7)),
    "poisson_nll_loss": (F.poisson_nll_loss, (5, 7), (5, 7)),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, signs(x)), (5,), (5,)),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, signs(x).view(-1, 1).expand_as(x)), (5, 7)),
    "triplet_margin_loss": (F.triplet_margin_loss, (5, 7), (5, 7), (5, 7)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, labels(x)), (5, 7)),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, (5, 7), (5, 7)),
    "cdist": (lambda x, y: torch.cdist(x, y + 4), (5, 7), (3, 7)),
    "prod": (lambda x: torch.prod(x + 3), (7,)),
}
#: Other forms of the operators, and their nearest relatives, that stand in all of the lists as well.
LOWER_FORMS = {
    "matmul": {"@": (lambda x, y: x @ y, (2, 5, 7), (7, 3)), "of vectors": (torch.matmul, (7,), (7, 3))},
    "linear": {"without a bias": (F.linear, (5, 7), (3, 7)), "prelu": (F.prelu, (5, 7), (7,))},
    "conv1d": {"with a bias": (F.conv1d, (2, 3, 9), (4, 3, 3), (4,))},
    "conv2d": {"with a bias": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 3), (4,))},
}
FULL_FORMS = {
    "mse_loss": {"sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), (5, 7), (5, 7)),
                 "none": (lambda x, y: F.mse_loss(x, y, reduction="none"), (5, 7), (5, 7))},
    "l1_loss": {"none": (lambda x, y: F.l1_loss(x, y, reduction="none"), (5, 7), (5, 7))},
    "smooth_l1_loss": {"none": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), (5, 7), (5, 7))},
    "nll_loss": {"none": (lambda x: F.nll_loss(x, labels(x), reduction="none"), (5, 7)),
                 "of images": (lambda x: F.nll_loss(x, labels(x).view(-1, 1, 1).repeat(1, 2, 3)), (5, 7, 2, 3))},
    "multi_margin_loss": {"multilabel": (lambda x: F.multilabel_margin_loss(x, marks(x)), (5, 7))},
    "binary_cross_entropy_with_logits": {
        "none": (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"), (5, 7), (5, 7))},
    "prod": {"of a dimension": (lambda x: torch.prod(x[:, :5] + 3, 1), (5, 7))},
}  # fmt: skip
#: Forms of the list for devices other than the CPU, by the operator whose case has them. Each begins with the name of
#: an operator in PyTorch's database that the device has to claim.
FULL_OF_DEVICES = {
    "nll_loss": {
        "softmax": (lambda x: x.softmax(-1), (5, 7)),
        "softmax of a vector": (lambda x: F.softmax(x, 0), (7,)),
        "log_softmax": (lambda x: x.log_softmax(0), (5, 7)),
        "nn.functional.softmin": (lambda x: F.softmin(x, -1), (5, 7)),
    },
    "cdist": {
        "dist": (torch.dist, (5, 7), (5, 7)),
        "renorm": (lambda x: torch.renorm(x, 2, 0, 1.5), (5, 7)),
        "nn.functional.cosine_similarity": (F.cosine_similarity, (5, 7), (5, 7)),
        "nn.functional.pdist": (F.pdist, (5, 7)),
    },
    "kl_div": {
        "exp": (torch.exp, (5, 7)),
        "expm1": (torch.expm1, (5, 7)),
        "log": (lambda x: torch.log(x.abs() + 0.5), (5, 7)),
        "log1p": (lambda x: torch.log1p(x.abs() + 0.5), (5, 7)),
        "log2": (lambda x: torch.log2(x.abs() + 0.5), (5, 7)),
        "log10": (lambda x: torch.log10(x.abs() + 0.5), (5, 7)),
        "nn.functional.softplus": (F.softplus, (5, 7)),
    },
    "mse_loss": {
        "pow with a number": (lambda x: (x.abs() + 0.5) ** 2.5, (5, 7)),
        "pow of a number": (lambda x: 2**x, (5, 7)),
        "pow with a tensor": (lambda x, y: torch.pow(x.abs() + 0.5, y), (5, 7), (5, 7)),
        "reciprocal": (lambda x: torch.reciprocal(x.abs() + 0.5), (5, 7)),
        "reciprocal as a quotient": (lambda x: 1 / (x.abs() + 0.5), (5, 7)),
        "rsqrt": (lambda x: torch.rsqrt(x.abs() + 0.5), (5, 7)),
    },
    "cosine_embedding_loss": {
        "acos": (lambda x: torch.acos(x / 2), (5, 7)),
        "asin": (lambda x: torch.asin(x / 2), (5, 7)),
        "tan": (lambda x: torch.tan(x / 2), (5, 7)),
        "cosh": (torch.cosh, (5, 7)),
        "sinh": (torch.sinh, (5, 7)),
        "erfinv": (lambda x: torch.erfinv(x / 2), (5, 7)),
    },
}
#: Operators of no list: they keep the dtype that their inputs have.
UNLISTED = {
    "relu": (torch.relu, (5, 7)),
    "add": (torch.add, (5, 7), (5, 7)),
    "maximum": (torch.maximum, (5, 7), (5, 7)),
    "transpose": (lambda x: x.t().contiguous(), (5, 7)),
}


def labels(x):
    """Return a class of each row."""
    return (torch.arange(len(x)) * 3 % x.shape[-1]).to(x.device)


def marks(x):
    """Return two classes of each row, and the end of its list."""
    return torch.tensor([[3, 0, -1] + [0] * (x.shape[-1] - 3)] * len(x)).to(x.device)


def signs(x):
    """Return plus and minus one in turn, for each row, in the dtype of ``x``."""
    return (1 - 2 * (torch.arange(len(x)) % 2)).to(x.device, x.dtype)


def check_dtype(check, result, wanted, what):
    check.equal(result.dtype, wanted, f"the dtype of {what}")


@case("runtime.autocast", requires=[AUTOCAST, DTYPE], axes={"operator": tuple(LOWER), "dtype": SIXTEEN_BITS})
def test_lower(accelerator, check, device, operator, dtype):
    """Inside autocast, an operator of the lower list takes float32 inputs and computes in the 16-bit dtype."""
    for form, (call, *shapes) in {operator: LOWER[operator], **LOWER_FORMS.get(operator, {})}.items():
        given = [filled(*shape) for shape in shapes]

        with autocast_to(accelerator, device, dtype):
            result = call(*(tensor.to(device) for tensor in given))

        check_dtype(check, result, getattr(torch, dtype), form)
        near(check, form, result, call(*(tensor.double() for tensor in given)), Near.FORWARD)


@case("runtime.autocast.full", requires=[AUTOCAST, DTYPE], axes={"operator": tuple(FULL), "dtype": SIXTEEN_BITS})
def test_full(accelerator, declaration, check, device, operator, dtype):
    """Inside autocast, an operator of the float32 list takes 16-bit inputs and computes in float32."""
    kind = getattr(torch, dtype)
    more = {} if device.type == HOST.type else FULL_OF_DEVICES.get(operator, {})
    claimed = {form: given for form, given in more.items() if claims(declaration, form.partition(" ")[0])}
    for form, (call, *shapes) in {operator: FULL[operator], **FULL_FORMS.get(operator, {}), **claimed}.items():
        given = [filled(*shape).roll(number).to(kind) for number, shape in enumerate(shapes)]

        with autocast_to(accelerator, device, dtype):
            result = call(*(tensor.to(device) for tensor in given))

        check_dtype(check, result, torch.float32, form)
        near(check, form, result, call(*(tensor.double() for tensor in given)), Near.FORWARD)


@case("runtime.autocast.unlisted", requires=[AUTOCAST, DTYPE],
      axes={"operator": tuple(UNLISTED), "dtype": SIXTEEN_BITS})  # fmt: skip
def test_unlisted(accelerator, check, device, operator, dtype):
    """Inside autocast, an operator of no list keeps the dtype of its inputs, float32 or 16 bits."""
    call, *shapes = UNLISTED[operator]
    for kind in (torch.float32, getattr(torch, dtype)):
        given = [filled(*shape).roll(number).to(kind) for number, shape in enumerate(shapes)]
        with autocast_to(accelerator, device, dtype):
            result = call(*(tensor.to(device) for tensor in given))
        check_dtype(check, result, kind, f"{operator} of {kind}")
        near(check, operator, result, call(*(tensor.double() for tensor in given)), Near.SUMS)


@case("runtime.autocast.in_place", requires=[AUTOCAST, DTYPE], axes={"way": ("out", "in-place"), "dtype": SIXTEEN_BITS})
def test_in_place(accelerator, check, device, way, dtype):
    """Products into a given float32 tensor are not cast, as PyTorch documents for out= and in-place forms."""
    base, left, right = filled(5, 3), filled(5, 7) + 2.0**-12, filled(7, 3)
    target = base.to(device, copy=True)

    with autocast_to(accelerator, device, dtype):
        if way == "out":
            torch.mm(left.to(device), right.to(device), out=target)
        else:
            target.addmm_(left.to(device), right.to(device))

    exact = left.double() @ right.double() + (0 if way == "out" else base.double())
    check_dtype(check, target, torch.float32, "the tensor")
    # The fraction of 2^-12 is lost in 16 bits, and shows in float32.
    near(check, "the product", target, exact, Near.FORWARD)
