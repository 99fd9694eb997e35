"""The memory of attention during generation: keys and values of the tokens so far, per layer. One for the process.

``allocate_workspace_*`` sets its size; ``softmax_context_*`` fills it. A prompt starts a sequence, single tokens go on
with it; the last layer's call ends the step. A vendor's attention keeps a workspace of its own, which is given the
same calls, in the same order, before it is used (``follow``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conformance.errors import UsageError
from conformance.kernels.arguments import wrong
from conformance.kernels.specification import WORDS

_NEXT = "nothing was changed; call allocate_workspace_* with what you need, then begin with a prompt"


@dataclass(frozen=True)
class Size:
    """What was allocated. ``heads`` are this rank's."""

    dtype: torch.dtype
    heads: int
    width: int
    batch: int
    layers: int
    tokens: int


@dataclass
class Workspace:
    """Keys and values by layer, and how many tokens all layers have seen."""

    size: Size | None = None
    released: bool = False
    seen: int = 0
    caches: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    #: Every call since the last allocation, for a vendor's workspace. ``allocations`` counts them.
    journal: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    allocations: int = 0
    #: A vendor's attention has computed since the last allocation: keys and values are in its own workspace.
    elsewhere: bool = False

    def allocate(self, name: str, size: Size, arguments: tuple[Any, ...]) -> None:
        """Another workspace, and what the old one held is gone. Memory is taken when the first keys arrive."""
        self.size, self.released, self.seen, self.elsewhere = size, False, 0, False
        self.caches.clear()
        self.journal, self.allocations = [(name, arguments)], self.allocations + 1

    def release(self) -> None:
        """Its memory is given back; the size stays known."""
        self.released, self.seen = True, 0
        self.caches.clear()
        self._note("release_workspace")

    def retake(self) -> bool:
        """Memory of the same size, with nothing in it. True, as long as there is a size."""
        self.released = False
        self._note("retake_workspace")
        return self.size is not None

    def reset(self) -> None:
        """The next token is the first of a sequence."""
        self.seen = 0
        self._note("reset_cache")

    def keep(self, layer: int, first: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put (batch, heads, tokens, channels) behind the ``first`` tokens; all tokens so far, as views."""
        size = self._fitting(layer, first, keys)
        self.elsewhere = False
        if layer not in self.caches or self.caches[layer][0].device != keys.device:
            shape = (size.batch, size.heads, size.tokens, size.width)
            self.caches[layer] = (keys.new_zeros(shape), keys.new_zeros(shape))
        batch, total = keys.shape[0], first + keys.shape[2]
        for cache, new in zip(self.caches[layer], (keys, values), strict=True):
            cache[:batch, :, first:total] = new
        held, valued = self.caches[layer]
        return held[:batch, :, :total], valued[:batch, :, :total]

    def check_repeat(self, sources: int, repeats: int) -> Size:
        """The size, if all layers have a prompt of ``sources`` sequences and room for each ``repeats`` times."""
        size = self.size
        if self.elsewhere:
            raise NotImplementedError("keys and values are in the vendor's own workspace, which repeats none")
        if size is None or self.released or not self.seen or len(self.caches) < size.layers:
            raise UsageError(f"no prompt has gone through all layers.\n  {_NEXT}")
        if sources < 1:
            raise wrong("source_batch_size", "at least 1", sources, _NEXT)
        if repeats < 1 or sources * repeats != size.batch:
            raise wrong("repeats", f"{size.batch} sequences in all, as allocated", sources * repeats, _NEXT)
        return size

    def repeat(self, sources: int, repeats: int) -> list[Tensor]:
        """Sequence i of the workspace becomes what sequence i / repeats was: keys and values so far, layer by layer."""
        size = self.check_repeat(sources, repeats)
        found = []
        for layer in range(size.layers):
            for cache in self.caches[layer]:
                held = cache[:, :, : self.seen]
                held.copy_(held[:sources].repeat_interleave(repeats, dim=0))
                found.append(held)
        return found

    def check(self, layer: int, first: int, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Size:
        """The size, if (batch, heads, tokens, channels) of that dtype fit behind the ``first`` tokens."""
        size, name = self.size, "query_key_value"
        if size is None or self.released:
            state = "released" if size else "not allocated"
            raise UsageError(f"the workspace is {state}.\n  call allocate_workspace_* or retake_workspace first")
        batch, heads, tokens, width = shape
        if (heads, width) != (size.heads, size.width):
            raise wrong(name, f"{size.heads} heads of {size.width} channels", f"{heads} of {width}", _NEXT)
        if dtype is not size.dtype:
            raise wrong(name, f"{size.dtype}, as the workspace", dtype, _NEXT)
        if batch > size.batch:
            raise wrong(name, f"at most {size.batch} sequences", batch, _NEXT)
        if not 0 <= layer < size.layers:
            raise wrong("layer_id", f"a layer below {size.layers}", layer, _NEXT)
        if first + tokens > size.tokens:
            raise wrong(name, f"at most {size.tokens} tokens, {first} of which are there", tokens, _NEXT)
        return size

    def _fitting(self, layer: int, first: int, keys: Tensor) -> Size:
        batch, heads, tokens, width = keys.shape
        return self.check(layer, first, (batch, heads, tokens, width), keys.dtype)

    def _note(self, name: str) -> None:
        if self.journal and self.journal[-1][0] != name:
            self.journal.append((name, ()))


#: As in the kernels this stands in for, there is one.
WORKSPACE = Workspace()


def _allocate(word: str, dtype: torch.dtype) -> Callable[..., None]:
    name = f"allocate_workspace_{word}"

    def allocate_workspace(
        hidden_dim: int,
        num_heads: int,
        prompt_length: int,
        batch_size: int,
        num_layers: int,
        mp_size: int,
        external_cache: bool,
        rank: int,
        max_out_tokens: int,
        min_out_tokens: int,
    ) -> None:
        """Keys and values of up to ``max_out_tokens`` tokens, for ``num_heads`` heads of ``mp_size`` ranks in all.

        With an ``external_cache`` the caller keeps them, and nothing is kept here. ``rank`` has no effect.
        """
        numbers = {
            "hidden_dim": hidden_dim, "num_heads": num_heads, "batch_size": batch_size, "num_layers": num_layers,
            "mp_size": mp_size, "max_out_tokens": max_out_tokens,
        }  # fmt: skip
        for argument, number in numbers.items():
            if number < 1:
                raise wrong(argument, "at least 1", number)
        if hidden_dim % num_heads or num_heads % mp_size:
            raise wrong("num_heads", f"a divisor of {hidden_dim}, and a multiple of {mp_size} ranks", num_heads)
        if max(prompt_length, min_out_tokens) > max_out_tokens:
            raise wrong("max_out_tokens", f"at least {max(prompt_length, min_out_tokens)}", max_out_tokens)
        layers = 0 if external_cache else num_layers
        size = Size(dtype, num_heads // mp_size, hidden_dim // num_heads, batch_size, layers, max_out_tokens)
        given = (
            hidden_dim, num_heads, prompt_length, batch_size, num_layers, mp_size, external_cache, rank,
            max_out_tokens, min_out_tokens,
        )  # fmt: skip
        WORKSPACE.allocate(name, size, given)

    return allocate_workspace


def release_workspace() -> None:
    """Give the memory back."""
    WORKSPACE.release()


def retake_workspace() -> bool:
    """Take memory of the same size again; what was in it is gone. False if there never was any."""
    return WORKSPACE.retake()


def reset_cache() -> None:
    """Forget the tokens so far: the next one is the first."""
    WORKSPACE.reset()


#: What a builder offers beside the kernels.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"allocate_workspace_{word}": _allocate(word, getattr(torch, dtype)) for dtype, word in WORDS.items()},
    "release_workspace": release_workspace,
    "retake_workspace": retake_workspace,
    "reset_cache": reset_cache,
}


def follow(find: Callable[[str], Callable[..., Any]], operator: Callable[..., Any]) -> Callable[..., Any]:
    """A vendor's ``operator``, whose own workspace first gets the calls that this one got, by what ``find`` finds."""
    done = (0, 0)

    def softmax_context(*arguments: Any) -> Any:
        nonlocal done
        place = done[1] if done[0] == WORKSPACE.allocations else 0
        for name, given in WORKSPACE.journal[place:]:
            find(name)(*given)
        done = (WORKSPACE.allocations, len(WORKSPACE.journal))
        answer = operator(*arguments)
        WORKSPACE.elsewhere = True
        return answer

    return softmax_context
