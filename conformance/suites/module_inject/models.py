"""Two small models, and injected layers that run them by kernels, with the workspace as their cache."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from conformance.kernels.inference.workspace import WORKSPACE
from conformance.suites.parameters import spread_constants
from conformance.suites.workloads.models.blocks import Attention
from conformance.suites.workloads.models.gpt import GPT, GPTShape

#: Suffixes of kernel names.
WORDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
#: DeepSpeed's number for an activation that is gated by SiLU.
SILU_GATE = 4


def gpt():
    """Return a small GPT with LayerNorm, learned positions, GELU and attention with a cache."""
    return GPT(GPTShape(vocabulary=37, context=16, width=32, heads=4, layers=2)).eval()


class LlamaLayer(nn.Module):
    """Transformer layer as in Llama (Touvron et al., 2023).

    It has RMSNorm, rotary positions in halves, four query heads on two key heads, and a SiLU gate.
    """

    heads, pairs, width, hidden, middle = 4, 2, 8, 32, 44

    def __init__(self):
        super().__init__()
        self.norm_attention, self.norm_network = nn.RMSNorm(self.hidden, eps=1e-5), nn.RMSNorm(self.hidden, eps=1e-5)
        self.qkv = nn.Linear(self.hidden, (self.heads + 2 * self.pairs) * self.width, bias=False)
        self.out = nn.Linear(self.hidden, self.hidden, bias=False)
        self.up_and_gate = nn.Linear(self.hidden, 2 * self.middle, bias=False)
        self.down = nn.Linear(self.middle, self.hidden, bias=False)
        spread_constants(self)

    def forward(self, x):
        q, k, v = self.projected(x)
        cos, sin = self.angles(x.shape[1], x)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        return self.behind(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))

    def projected(self, x):
        """Return queries, keys and values, (batch, heads, tokens, width), before the rotation."""
        heads = self.qkv(self.norm_attention(x)).unflatten(-1, (-1, self.width)).transpose(1, 2)
        return heads.split([self.heads, self.pairs, self.pairs], dim=1)

    def angles(self, tokens, like):
        """Return cosines and sines of the first positions, (tokens, width / 2), with device and dtype of ``like``."""
        half = self.width // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * rates
        return angles.cos().to(like.device, like.dtype), angles.sin().to(like.device, like.dtype)

    def behind(self, x, mixed):
        """Return the layer's output, given its input and the output of attention, (batch, heads, tokens, width)."""
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        up, gate = self.up_and_gate(self.norm_network(x)).chunk(2, dim=-1)
        return x + self.down(up * F.silu(gate))


def rotated(x, cos, sin):
    """Return ``x`` with rotary positions applied: channel i of the first half pairs with channel i of the second."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Llama(nn.Sequential):
    """Model of two Llama layers."""

    def __init__(self):
        super().__init__(LlamaLayer(), LlamaLayer())


class InjectedAttention(nn.Module):
    """Attention of GPT by three kernels. They keep the cache; a given ``cache`` only says that a sequence continues."""

    def __init__(self, original, injector, layer, layers):
        super().__init__()
        self.qkv, self.out, self.heads = original.qkv, original.out, original.heads
        self.layer, self.layers = layer, layers
        self.product, self.attend = injector.kernel("vector_matmul"), injector.kernel("softmax_context")
        self.linear = injector.kernel("linear_layer")

    def forward(self, x, cache=None):
        nothing = x.new_zeros(1)
        together = self.product(x, self.qkv.weight, False, nothing, False, True)
        width = self.out.weight.shape[0] // self.heads
        mixed, keys, values = self.attend(
            together, nothing, 0, False, False, self.heads, 0, width**-0.25, True, False, 1, True,
            self.layer, self.layers, nothing, 10000.0, cache is None, None, None,
        )  # fmt: skip
        out = self.linear(mixed, self.out.weight, self.out.bias, True, False, self.heads, True, 10000.0)
        return out, (keys, values)


class InjectedLlamaLayer(nn.Module):
    """Llama layer by five kernels. ``over_ranks`` sums a partial result over ranks where the layer is sharded."""

    PRODUCTS = ("qkv", "out", "up_and_gate", "down")
    int8 = False

    def __init__(self, original, injector, layer, layers, over_ranks=None):
        super().__init__()
        self.original, self.layer, self.layers = original, layer, layers
        self.over_ranks = over_ranks or (lambda part: part)
        names = ("rms_qkv_gemm", "softmax_context", "vector_matmul", "rms_mlp_gemm", "vector_add")
        self.qkv, self.attend, self.product, self.network, self.add = map(injector.kernel, names)

    def stored(self, name):
        """Return the weight of a product, and its scales, which only ``int8`` weights have."""
        weight = getattr(self.original, name).weight
        return weight, weight.new_zeros(1)

    def forward(self, x, mask=None, places=None, begins=None):
        """Return the layer's output, (batch, tokens, hidden).

        Several tokens begin a sequence, unless ``begins`` is given. ``mask`` is added to the scores, and ``places`` are
        the positions of the tokens.
        """
        own, nothing, int8 = self.original, x.new_zeros(1), self.int8
        norms = own.norm_attention, own.norm_network
        (qkv, q_scale), (out, o_scale), (up, u_scale), (down, d_scale) = map(self.stored, self.PRODUCTS)
        x = x.contiguous()
        together, _ = self.qkv(x, qkv, q_scale, norms[0].weight, norms[0].eps, int8, True)
        mixed, _, _ = self.attend(
            together, nothing if mask is None else mask, own.width, True, False, own.heads, own.pairs,
            own.width**-0.25, True, False, 1, mask is None, self.layer, self.layers, nothing, 10000.0,
            x.shape[1] > 1 if begins is None else begins, None, places,
        )  # fmt: skip
        attended = self.over_ranks(self.product(mixed, out, False, o_scale, int8, True))
        network, total = self.network(
            attended, x.clone(), up, down, norms[1].weight, norms[1].eps, u_scale, d_scale, int8, SILU_GATE, True
        )
        return self.add(self.over_ranks(network), total, 1.0)


def rules(layers=2):
    """Return the injection rules. Layers are numbered in the order in which they are replaced."""
    count = itertools.count()
    return {
        Attention: lambda original, injector: InjectedAttention(original, injector, next(count), layers),
        LlamaLayer: lambda original, injector: InjectedLlamaLayer(original, injector, next(count), layers),
    }


def allocate(injector, dtype, batch, tokens, ranks=1):
    """Allocate a workspace that fits either model. The arguments are in DeepSpeed's order."""
    injector.companion("softmax_context", f"allocate_workspace_{WORDS[dtype]}")(
        32, 4, tokens, batch, 2, ranks, False, 0, tokens, 1
    )


def release(injector):
    if WORKSPACE.size is not None:
        injector.companion("softmax_context", "release_workspace")()


def exact_and_model(make, dtype):
    """Return the model in float64 and in ``dtype``, with the same weights, which ``dtype`` represents exactly."""
    model = make().to(getattr(torch, dtype))
    exact = make()
    exact.load_state_dict(model.state_dict())
    return exact.double(), model
