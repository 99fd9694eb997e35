"""Repetition of the key-value cache of a prompt, for several continuations of one prompt.

Implementations in use leave some points open. This specification decides: the prompt must have passed through all
layers. A wrong number of sequences is refused before anything is copied. The workspace counts the tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.base.errors import UsageError
from conformance.kernels.inference.decoding import DecodingSession, DecodingSettings, Observations, attended
from conformance.kernels.inference.workspace import WORKSPACE
from conformance.kernels.specification import (
    WORDS,
    Arguments,
    ErrorBudget,
    Expected,
    KernelSpecification,
    Property,
)

_BUDGET = ErrorBudget(
    rounding=0.0, conditioning=0.0, source="keys and values are moved; attention brings its own bounds"
)
_SETTING = DecodingSettings(rotary="halves", num_kv=2, batch=6, layers=2, tokens=8)
_SOURCES, _REPEATS = 2, 3


def repeat_kv_cache(source_batch_size: int, repeats: int) -> list[Tensor]:
    """Repeat the cache of each of the first ``source_batch_size`` sequences ``repeats`` times, in adjacent slots.

    DeepSpeed's hybrid engine calls it after a prompt (csrc/transformer/inference, pt_binding.cpp). In every layer,
    sequence i continues with the keys and values of sequence i / repeats. The workspace must be allocated for
    ``source_batch_size * repeats`` sequences. Returns keys and values of layer 0, of layer 1 and so on, each
    (all sequences, heads, tokens so far, channels), as views of the workspace.
    """
    return WORKSPACE.repeat(source_batch_size, repeats)


def _nothing(given: Arguments) -> Mapping[str, Expected]:
    """Return no results: the kernel takes no tensors, and properties check the workspace."""
    return {}


# --- several calls ----------------------------------------------------------------------------------------------------


def _branching(generator: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
    """Return the layers of six sequences; three of them start with one prompt and three with another."""
    layers = _SETTING.sequences(generator, dtype)
    for whole in layers:
        whole[:, : _SETTING.prompt] = whole[::_REPEATS, : _SETTING.prompt].repeat_interleave(_REPEATS, dim=0)
    return layers


def _session(
    functions: Any, device: torch.device, layers: list[Tensor]
) -> tuple[DecodingSession, Callable[..., list[Tensor]]]:
    session = DecodingSession(functions, device, _SETTING, layers)
    session.allocate()
    return session, getattr(functions, f"repeat_kv_cache_{WORDS[str(layers[0].dtype).removeprefix('torch.')]}")


def _prompt(functions: Any, device: torch.device, layers: list[Tensor]) -> None:
    """Run the prompts of both sources through all layers. Other properties check the results of attention."""
    sources = [whole[::_REPEATS, : _SETTING.prompt].contiguous() for whole in layers]
    alone = dataclasses.replace(_SETTING, batch=_SOURCES, tokens=_SETTING.prompt)
    short = DecodingSession(functions, device, alone, sources)
    for _ in short.steps("the prompt", _SETTING.prompt):
        pass


def _goes_on(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that two prompts become six sequences, and that each continues as if it had its own prompt."""
    layers = _branching(generator, dtype)
    session, repeat = _session(functions, device, layers)
    try:
        _prompt(functions, device, layers)
        found = repeat(_SOURCES, _REPEATS)
        yield (
            "number of returned tensors: keys and values of two layers",
            torch.tensor(len(found)),
            Expected(torch.tensor(2 * len(layers))),
        )
        for layer, whole in enumerate(layers):
            _, keys, values = attended(_SETTING.arguments(dtype), whole)
            part = partial(torch.narrow, dim=2, start=0, length=_SETTING.prompt)
            yield f"keys of layer {layer}", found[2 * layer], keys.moved(part).expected(dtype)
            exact = part(values.double())
            yield f"values of layer {layer}", found[2 * layer + 1], Expected(exact, allowed=torch.zeros_like(exact))
        yield from session.steps("after it was repeated", _SETTING.prompt, prompt_done=True)
    finally:
        functions.release_workspace()


def _refuses(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that calls before a prompt or with wrong numbers raise, and that later steps are still right."""
    layers = _branching(generator, dtype)
    session, repeat = _session(functions, device, layers)
    try:
        yield from _refused("before a prompt", repeat, _SOURCES, _REPEATS)
        _prompt(functions, device, layers)
        for sources, repeats in ((2, 2), (1, 7), (0, 3), (6, 0)):
            yield from _refused(f"for {sources} times {repeats} sequences", repeat, sources, repeats)
        repeat(_SOURCES, _REPEATS)
        yield from session.steps("after refusals", _SETTING.prompt, prompt_done=True)
    finally:
        functions.release_workspace()


def _refused(circumstance: str, repeat: Callable[..., list[Tensor]], sources: int, repeats: int) -> Observations:
    """Observe whether the call raises an error of a bad argument. A missing kernel passes on as such."""
    try:
        repeat(sources, repeats)
    except NotImplementedError:
        raise
    except (UsageError, RuntimeError, ValueError):
        raised = True
    else:
        raised = False
    yield f"an error is raised {circumstance}", torch.tensor([raised]), Expected(torch.tensor([True]))


def _check(given: Arguments) -> None:
    WORKSPACE.check_repeat(given["source_batch_size"], given["repeats"])


SPECIFICATIONS = (
    KernelSpecification(
        name="repeat_kv_cache",
        attribute="repeat_kv_cache_{dtype}",
        builder="InferenceBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32", "float16", "bfloat16"),
        samples=(),
        oracle=_nothing,
        budget=_BUDGET,
        reference=repeat_kv_cache,
        validate=_check,
        properties=(Property("goes-on", _goes_on), Property("refuses", _refuses)),
    ),
)
