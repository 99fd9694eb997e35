"""Entry points that training engines load from operator builders, as data.

docs/areas.md lists the entry points without a specification. A name leaves that list as soon as a file in
kernels/specifications/ has it; nothing has to be deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_TYPED: Final = ("fp32", "fp16", "bf16")


def _typed(*names: str) -> tuple[str, ...]:
    """Return each name with every dtype suffix, in DeepSpeed's spelling."""
    return tuple(f"{name}_{dtype}" for name in names for dtype in _TYPED)


@dataclass(frozen=True)
class UpstreamEntryPoints:
    """Entry points of one builder, and the reason shown for those that have no specification."""

    builder: str
    names: tuple[str, ...]
    reason: str


_LATER: Final = "not written yet"
_ONE_VENDOR: Final = "only one vendor's implementation defines the meaning; there is no written definition"

UPSTREAM: Final = (
    UpstreamEntryPoints("FusedAdamBuilder", ("multi_tensor_adam",), _LATER),
    UpstreamEntryPoints("FusedLambBuilder", ("lamb",), _LATER),
    UpstreamEntryPoints("FusedLionBuilder", ("multi_tensor_lion",), _LATER),
    UpstreamEntryPoints("CPUAdamBuilder", ("create_adam", "adam_update", "adam_rollback", "destroy_adam"), _LATER),
    UpstreamEntryPoints("CPUAdagradBuilder", ("create_adagrad", "adagrad_update", "destroy_adagrad"), _LATER),
    UpstreamEntryPoints("CPULionBuilder", ("create_lion", "lion_update", "destroy_lion"), _LATER),
    UpstreamEntryPoints(
        "QuantizerBuilder",
        (
            *(
                f"ds_{kind}_{dtype}"
                for kind in ("quantize", "sr_quantize", "quantize_asym", "sr_quantize_asym")
                for dtype in ("fp16", "fp32")
            ),
            "quantize",
            "dequantize",
            "dequantize_fp32",
            "dequantize_int4_to_half_experimental",
            "dequantize_int8_to_half_experimental",
            "swizzle_quant",
            "quantized_reduction",
            "loco_swizzle_quant",
            "loco_quantized_reduction",
        ),
        _LATER,
    ),
    UpstreamEntryPoints("FPQuantizerBuilder", ("quantize", "dequantize", "selective_dequantize", "get_scales"), _LATER),
    UpstreamEntryPoints(
        "InferenceBuilder",
        (
            *_typed(
                "softmax",
                "softmax_context",
                "bias_gelu",
                "bias_add",
                "bias_relu",
                "bias_residual",
                "qkv_gemm",
                "rms_qkv_gemm",
                "mlp_gemm",
                "rms_mlp_gemm",
                "vector_matmul",
                "linear_layer",
                "fused_gemm_gelu",
                "residual_add_bias",
                "einsum_sec_sm_ecm",
                "add_padding",
                "pad_transform",
                "allocate_workspace",
                "dequantize",
            ),
            "softmax_context_int8",
            "gated_activation",
            "layer_norm",
            "_layer_norm_residual",
            "layer_norm_residual_store_pre_ln_res",
            "rms_norm",
            "pre_rms_norm",
            "_vector_add",
            "apply_rotary_pos_emb",
            "moe_res_matmul",
            "reset_cache",
            "release_workspace",
            "retake_workspace",
        ),
        "softmax_context_int8 keeps its cache elsewhere; no Python code calls it",
    ),
    UpstreamEntryPoints("InferenceBuilder", _typed("repeat_kv_cache"), _LATER),
    UpstreamEntryPoints("AsyncIOBuilder", ("aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"), _LATER),
    UpstreamEntryPoints(
        "GDSBuilder", ("gds_handle",), "needs a vendor's direct path between storage and device memory"
    ),
    UpstreamEntryPoints("PinMemoryBuilder", ("pin_handle",), _LATER),
    UpstreamEntryPoints("UtilsBuilder", ("cast_to_byte_tensor",), _LATER),
    UpstreamEntryPoints("PackbitsBuilder", ("packbits", "unpackbits"), _LATER),
    UpstreamEntryPoints(
        "RandomLTDBuilder",
        ("token_sort_", "token_gather", "token_scatter_", "mask_gather_bert", "mask_gather_gpt"),
        _LATER,
    ),
    UpstreamEntryPoints(
        "SpatialInferenceBuilder", ("nhwc_bias_add", "nhwc_bias_add_add", "nhwc_bias_add_bias_add"), _LATER
    ),
    UpstreamEntryPoints("EvoformerAttnBuilder", ("attention", "attention_bwd"), _LATER),
    UpstreamEntryPoints(
        "InferenceCoreBuilder",
        (
            "bias_activation",
            "layer_norm",
            "pre_layer_norm",
            "post_layer_norm",
            "blas_linear",
            "blas_4d_matmul",
            "gated_activation",
            "rms_norm",
            "rms_pre_norm",
            "wf6af16_linear",
        ),
        _ONE_VENDOR,
    ),
    UpstreamEntryPoints(
        "RaggedOpsBuilder",
        (
            "build_atoms",
            "flash_attn_by_atoms",
            "kv_rotary_embeddings",
            "kv_trained_rotary_embeddings",
            "linear_kv_copy",
            "ragged_embed",
            "gather_for_logits",
            "moe_gather",
            "moe_scatter",
            "top_k_gating",
        ),
        _ONE_VENDOR,
    ),
    UpstreamEntryPoints("InferenceCutlassBuilder", ("mixed_gemm", "moe_gemm"), _ONE_VENDOR),
    UpstreamEntryPoints(
        "TransformerBuilder",
        (
            "create_transformer_layer_fp32",
            "create_transformer_layer_fp16",
            "forward_fp32",
            "forward_fp16",
            "backward_fp32",
            "backward_fp16",
        ),
        "a whole layer; the workloads train one made of PyTorch's operators",
    ),
    UpstreamEntryPoints(
        "DeepCompileBuilder", ("torch.ops.dc.*",), "operators of one compiler pass, not of an accelerator"
    ),
)


def unspecified(specified: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield builder, names and reason of all entry points that are not in the ``specified`` (builder, name) pairs."""
    known = set(specified)
    for entry_points in UPSTREAM:
        builder = entry_points.builder
        missing = tuple(name for name in entry_points.names if (builder, name) not in known)
        if missing:
            yield builder, missing, entry_points.reason
