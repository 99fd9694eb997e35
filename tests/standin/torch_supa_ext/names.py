"""Which operators the vendor's package registers, as data: what computes, and what only raises.

The counts are the vendor's: 23 operators that compute, 66 and a namespace of 13 that raise NotImplementedError. All
names that DeepSpeed's builders for this device ask for are the vendor's, too. Of the other stubs only the families
are known; their names here are those of DeepSpeed's CUDA kernels without the dtype suffix.
"""

from __future__ import annotations

#: Schemas of the operators that compute, as ``torch.library`` takes them.
SCHEMAS = (
    (
        "multi_tensor_adam(int chunk_size, Tensor noop_flag, Tensor[] grads, Tensor(a!)[] params, "
        "Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, float lr, float beta1, float beta2, float epsilon, int step, "
        "int mode, int bias_correction, float weight_decay) -> ()"
    ),
    (
        "multi_tensor_lion(int chunk_size, Tensor noop_flag, Tensor[] grads, Tensor(a!)[] params, "
        "Tensor(b!)[] exp_avgs, float lr, float beta1, float beta2, int step, float weight_decay) -> ()"
    ),
    "layer_norm(Tensor input, Tensor gamma, Tensor beta, float epsilon) -> Tensor",
    (
        "_layer_norm_residual(Tensor input, Tensor bias, Tensor residual, Tensor gamma, Tensor beta, float epsilon) "
        "-> Tensor"
    ),
    (
        "layer_norm_residual_store_pre_ln_res(Tensor input, Tensor bias, Tensor residual, Tensor gamma, Tensor beta, "
        "float epsilon) -> Tensor[]"
    ),
    "nhwc_bias_add(Tensor activation, Tensor bias) -> Tensor",
    "nhwc_bias_add_add(Tensor activation, Tensor bias, Tensor other) -> Tensor",
    "nhwc_bias_add_bias_add(Tensor activation, Tensor bias, Tensor other, Tensor other_bias) -> Tensor",
    "ds_quantize(Tensor(a!) vals, int groups, int num_bits) -> Tensor(a!)",
    "ds_quantize_asym(Tensor(a!) vals, int groups, int num_bits) -> Tensor(a!)",
    "quantize(Tensor vals, int groups, int num_bits, int quant_type) -> Tensor[]",
    "dequantize(Tensor data, Tensor params, int groups, int num_bits, int quant_type) -> Tensor",
    "dequantize_fp32(Tensor data, Tensor params, int groups, int num_bits, int quant_type) -> Tensor",
    (
        "dequantize_int4_to_half_experimental(Tensor data, Tensor scale, Tensor minimum, int num_group, "
        "int group_size) -> Tensor"
    ),
    (
        "dequantize_int8_to_half_experimental(Tensor data, Tensor scale, Tensor minimum, int num_group, "
        "int group_size) -> Tensor"
    ),
    "bias_gelu(Tensor(a!) input, Tensor bias) -> Tensor(a!)",
    "bias_add(Tensor(a!) input, Tensor bias) -> Tensor(a!)",
    "bias_relu(Tensor(a!) input, Tensor bias) -> Tensor(a!)",
    "bias_residual(Tensor(a!) input, Tensor residual, Tensor bias) -> Tensor(a!)",
    "gated_activation(Tensor activation, Tensor bias, int func) -> Tensor",
    "_vector_add(Tensor(a!) a, Tensor b, float gamma) -> Tensor(a!)",
    "moe_res_matmul(Tensor residual, Tensor coef, Tensor(a!) output) -> Tensor(a!)",
    (
        "residual_add_bias(Tensor hidden_state, Tensor(a!) residual, Tensor attention_output, Tensor attention_bias, "
        "Tensor final_bias, int mp_size, bool mlp_after_attn, bool add_bias, bool pre_layer_norm) -> Tensor(a!)"
    ),
)

IMPLEMENTED = tuple(schema.partition("(")[0] for schema in SCHEMAS)

#: Registered names that raise, by family.
STUB_FAMILIES = {
    "optimizer": ("lamb",),
    "inference": (
        "softmax",
        "softmax_context",
        "softmax_context_int8",
        "qkv_gemm",
        "rms_qkv_gemm",
        "mlp_gemm",
        "rms_mlp_gemm",
        "vector_matmul",
        "linear_layer",
        "fused_gemm_gelu",
        "rms_norm",
        "pre_rms_norm",
        "apply_rotary_pos_emb",
        "einsum_sec_sm_ecm",
        "add_padding",
        "pad_transform",
        "allocate_workspace",
        "release_workspace",
        "retake_workspace",
        "reset_cache",
    ),
    "quantization": (
        "ds_sr_quantize",
        "ds_sr_quantize_asym",
        "swizzle_quant",
        "quantized_reduction",
        "loco_swizzle_quant",
        "loco_quantized_reduction",
    ),
    "floating-point quantization": ("fp_quantize", "fp_dequantize", "fp_selective_dequantize", "fp_get_scales"),
    "token dropping": ("token_sort_", "token_gather", "token_scatter_", "mask_gather_bert", "mask_gather_gpt"),
    "attention": ("attention", "attention_bwd"),
    "inference core": (
        "bias_activation",
        "pre_layer_norm",
        "post_layer_norm",
        "blas_linear",
        "blas_4d_matmul",
        "rms_pre_norm",
        "wf6af16_linear",
    ),
    "ragged": (
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
    "cutlass": ("mixed_gemm", "moe_gemm"),
    "transformer": ("create_transformer_layer", "transformer_forward", "transformer_backward", "sdd_segment_blocks"),
    "communication": ("inference_all_reduce",),
    "bits": ("packbits", "unpackbits", "cast_to_byte_tensor", "test_call"),
}

STUBS = tuple(name for names in STUB_FAMILIES.values() for name in names)

#: The stubs of the namespace ``torch.ops.dc``: DeepCompile's operators.
COMPILE_STUBS = (
    "allgather_param",
    "prefetch_params_fused",
    "wait_allgather",
    "release_param",
    "reduce_grad",
    "free_tensors",
    "offload_tensor",
    "reload_tensor",
    "wait_offload",
    "wait_reload",
    "offload_parameter",
    "reload_parameter",
    "end_backward",
)
