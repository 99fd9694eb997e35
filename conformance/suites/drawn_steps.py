"""Steps of drawn programs, as text: exact ones for compilers and calls, ones for calls alone, and rounded ones."""

from __future__ import annotations

from typing import Final, NamedTuple

#: What stands for letters in the text of a step.
DRAWN: Final = (("{n}", ("1", "2", "3")), ("{q}", ("0", "1", "2")), ("{t}", ("True", "False")))


class Step(NamedTuple):
    """Kinds of the first operand, the operator that has to be claimed, and the text of the call.

    Kinds are f(loating), i(nteger) and b(ool). In the text, x is the first operand, y another one of its dtype, w one
    of any dtype, m a mask, v a vector of indices, z an input whose signs of zeros are defined, s a scalar, d a
    dimension, n, q and t a number from 1, a number from 0 and a truth, and o the result.
    """

    kinds: str
    operator: str
    text: str


#: Beginning of steps that write to a copy.
_COPY: Final = "{o} = {x}.clone(); {o}"
EXACT: Final = (
    *(Step("fi", name, f"torch.{name}({{x}})") for name in ("neg", "abs", "square")),
    *(Step("f", name, f"torch.{name}({{x}})") for name in ("floor", "ceil", "round", "trunc", "isnan", "isfinite")),
    *(Step("fi", name, f"torch.{name}({{x}}, {{y}})") for name in ("maximum", "minimum")),
    *(Step("f", name, f"torch.{name}({{x}}, {{y}})") for name in ("fmax", "fmin")),
    *(
        Step(kinds, name, f"{{x}} {sign} {{{operand}}}")
        for kinds, name, sign in (
            ("fi", "add", "+"), ("fi", "sub", "-"), ("fi", "mul", "*"), ("fi", "lt", "<"), ("fi", "ge", ">="),
            ("fi", "eq", "=="), ("fi", "ne", "!="),
        )
        for operand in "ys"
    ),
    *(Step("ib", name, f"{{x}} {sign} {{y}}") for name, sign in (
        ("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^"),
    )),
    *(Step("fi", name, f"{{x}} {sign} {{w}}") for name, sign in (("add", "+"), ("mul", "*"), ("lt", "<"))),
    Step("fi", "maximum", "torch.maximum({x}, {w})"),
    Step("fi", "mul", "{x} * {y} + {x} * {s}"),
    Step("fi", "__rsub__", "{s} - {x}"),
    Step("f", "copysign", "torch.copysign({x}, {z})"),
    Step("f", "copysign", "torch.copysign({x}, -0.0)"),
    Step("fi", "clamp", "torch.clamp({x}, {s}, {s})"),
    Step("f", "clamp_min", "torch.clamp_min({x}, {s})"),
    Step("fi", "true_divide", "{x} / 4"),
    Step("i", "floor_divide", "{x} // -3"),
    Step("i", "floor_divide", "{x} // 4"),
    Step("fi", "remainder", "{x} % 3"),
    Step("fi", "fmod", "torch.fmod({x}, -2)"),
    Step("i", "bitwise_right_shift", "{x} >> 1"),
    Step("ib", "bitwise_not", "~{x}"),
    Step("fi", "nn.functional.relu", "F.relu({x})"),
    Step("fib", "where", "torch.where({m}, {x}, {y})"),
    Step("fi", "where", "torch.where({m}, {x}, {s})"),
    Step("fi", "masked_fill", "{x}.masked_fill({m}, {s})"),
    *(Step("fi", name, f"{{x}}.{name}({{d}})") for name in ("sum", "amax", "amin", "argmax", "argmin", "cumsum")),
    *(Step("fi", name, f"{{x}}.{name}({{d}}, keepdim=True)") for name in ("sum", "amax", "argmax")),
    *(Step("fi", name, f"{{x}}.{name}()") for name in ("sum", "amax", "argmax", "argmin")),
    Step("fi", "max.reduction_with_dim", "{x}.max({d}).indices"),
    Step("fi", "sort", "torch.sort({x}, stable=True, dim={d}).indices"),
    *(Step("fib", name, f"{{x}}.{name}({{d}})") for name in ("any", "all")),
    Step("b", "sum", "{x}.sum({d})"),
    Step("fi", "nn.functional.pad.constant", "F.pad({x}, (2, 1), value={s})"),
    Step("fi", "nn.functional.pad.constant", "F.pad({x}, (0, -1, 1, 2), value={s})"),
    Step("f", "nn.functional.pad.replicate", "F.pad({x}, (1, 2), mode='replicate')"),
    Step("f", "nn.functional.pad.circular", "F.pad({x}, (1, 0), mode='circular')"),
    Step("fib", "cat", "torch.cat(({x}, {y}), {d})"),
    Step("fib", "stack", "torch.stack(({x}, {y}), {d})"),
    Step("fib", "flip", "{x}.flip({d})"),
    Step("fib", "roll", "{x}.roll(-2, {d})"),
    Step("fib", "roll", "{x}.roll(1)"),
    Step("fib", "transpose", "{x}.transpose({d}, {d})"),
    Step("fib", "movedim", "{x}.movedim(0, -1)"),
    Step("fib", "unsqueeze", "{x}.unsqueeze({d})"),
    Step("fib", "squeeze", "{x}.squeeze()"),
    Step("fib", "flatten", "{x}.flatten()"),
    Step("fib", "expand", "{x}.expand(3, *{x}.shape)"),
    Step("fib", "repeat_interleave", "{x}.repeat_interleave(2, {d})"),
    Step("fib", "unfold", "{x}.unfold({d}, 2, 1)"),
    *(Step("fib", "__getitem__", f"{{x}}[{at}]") for at in ("1:", "..., ::2", "..., -1", "None, ..., :3", "{v}")),
    Step("fib", "tril", "{x}.tril()"),
    Step("fib", "triu", "{x}.triu(1)"),
    Step("fib", "diagonal", "{x}.diagonal()"),
    Step("fi", "add", _COPY + "[..., 1:] += {s}"),
    Step("fi", "fill", _COPY + "[{v}] = {s}"),
    Step("fib", "clone", _COPY + "[..., 0] = {o}[..., -1]"),
    Step("fi", "mul", _COPY + ".mul_({y})"),
    Step("fi", "masked_fill", _COPY + ".transpose(0, -1).masked_fill_({m}, {s})"),
    Step("fi", "matmul", "{x} @ {x}.transpose(-1, -2)"),
    Step("fi", "matmul", "{x} @ {y}"),
    Step("fi", "topk", "torch.topk({x}, 2, {d}).values"),
    Step("i", "prod", "{x}.prod({d})"),
    Step("fib", "nn.functional.embedding", "F.embedding({v}, {x})"),
    Step("f", "nn.functional.max_pool1d", "F.max_pool1d({x}, 3, 2, 1)"),
    Step("f", "nn.functional.max_pool2d", "F.max_pool2d({x}, 2, 1, ceil_mode=True)"),
    Step("f", "nn.functional.avg_pool1d", "F.avg_pool1d({x}, 2, 2, 1)"),
    Step("f", "nn.functional.adaptive_max_pool1d", "F.adaptive_max_pool1d({x}, 3)"),
    Step("f", "nn.functional.interpolate.nearest", "F.interpolate({x}, scale_factor=2)"),
    Step("f", "nn.functional.interpolate.nearest", "F.interpolate({x}, size=5)"),
    Step("f", "nn.functional.leaky_relu", "F.leaky_relu({x}, 0.5)"),
    Step("f", "nn.functional.hardtanh", "F.hardtanh({x}, -1.5, 2.0)"),
    Step("i", "nn.functional.one_hot", "F.one_hot({v}, 4)"),
    Step("fi", "scatter", "{x}.scatter(0, torch.zeros_like({x}, dtype=torch.int64), {s})"),
    Step("fi", "take_along_dim", "torch.take_along_dim({x}, {x}.argsort(stable=True, dim={d}), {d})"),
    Step("fi", "bucketize", "torch.bucketize({x}.contiguous(), torch.arange(-3, 4, device={x}.device).to({x}.dtype))"),
    Step("fi", "add", "torch.arange({x}.shape[-1], device={x}.device) + {x}"),
    Step("fi", "full_like", "torch.full_like({x}, {s}) - {x}"),
    Step("fib", "tile", "{x}.tile((2, 1))"),
    Step("fib", "chunk", "{x}.chunk(2, {d})[-1]"),
    Step("fib", "split", "{x}.split(3, {d})[0]"),
    Step("fib", "rot90", "{x}.rot90(1, (0, -1))"),
    Step("fi", "index_select", "{x}.index_select({d}, {v})"),
    Step("fi", "index_add", "{x}.index_add(0, {v}, {x}[{v}])"),
    *(Step("fib", "to", f"{{x}}.to(torch.{name})") for name in ("float32", "int64", "int32", "int8", "uint8")),
    *(Step("f", "to", f"{{x}}.to(torch.{name})") for name in ("bfloat16", "float16")),
    Step("i", "to", "{x}.to(torch.int16)"),
)  # fmt: skip


