"""Faults of a device that only a model shows: each turns a case of a family red, and the message names the layer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.accelerators.capabilities import DETERMINISTIC, RNG_STATE
from conformance.accelerators.declaration import Declaration, supported
from conformance.accelerators.registry import resolve
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks
from conformance.suites.workloads import decoding, family_checks, family_loop, libraries, paged
from conformance.suites.workloads.families import families
from conformance.suites.workloads.loop import RunDevice, Trainer
from tests.defects.catalogue.stand_ins.workloads import Steeper
from tests.layers import longer

pytest.importorskip("transformers")
DECLARED = Declaration.of([(c.cell, supported()) for c in (DETERMINISTIC, RNG_STATE)])
_attention, _bags = F.scaled_dot_product_attention, F.embedding_bag
Surgery = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Fault:
    """Fault in one module of the device's model, and the layer that the message has to name."""

    name: str
    family: str
    module: str
    surgery: Surgery
    body: str = "train"
    dtype: str = "float32"
    backward: bool = False
    #: The layer that the message names, if it is the parent that gives the module wrong inputs.
    named: str = ""


def after(change: Callable[[Any], Any]) -> Surgery:
    """Change the output of a module."""
    return lambda module: module.register_forward_hook(lambda _, __, output: change(output)) and None


def within(target: str, function: Callable[..., Any]) -> Surgery:
    """Replace a function of torch while the module runs."""

    def operate(module: nn.Module) -> None:
        sound = module.forward

        @functools.wraps(sound)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with mock.patch(target, function):
                return sound(*args, **kwargs)

        module.forward = forward

    return operate


def given(change: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]) -> Surgery:
    """Change the arguments of a module."""
    return lambda module: (
        module.register_forward_pre_hook(lambda _, args, kwargs: change(args, kwargs), with_kwargs=True) and None
    )


SDPA = "torch.nn.functional.scaled_dot_product_attention"


def _other_scale(query: Any, *rest: Any, scale: float | None = None, **more: Any) -> torch.Tensor:
    return _attention(query, *rest, scale=1.02 * (scale or query.shape[-1] ** -0.5), **more)


