"""Kernels of transformer inference that compute something else, and injection that hides who computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nn

from conformance.base.errors import UsageError
from conformance.kernels import injection
from conformance.kernels.inference.workspace import WORKSPACE, Workspace
from conformance.kernels.kernel import Kernel
from conformance.kernels.specification import Arguments
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import replaced

from .kernels import FAMILY, Broken, around, with_numbers

UPSTREAM = "DeepSpeed csrc/transformer/inference"
BINDING = "DeepSpeed op_binding: portable fallbacks"


def always(value: Any) -> Callable[[Arguments], Any]:
    """That number, whatever was given."""
    return lambda given: value


def spoiled(name: str, precedent: str, case: str, broken: Broken, entry: str = "") -> Mutant:
    """The kernel of ``case`` (its id after ``ops.``) is broken in float32, or in all dtypes if it has one name."""
    kernel = case.partition("[")[0].partition(".")[0]
    typed = kernel in _ONE_NAME or bool(entry)
    return _mutant(
        name, precedent, f"ops.{case}", kernel, around(entry or (kernel if typed else f"{kernel}_fp32"), broken)
    )


_ONE_NAME = ("layer_norm", "layer_norm_residual_store_pre_ln_res", "rms_norm", "pre_rms_norm", "gated_activation",
             "moe_res_matmul", "apply_rotary_pos_emb")  # fmt: skip


def _mutant(
    name: str, precedent: str, caught: str, kernel: str, context: Callable[[], AbstractContextManager[Any]]
) -> Mutant:
    touch = (f"ops.{kernel}[*", f"ops.{kernel}.*")
    what = Fault(name, FAMILY, precedent, Where.KERNEL, caught, context=context)
    return Mutant(what, (*touch, "module_inject.*"), touch)


def injected(name: str, precedent: str, caught: str, context: Callable[[], AbstractContextManager[Any]]) -> Mutant:
    what = Fault(name, FAMILY, precedent, Where.KERNEL, f"module_inject.{caught}", context=context)
    return Mutant(what, ("module_inject.*",), ("module_inject.*",))


# --- norms and what is done element by element ------------------------------------------------------------------------


def _one_pass(call: Any, given: Arguments) -> Tensor:
    """The variance as a difference of two large numbers."""
    x = given["input"].float()
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    normal = (x - mean) * torch.rsqrt(variance.clamp(min=0) + given["epsilon"])
    return (normal * given["gamma"].float() + given["beta"].float()).to(given["input"].dtype)


def _unbiased(call: Any, given: Arguments) -> Tensor:
    x = given["input"].float()
    variance = x.var(-1, keepdim=True, correction=1).nan_to_num()
    normal = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + given["epsilon"])
    return (normal * given["gamma"].float() + given["beta"].float()).to(given["input"].dtype)


def _dropped(*names: str) -> Broken:
    """Called with zeros instead."""
    return lambda call, given: call({**given, **{name: torch.zeros_like(given[name]) for name in names}})


def _sum_of_the_norm(call: Any, given: Arguments) -> Any:
    """The norm comes back where the sum should."""
    normal, _ = call(given)
    return [normal, normal.clone()]


def _erf(call: Any, given: Arguments) -> Tensor:
    return given["input"].copy_(nn.gelu(given["input"] + given["bias"]))


def _overflowing_gelu(call: Any, given: Arguments) -> Tensor:
    """The cube is in the tensors' dtype."""
    x = given["input"] + given["bias"]
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x).float()
    return given["input"].copy_(0.5 * x.float() * (1 + torch.tanh(inner)))


def _untouched(call: Any, given: Arguments) -> Tensor:
    return given["input"]


def _elsewhere(argument: str) -> Broken:
    """The result is right, and the argument keeps what it had."""
    return lambda call, given: call({**given, argument: given[argument].clone()})


def _turned_coefficients(given: Arguments) -> Tensor:
    return given["coef"].flip(-1)


def _gate_first(given: Arguments) -> Tensor:
    return torch.cat(given["activation"].chunk(2, dim=-1)[::-1], dim=-1)