#: Steps that a compiler has no kernel for: sizes that depend on numbers, writes through views and into given results.
BY_CALLS: Final = (
    *(Step("fib", "__getitem__", f"{{x}}[{at}]") for at in ("{m}", "{v}, ..., -1", "..., {v}", "::2, ..., None")),
    Step("fib", "masked_select", "torch.masked_select({x}, {m})"),
    Step("fib", "nonzero", "{x}.nonzero()"),
    Step("fi", "unique", "torch.unique({x})"),
    Step("fi", "sort", "{x}.sort({d}, descending=True).values"),
    Step("fi", "sort", "torch.sort({x}, stable=True, descending=True, dim={d}).indices"),
    Step("fi", "kthvalue", "{x}.kthvalue(2, {d}).values"),
    Step("fi", "median", "{x}.median({d}).values"),
    Step("fi", "cummax", "{x}.cummax({d}).values"),
    Step("fi", "cummin", "{x}.cummin({d}).values"),
    Step("fi", "aminmax", "{x}.aminmax(dim={d}).max"),
    Step("fi", "count_nonzero", "{x}.count_nonzero({d})"),
    Step("fi", "isin", "torch.isin({x}, {y})"),
    Step("fi", "searchsorted", "torch.searchsorted({x}.flatten().sort().values, {x}.contiguous())"),
    Step("fi", "gt", "{x} > {y}"),
    Step("fi", "le", "{x} <= {y}"),
    Step("f", "nansum", "{x}.nansum({d})"),
    Step("fi", "logical_and", "torch.logical_and({x}, {y})"),
    Step("fi", "diff", "{x}.diff(dim={d})"),
    Step("fi", "sign", "{x}.sign()"),
    Step("fi", "logical_not", "torch.logical_not({x})"),
    Step("fib", "logical_xor", "torch.logical_xor({x}, {w})"),
    Step("i", "gcd", "torch.gcd({x}, {y})"),
    Step("i", "bitwise_left_shift", "{x} << 1"),
    Step("fi", "outer", "torch.outer({x}.flatten()[:9], {y}.flatten()[-7:])"),
    Step("fi", "einsum", "torch.einsum('...i,...i->...', {x}, {x})"),
    Step("f", "nn.functional.linear", "F.linear({x}, {y})"),
    Step("f", "nn.functional.pad.reflect", "F.pad({x}, (1, 1), mode='reflect')"),
    Step("fib", "reshape", "{x}.reshape(-1, 2)"),
    Step("fib", "reshape", "{x}.reshape(2, -1)"),
    Step("fib", "contiguous", "{x}.contiguous()"),
    Step("fib", "contiguous", "{x}[None, None].contiguous(memory_format=torch.channels_last)"),
    Step("fib", "to", "{x}.to(memory_format=torch.channels_last)"),
    Step("fib", "narrow", "{x}.narrow({d}, 1, 2)"),
    Step("fib", "select", "{x}.select({d}, -1)"),
    Step("fib", "broadcast_to", "{x}.broadcast_to((2, *{x}.shape))"),
    Step("fib", "repeat", "{x}.repeat(2, *[1] * {x}.dim())"),
    Step("fib", "as_strided", "{x}.contiguous().as_strided((2, 3), (1, 2), 1)"),
    Step("fib", "cat", "torch.cat(({x}, {y}[:0], {x}.flip(-1)), {d})"),
    Step("fib", "index_fill", "{x}.index_fill({d}, {v}, 1)"),
    Step("fib", "index_select", "{x}.transpose(0, -1).index_select(-1, {v})"),
    *(
        Step("fi", operator, f"{{o}} = {{x}}.contiguous().clone(); {{o}}{view}.{written}")
        for view in (".view(-1)[::2]", ".transpose(0, -1)[1:]", "[..., 1:]", ".diagonal()", "[None, ..., -1]")
        for operator, written in (
            ("mul", "mul_({s})"), ("add", "add_(1)"), ("fill", "fill_({s})"), ("cumsum", "cumsum_(0)"),
            ("neg", "neg_()"), ("fill", "zero_()"), ("clamp", "clamp_(0, 1)"),
        )
    ),
    Step("fib", "clone", _COPY + "[..., 1:] = {o}[..., :-1].clone()"),
    Step("fib", "clone", _COPY + ".copy_({y})"),
    Step("fib", "clone", _COPY + ".select({d}, 0).copy_({o}.select({d}, -1).clone())"),
    Step("fib", "clone", _COPY + ".transpose(0, -1).copy_({y})"),
    Step("fib", "clone", _COPY + "[{m}] = 1"),
    Step("fib", "clone", _COPY + "[{v}] = {y}[{v}]"),
    Step("fib", "flip", _COPY + ".transpose_(0, -1); {o} = {o}.flip(0)"),
    Step("fi", "mul", _COPY + ".unsqueeze_(0).mul_({s})"),
    Step("fi", "index_put", _COPY + ".index_put_(({v},), {x}[{v}], accumulate=True)"),
    Step("fi", "index_add", _COPY + ".transpose(0, -1).index_add_(-1, {v}, {x}.transpose(0, -1)[..., {v}])"),
    Step("fib", "index_copy", _COPY + ".index_copy_(0, {v}, {x}[{v}])"),
    Step("fi", "scatter_add", _COPY + ".scatter_add_(0, torch.zeros_like({x}, dtype=torch.int64), {x})"),
    Step("fi", "scatter_reduce.amax", "{x}.scatter_reduce({d}, torch.zeros_like({x}, dtype=torch.int64), {x}, 'amax')"),
    Step("fib", "masked_scatter", _COPY + ".masked_scatter_({m}, {x}.flip(0))"),
    Step("fi", "sub", "{o} = torch.empty_like({x}).transpose(0, -1); torch.sub({x}.transpose(0, -1), 1, out={o})"),
    Step("fi", "maximum", _COPY + "[..., 1:]; torch.maximum({x}[..., :-1], {o}, out={o})"),
    Step("fi", "where", "{o} = torch.empty_like({x}); torch.where({x} == {x}, {x}, {x}.flip(0), out={o})"),
    Step("fib", "cat", "{o} = torch.empty_like(torch.cat(({x}, {x}))); torch.cat(({x}, {x}.flip(0)), out={o})"),
)  # fmt: skip

