"""The entry points that training engines ask builders for, as data.

docs/known-gaps.md lists those without a specification. A name leaves that list as soon as a file in specifications/
has it; nothing has to be deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_TYPED: Final = ("fp32", "fp16", "bf16")


def _typed(*names: str) -> tuple[str, ...]:
    """DeepSpeed's names end in the dtype."""
    return tuple(f"{name}_{dtype}" for name in names for dtype in _TYPED)


@dataclass(frozen=True)
class Asked:
    """What one builder is asked for, and why it is not specified while it is not."""

    builder: str
    names: tuple[str, ...]
    reason: str


_LATER: Final = "not written yet"
_ONE_VENDOR: Final = "the meaning is that of one vendor's implementation, which nobody has written down"

ASKED: Final = (
    Asked("FusedAdamBuilder", ("multi_tensor_adam",), _LATER),
    Asked("FusedLambBuilder", ("lamb",), _LATER),
    Asked("FusedLionBuilder", ("multi_tensor_lion",), _LATER),
    Asked("CPUAdamBuilder", ("create_adam", "adam_update", "adam_rollback", "destroy_adam"), _LATER),
    Asked("CPUAdagradBuilder", ("create_adagrad", "adagrad_update", "destroy_adagrad"), _LATER),
    Asked("CPULionBuilder", ("create_lion", "lion_update", "destroy_lion"), _LATER),
    Asked(
        "QuantizerBuilder",
        (
            *(f"ds_{kind}_{dtype}" for kind in ("quantize", "sr_quantize", "quantize_asym", "sr_quantize_asym")
              for dtype in ("fp16", "fp32")),
            "quantize", "dequantize", "dequantize_fp32",
            "dequantize_int4_to_half_experimental", "dequantize_int8_to_half_experimental",
            "swizzle_quant", "quantized_reduction", "loco_swizzle_quant", "loco_quantized_reduction",
        ),
        _LATER,
    ),
    Asked("FPQuantizerBuilder", ("quantize", "dequantize", "selective_dequantize", "get_scales"), _LATER),
    Asked(
        "InferenceBuilder",
        (
            *_typed("softmax", "softmax_context", "bias_gelu", "bias_add", "bias_relu", "bias_residual", "qkv_gemm",
                    "rms_qkv_gemm", "mlp_gemm", "rms_mlp_gemm", "vector_matmul", "linear_layer", "fused_gemm_gelu",
                    "residual_add_bias", "einsum_sec_sm_ecm", "add_padding", "pad_transform", "allocate_workspace",
                    "dequantize"),
            "softmax_context_int8", "gated_activation", "layer_norm", "_layer_norm_residual",
            "layer_norm_residual_store_pre_ln_res", "rms_norm", "pre_rms_norm", "_vector_add", "apply_rotary_pos_emb",
            "moe_res_matmul", "reset_cache", "release_workspace", "retake_workspace",
        ),
        "softmax_context_int8 keeps its cache elsewhere, and no Python code calls it",
    ),
    Asked("InferenceBuilder", _typed("repeat_kv_cache"), _LATER),
    Asked("AsyncIOBuilder", ("aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"), _LATER),
    Asked("GDSBuilder", ("gds_handle",), "needs a vendor's direct path between storage and device memory"),
    Asked("PinMemoryBuilder", ("pin_handle",), _LATER),
    Asked("UtilsBuilder", ("cast_to_byte_tensor",), _LATER),
    Asked("PackbitsBuilder", ("packbits", "unpackbits"), _LATER),
    Asked("RandomLTDBuilder",
          ("token_sort_", "token_gather", "token_scatter_", "mask_gather_bert", "mask_gather_gpt"), _LATER),
    Asked("SpatialInferenceBuilder", ("nhwc_bias_add", "nhwc_bias_add_add", "nhwc_bias_add_bias_add"), _LATER),
    Asked("EvoformerAttnBuilder", ("attention", "attention_bwd"), _LATER),
    Asked("InferenceCoreBuilder",
          ("bias_activation", "layer_norm", "pre_layer_norm", "post_layer_norm", "blas_linear", "blas_4d_matmul",
           "gated_activation", "rms_norm", "rms_pre_norm", "wf6af16_linear"), _ONE_VENDOR),
    Asked("RaggedOpsBuilder",
          ("build_atoms", "flash_attn_by_atoms", "kv_rotary_embeddings", "kv_trained_rotary_embeddings",
           "linear_kv_copy", "ragged_embed", "gather_for_logits", "moe_gather", "moe_scatter", "top_k_gating"),
          _ONE_VENDOR),
    Asked("InferenceCutlassBuilder", ("mixed_gemm", "moe_gemm"), _ONE_VENDOR),
    Asked("TransformerBuilder",
          ("create_transformer_layer_fp32", "create_transformer_layer_fp16", "forward_fp32", "forward_fp16",
           "backward_fp32", "backward_fp16"), "a whole layer: workloads train one from PyTorch's operators"),
    Asked("DeepCompileBuilder", ("torch.ops.dc.*",), "operators of one compiler pass, not of an accelerator"),
)  # fmt: skip


def unspecified(specified: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Builder, names and reason of what is asked for and not among these pairs of builder and name."""
    there = set(specified)
    for asked in ASKED:
        missing = tuple(name for name in asked.names if (asked.builder, name) not in there)
        if missing:
            yield asked.builder, missing, asked.reason