_AROUND = (
    spoiled("a LayerNorm in one pass", "cancellation in E[x²] - E[x]²", "layer_norm[float32-inference-offset]",
            _one_pass),
    spoiled("a LayerNorm with Bessel's correction", "torch.var's default", "layer_norm[float32-inference-odd]",
            _unbiased),
    spoiled("an RMSNorm without epsilon", UPSTREAM, "rms_norm[float32-inference-still]",
            with_numbers(epsilon=always(0.0))),
    spoiled("a residual that is dropped before the norm", UPSTREAM, "pre_rms_norm[float32-inference-odd]",
            _dropped("residual")),
    spoiled("a bias that is dropped before the norm", UPSTREAM, "layer_norm_residual[float32-inference-odd]",
            _dropped("bias"), "_layer_norm_residual"),
    spoiled("a norm that is returned as the residual", UPSTREAM,
            "layer_norm_residual_store_pre_ln_res[float32-inference-odd]", _sum_of_the_norm),
    spoiled("the erf form of GELU where tanh is meant", BINDING, "bias_gelu[float32-inference-odd]", _erf),
    spoiled("a GELU whose cube overflows", "float16 arithmetic inside", "bias_gelu[float16-inference-tails]",
            _overflowing_gelu, "bias_gelu_fp16"),
    spoiled("a residual sum that is not launched", "DeepSpeed ds_bias_residual: the launch is commented out",
            "bias_residual[float32-inference-odd]", _untouched),
    spoiled("a bias added to a copy", UPSTREAM, "bias_add[float32-inference-odd]", _elsewhere("input")),
    spoiled("a bias that every rank adds", UPSTREAM, "residual_add_bias[float32-inference-norm-first]",
            with_numbers(mp_size=always(1))),
    spoiled("an attention bias that is added unasked", UPSTREAM,
            "residual_add_bias[float32-inference-side-by-side-unbiased]", with_numbers(add_bias=always(True))),
    spoiled("a gate on the other half", UPSTREAM, "gated_activation[float32-inference-gelu]",
            with_numbers(activation=_gate_first)),
    spoiled("coefficients of experts in the other order", UPSTREAM, "moe_res_matmul[float32-inference-odd]",
            with_numbers(coef=_turned_coefficients)),
    spoiled("a scaled sum that scales the other", UPSTREAM, "vector_add[float32-inference-odd]",
            lambda call, given: given["a"].add_(given["b"], alpha=given["gamma"]), "_vector_add"),
    spoiled("a ReLU before the bias", UPSTREAM, "bias_relu[float32-inference-odd]",
            lambda call, given: given["input"].relu_().add_(given["bias"])),
)  # fmt: skip


# --- products ---------------------------------------------------------------------------------------------------------


def _biased_twice(call: Any, given: Arguments) -> Any:
    found = call(given)
    return found + given["bias"] if given["add_bias"] and not given["do_flash_attn"] else found