_CHANNELS: Final = "{x}.shape[1]"


def _weight(rows: str, columns: str, places: str) -> str:
    """Return the text of small numbers as a weight of a convolution."""
    count = f"{rows} * {columns} * math.prod(({places},))"
    numbers = f"((torch.arange({count}, device={{x}}.device) % 5 - 2) / 2).to({{x}}.dtype)"
    return f"{numbers}.view({rows}, {columns}, {places})"


#: Functions whose results are rounded: nothing else reads them, and they are judged by an error bound. Their operands
#: are small and finite.
ROUNDED: Final = (
    *(
        Step("f", name, f"torch.{name}({{x}})")
        for name in (
            "exp", "expm1", "exp2", "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "atan", "asinh", "sinc", "deg2rad",
        )
    ),
    *(
        Step("f", f"nn.functional.{name}", f"F.{name}({{x}})")
        for name in (
            "gelu", "silu", "softplus", "elu", "selu", "celu", "mish", "logsigmoid", "softsign", "tanhshrink",
            "hardswish",
        )
    ),
    *(Step("f", name, f"torch.{name}({{x}}.abs() + 1)") for name in ("log", "log2", "log10", "sqrt", "rsqrt", "log1p")),
    Step("f", "nn.functional.gelu", "F.gelu({x}, approximate='tanh')"),
    Step("f", "reciprocal", "({x}.abs() + 1).reciprocal()"),
    Step("f", "true_divide", "{x} / ({y}.abs() + 1)"),
    Step("f", "pow", "({x}.abs() + 1) ** 1.5"),
    Step("f", "float_power", "torch.float_power({x}.abs() + 1, 0.3)"),
    *(Step("f", name, f"{{x}}.{name}({{d}})") for name in ("softmax", "log_softmax", "mean", "logsumexp")),
    Step("f", "mean", "{x}.mean()"),
    Step("f", "softmax.with_dtype", "torch.softmax({x}, {d}, dtype=torch.float32)"),
    Step("f", "linalg.vector_norm", "torch.linalg.vector_norm({x}, dim={d})"),
    Step("f", "linalg.vector_norm", "torch.linalg.vector_norm({x})"),
    Step("f", "nn.functional.normalize", "F.normalize({x}, dim={d})"),
    Step("f", "nn.functional.layer_norm", "F.layer_norm({x}, {x}.shape[-1:])"),
    Step("f", "nn.functional.rms_norm", "F.rms_norm({x}, {x}.shape[-1:], eps=0.1)"),
    Step("f", "lerp", "torch.lerp({x}, {y}, 0.3)"),
    Step("f", "addcmul", "torch.addcmul({x}, {y}, {x}, value=0.3)"),
    Step("f", "addcdiv", "torch.addcdiv({x}, {y}, {x}.abs() + 1, value=0.3)"),
    Step("f", "hypot", "torch.hypot({x}, {y})"),
    Step("f", "logaddexp", "torch.logaddexp({x}, {y})"),
    Step("f", "xlogy", "torch.xlogy({x}, {y}.abs() + 1)"),
    Step("f", "nn.functional.mse_loss", "F.mse_loss({x}, {x}.flip(0))"),
    Step("f", "nn.functional.smooth_l1_loss", "F.smooth_l1_loss({x}, {x}.flip(-1), reduction='none', beta=0.3)"),
)  # fmt: skip
#: The same for layers and products, most of them of images or of sequences.
LAYERS: Final = (
    Step("f", "nn.functional.glu", "F.glu(torch.cat(({x}, {x}.flip(-1)), -1))"),
    Step("f", "nn.functional.avg_pool1d", "F.avg_pool1d({x}, 3, 2, 1)"),
    Step("f", "nn.functional.avg_pool2d", "F.avg_pool2d({x}, 2, 1, 1, count_include_pad=False)"),
    Step("f", "nn.functional.adaptive_avg_pool1d", "F.adaptive_avg_pool1d({x}, 3)"),
    Step("f", "nn.functional.adaptive_avg_pool2d", "F.adaptive_avg_pool2d({x}, (2, 3))"),
    Step("f", "nn.functional.interpolate.linear", "F.interpolate({x}[None], scale_factor=2, mode='linear')"),
    Step("f", "nn.functional.interpolate.bilinear", "F.interpolate({x}[None, None], size=(3, 5), mode='bilinear')"),
    Step("f", "nn.functional.interpolate.bicubic", "F.interpolate({x}[None, None], size=(5, 3), mode='bicubic')"),
    Step(
        "f", "nn.functional.grid_sample",
        "F.grid_sample({x}, {x}.new_full(({x}.shape[0], 2, 3, 2), 0.3), align_corners={t})",
    ),
    *(
        Step("f", f"nn.functional.conv{dims}d", f"F.conv{dims}d({{x}}, {weight}, None, {{n}}, {{q}}, {{n}})")
        for dims, weight in (
            (1, _weight("4", _CHANNELS, "3")), (2, _weight("4", _CHANNELS, "3, 2")),
            (2, _weight("3", _CHANNELS, "1, 1")), (3, _weight("2", _CHANNELS, "2, 1, 2")),
        )
    ),
    *(
        Step("f", f"nn.functional.conv{dims}d", f"F.conv{dims}d({{x}}, {weight}, None, {{n}}, {{q}}, 1, {_CHANNELS})")
        for dims, weight in ((1, _weight(_CHANNELS, "1", "3")), (2, _weight(_CHANNELS, "1", "2, 3")))
    ),
    *(
        Step("f", f"nn.functional.conv_transpose{dims}d", f"F.conv_transpose{dims}d({{x}}, {weight}, None, {{n}}, 1)")
        for dims, weight in ((1, _weight(_CHANNELS, "3", "3")), (2, _weight(_CHANNELS, "3", "3, 2")))
    ),
    *(
        Step("f", "nn.functional.scaled_dot_product_attention", f"F.scaled_dot_product_attention({given})")
        for given in ("{x}, {x}, {x}, is_causal={t}", "{x}, {y}, {y}, scale=0.3")
    ),
    Step("f", "nn.functional.group_norm", "F.group_norm({x}, 1)"),
    Step("f", "nn.functional.instance_norm", "F.instance_norm({x})"),
    Step("f", "nn.functional.batch_norm", "F.batch_norm({x}, None, None, training=True)"),
    Step("f", "nn.functional.layer_norm", "F.layer_norm({x}, {x}.shape[1:], {x}[0].exp2().clamp(0, 4), {x}[0])"),
    Step("f", "nn.functional.linear", "F.linear({x}, {x}, {x}.sum(-1) / 3)"),
    Step("f", "addmm", "torch.addmm({x}[:1, :1], {x}, {x}.transpose(0, 1), beta=0.3, alpha=1.5)"),
    Step("f", "baddbmm", "torch.baddbmm({x}[:, :1, :1], {x}, {x}.transpose(1, 2), beta=0.3)"),
    Step("f", "addmv", "torch.addmv({y}.flatten()[:1], {x}, {x}[0], alpha=0.3)"),
    Step("f", "cumprod", "{x}.clamp(-1.5, 1.5).cumprod({d})"),
    Step("f", "logcumsumexp", "{x}.logcumsumexp({d})"),
    Step("f", "std", "({x} + {x}.flip({d})).std({d}, correction=0)"),
    Step("f", "var_mean", "torch.var_mean({x}, {d}, correction=0, keepdim={t})[0]"),
    Step("f", "nn.functional.cross_entropy", "F.cross_entropy({x}, {x}.argmax(1), label_smoothing=0.3)"),
    Step("f", "nn.functional.nll_loss", "F.nll_loss({x} / 3, {x}.argmin(1))"),
    Step("f", "nn.functional.soft_margin_loss", "F.soft_margin_loss({x}, {x}.sign())"),
    Step("f", "nn.functional.huber_loss", "F.huber_loss({x}, {y}.expand_as({x}), delta=0.7)"),
    Step("f", "nn.functional.cosine_similarity", "F.cosine_similarity({x} + 9, {y} + 9, dim={d})"),
    Step("f", "nn.functional.embedding_bag", "F.embedding_bag({v}, {x}, {v}[:1] * 0, mode='mean')"),
    Step("f", "nn.functional.pixel_shuffle", "F.pixel_shuffle({x}.repeat(1, 4, 1, 1) / 3, 2)"),
    Step("f", "nn.functional.unfold", "F.unfold({x} / 3, (2, 2), dilation={n}, padding={q})"),
    Step("f", "nn.functional.max_pool2d", "F.max_pool2d({x} / 3, (2, 3), {n}, 1, {n}, ceil_mode={t})"),
    Step("f", "nn.functional.local_response_norm", "F.local_response_norm({x}, 3)"),
    Step("f", "cdist", "torch.cdist({x}, {x}.flip(-2) + 1, p=1.0)"),
    Step("f", "atan2", "torch.atan2({x} + 0.3, {y} + 0.3)"),
    Step("f", "trapezoid", "torch.trapezoid({x} / 3, dim={d})"),
    Step("f", "renorm", "torch.renorm({x}, 2, 0, 1.3)"),
    Step("f", "frac", "({x} / 3).frac()"),
    Step("f", "quantile", "({x} / 3).quantile(0.3, {d})"),
    Step("f", "nan_to_num", "({x} / 3).nan_to_num()"),
    Step("f", "scatter_reduce.mean", "{x}.scatter_reduce(0, torch.zeros_like({x}, dtype=torch.int64), {x}, 'mean')"),
)  # fmt: skip
#: Operators that steps call beside the one that they name.
BESIDE: Final = frozenset(
    ("abs", "cat", "clone", "contiguous", "empty_like", "flatten", "flip", "sort", "squeeze", "transpose", "zeros_like")
)
#: Operators whose results most often are views, so that the next call reads a layout that a call has made.
VIEWS: Final = (
    "transpose", "movedim", "unsqueeze", "squeeze", "expand", "unfold", "__getitem__", "diagonal", "chunk", "split",
    "narrow", "select", "broadcast_to", "as_strided", "contiguous", "flatten",
)  # fmt: skip
OF_ROUNDED: Final = frozenset((*ROUNDED, *LAYERS))
