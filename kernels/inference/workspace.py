"""KV cache of attention during generation: keys and values of the tokens so far, for each layer; one for the process.

``allocate_workspace_*`` sets its size, and ``softmax_context_*`` fills it. A prompt starts a sequence, and single
tokens continue it. The last layer's call ends the step. A vendor's attention keeps a workspace of its own; ``follow``
makes the same calls there, in the same order, before the vendor's attention is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.arguments import wrong
from conformance.kernels.specification import WORDS

_NEXT = "nothing was changed; call allocate_workspace_* with what you need, then begin with a prompt"


@dataclass(frozen=True)
class WorkspaceSize:
    """Size of an allocated workspace. ``heads`` are those of this rank; ``width`` is in channels a head."""

    dtype: torch.dtype
    heads: int
    width: int
    batch: int
    layers: int
    tokens: int


@dataclass
class Workspace:
    """Keys and values by layer, and the number of tokens that all layers have ``seen``."""

    size: WorkspaceSize | None = None
    released: bool = False
    seen: int = 0
    caches: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    #: Every call since the last allocation, to be repeated on a vendor's workspace. ``allocations`` counts allocations.
    journal: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    allocations: int = 0
    #: True if a vendor's attention has computed last: then keys and values are in the vendor's own workspace.
    elsewhere: bool = False

    def allocate(self, name: str, size: WorkspaceSize, arguments: tuple[Any, ...]) -> None:
        """Start an empty workspace of ``size``. Memory is allocated when the first keys arrive."""
        self.size, self.released, self.seen, self.elsewhere = size, False, 0, False
        self.caches.clear()
        self.journal, self.allocations = [(name, arguments)], self.allocations + 1

    def release(self) -> None:
        """Free the memory, and keep the size."""
        self.released, self.seen = True, 0
        self.caches.clear()
        self._note("release_workspace")

    def retake(self) -> bool:
        """Make the released workspace usable again, empty; return False if none was ever allocated."""
        self.released = False
        self._note("retake_workspace")
        return self.size is not None

    def reset(self) -> None:
        """Forget the tokens so far: the next token is the first of a sequence."""
        self.seen = 0
        self._note("reset_cache")

    def keep(self, layer: int, first: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store (batch, heads, tokens, channels) after the ``first`` tokens; return views of all tokens so far."""
        size = self._fitting(layer, first, keys)
        self.elsewhere = False
        # Made for the first keys, which tell the device.
        if layer not in self.caches or self.caches[layer][0].device != keys.device:
            shape = (size.batch, size.heads, size.tokens, size.width)
            self.caches[layer] = (keys.new_zeros(shape), keys.new_zeros(shape))
        batch, total = keys.shape[0], first + keys.shape[2]
        for cache, new in zip(self.caches[layer], (keys, values), strict=True):
            cache[:batch, :, first:total] = new
        all_keys, all_values = self.caches[layer]
        return all_keys[:batch, :, :total], all_values[:batch, :, :total]

    def check_repeat(self, sources: int, repeats: int) -> WorkspaceSize:
        """Return the size if all layers have a prompt, and ``sources * repeats`` sequences fill the workspace.

        Raises UsageError otherwise, and NotImplementedError if a vendor's workspace has the keys and values.
        """
        size = self.size
        if self.elsewhere:
            raise NotImplementedError("keys and values are in the vendor's own workspace, which cannot repeat them")
        if size is None or self.released or not self.seen or len(self.caches) < size.layers:
            raise UsageError(f"no prompt has gone through all layers.\n  {_NEXT}")
        if sources < 1:
            raise wrong("source_batch_size", "at least 1", sources, _NEXT)
        if repeats < 1 or sources * repeats != size.batch:
            raise wrong("repeats", f"{size.batch} sequences in all, as allocated", sources * repeats, _NEXT)
        return size

    def repeat(self, sources: int, repeats: int) -> list[Tensor]:
        """Copy sequence i // repeats to sequence i; return views of keys and values so far, layer by layer."""
        size = self.check_repeat(sources, repeats)
        found = []
        for layer in range(size.layers):
            for cache in self.caches[layer]:
                held = cache[:, :, : self.seen]
                # repeat_interleave copies first, so sources that are overwritten have been read.
                held.copy_(held[:sources].repeat_interleave(repeats, dim=0))
                found.append(held)
        return found

    def check(self, layer: int, first: int, shape: tuple[int, int, int, int], dtype: torch.dtype) -> WorkspaceSize:
        """Return the size if keys of ``shape`` (batch, heads, tokens, channels) fit after the ``first`` tokens.

        Raises UsageError otherwise.
        """
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

    def _fitting(self, layer: int, first: int, keys: Tensor) -> WorkspaceSize:
        batch, heads, tokens, width = keys.shape
        return self.check(layer, first, (batch, heads, tokens, width), keys.dtype)

    def _note(self, name: str) -> None:
        # Before the first allocation there is nothing to repeat. The same call twice in a row has no more effect.
        if self.journal and self.journal[-1][0] != name:
            self.journal.append((name, ()))


#: There is one for the process, as in the kernels that it replaces.
WORKSPACE = Workspace()


def _allocate(word: str, dtype: torch.dtype) -> Callable[..., None]:
    """Return the allocation function for tensors of ``dtype``, under DeepSpeed's name."""
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
        """Allocate keys and values of up to ``max_out_tokens`` tokens, for ``num_heads`` heads on ``mp_size`` ranks.

        With ``external_cache`` the caller keeps them, and nothing is kept here. ``rank`` has no effect. Raises
        UsageError for sizes that do not fit.
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
        # No layer keeps anything here then.
        layers = 0 if external_cache else num_layers
        size = WorkspaceSize(dtype, num_heads // mp_size, hidden_dim // num_heads, batch_size, layers, max_out_tokens)
        given = (
            hidden_dim, num_heads, prompt_length, batch_size, num_layers, mp_size, external_cache, rank,
            max_out_tokens, min_out_tokens,
        )  # fmt: skip
        WORKSPACE.allocate(name, size, given)

    return allocate_workspace


def release_workspace() -> None:
    """Free the memory of the workspace."""
    WORKSPACE.release()


def retake_workspace() -> bool:
    """Make the released workspace usable again, empty; return False if none was ever allocated."""
    return WORKSPACE.retake()


def reset_cache() -> None:
    """Forget the tokens so far: the next token is the first of a sequence."""
    WORKSPACE.reset()


#: Functions that the builder offers beside the kernels.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"allocate_workspace_{word}": _allocate(word, getattr(torch, dtype)) for dtype, word in WORDS.items()},
    "release_workspace": release_workspace,
    "retake_workspace": retake_workspace,
    "reset_cache": reset_cache,
}


def follow(find: Callable[[str], Callable[..., Any]], operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a vendor's ``operator``, wrapped so that its own workspace follows this one.

    Before each call, the calls that this workspace got in the meantime are made on the vendor's functions, which
    ``find`` returns by name.
    """
    done = (0, 0)  # the allocation, and how many calls of its journal have been repeated

    def softmax_context(*arguments: Any) -> Any:
        """Repeat the calls that the operator's own workspace has missed, then call the operator."""
        nonlocal done
        # A new allocation starts a new workspace, so its whole journal is due.
        start = done[1] if done[0] == WORKSPACE.allocations else 0
        for name, given in WORKSPACE.journal[start:]:
            find(name)(*given)
        done = (WORKSPACE.allocations, len(WORKSPACE.journal))
        result = operator(*arguments)
        WORKSPACE.elsewhere = True
        return result

    return softmax_context
