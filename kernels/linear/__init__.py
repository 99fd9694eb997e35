"""Linear layers with a frozen weight, quantized or sharded over ranks, and LoRA's two trained matrices beside it.

The meaning is the same for every implementation:

- ``FrozenLinear``: y = x Wᵀ + b, with W decoded from the stored weight. The weight gets no gradient and no optimizer
  step. The input's gradient is dy W, with the same W. A bias is a parameter like any other.
- Quantized (``Codec``): the accelerator's own kernels quantize the weight in groups of consecutive elements. It is
  decoded as ``fp_dequantize`` or ``dequantize_fp32`` specifies. The last group is padded with zeros.
- Sharded (``Shards``): each rank stores its part. In each forward call all ranks gather the whole weight, quantized if
  it is stored so. Every rank has to make the call.
- ``LoRALinear`` (Hu et al., 2021, arXiv:2106.09685): y = x Wᵀ + b + (alpha / rank) (x Aᵀ) Bᵀ. A (rank × inputs) is
  initialized as in He et al. (2015) with a = √5, as torch.nn.Linear's own weight is. B (outputs × rank) starts with
  zeros, so a new layer computes the same as its base. Everything but A and B is frozen. ``merge`` computes with
  W + (alpha / rank) B A instead, rounded to the dtype once. ``unmerge`` restores the base, bit for bit.

Names and defaults are those of DeepSpeed's deepspeed.linear. These points differ, because its layers leave them open or
lose data:

- Sizes that groups or ranks do not divide are padded. There the rest is dropped, or does not fit.
- A checkpoint with the whole weight loads into any of these layers.
- A bias is allowed beside A and B.
"""

from conformance.kernels.linear.layers import FrozenLinear, LoRALinear
from conformance.kernels.linear.storage import Codec, Shards, StoredAs

__all__ = ["Codec", "FrozenLinear", "LoRALinear", "Shards", "StoredAs"]