def _no_mask(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> torch.Tensor:
    return _attention(query, key, value, attn_mask=None, **{**more, "is_causal": False})


def _wrong_repeat(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> torch.Tensor:
    """Repeat the key-value heads as a whole, and not each of them."""
    if key.shape[1] == query.shape[1]:
        order = [0, 2, 1, 3]
        return _attention(query, key[:, order], value[:, order], *rest, **more)
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat(1, groups, 1, 1) for part in (key, value))
    return _attention(query, key, value, *rest, **{**more, "enable_gqa": False})


def _wider_window(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> torch.Tensor:
    return _attention(query, key, value, attn_mask=attn_mask | attn_mask.roll(-1, -1).tril(), **more)


def _narrower_window(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> torch.Tensor:
    near = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(-15).tril()
    return _attention(query, key, value, attn_mask=near, **{**more, "is_causal": False})


def _lost_last_key(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> torch.Tensor:
    return _attention(query, key, torch.cat((value[:, :, :-1], 0 * value[:, :, -1:]), 2), attn_mask=attn_mask, **more)


def _drop_tokens(output: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(output.reshape(-1, output.shape[-1]).shape[0], 1)
    kept[-3:] = 0
    return output * kept.view(*output.shape[:-1], 1)


def _next_experts(output: Any) -> Any:
    return (*output[:-1], (output[-1] + 1) % 4) if not output[-1].is_floating_point() else output


def _next_of_eight(output: Any) -> Any:
    return tuple(part if part.is_floating_point() else (part + 1) % 8 for part in output)


def _with_kwarg(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Surgery:
    return given(lambda args, kwargs: (args, {**kwargs, name: change(kwargs[name])}))


def _first_argument(change: Callable[[torch.Tensor], torch.Tensor]) -> Surgery:
    return given(lambda args, kwargs: ((change(args[0]), *args[1:]), kwargs))


def _ignore_padding(*args: Any, **kwargs: Any) -> torch.Tensor:
    return _bags(*args[:-1], None) if len(args) > 9 else _bags(*args, **{**kwargs, "padding_idx": None})


def _stale() -> Surgery:
    """Give the output of the call before."""
    kept: list[torch.Tensor] = []

    def change(output: torch.Tensor) -> torch.Tensor:
        kept.append(output.detach())
        return (
            output + 0.5 * (kept[-2] - output).detach() if len(kept) > 1 and kept[-2].shape == output.shape else output
        )

    return after(change)


def _always_evaluating(module: nn.Module) -> None:
    module.training = False
    module.train = lambda _=True: module  # type: ignore[assignment,method-assign]


_DOUBLED = given(lambda args, kwargs: ((args[0], 2 * args[1]), kwargs))
_ROLLED = after(lambda output: output.roll(1, 1))
FAULTS = (
    Fault("scale", "llama", "model.layers.1.self_attn", within(SDPA, _other_scale)),
    Fault("mask-ignored", "llama", "model.layers.0.self_attn", within(SDPA, _no_mask)),
    Fault("kv-repeat", "llama", "model.layers.1.self_attn", within(SDPA, _wrong_repeat)),
    Fault("kv-repeat", "qwen3", "model.layers.0.self_attn", within(SDPA, _wrong_repeat)),
    Fault("lost-last-key", "qwen3", "model.layers.1.self_attn", within(SDPA, _lost_last_key)),
    Fault("window-wider", "gemma", "model.layers.0.self_attn", within(SDPA, _wider_window)),
    Fault("window-on-full", "gemma", "model.layers.1.self_attn", within(SDPA, _narrower_window)),
    Fault("padding-ignored", "bert", "bert.encoder.layer.0.attention.self", within(SDPA, _no_mask)),
    Fault("relative-bias", "t5", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias", _ROLLED),
    Fault("position-off", "gpt2", "transformer.wpe", _first_argument(lambda p: (p + 1) % 256), named="transformer"),
    Fault("rotary", "qwen3", "model.rotary_emb", _DOUBLED, named="model"),
    Fault("sine-sign", "llama", "model.rotary_emb", after(lambda o: (o[0], -o[1]))),
    Fault("dropped-tokens", "mixtral", "model.layers.0.mlp.experts", after(_drop_tokens)),
    Fault("wrong-expert", "mixtral", "model.layers.0.mlp.gate", after(_next_experts)),
    Fault("wrong-expert", "deepseek", "model.layers.1.mlp.gate", after(_next_of_eight)),
    Fault("shared-expert", "deepseek", "model.layers.1.mlp.shared_experts", after(lambda o: 0.9 * o)),
    Fault("latent-norm", "deepseek", "model.layers.0.self_attn.kv_a_layernorm", after(lambda o: o + 0.01)),
    Fault("conv-shift", "whisper", "model.encoder.conv2", after(lambda o: o.roll(1, -1))),
    Fault("cross-scale", "whisper", "model.decoder.layers.0.encoder_attn", within(SDPA, _other_scale)),
    Fault("patch-order", "hf_vit", "vit.embeddings.patch_embeddings.projection", after(lambda o: o.transpose(-1, -2))),
    Fault("running-statistics", "resnet", "resnet.embedder.embedder.normalization", _always_evaluating),
    Fault("pool", "resnet", "resnet.pooler", after(lambda o: 1.01 * o)),
    Fault("scale", "clip", "text_model.encoder.layers.1.self_attn", within(SDPA, _other_scale)),
    Fault("look-ahead", "mamba", "backbone.layers.0.mixer", after(lambda o: o.roll(-1, 1))),
    Fault("alibi", "bloom", "transformer.h.0.self_attention", _with_kwarg("alibi", lambda a: 1.05 * a)),
    Fault("groups", "unet", "down.norms.0", lambda m: setattr(m, "num_groups", 2)),
    Fault("no-caption", "unet", "middle.attention", within(SDPA, lambda q, k, v, **_: _attention(q, k.flip(2), v))),
    Fault("transposed-kernel", "unet", "grow", after(lambda o: o.roll(1, -1))),
    Fault("padding-in-mean", "recommender", "history", within("torch.nn.functional.embedding_bag", _ignore_padding)),
    Fault("stale", "gpt2", "", _stale()),
    Fault("steep", "llama", "model.layers.1.mlp.act_fn", after(lambda o: Steeper.apply(o)), backward=True),
    Fault("steep", "bert", "bert.encoder.layer.0.output", after(lambda o: Steeper.apply(o)), backward=True),
    Fault("scale-16", "llama", "model.layers.1.self_attn", after(lambda o: (1.3 * o[0], *o[1:])), dtype="bfloat16"),
    Fault("norm-in-inference", "llama", "model.layers.0.input_layernorm", after(lambda o: 1.01 * o), "forward"),
    Fault("autocast-leaves", "gpt2", "transformer.h.1.mlp.c_fc", after(lambda o: 1.2 * o), "autocast", "bfloat16"),
    Fault("accumulated", "llama", "model.layers.0.mlp.down_proj", after(lambda o: 1.02 * o), "accumulation"),
    Fault("recomputed", "llama", "model.layers.0.mlp.up_proj", after(lambda o: o + 0.02), "checkpointing"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Tell ``python -m tests.workload_faults`` that the test plants a fault; return what tells it more."""

    # The fixture record_property warns wherever --junitxml is given, and a warning is an error here.
    def tell(name: str, value: object) -> None:
        request.node.user_properties.append((name, value))

    tell("fault", request.node.name)
    return tell


@pytest.fixture
def place() -> RunDevice:
    return RunDevice(torch.device("cpu"), resolve("cpu").load())


@contextlib.contextmanager
def afflicted(module: str, surgery: Surgery) -> Iterator[None]:
    """Operate on the module of each model that is built for the accelerator; the host's models stay sound."""
    sound = family_loop.model_on

    def model_on(family: Any, run_device: RunDevice, dtype: torch.dtype, **more: Any) -> nn.Module:
        model = sound(family, run_device, dtype, **more)
        if run_device.accelerator is not None:
            surgery(model.get_submodule(module) if module else model.get_submodule("transformer.wte"))
        return model

    with pytest.MonkeyPatch.context() as patch:
        for owner in (family_loop, family_checks, decoding):
            patch.setattr(owner, "model_on", model_on)
        yield


@pytest.mark.parametrize("fault", longer(FAULTS, step=4), ids=lambda fault: f"{fault.family}-{fault.name}-{fault.body}")
def test_a_fault_of_a_layer_is_found_and_named(
    fault: Fault, place: RunDevice, planted: Callable[[str, object], None]
) -> None:
    family, check = families()[fault.family], Checker()
    body = getattr(family_checks, f"check_{fault.body}")

    with afflicted(fault.module, fault.surgery), pytest.raises(AssertionError) as failure:
        body(check, family, place, fault.dtype)

    planted("killed", True)
    if fault.module:
        planted("layer", fault.named or fault.module)
        said = "wrong layer of the backward pass is" if fault.backward else "first wrong layer is"
        assert f"{said} {fault.named or fault.module}:" in str(failure.value), str(failure.value)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("lost", ["optimizer", "rng", "taken", "model"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_restart_that_loses_something_is_found(
    place: RunDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, name: str
) -> None:
    sound = Trainer.restore

    def restore(self: Trainer, state: dict[str, Any]) -> None:
        fresh = {
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.Generator().get_state(),
            "taken": 0,
            "model": self.model.state_dict(),
        }
        sound(self, {**state, lost: fresh[lost]})

    family = families()[name]
    family_checks.check_restart(Checker(), family, place, "float32", DECLARED, tmp_path)
    monkeypatch.setattr(Trainer, "restore", restore)

    with pytest.raises(AssertionError, match="after the restart"):
        family_checks.check_restart(Checker(), family, place, "float32", DECLARED, tmp_path)


@pytest.mark.usefixtures("planted")
def test_running_statistics_that_a_restart_loses_are_found(
    place: RunDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Trainer.restore

    def restore(self: Trainer, state: dict[str, Any]) -> None:
        kept = {name: value for name, value in state["model"].items() if "running" not in name}
        sound(self, {**state, "model": {**self.model.state_dict(), **kept}})

    monkeypatch.setattr(Trainer, "restore", restore)

    with pytest.raises(AssertionError, match=r"after the restart: .*running"):
        family_checks.check_restart(Checker(), families()["resnet"], place, "float32", DECLARED, tmp_path)


@pytest.mark.usefixtures("planted")
def test_gradients_that_overwrite_those_of_the_micro_batch_before_are_found(
    place: RunDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = family_loop.FamilyTrainer.loss

    def loss(self: Any, *batch: Any) -> torch.Tensor:
        if self.run_device.accelerator is not None:
            self.model.zero_grad()
        return sound(self, *batch)

    monkeypatch.setattr(family_loop.FamilyTrainer, "loss", loss)

    with pytest.raises(AssertionError, match="the gradient of"):
        family_checks.check_accumulation(Checker(), families()["bloom"], place, "float32")


@pytest.mark.usefixtures("planted")
def test_checkpointing_that_does_nothing_is_found(place: RunDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_checks, "_enable_checkpointing", lambda model: None)

    with pytest.raises(AssertionError, match="do not run twice"):
        family_checks.check_checkpointing(Checker(), families()["llama"], place, "float32")


@pytest.mark.usefixtures("planted")
def test_autocast_that_does_nothing_is_found(place: RunDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_loop.FamilyTrainer, "autocast", lambda self: contextlib.nullcontext())

    with pytest.raises(AssertionError, match="no linear layer or convolution gives bfloat16"):
        family_checks.check_autocast(Checker(), families()["llama"], place, "bfloat16")


@pytest.mark.usefixtures("planted")
def test_a_run_with_noise_is_found(place: RunDevice) -> None:
    noisy = after(lambda output: output * (1 + 1e-6 * torch.rand_like(output)))

    with afflicted("lm_head", noisy), pytest.raises(AssertionError, match="the second run"):
        family_checks.check_rerun(Checker(), families()["qwen3"], place, "float32")


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("fault", "surgery", "module", "layer"),
    [
        ("scale in decoding", within(SDPA, _other_scale), "model.layers.1.self_attn", "model.layers.1.self_attn"),
        ("a head of another request", after(lambda o: o.roll(1, 0)), "model.layers.0.self_attn.v_proj",
         "model.layers.0.self_attn.v_proj"),
        ("the last key is lost", within(SDPA, _lost_last_key), "model.layers.0.self_attn", "model.layers.0.self_attn"),
    ],
)  # fmt: skip
def test_a_fault_in_decoding_is_found(place: RunDevice, fault: str, surgery: Surgery, module: str, layer: str) -> None:
    with afflicted(module, surgery), pytest.raises(AssertionError, match=f"first wrong layer is {layer}:"):
        _decode(place, "llama")


def _decode(place: RunDevice, name: str, **options: Any) -> None:
    family = families()[name]
    inputs = decoding.prompts(family)
    model = decoding.decoder_on(family, place, torch.float32)
    decoded = decoding.generate(model, place, inputs, **options)
    decoding.check_decoded(Checker(), family, place, "float32", inputs, decoded)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a_cache_that_gives_pages_of_another_request_is_found(place: RunDevice, name: str) -> None:
    from transformers.cache_utils import DynamicLayer

    sound = DynamicLayer.update

    def update(self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = sound(self, keys, values, *args, **kwargs)
        if values.shape[2] > decoding.PROMPT_LENGTH:
            values = torch.cat((values[:, :, :4].roll(1, 0), values[:, :, 4:]), 2)
        return keys, values

    with mock.patch.object(DynamicLayer, "update", update), pytest.raises(AssertionError, match="with a cache"):
        _decode(place, name)


@pytest.mark.usefixtures("planted")
def test_a_cache_that_loses_its_oldest_position_is_found(place: RunDevice) -> None:
    from transformers.cache_utils import DynamicLayer

    sound = DynamicLayer.update

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        keys, values = sound(self, *args, **kwargs)
        return torch.cat((keys[:, :, 1:2], keys[:, :, 1:]), 2), values

    with mock.patch.object(DynamicLayer, "update", update), pytest.raises(AssertionError, match="with a cache"):
        _decode(place, "llama")


@pytest.mark.usefixtures("planted")
def test_a_window_of_another_length_is_found_in_decoding(place: RunDevice) -> None:
    def shorten(model: nn.Module) -> None:
        model.config.sliding_window = 15

    with afflicted("model", shorten), pytest.raises(AssertionError, match="with a cache"):
        _decode(place, "gemma")


def test_a_model_that_repeats_one_token_is_no_proof(place: RunDevice) -> None:
    sound = decoding.decoder_on

    def trained_hardly(family: Any, run_device: Any, dtype: Any, rounded: Any = None) -> nn.Module:
        model = sound(family, run_device, dtype)
        model.get_submodule("lm_head").weight.data.mul_(0)
        return model

    with (
        mock.patch.object(decoding, "decoder_on", trained_hardly),
        pytest.raises(AssertionError, match="only 1 different tokens"),
    ):
        _decode(place, "llama")


def test_a_missing_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(EnvironmentLacks, match=r"peft is not installed; in the checkout, pip install '.\[hf\]'"):
        libraries.library("peft")


def test_another_version_of_a_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_version", lambda name: "4.44.2")

    with pytest.raises(EnvironmentLacks, match=r"transformers 4.44.2 is installed, but .* from 5.20 to before 6.0"):
        libraries.library("transformers")


def test_a_class_that_a_library_renamed_is_a_sentence() -> None:
    with pytest.raises(EnvironmentLacks, match=r"transformers [0-9.]+ has no LlamaForEverything"):
        libraries.member("transformers", "LlamaForEverything")


def test_a_broken_library_shows_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libexample.so: cannot open shared object file")

    monkeypatch.setattr("importlib.import_module", broken)

    with pytest.raises(OSError, match="libexample"):
        libraries.library("transformers")


@pytest.mark.usefixtures("planted")
def test_a_server_that_gives_the_page_of_an_earlier_request_is_found(place: RunDevice) -> None:
    sound = paged.Server._advance

    def advance(self: Any, rows: Any, new: int) -> None:
        sound(self, rows, new)
        if len(rows) > 1:
            rows[1].pages[0] = rows[0].pages[0]

    with (
        mock.patch.object(paged.Server, "_advance", advance),
        pytest.raises(AssertionError, match="the logits of request 1"),
    ):
        paged.check_continuous_batching(Checker(), families()["llama"], place)


@pytest.mark.usefixtures("planted")
def test_a_server_that_loses_positions_is_found(place: RunDevice) -> None:
    surgery = given(lambda args, kwargs: (args, {**kwargs, "position_ids": kwargs["position_ids"] * 0 + 3}))

    with afflicted("model", surgery), pytest.raises(AssertionError, match="the logits of request 0"):
        paged.check_continuous_batching(Checker(), families()["llama"], place)
