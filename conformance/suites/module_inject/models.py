"""Two small models, and what their layers become: kernels for whole layers, with the workspace as their cache."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from conformance.kernels.inference.workspace import WORKSPACE
from conformance.suites.workloads.models.blocks import Attention
from conformance.suites.workloads.models.gpt import GPT, GPTShape

WORDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SILU_GATE = 4


def gpt():
    """LayerNorm, learned positions, GELU; attention caches."""
    return GPT(GPTShape(vocabulary=37, context=16, width=32, heads=4, layers=2)).eval()


class LlamaLayer(nn.Module):
    """RMSNorm, rotary positions in halves, four heads for two of keys, a gate by SiLU (Touvron et al., 2023)."""

    heads, pairs, width, hidden, middle = 4, 2, 8, 32, 44

    def __init__(self):
        super().__init__()
        self.norm_attention, self.norm_network = nn.RMSNorm(self.hidden, eps=1e-5), nn.RMSNorm(self.hidden, eps=1e-5)
        self.qkv = nn.Linear(self.hidden, (self.heads + 2 * self.pairs) * self.width, bias=False)
        self.out = nn.Linear(self.hidden, self.hidden, bias=False)
        self.up_and_gate = nn.Linear(self.hidden, 2 * self.middle, bias=False)
        self.down = nn.Linear(self.middle, self.hidden, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            self.qkv(self.norm_attention(x))
            .unflatten(-1, (-1, self.width))
            .split([self.heads, self.pairs, self.pairs], dim=2)
        )
        q, k = self.turn(q), self.turn(k)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, self.hidden))
        up, gate = self.up_and_gate(self.norm_network(x)).chunk(2, dim=-1)
        return x + self.down(up * F.silu(gate))

    def turn(self, x):
        half = self.width // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * rates
        cos, sin = (one.to(x.device, x.dtype) for one in (angles.cos(), angles.sin()))
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Llama(nn.Sequential):
    """Two of them."""

    def __init__(self):
        super().__init__(LlamaLayer(), LlamaLayer())


class InjectedAttention(nn.Module):
    """GPT's attention by three kernels. A cache that is given says only that the sequence goes on."""

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
    """A whole layer by five kernels."""

    def __init__(self, original, injector, layer, layers):
        super().__init__()
        self.original, self.layer, self.layers = original, layer, layers
        names = ("rms_qkv_gemm", "softmax_context", "vector_matmul", "rms_mlp_gemm", "vector_add")
        self.qkv, self.attend, self.product, self.network, self.add = map(injector.kernel, names)

    def forward(self, x):
        own, nothing = self.original, x.new_zeros(1)
        norms = own.norm_attention, own.norm_network
        x = x.contiguous()
        together, _ = self.qkv(x, own.qkv.weight, nothing, norms[0].weight, norms[0].eps, False, True)
        mixed, _, _ = self.attend(
            together, nothing, own.width, True, False, own.heads, own.pairs, own.width**-0.25, True, False, 1, True,
            self.layer, self.layers, nothing, 10000.0, x.shape[1] > 1, None, None,
        )  # fmt: skip
        attended = self.product(mixed, own.out.weight, False, nothing, False, True)
        network, total = self.network(
            attended, x.clone(), own.up_and_gate.weight, own.down.weight, norms[1].weight, norms[1].eps, nothing,
            nothing, False, SILU_GATE, True,
        )  # fmt: skip
        return self.add(network, total, 1.0)


def rules(layers=2):
    """Each attention or layer is the next one."""
    count = itertools.count()
    return {
        Attention: lambda original, injector: InjectedAttention(original, injector, next(count), layers),
        LlamaLayer: lambda original, injector: InjectedLlamaLayer(original, injector, next(count), layers),
    }


def allocate(injector, dtype, batch, tokens):
    """A workspace for either model. DeepSpeed's order of arguments."""
    injector.companion("softmax_context", f"allocate_workspace_{WORDS[dtype]}")(
        32, 4, tokens, batch, 2, 1, False, 0, tokens, 1
    )


def release(injector):
    if WORKSPACE.size is not None:
        injector.companion("softmax_context", "release_workspace")()
