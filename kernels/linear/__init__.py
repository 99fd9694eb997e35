"""Linear layers whose weight is frozen, in few bits or cut over ranks, and the two small matrices that are trained.

What they mean, whatever computes:

- ``FrozenLinear``: y = x Wᵀ + b with the weight that comes back of what is stored. The weight gets no gradient and no
  optimizer's step; the input's gradient is dy W, with the same W. A bias is a parameter like any other.
- Stored in few bits (``Codec``), the weight is quantized in groups of consecutive elements by the accelerator's own
  kernels, and comes back as ``fp_dequantize`` or ``dequantize_fp32`` says. The last group is filled with zeros.
- Cut over ranks (``Shards``), each rank stores its part, and all gather the whole with every call, forward alone: in
  few bits if it is stored so. Every rank has to call.
- ``LoRALinear`` (Hu et al., 2021, arXiv:2106.09685): y = x Wᵀ + b + (alpha / rank) (x Aᵀ) Bᵀ. A (rank × inputs) begins
  as He et al. (2015) draw it with a = √5, as torch.nn.Linear's own weight does, and B (outputs × rank) with zeros, so
  that a fresh layer is its base. Everything but A and B is frozen. ``merge`` computes with W + (alpha / rank) B A
  instead, rounded to the dtype once; ``unmerge`` gives back the base, bit for bit.

Names and defaults are those of DeepSpeed's deepspeed.linear. Where its layers leave it open or lose something, this is
decided: sizes that groups or ranks do not divide are filled (there a rest is dropped, or does not fit); a checkpoint
with the whole weight loads into any of them; a bias is allowed beside A and B.
"""

from conformance.kernels.linear.layers import FrozenLinear, LoRALinear
from conformance.kernels.linear.storage import Codec, Shards, StoredAs

__all__ = ["Codec", "FrozenLinear", "LoRALinear", "Shards", "StoredAs"]
