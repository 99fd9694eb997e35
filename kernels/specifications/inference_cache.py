"""Keys and values of a prompt for several continuations of it: one prompt, many answers.

Where implementations in use leave it open, this is decided: a prompt has to have gone through all layers; a wrong
number of sequences is refused before anything is copied; how many tokens there are is the workspace's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.errors import UsageError
from conformance.kernels.inference.decoding import Seen, Session, Setting, attended
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
_SETTING = Setting(rotary="halves", num_kv=2, batch=6, layers=2, tokens=8)
_SOURCES, _REPEATS = 2, 3


def repeat_kv_cache(source_batch_size: int, repeats: int) -> list[Tensor]:
    """Give each of the first ``source_batch_size`` sequences of the workspace ``repeats`` neighbouring places in it.

    DeepSpeed's hybrid engine calls it after a prompt (csrc/transformer/inference, pt_binding.cpp): sequence i goes on
    with the keys and values of sequence i / repeats, in every layer. The workspace was allocated for
    ``source_batch_size * repeats`` sequences. The answer has keys and values of layer 0, of layer 1 and so on, each
    (all sequences, heads, tokens so far, channels), as views of the workspace.
    """
    return WORKSPACE.repeat(source_batch_size, repeats)


def _nothing(given: Arguments) -> Mapping[str, Expected]:
    """It takes no tensors: properties set a workspace up, and look at what is in it."""
    return {}


# --- several calls ----------------------------------------------------------------------------------------------------


def _branching(generator: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
    """Six sequences, of which each three begin with the same prompt."""
    layers = _SETTING.sequences(generator, dtype)
    for whole in layers:
        whole[:, : _SETTING.prompt] = whole[::_REPEATS, : _SETTING.prompt].repeat_interleave(_REPEATS, dim=0)
    return layers


def _session(functions: Any, device: torch.device, layers: list[Tensor]) -> tuple[Session, Callable[..., list[Tensor]]]:
    session = Session(functions, device, _SETTING, layers)
    session.allocate()
    return session, getattr(functions, f"repeat_kv_cache_{WORDS[str(layers[0].dtype).removeprefix('torch.')]}")


def _prompt(functions: Any, device: torch.device, layers: list[Tensor]) -> None:
    """The prompts of the two sources through all layers; what attention answers is judged elsewhere."""
    sources = [whole[::_REPEATS, : _SETTING.prompt].contiguous() for whole in layers]
    alone = dataclasses.replace(_SETTING, batch=_SOURCES, tokens=_SETTING.prompt)
    short = Session(functions, device, alone, sources)
    for _ in short.steps("the prompt", _SETTING.prompt):
        pass


def _goes_on(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Seen:
    """Two prompts become six sequences, which go on with tokens of their own as if each had had its prompt."""
    layers = _branching(generator, dtype)
    session, repeat = _session(functions, device, layers)
    try:
        _prompt(functions, device, layers)
        found = repeat(_SOURCES, _REPEATS)
        yield "keys and values of two layers", torch.tensor(len(found)), Expected(torch.tensor(2 * len(layers)))
        for layer, whole in enumerate(layers):
            _, keys, values = attended(_SETTING.arguments(dtype), whole)
            part = partial(torch.narrow, dim=2, start=0, length=_SETTING.prompt)
            yield f"keys of layer {layer}", found[2 * layer], keys.moved(part).expected(dtype)
            exact = part(values.double())
            yield f"values of layer {layer}", found[2 * layer + 1], Expected(exact, allowed=torch.zeros_like(exact))
        yield from session.steps("after it was repeated", _SETTING.prompt, begun=True)
    finally:
        functions.release_workspace()


def _refuses(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Seen:
    """Before a prompt, and with wrong numbers, it raises; then the prompt's sequences go on as they were."""
    layers = _branching(generator, dtype)
    session, repeat = _session(functions, device, layers)
    try:
        yield from _refused("before a prompt", repeat, _SOURCES, _REPEATS)
        _prompt(functions, device, layers)
        for sources, repeats in ((2, 2), (1, 7), (0, 3), (6, 0)):
            yield from _refused(f"{sources} times {repeats} sequences", repeat, sources, repeats)
        repeat(_SOURCES, _REPEATS)
        yield from session.steps("after refusals", _SETTING.prompt, begun=True)
    finally:
        functions.release_workspace()


def _refused(what: str, repeat: Callable[..., list[Tensor]], sources: int, repeats: int) -> Seen:
    try:
        repeat(sources, repeats)
    except NotImplementedError:
        raise
    except (UsageError, RuntimeError, ValueError):
        raised = True
    else:
        raised = False
    yield f"whether it raises {what}", torch.tensor([raised]), Expected(torch.tensor([True]))


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
