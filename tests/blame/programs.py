"""Small programs of many architectures: forward, backward and a step of an optimizer, or generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Program = Callable[[torch.device], Any]
PROGRAMS: dict[str, Program] = {}
_TEXT = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


#: Models of transformers that the programs train. Their modules take seconds to import.
MODELS = ("LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "T5ForConditionalGeneration", "MixtralForCausalLM",
          "MambaForCausalLM", "GemmaForCausalLM", "ViTForImageClassification",
          "WhisperForConditionalGeneration")  # fmt: skip


def load() -> None:
    """Import what the programs need, so that forked copies do not."""
    import transformers

    for name in MODELS:
        getattr(transformers, name)


def program(function: Program) -> Program:
    """Register a program under the name of its function."""
    PROGRAMS[function.__name__] = function
    return function


def trained(model: nn.Module, device: torch.device, loss: Callable[[nn.Module], torch.Tensor], steps: int = 1) -> Any:
    """Train a model for some steps; return the losses, the gradients of the last step, and the parameters."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(loss(model))
        losses[-1].backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return {"loss": losses, "gradients": gradients, "parameters": dict(model.named_parameters())}


def _tokens(device: torch.device, rows: int = 2, length: int = 12, vocabulary: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, vocabulary, (rows, length), generator=generator).to(device)


def _language_model(config: Any, device: torch.device, kind: str = "AutoModelForCausalLM") -> Any:
    import transformers

    ids = _tokens(device)
    model = getattr(transformers, kind).from_config(config)
    return trained(model, device, lambda m: m(input_ids=ids, labels=ids).loss)


@program
def llama(device: torch.device) -> Any:
    """Train a Llama of two layers with grouped queries for two steps."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = _tokens(device)
    model = LlamaForCausalLM(LlamaConfig(**_TEXT, num_key_value_heads=2))
    return trained(model, device, lambda m: m(input_ids=ids, labels=ids).loss, steps=2)


@program
def llama_generates(device: torch.device) -> Any:
    """Generate six tokens with a key-value cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**_TEXT, num_key_value_heads=2)).to(device).eval()
    with torch.no_grad():
        found = model.generate(
            _tokens(device), max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    return {"tokens": found.sequences, "logits": torch.stack(found.logits)}


@program
def gpt2(device: torch.device) -> Any:
    """Train a GPT-2 without dropout."""
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return _language_model(config, device)


@program
def bert(device: torch.device) -> Any:
    """Train a BERT with a padding mask."""
    from transformers import BertConfig, BertForMaskedLM

    ids = _tokens(device)
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    config = BertConfig(**_TEXT, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return trained(BertForMaskedLM(config), device, lambda m: m(input_ids=ids, attention_mask=mask, labels=ids).loss)


@program
def t5(device: torch.device) -> Any:
    """Train a T5: relative positions and cross attention."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0)
    config.decoder_start_token_id = config.pad_token_id = 0
    ids = _tokens(device)
    return trained(T5ForConditionalGeneration(config), device, lambda m: m(input_ids=ids, labels=ids).loss)


@program
def mixtral(device: torch.device) -> Any:
    """Train a mixture of four experts."""
    from transformers import MixtralConfig

    config = MixtralConfig(**_TEXT, num_key_value_heads=2, num_local_experts=4)
    config._experts_implementation = "eager"  # the other one counts tokens with a kernel that few devices have
    return _language_model(config, device)


@program
def mamba(device: torch.device) -> Any:
    """Train a Mamba in its plain form."""
    from transformers import MambaConfig

    return _language_model(MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4), device)


@program
def gemma(device: torch.device) -> Any:
    """Train a Gemma in bfloat16."""
    from transformers import GemmaConfig, GemmaForCausalLM

    ids = _tokens(device)
    model = GemmaForCausalLM(GemmaConfig(**_TEXT, num_key_value_heads=2, head_dim=8)).to(torch.bfloat16)
    return trained(model, device, lambda m: m(input_ids=ids, labels=ids).loss.float())


@program
def vit(device: torch.device) -> Any:
    """Train a vision transformer."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4
    )
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3)).to(device)
    labels = torch.tensor([0, 1]).to(device)
    return trained(ViTForImageClassification(config), device, lambda m: m(pixel_values=images, labels=labels).loss)


