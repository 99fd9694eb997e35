"""Small models of architectures that a seed draws from the installed transformers: no test names them.

A configuration gets small sizes under the names that most models use. What is then still large, does not run on the
host, or computes nothing with a gradient is passed over, and the next one is drawn.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from conformance.numerics.trees import tensors
from tests.calls import models as real

from .programs import MODELS, Program, trained

#: Small values of the fields of configurations. A field that a model does not have is left out.
_SIZES = {
    "vocab_size": 96, "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "embedding_size": 32,
    "intermediate_size": 64, "d_ff": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "n_inner": 64,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "max_position_embeddings": 64,
    "n_positions": 64, "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
#: Rates at which a model drops numbers, by the ends of their names.
_RATES = ("dropout", "dropout_rate", "dropout_prob", "pdrop", "drop_path_rate", "layerdrop", "drop_rate")
#: Parameters beyond which a model is passed over.
_MOST = 400_000


def drawn(seed: str, passed: dict[str, str]) -> Iterator[tuple[str, Program]]:
    """Yield programs by the name of their architecture, in the order of a seed; note in ``passed`` why others are none.

    Nothing runs here: a process that has run a backward pass has no copies that run one.
    """
    kinds = sorted(set(real.kinds()) - named())
    random.Random(f"{seed}:strangers").shuffle(kinds)
    for kind in kinds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inputs(*model_of(kind))
        except Exception as error:  # what transformers raises is a result
            passed[kind] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
        else:
            yield f"transformers:{kind}", functools.partial(train, kind)


def named() -> set[str]:
    """Return the types of the models that the other programs train."""
    import transformers

    return {getattr(transformers, name).config_class.model_type for name in MODELS}


def train(kind: str, device: torch.device) -> Any:
    """Train a model of an architecture for one step."""
    model, config = model_of(kind)
    given = {name: value.to(device) for name, value in inputs(model, config).items()}
    return trained(model, device, functools.partial(_loss, given=given))


def _loss(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    out = model(**given)
    found = [value for value in tensors(out) if value.is_floating_point() and value.requires_grad]
    if not found:
        raise ValueError("no result has a gradient")
    return found[0].float().square().mean()


def model_of(kind: str) -> tuple[Any, Any]:
    """Return a small model of an architecture, and its configuration. Raises what transformers raises."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXTS

    config = small(CONFIG_MAPPING[kind])
    loader = AutoModelForCausalLM if kind in TEXTS else AutoModel
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in loader.from_config(config).parameters())
    if size > _MOST:
        raise ValueError(f"it has {size:,} parameters")
    return loader.from_config(config, dtype=torch.float32), config


def small(kind: Any) -> Any:
    """Return a configuration of a class with small sizes; those of the models inside it are made small too."""
    usual = kind()
    fields = {name: value for name, value in _SIZES.items() if isinstance(getattr(usual, name, None), int)}
    for name, value in vars(usual).items():
        if name.endswith(_RATES) and isinstance(value, float):
            fields[name] = 0.0
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            fields[name] = small(type(value)).to_dict()
    return kind(**fields)


def inputs(model: Any, config: Any) -> dict[str, torch.Tensor]:
    """Return small inputs with numbers for a model's main argument."""
    generator, name = torch.Generator().manual_seed(11), model.main_input_name
    ids = torch.randint(3, 96, (2, 12), generator=generator)
    if name == "input_ids":
        found = {name: ids}
        if getattr(config, "is_encoder_decoder", False):
            found["decoder_input_ids"] = ids[:, :7].clone()
        return found
    if name == "pixel_values":
        size = getattr(config, "image_size", 32)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", 3)
        return {name: torch.randn(2, channels, min(height, 64), min(width, 64), generator=generator)}
    raise ValueError(f"its main input is {name}")
