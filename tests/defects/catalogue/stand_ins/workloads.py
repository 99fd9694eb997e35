"""Defects of an accelerator, injected into its side of a workload alone: the host and the oracle stay sound."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from conformance.accelerators.capabilities import DETERMINISTIC, RNG_STATE
from conformance.accelerators.declaration import Declaration, supported
from conformance.reports.verdict import Reason
from conformance.suites.workloads import generation, test_vit
from conformance.suites.workloads.loop import RunDevice, Trainer
from conformance.suites.workloads.models.gpt import GPT
from tests.defects.faults import Where
from tests.defects.mutant import Mutant, StandIn
from tests.defects.stand_ins import cpu, on

Defect = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def afflicted(defect: Defect) -> Iterator[None]:
    """Let ``defect`` act in every training step, forward pass and decoding step on the accelerator."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _afflict(monkeypatch, defect)
        yield


def _afflict(monkeypatch: pytest.MonkeyPatch, defect: Defect) -> None:
    _wrap(monkeypatch, Trainer, "_step", defect, lambda arguments: arguments[0].run_device)
    for owner, name in ((generation, "generate"), (generation, "full_logits"), (test_vit, "_logits")):
        _wrap(monkeypatch, owner, name, defect, lambda arguments: arguments[1])
    # test_gpt imported the two by name.
    from conformance.suites.workloads import test_gpt

    for name in ("generate", "full_logits"):
        monkeypatch.setattr(test_gpt, name, getattr(generation, name))


def _wrap(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, defect: Defect, run_device_of: Callable[[Any], RunDevice]
) -> None:
    sound = getattr(owner, name)

    def afflicted(*arguments: Any, **more: Any) -> Any:
        on_host = run_device_of(arguments).accelerator is None
        with contextlib.nullcontext() if on_host else defect():
            return sound(*arguments, **more)

    monkeypatch.setattr(owner, name, afflicted)


class Steeper(torch.autograd.Function):
    """The identity, whose gradient is eight per cent too large."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 1.08


_gelu, _linear, _attention = F.gelu, F.linear, F.scaled_dot_product_attention


def steep_gelu() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(F, "gelu", lambda x: Steeper.apply(_gelu(x)))


def no_causal_mask() -> contextlib.AbstractContextManager[Any]:
    def attention(*arguments: Any, is_causal: bool = False, **more: Any) -> torch.Tensor:
        return _attention(*arguments, **more)

    return mock.patch.object(F, "scaled_dot_product_attention", attention)


def short_products() -> contextlib.AbstractContextManager[Any]:
    """Inputs of matrix products keep ten bits, as tf32's do; gradients pass unrounded."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _linear(_ten_bits(x), _ten_bits(weight), bias)

    return mock.patch.object(F, "linear", linear)


def _ten_bits(x: torch.Tensor) -> torch.Tensor:
    kept = ((x.detach().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (kept - x).detach()


@contextlib.contextmanager
def cache_off_by_one() -> Iterator[None]:
    """Each decoding step has lost the oldest position."""
    sound = GPT.step

    def step(self: GPT, tokens: torch.Tensor, caches: Any) -> Any:
        shortened = caches and [(k[:, :, 1:], v[:, :, 1:]) for k, v in caches]
        return sound(self, tokens, shortened)

    with mock.patch.object(GPT, "step", step):
        yield


@contextlib.contextmanager
def noisy() -> Iterator[None]:
    """Every product differs a little each time, as with sums in no particular order."""

    def linear(*arguments: Any) -> torch.Tensor:
        result = _linear(*arguments)
        return result + result.abs().max() * torch.finfo(result.dtype).eps * torch.rand_like(result)

    with mock.patch.object(F, "linear", linear):
        yield


@contextlib.contextmanager
def wrong_maximum() -> Iterator[None]:
    """argmax gives the runner-up."""

    def argmax(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return self.topk(2, dim=-1).indices[..., 1:]

    with mock.patch.object(torch.Tensor, "argmax", argmax):
        yield


#: A rerun and a restart have to repeat their numbers only where that is declared.
DECLARED = Declaration.of([(capability.cell, supported()) for capability in (DETERMINISTIC, RNG_STATE)])
WORKLOADS = StandIn("one side of a workload", cpu, declared=lambda: DECLARED)


def wrong(case: str, defect: Defect, message: str) -> Mutant:
    context = functools.partial(afflicted, defect)
    return on(WORKLOADS, defect.__name__, case, Where.KERNEL, context=context, reason=Reason.WRONG, message=message)


MUTANTS: tuple[Mutant, ...] = (
    wrong("workloads.gpt.train[float32-training]", steep_gelu, "the gradient of"),
    wrong("workloads.vit.train[bfloat16-training]", steep_gelu, "the gradient of"),
    wrong("workloads.vit.train[float16-training]", steep_gelu, "the gradient of"),
    wrong("workloads.gpt.train[float32-training]", no_causal_mask, "the gradient of"),
    wrong("workloads.gpt.generate[bfloat16-inference]", no_causal_mask, "the logits of a forward pass"),
    wrong("workloads.gpt.generate[float32-inference]", cache_off_by_one, "decoding with a cache"),
    wrong("workloads.gpt.generate[bfloat16-inference]", cache_off_by_one, "decoding with a cache"),
    wrong("workloads.gpt.generate[float32-inference]", wrong_maximum, "below the best logit"),
    wrong("workloads.gpt.train[float32-training]", short_products, "the gradient of"),
    wrong("workloads.gpt.generate[float32-inference]", short_products, "the logits of a forward pass"),
    wrong("workloads.vit.train[float32-training]", short_products, "the gradient of"),
    wrong("workloads.vit.evaluate[float32-inference]", short_products, "the logits"),
    wrong("workloads.gpt.rerun[float32-training]", noisy, "the second run"),
    wrong("workloads.vit.rerun[bfloat16-training]", noisy, "the second run"),
)
