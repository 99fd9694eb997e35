"""Default models of transformers on the meta device: built at their real size, and run without numbers.

A model has one layer of each kind: layers that repeat make the same calls. What a model reads from tensors, such as
whether a mask is full, gets a fixed answer, because the meta device has no numbers.
"""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.blame.calls import recorded
from conformance.numerics.trees import mapped, tensors
from conformance.suites.calls.spec import Spec

#: Sequences, and their tokens in training. A decode step comes after a prompt whose length no tile divides.
BATCH, TOKENS, PROMPT = 2, 1024, 999
#: Names of the fields of a configuration that count layers of one kind.
_COUNTS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "num_encoder_layers",
    "encoder_layers", "decoder_layers", "depth", "num_blocks", "num_block", "encoder_num_hidden_layers",
    "decoder_num_hidden_layers",
    "encoder_n_layers", "decoder_n_layers",
)  # fmt: skip
#: Names of the fields that have one value for each layer.
_LISTS = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_types", "attn_layers", "block_types")
#: Most layers that a model is given so that it has one of each kind.
_MOST_LAYERS = 8


class Attention(TorchFunctionMode):
    """Note the calls of fused attention, which reach the dispatcher as several others on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Spec] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and not kwargs.get("dropout_p"):
            self.found.append(
                Spec(
                    "aten.scaled_dot_product_attention.default", mapped(list(args), _written), mapped(kwargs, _written)
                )
            )
        return func(*args, **kwargs)


def _written(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dtype = str(leaf.dtype).removeprefix("torch.")
    return {"size": list(leaf.shape), "stride": list(leaf.stride()), "dtype": dtype}


class Answered(TorchDispatchMode):
    """Give fixed answers to what a model reads from tensors without numbers: 0, and every second position."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return _zero(args[0].dtype)
        if name == "nonzero":
            return torch.empty(max(1, args[0].numel() // 2), args[0].dim(), dtype=torch.int64, device="meta")
        if name in ("equal", "is_nonzero"):
            return False
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            args = (args[0], [place for mask in args[1] for place in _places(mask)], *args[2:])
        return func(*args, **(kwargs or {}))


def _places(mask: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Return the positions that a mask chooses, of which there are half as many; positions stay."""
    if mask is None or mask.dtype not in (torch.bool, torch.uint8):
        return [mask]
    return [torch.empty(max(1, mask.numel() // 2), dtype=torch.int64, device="meta") for _ in range(mask.dim())]


def _zero(dtype: torch.dtype) -> Any:
    if dtype is torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0


def kinds() -> list[str]:
    """Return the types of models of the installed transformers, those that generate text first."""
    from transformers.models.auto import modeling_auto as auto

    texts = list(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return [*texts, *(name for name in auto.MODEL_MAPPING_NAMES if name not in texts)]


def calls_of(kind: str, dtype: torch.dtype = torch.bfloat16) -> list[Spec]:
    """Return the calls of one model: forward and backward, and a decode step if it generates. Raises what it raises."""
    try:
        return _calls_of(kind, dtype, short=True)
    except TimeoutError:
        raise
    except Exception:  # some configurations do not fit to fewer layers
        return _calls_of(kind, dtype, short=False)


def _calls_of(kind: str, dtype: torch.dtype, *, short: bool) -> list[Spec]:
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXTS

    config = CONFIG_MAPPING[kind]()
    if short:
        shorten(config)
    loader = AutoModelForCausalLM if kind in TEXTS else AutoModel
    with torch.device("meta"), Attention() as attention, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = loader.from_config(config, dtype=dtype)
        model.train()
        found = recorded(lambda device: _train(model, config, dtype), Answered())
        if kind in TEXTS:
            with contextlib.suppress(ValueError, RuntimeError, TypeError, AttributeError, KeyError, IndexError):
                found += recorded(lambda device: _decode(model, config), Answered())  # some models only encode
    return found + attention.found


def shorten(config: Any) -> None:
    """Leave one layer of each kind in a configuration, and in those inside it."""
    layers = 1
    for name in _LISTS:
        values = getattr(config, name, None)
        if isinstance(values, list | tuple) and values:
            layers = max(layers, *(list(values).index(value) + 1 for value in dict.fromkeys(values)))
    # Some models have dense layers before those of experts.
    layers = min(max(layers, int(getattr(config, "first_k_dense_replace", 0) or 0) + 1), _MOST_LAYERS)
    for name in _LISTS:
        values = getattr(config, name, None)
        if isinstance(values, list | tuple) and values:
            _set(config, name, list(values)[:layers])
    for name in _COUNTS:
        if isinstance(getattr(config, name, None), int):
            _set(config, name, min(getattr(config, name), layers))
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shorten(value)


def _set(config: Any, name: str, value: Any) -> None:
    with contextlib.suppress(Exception):  # some are computed from others
        setattr(config, name, value)


def _train(model: Any, config: Any, dtype: torch.dtype) -> None:
    out = model(**_inputs(model, config, dtype))
    total = [value.float().sum() for value in tensors(out) if value.is_floating_point() and value.requires_grad]
    if not total:
        raise ValueError("no result has a gradient")
    total[0].backward()
    model.zero_grad()


def _decode(model: Any, config: Any) -> None:
    names = _inputs(model, config, torch.bfloat16)
    names = {
        name: value[:, :PROMPT] if name == "input_ids" else value for name, value in names.items() if name != "labels"
    }
    with torch.no_grad():
        past = model(**names, use_cache=True).past_key_values
        model(input_ids=torch.zeros(BATCH, 1, dtype=torch.int64), past_key_values=past, use_cache=True)


def _inputs(model: Any, config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return inputs for the model's main argument, and its labels or the inputs of its decoder."""
    name = model.main_input_name
    maker: Callable[[Any, torch.dtype], torch.Tensor] | None = _MAKERS.get(name)
    if maker is None:
        raise ValueError(f"its main input is {name}")
    found: dict[str, Any] = {name: maker(config, dtype)}
    if name == "input_ids" and "CausalLM" in type(model).__name__:
        found["labels"] = torch.zeros(*found[name].shape, dtype=torch.int64)
    if getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = torch.zeros(BATCH, 256, dtype=torch.int64)
    if "clip" in config.model_type or (hasattr(model, "text_model") and hasattr(model, "vision_model")):
        found["pixel_values"] = _pixels(config, dtype)
        found["input_ids"] = torch.zeros(
            BATCH, _first(_all(config), ("max_position_embeddings",), 64), dtype=torch.int64
        )
    return found


def _all(config: Any) -> list[Any]:
    inside = [value for value in vars(config).values() if hasattr(value, "to_dict") and hasattr(value, "model_type")]
    return [config, *(one for value in inside for one in _all(value))]


def _first(configs: list[Any], names: tuple[str, ...], default: Any) -> Any:
    for config in configs:
        for name in names:
            value = getattr(config, name, None)
            if value:
                return value
    return default


def _tokens(config: Any, dtype: torch.dtype) -> torch.Tensor:
    most = _first(_all(config), ("max_position_embeddings", "n_positions", "max_seq_len", "max_length"), TOKENS)
    tokens = min(TOKENS, most) if isinstance(most, int) else TOKENS
    return torch.zeros(BATCH, tokens, dtype=torch.int64)


def _pixels(config: Any, dtype: torch.dtype) -> torch.Tensor:
    configs = _all(config)
    size = _first(configs, ("image_size", "input_size", "img_size"), 224)
    if isinstance(size, dict):
        size = [size.get("height", 224), size.get("width", 224)]
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = _first(configs, ("num_channels", "in_channels", "in_chans"), 3)
    frames = _first(configs, ("num_frames",), None)
    shape = (BATCH, channels, height, width) if frames is None else (BATCH, frames, channels, height, width)
    return torch.zeros(shape, dtype=dtype)


def _features(config: Any, dtype: torch.dtype) -> torch.Tensor:
    configs = _all(config)
    bins = _first(configs, ("num_mel_bins", "feature_size", "input_feat_per_channel", "num_mel_bands"), 80)
    if config.model_type in ("whisper",) or hasattr(config, "max_source_positions"):
        return torch.zeros(BATCH, bins, 2 * _first(configs, ("max_source_positions",), 1500), dtype=dtype)
    return torch.zeros(BATCH, 1000, bins, dtype=dtype)


def _values(config: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(BATCH, 80000, dtype=dtype)


_MAKERS: dict[str, Callable[[Any, torch.dtype], torch.Tensor]] = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_features": _features,
    "input_values": _values,
}


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in a body that takes longer, in seconds of the processor."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
