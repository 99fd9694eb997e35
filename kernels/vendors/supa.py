"""Biren: operators of ``torch.ops.deepspeed``, which importing torch_supa_ext.deepspeed registers.

DeepSpeed's builder for this device calls the same names. An operator gets each list of a list of lists as one argument.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from conformance.kernels.adapting import lists_flattened
from conformance.kernels.inference.workspace import follow
from conformance.kernels.quantization.byte_order import quantizer_operators
from conformance.kernels.specification import WORDS
from conformance.kernels.vendors import VendorLibrary, VendorOperator, find

_SPACE = "torch.ops.deepspeed"
_UNTYPED = (
    "layer_norm", "_layer_norm_residual", "layer_norm_residual_store_pre_ln_res", "rms_norm", "pre_rms_norm",
    "_vector_add", "gated_activation", "moe_res_matmul", "apply_rotary_pos_emb",
)  # fmt: skip
#: Entry points with one name per dtype. The vendor registers each under that name, or one operator for all dtypes.
_TYPED = (
    "bias_add", "bias_gelu", "bias_relu", "bias_residual", "residual_add_bias", "einsum_sec_sm_ecm", "vector_matmul",
    "linear_layer", "qkv_gemm", "rms_qkv_gemm", "fused_gemm_gelu", "mlp_gemm", "rms_mlp_gemm", "softmax",
    "add_padding", "pad_transform",
)  # fmt: skip


def _workspace(name: str) -> Callable[..., Any]:
    """Return the operator that allocates, releases, retakes or resets the vendor's workspace.

    Raises NotImplementedError if it is not registered, neither with the suffix of the dtype nor without.
    """
    for path in (f"{_SPACE}.{name}", f"{_SPACE}.{name.rpartition('_')[0]}"):
        with suppress(NotImplementedError):
            return find(path)
    raise NotImplementedError(f"{_SPACE}.{name} is not registered")


_follow = partial(follow, _workspace)
#: dequantize_fp32 is left out: the operator of that name belongs to the quantizer.
_INFERENCE = {
    **{name: VendorOperator(f"{_SPACE}.{name}") for name in _UNTYPED},
    **{
        f"{name}_{word}": VendorOperator(f"{_SPACE}.{name}_{word}", or_path=f"{_SPACE}.{name}")
        for name in _TYPED
        for word in WORDS.values()
    },
    **{
        f"softmax_context_{word}": VendorOperator(
            f"{_SPACE}.softmax_context_{word}", _follow, or_path=f"{_SPACE}.softmax_context"
        )
        for word in WORDS.values()
    },
}

LIBRARY = VendorLibrary(
    device_type="supa",
    package="torch_supa_ext.deepspeed",
    builders={
        "FusedAdamBuilder": {
            "multi_tensor_adam": VendorOperator("torch.ops.deepspeed.multi_tensor_adam", lists_flattened)
        },
        "FusedLionBuilder": {
            "multi_tensor_lion": VendorOperator("torch.ops.deepspeed.multi_tensor_lion", lists_flattened)
        },
        "FusedLambBuilder": {"lamb": VendorOperator("torch.ops.deepspeed.lamb")},
        "InferenceBuilder": _INFERENCE,
        "QuantizerBuilder": quantizer_operators(_SPACE),
    },
)
