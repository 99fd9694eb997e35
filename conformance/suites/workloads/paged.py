"""Continuous batching: requests of different lengths share the pages of one cache, and enter and leave a batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch

from . import libraries
from .comparing import bounds_of, relative_error
from .data import held_out_text
from .decoding import cache_name, decoder_on
from .families import Family
from .family_checks import LIMITS
from .loop import HOST, RunDevice, exact

PAGE, PAGES, BATCH = 4, 20, 3
#: Prompt lengths and numbers of new tokens of the requests; more than fit into the pages at once.
REQUESTS = ((7, 9), (12, 14), (3, 5), (9, 11), (5, 16), (11, 6))


@dataclass
class Request:
    """One request: its tokens so far, its pages, and the logits that chose its new tokens."""

    tokens: list[int]
    wanted: int
    pages: list[int] = field(default_factory=list)
    #: Tokens whose keys and values are in the pages.
    cached: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Tell whether all new tokens are there."""
        return len(self.logits) == self.wanted


class _Paging:
    """Layer of a paged cache. ``rows`` are the requests of the next pass, each with pages for its new tokens."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Request] = []
        self.new = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make the pages, which hold no number before something is written."""
        self.keys, self.values = (
            part.new_full((PAGES, part.shape[1], PAGE, part.shape[3]), float("nan"))
            for part in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Keep new keys and values, and return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._through(self.keys, key_states), self._through(self.values, value_states)

    def _through(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the new tokens into their pages, and return all tokens of each row, padded with zeros."""
        whole = new.new_zeros(len(self.rows), new.shape[1], self.longest(), new.shape[3])
        for index, request in enumerate(self.rows):
            for offset in range(self.new):
                page, slot = divmod(request.cached + offset, PAGE)
                pool[request.pages[page], :, slot] = new[index, :, offset]
            length = request.cached + self.new
            pages = pool[torch.tensor(request.pages, device=pool.device)]
            whole[index, :, :length] = pages.transpose(0, 1).flatten(1, 2)[:, :length]
        return whole

    def longest(self) -> int:
        """Return the tokens of the longest row after the next pass."""
        return max((request.cached for request in self.rows), default=0) + self.new

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return the tokens that the mask covers, and its offset."""
        return self.longest(), 0

    def get_seq_length(self, *_: Any) -> int:
        """Return the tokens of the longest row so far."""
        return self.longest() - self.new

    def get_max_length(self) -> int:
        """Return that no length is the largest."""
        return -1

    get_max_cache_shape = get_max_length


@functools.cache
def _layer_class() -> type:
    """Return the layer as a class of transformers, which is imported here."""
    from transformers.cache_utils import CacheLayerMixin

    return type("PagedLayer", (_Paging, CacheLayerMixin), {})


class Server:
    """Model that answers requests: each enters the batch when pages are free, and leaves it when it is done."""

    def __init__(self, model: Any, run_device: RunDevice) -> None:
        self.model, self.run_device = model, run_device
        self.free = list(range(PAGES))
        self.layers = [_layer_class()() for _ in range(model.config.num_hidden_layers)]
        self.cache = libraries.member("transformers", "Cache")(layers=self.layers)
        #: Largest number of requests in one pass.
        self.together = 0

    @torch.no_grad()
    def serve(self, waiting: list[Request]) -> None:
        """Answer all requests."""
        waiting, running = list(waiting), []
        while waiting or running:
            if waiting and len(running) < BATCH and self._fits(waiting[0]):
                request = waiting.pop(0)
                request.pages = [self.free.pop() for _ in range(_pages_of(request))]
                self._advance([request], len(request.tokens))
                running.append(request)
            else:
                self._advance(running, 1)
            for request in [request for request in running if request.done]:
                running.remove(request)
                self.free.extend(request.pages)

    def _fits(self, request: Request) -> bool:
        return _pages_of(request) <= len(self.free)

    def _advance(self, rows: list[Request], new: int) -> None:
        """Read the last ``new`` tokens of each row, and choose its next one."""
        self.together = max(self.together, len(rows))
        for layer in self.layers:
            layer.rows, layer.new = rows, new
        device = self.run_device.device
        lengths = torch.tensor([request.cached + new for request in rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        positions = lengths[:, None] - new + torch.arange(new)
        tokens = torch.tensor([request.tokens[-new:] for request in rows])
        output = self.model(
            tokens.to(device), attention_mask=mask.to(device, torch.int64), position_ids=positions.to(device),
            use_cache=True, **{cache_name(self.model): self.cache},
        )  # fmt: skip
        for request, logits in zip(rows, exact(output.logits[:, -1]), strict=True):
            request.cached += new
            request.logits.append(logits)
            request.tokens.append(int(logits.argmax()))


def _pages_of(request: Request) -> int:
    return -(-(len(request.tokens) + request.wanted) // PAGE)


@torch.no_grad()
def check_continuous_batching(check: Any, family: Family, run_device: RunDevice) -> None:
    """Compare the answers of a server with those of one whole pass for each request in float64."""
    text = held_out_text(len(REQUESTS), 16, seed=23)[0]
    requests = [Request(text[row, :length].tolist(), wanted) for row, (length, wanted) in enumerate(REQUESTS)]
    server = Server(decoder_on(family, run_device, torch.float32), run_device)

    server.serve(requests)

    check.equal(server.together, BATCH, "the requests in one batch")
    check.that(sum(map(_pages_of, requests)) > PAGES, "the requests do not share pages")
    oracle, bounds = decoder_on(family, HOST, torch.float64, torch.float32), bounds_of("float32")
    different = {token for request in requests for token in request.tokens[-request.wanted :]}
    check.that(len(different) >= LIMITS["different_tokens"], f"only {len(different)} different tokens come out")
    for number, request in enumerate(requests):
        wanted = oracle(torch.tensor([request.tokens]), use_cache=False).logits[0, -request.wanted - 1 : -1]
        error = relative_error(torch.stack(request.logits), wanted)
        check.that(
            error <= bounds.logits,
            f"the logits of request {number} are off by {error:.3g}, allowed {bounds.logits:.3g}",
        )
        check.equal(request.tokens[-request.wanted :], wanted.argmax(-1).tolist(), f"the tokens of request {number}")