@program
def whisper(device: torch.device) -> Any:
    """Train a Whisper: convolutions over sound, then text."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0,
    )  # fmt: skip
    sound = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(4)).to(device)
    ids = _tokens(device, length=6)
    return trained(WhisperForConditionalGeneration(config), device, lambda m: m(input_features=sound, labels=ids).loss)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=2),
            nn.GroupNorm(2, channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.convolutions(x))


@program
def resnet(device: torch.device) -> Any:
    """Train residual convolutions with a max pool, in channels_last."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2), nn.MaxPool2d(2), _Residual(8), _Residual(8), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    images = torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(5)).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([0, 3, 4]).to(device)
    return trained(model, device, lambda m: F.cross_entropy(m(images), labels))


@program
def unet(device: torch.device) -> Any:
    """Train a denoiser: down, up by interpolation and transposed convolution, with a time embedding."""

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.down = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.up, self.time = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.Linear(4, 16)
            self.norm, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            first = F.silu(self.inside(x))
            angles = t[:, None] * torch.tensor([0.5, 0.25], device=t.device)
            deep = self.norm(self.down(first) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None])
            deep = F.interpolate(F.avg_pool2d(F.gelu(deep), 2), scale_factor=2, mode="bilinear", align_corners=False)
            return self.out(torch.cat([first, self.up(deep)], 1))

    generator = torch.Generator().manual_seed(6)
    images, noise = (torch.randn(2, 1, 12, 12, generator=generator).to(device) for _ in range(2))
    times = torch.tensor([3.0, 40.0]).to(device)
    return trained(Unet(), device, lambda m: F.mse_loss(m(images + noise, times), noise))


@program
def lstm(device: torch.device) -> Any:
    """Train a bidirectional LSTM over an embedding."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(96, 12)
            self.lstm = nn.LSTM(12, 8, bidirectional=True, batch_first=True)
            self.out = nn.Linear(16, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(self.lstm(self.embedding(ids))[0])
            return found

    ids = _tokens(device)
    return trained(Tagger(), device, lambda m: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten() % 5))


@program
def recommender(device: torch.device) -> Any:
    """Train embeddings of users and items with a bag, sorted scores and a margin."""

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(20, 8), nn.EmbeddingBag(30, 8, mode="mean")

        def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            scores = F.normalize(self.users(users), dim=-1) @ F.normalize(self.items(items), dim=-1).t()
            best = scores.topk(3, dim=1).values
            return F.relu(0.5 - best).mean() + scores.logsumexp(1).mean()

    users = torch.tensor([1, 5, 5, 9]).to(device)
    items = torch.tensor([[1, 2], [3, 4], [2, 2], [7, 8], [9, 1]]).to(device)
    return trained(Recommender(), device, lambda m: m(users, items))


@program
def physics(device: torch.device) -> Any:
    """Solve and differentiate: a linear system, a Fourier filter and a cumulative sum."""

    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.filter = nn.Parameter(torch.eye(6) + 0.1 * torch.randn(6, 6)), nn.Parameter(torch.ones(4))

        def forward(self, b: torch.Tensor) -> torch.Tensor:
            x = torch.linalg.solve(self.matrix, b)
            smooth = torch.fft.irfft(torch.fft.rfft(x.t(), dim=-1) * self.filter, n=6)
            return (smooth.cumsum(-1) ** 2).sum() + torch.linalg.det(self.matrix)

    b = torch.randn(6, 3, generator=torch.Generator().manual_seed(8)).to(device)
    return trained(Solver(), device, lambda m: m(b))