def _scale_by_column(call: Any, given: Arguments) -> Tensor:
    """Groups are taken from the columns."""
    weight, groups = given["weight"].float(), given["qscale"].numel()
    each = -(-weight.shape[1] // groups)
    return weight * given["qscale"].reshape(-1).repeat_interleave(each)[: weight.shape[1]]


def _first_scale(given: Arguments) -> Tensor:
    return given["q_scale"].reshape(-1)[:1].expand_as(given["q_scale"]).contiguous()


def _unnormalised(call: Any, given: Arguments) -> Any:
    """The input comes back where its norm should."""
    return [call(given)[0], given["input"].clone()]


def _tokens_first(call: Any, given: Arguments) -> Any:
    found = call(given)
    return found.transpose(2, 3).reshape(found.shape) if given["do_flash_attn"] else found


def _other_gate(given: Arguments) -> int:
    return 3 if given["activation_type"] == 4 else int(given["activation_type"])


_PRODUCTS = (
    spoiled("a bias added twice", UPSTREAM, "linear_layer[float32-inference-plain]", _biased_twice),
    spoiled("heads and tokens mixed up for flash attention", UPSTREAM, "linear_layer[float32-inference-padded-32]",
            _tokens_first),
    spoiled("one scale for all groups of int8 rows", "DeepSpeed 9bf77782b: grouped weights",
            "vector_matmul[float32-inference-int8-grouped]", with_numbers(q_scale=_first_scale)),
    spoiled("a weight that is never transposed", UPSTREAM, "vector_matmul[float32-inference-transposed]",
            lambda call, given: given["input"] @ given["weight"].reshape(given["weight"].shape[::-1])
            if given["transposed_mode"] else call(given)),
    spoiled("the input is returned for its norm", UPSTREAM, "qkv_gemm[float32-inference-plain]", _unnormalised),
    spoiled("the input is returned for its RMS norm", UPSTREAM, "rms_qkv_gemm[float32-inference-plain]", _unnormalised),
    spoiled("an MLP that knows GELU alone", BINDING, "mlp_gemm[float32-inference-relu]",
            with_numbers(activation_type=always(1))),
    spoiled("an MLP that drops the residual", UPSTREAM, "mlp_gemm[float32-inference-plain]", _dropped("residual")),
    spoiled("a residual that is not updated", UPSTREAM, "rms_mlp_gemm[float32-inference-plain]",
            _elsewhere("residual")),
    spoiled("a gate by the wrong activation", BINDING, "rms_mlp_gemm[float32-inference-silu-gate]",
            with_numbers(activation_type=_other_gate)),
    spoiled("a fused product without its bias", UPSTREAM, "fused_gemm_gelu[float32-inference-plain]", _dropped("bias")),
    spoiled("experts that share their places", UPSTREAM, "einsum_sec_sm_ecm[float32-inference-odd]",
            lambda call, given: torch.einsum("sec,sm->cem", given["Q"], given["W"]).reshape(3, 5, -1)),
    spoiled("scales by column", "DeepSpeed 0baf79ead", "inference_dequantize_fp32[float32-inference-thirds]",
            _scale_by_column, "dequantize_fp32"),
)  # fmt: skip


# --- attention --------------------------------------------------------------------------------------------------------


def _one_ahead(call: Any, given: Arguments) -> Any:
    """The mask leaves one later key visible."""
    if not given["triangular"]:
        return call(given)
    queries, keys = given["attn_scores"].shape[-2:]
    later = torch.ones(queries, keys, device=given["attn_scores"].device).triu(keys - queries + 2).bool()
    given["attn_scores"].masked_fill_(later, -torch.inf)
    return call({**given, "triangular": False})


def _nan_where_all_is_hidden(call: Any, given: Arguments) -> Any:
    found = call(given)
    return found.masked_fill_((found == 0).all(-1, keepdim=True), math.nan)


def _without_slopes(given: Arguments) -> Tensor:
    return given["alibi"].reshape(-1)[:1]


def _repeated_as_often_as_there_are(call: Any, given: Arguments) -> Any:
    """``num_kv`` is taken for how often each key head is repeated."""
    heads, pairs = given["heads"], given["num_kv"]
    if pairs <= 1:
        return call(given)
    together = given["query_key_value"]
    each = together.unflatten(-1, (heads + 2 * pairs, -1))
    whose = torch.tensor([head // pairs % pairs for head in range(heads)], device=together.device)
    parts = [each[:, :, :heads], each[:, :, heads + whose], each[:, :, heads + pairs + whose]]
    return call({**given, "query_key_value": torch.cat(parts, dim=2).flatten(2), "num_kv": heads})


def one_place_early(call: Any, given: Arguments) -> Any:
    """A single token overwrites the one before."""
    if given["query_key_value"].shape[1] == 1 and not given["is_prompt"] and WORKSPACE.seen:
        WORKSPACE.seen -= 1
    return call(given)


def _short_window(given: Arguments) -> int:
    alone = given["query_key_value"].shape[1] == 1
    return max(1, given["window_size"] - 1) if alone else int(given["window_size"])


def _swapped_sizes(old: Any) -> Any:
    def allocate(self: Workspace, name: str, size: Any, arguments: Any) -> None:
        old(self, name, type(size)(size.dtype, size.heads, size.width, size.layers, size.batch, size.tokens), arguments)

    return allocate


def _turned_already(call: Any, given: Arguments) -> Any:
    """The second channel of a pair is made of the first one, turned already; in float32 and for pairs alone."""
    if given["rotate_half"] or given["mixed_query"].dtype is not torch.float32:
        return call(given)
    before = {name: given[name].clone() for name in ("mixed_query", "key_layer")}
    found = call(given)
    width, turned = given["mixed_query"].shape[2] // given["num_heads"], given["rotary_dim"]
    places = torch.arange(given["mixed_query"].shape[1], device=given["mixed_query"].device) + given["offset"]
    rates = given["rope_theta"] ** -(torch.arange(0, turned, 2, device=places.device) / turned)
    angles = (places[:, None] * rates)[:, None]
    for name, old in before.items():
        new, was = (one.unflatten(-1, (-1, width)) for one in (given[name], old))
        new[..., 1:turned:2] = new[..., 0:turned:2] * angles.sin() + was[..., 1:turned:2] * angles.cos()
    return found


def _other_order(name: str) -> Broken:
    return with_numbers(**{name: lambda given: not given[name]})


def _in_front(call: Any, given: Arguments) -> Any:
    """Zeros come first."""
    return [
        one.flip(-1) for one in call({**given, **{name: given[name].flip(-1) for name in ("query", "key", "value")}})
    ]


def _unsquared(given: Arguments) -> float:
    return math.sqrt(given["norm_factor"])


def _unturned(given: Arguments) -> bool:
    return False


_CONTEXT = "softmax_context"
_ATTENTION = (
    spoiled("a causal mask one too late", "off by one in decoding", "softmax[float32-inference-triangular]",
            _one_ahead),
    spoiled("a hidden row that is NaN", "0 / 0 in the softmax", "softmax[float32-inference-infinite-mask]",
            _nan_where_all_is_hidden),
    spoiled("float32 scores without slopes", "DeepSpeed softmax.cu: the float32 kernel drops ALiBi",
            "softmax[float32-inference-alibi]", with_numbers(alibi=_without_slopes)),
    spoiled("float32 scores without scale", "DeepSpeed softmax.cu: the float32 kernel drops layer_scale",
            "softmax[float32-inference-alibi]", with_numbers(layer_scale=always(1.0))),
    spoiled("scores without a window", BINDING, "softmax[float32-inference-window]",
            with_numbers(local_attention=always(False))),
    spoiled("the first rank's slopes for all", BINDING, "softmax[float32-inference-alibi-second-rank]",
            with_numbers(head_offset=always(0))),
    spoiled("the number of key heads taken for their repetitions", BINDING, f"{_CONTEXT}[float32-inference-grouped]",
            _repeated_as_often_as_there_are),
    spoiled("a cache one place early", "KV cache shifted", f"{_CONTEXT}.property[float32-inference-decoding]",
            one_place_early),
    spoiled("a window one short in decoding", "DeepSpeed softmax.cu: a single query stands behind the last key",
            f"{_CONTEXT}.property[float32-inference-decoding-window-padded]", with_numbers(window_size=_short_window)),
    spoiled("attention that never turns", UPSTREAM, f"{_CONTEXT}[float32-inference-halves]",
            with_numbers(rotate_half=_unturned)),
    spoiled("attention whose scale is not squared", "DeepSpeed before norm_factor was squared",
            f"{_CONTEXT}[float32-inference-plain]", with_numbers(norm_factor=_unsquared)),
    spoiled("attention without its mask", UPSTREAM, f"{_CONTEXT}[float32-inference-infinite-mask]",
            with_numbers(no_masking=always(True))),
    _mutant("a cache that is not reset", "DeepSpeed's NPU builder: reset_cache does nothing",
            f"ops.{_CONTEXT}.property[float32-inference-starts-anew]", _CONTEXT,
            replaced(Workspace, reset=lambda old: lambda self: None)),
    _mutant("layers and batch in the other order", "DeepSpeed op_builder/supa: num_layers and batch_size swapped",
            f"ops.{_CONTEXT}.property[*decoding*", _CONTEXT, replaced(Workspace, allocate=_swapped_sizes)),
    spoiled("pairs for halves", "rotary positions on the wrong half", "apply_rotary_pos_emb[float32-inference-halves]",
            _other_order("rotate_half")),
    spoiled("a rotation by what was turned already", "DeepSpeed transform.cu: rotate_every_two in float32",
            "apply_rotary_pos_emb[float32-inference-pairs]", _turned_already),
    spoiled("a rotation that begins at 0", UPSTREAM, "apply_rotary_pos_emb[float32-inference-halves-later]",
            with_numbers(offset=always(0))),
    spoiled("padding in front", UPSTREAM, "add_padding[float32-inference-24]", _in_front),
    spoiled("heads that are not split", UPSTREAM, "pad_transform[float32-inference-unpadded]",
            lambda call, given: [one.transpose(1, 2).reshape(one.shape) for one in call(given)]),
)  # fmt: skip


# --- a prompt's cache for several continuations -----------------------------------------------------------------------


def _in_turns(call: Any, given: Arguments) -> Any:
    """Places go round the sources, as torch.repeat has it."""
    found = call(given)
    sources, repeats = given["source_batch_size"], given["repeats"]
    order = [place % sources * repeats for place in range(sources * repeats)]
    for cache in found:
        cache.copy_(cache[order].clone())
    return found


def _first_layer_alone(call: Any, given: Arguments) -> Any:
    kept = {layer: [cache.clone() for cache in pair] for layer, pair in WORKSPACE.caches.items() if layer}
    found = call(given)
    for layer, pair in kept.items():
        for cache, old in zip(WORKSPACE.caches[layer], pair, strict=True):
            cache.copy_(old)
    return found


def _only_told(call: Any, given: Arguments) -> Any:
    """The answer is right, and the workspace as it was."""
    kept = {layer: [cache.clone() for cache in pair] for layer, pair in WORKSPACE.caches.items()}
    found = [cache.clone() for cache in call(given)]
    for layer, pair in kept.items():
        for cache, old in zip(WORKSPACE.caches[layer], pair, strict=True):
            cache.copy_(old)
    return found


def _wrong_numbers_do_nothing(old: Any) -> Any:
    def call(self: Kernel, *args: Any) -> Any:
        try:
            return old(self, *args)
        except UsageError:
            if self.specification.name != "repeat_kv_cache":
                raise
            return []

    return call


def _repeated(name: str, caught: str, context: Callable[[], AbstractContextManager[Any]]) -> Mutant:
    """What is done with a cache is seen by several calls alone."""
    touch = ("ops.repeat_kv_cache.*",)
    case = f"ops.repeat_kv_cache.property[*-inference-{caught}]"
    return Mutant(Fault(name, FAMILY, UPSTREAM, Where.KERNEL, case, context=context), touch, touch)


_NAME = "repeat_kv_cache_fp32"
_REPEATED = (
    _repeated("sequences that go round their sources", "goes-on", around(_NAME, _in_turns)),
    _repeated("a repeated cache of the first layer", "goes-on", around(_NAME, _first_layer_alone)),
    _repeated("a repeated cache that is a copy", "goes-on", around(_NAME, _only_told)),
    _repeated("a cache that is not repeated, without a word", "refuses",
              replaced(Kernel, __call__=_wrong_numbers_do_nothing)),
)  # fmt: skip


# --- injection --------------------------------------------------------------------------------------------------------


def _only_what_refuses(old: Any) -> Any:
    return lambda error: isinstance(error, NotImplementedError)


def _everything(old: Any) -> Any:
    return lambda error: True


def _loaded_or_not(old: Any) -> Any:
    """What load() raises is the caller's business."""

    def loaded(accelerator: Any, name: str) -> tuple[Any, str]:
        builder = accelerator.create_op_builder(name)
        return builder.load(), ""

    return loaded


def _last_alone(old: Any) -> Any:
    return lambda self: list(old(self))[:1]


def _unbiased_product(old: Any) -> Any:
    """The bias is forgotten."""
    return lambda self, source: old(self, source) if self.bias is None else source @ self.weight.t()


_INJECTION = (
    injected("a missing kernel that stops the model", "DeepSpeed op_builder/supa: shells",
             "fallback[shells]", replaced(injection, _says_absent=_only_what_refuses)),
    injected("a builder that stops the model", "DeepSpeed BaseOp.__init__: load() outside the try",
             "fallback[load-raises]", replaced(injection, _loaded=_loaded_or_not)),
    injected("arguments that nobody compared", "DeepSpeed op_builder/npu: three arguments less",
             "fallback[other-arguments]", replaced(injection, _differs=lambda old: lambda function, kernel: False)),
    injected("an error that is computed away", "a fallback for everything", "errors_are_told",
             replaced(injection, _says_absent=_everything)),
    injected("one answer for all dtypes", "reports by builder", "fallback_by_dtype",
             replaced(injection.InjectedKernel, told=_last_alone)),
    injected("a model that stays injected", "module injection", "restored",
             replaced(injection.Injection, restore=lambda old: lambda self: None)),
    injected("an injected layer without its bias", "module injection", "gpt[float32]",
             replaced(injection.InjectedLinear, forward=_unbiased_product)),
    injected("an RMSNorm with another epsilon", "module injection", "llama[float32]",
             replaced(injection.InjectedRMSNorm, __init__=lambda old: _with_epsilon(old))),
)  # fmt: skip


def _with_epsilon(old: Any) -> Any:
    def initialise(self: Any, original: Any, injector: Any) -> None:
        old(self, original, injector)
        self.epsilon = 1e-2

    return initialise


MUTANTS = (*_AROUND, *_PRODUCTS, *_ATTENTION, *_REPEATED, *_INJECTION)
