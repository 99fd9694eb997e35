"""Cases of a paged cache: pieces of prompts, shared prefixes, pages that are evicted, and windows."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.module_inject.models import rotated

from .language_model import language_models, some_tokens
from .paged import PAGE, OutOfPages, PagedDecoder

NEEDS = (DTYPE, DTYPE.on("int64"))
DTYPES = ("float32", "bfloat16")
TOKENS = 11
#: Lengths of the pieces in which a sequence is given.
PIECES = {"whole": (11,), "two": (6, 5), "single": (1,) * 11, "across-pages": (3, 4, 4), "long-then-short": (9, 1, 1)}


def wanted_of(exact, tokens):
    """Return the exact logits of one sequence, and their largest magnitude."""
    logits = exact(tokens[None])[0].detach()
    return logits, float(logits.abs().max())


def judge(check, what, found, exact, tokens, first=0):
    """Check the logits of the tokens from ``first`` on, relative to the largest logit of the sequence."""
    logits, largest = wanted_of(exact, tokens)
    for place, row in enumerate(found, first):
        near(check, f"{what}, token {place}", row, logits[place], Near.FORWARD, largest=largest)


def given(decoder, sequence, tokens, pieces):
    """Decode the tokens in pieces and return all logits."""
    return torch.cat([decoder(sequence, piece) for piece in tokens.split(list(pieces))])


@case("inference.paged", requires=NEEDS, axes={"pieces": tuple(PIECES), "dtype": DTYPES})
def test_paged(check, device, pieces, dtype):
    """A sequence in pages, given in pieces of any length, has the logits of the whole sequence."""
    exact, model = language_models(dtype)
    tokens = some_tokens(TOKENS)
    decoder = PagedDecoder(model.to(device), 4)
    decoder.pages.begin("a")

    found = given(decoder, "a", tokens, PIECES[pieces])

    judge(check, pieces, found, exact, tokens)
    check.equal(decoder.pages.used(), math.ceil(TOKENS / PAGE), "pages of the sequence")


@case("inference.paged.shared", requires=NEEDS, axes={"prefix": ("4", "6", "9"), "dtype": DTYPES})
def test_shared(check, device, prefix, dtype):
    """Sequences that share the pages of a prefix have the logits that each has alone, in the fewest pages."""
    exact, model = language_models(dtype)
    shared, count = some_tokens(int(prefix)), 2
    ends = [some_tokens(3, seed=20 + number) for number in range(count)]
    decoder = PagedDecoder(model.to(device), 20)
    decoder.pages.begin("prefix")
    start = decoder("prefix", shared)

    found = []
    for number in range(count):
        decoder.pages.begin(number, like="prefix")
    for place in range(3):  # in turns
        found.append([decoder(number, end[place : place + 1]) for number, end in enumerate(ends)])

    judge(check, "the prefix", start, exact, shared)
    for number, end in enumerate(ends):
        rows = torch.cat([step[number] for step in found])
        judge(check, f"sequence {number}", rows, exact, torch.cat([shared, end]), len(shared))
    full, length = len(shared) // PAGE, len(shared) + 3
    own = math.ceil(length / PAGE) - full
    check.equal(decoder.pages.used(), math.ceil(len(shared) / PAGE) + count * own, "pages of all sequences")


@case("inference.paged.evicted", requires=NEEDS, axes={"way": ("recomputed", "swapped"), "dtype": DTYPES})
def test_evicted(check, device, way, dtype):
    """A sequence that lost its pages to another one goes on with the same logits, recomputed or from the host."""
    exact, model = language_models(dtype)
    first, second = some_tokens(TOKENS), some_tokens(TOKENS, seed=5)
    decoder = PagedDecoder(model.to(device), 4)
    decoder.pages.begin("first")
    found = [decoder("first", first[:7])]
    decoder.pages.begin("second")
    decoder("second", second[:6])
    with pytest.raises(OutOfPages):
        decoder("second", second[6:])
    decoder.pages.end("second")

    kept = decoder.pages.away("first")
    decoder.pages.begin("second")
    other = given(decoder, "second", second, (6, 5))
    decoder.pages.end("second")
    if way == "swapped":
        decoder.pages.back("first", kept)
    else:
        decoder.pages.begin("first")
        decoder("first", first[:7])
    found.append(given(decoder, "first", first[7:], (1, 3)))

    judge(check, "the evicted sequence", torch.cat(found), exact, first)
    judge(check, "the sequence that took the pages", other, exact, second)


@case("inference.paged.turns", requires=NEEDS, axes={"dtype": DTYPES})
def test_turns(check, device, dtype):
    """Sequences that begin and end at different times, and take each other's pages, do not see each other."""
    exact, model = language_models(dtype)
    decoder = PagedDecoder(model.to(device), 8)
    sequences = {number: some_tokens(length, seed=30 + number) for number, length in enumerate((5, 9, 3, 4))}
    waiting, running, found, most = list(sequences), {}, {number: [] for number in sequences}, 0

    while waiting or running:
        while waiting and len(running) < 3 and 8 - decoder.pages.used() >= 5:
            number = waiting.pop(0)
            decoder.pages.begin(number)
            running[number] = 0
        most = max(most, len(running))
        for number in list(running):
            place = running[number]
            # A prompt of two tokens, then one by one.
            step = sequences[number][place : place + (2 if not place else 1)]
            found[number].append(decoder(number, step))
            running[number] = place + len(step)
            if running[number] == len(sequences[number]):
                decoder.pages.end(number)
                del running[number]

    check.equal(decoder.pages.used(), 0, "pages that are used at the end")
    check.that(most >= 2, "no two sequences were there at the same time")
    for number, tokens in sequences.items():
        judge(check, f"sequence {number}", torch.cat(found[number]), exact, tokens)


def windowed(exact, tokens, window):
    """Return exact logits in which a token attends to itself and the ``window`` - 1 tokens before it."""
    x = exact.tokens(tokens)[None]
    places = torch.arange(len(tokens))
    ahead = places[:, None] - places
    for layer in exact.layers:
        cos, sin = layer.angles(len(tokens), x)
        query, key, value = layer.projected(x)
        repeats = layer.heads // layer.pairs
        keys, values = rotated(key, cos, sin).repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = rotated(query, cos, sin) @ keys.transpose(-1, -2) / math.sqrt(layer.width)
        scores = scores.masked_fill((ahead < 0) | (ahead >= window), -math.inf)
        x = layer.behind(x, torch.softmax(scores, dim=-1) @ values)
    return exact.head(exact.norm(x))[0].detach()


@case("inference.paged.window", requires=NEEDS, axes={"window": ("3", "5", "8"), "dtype": DTYPES})
def test_window(check, device, window, dtype):
    """With attention to the last tokens alone, pages before them are evicted, and the logits are exact."""
    exact, model = language_models(dtype)
    tokens, size = some_tokens(17), int(window)
    decoder = PagedDecoder(model.to(device), 5, size)
    decoder.pages.begin("a")

    found, most = [], 0
    for token in tokens.split(1):
        found.append(decoder("a", token))
        most = max(most, decoder.pages.used())

    wanted = windowed(exact, tokens, size)
    largest = float(wanted.abs().max())
    for place, row in enumerate(torch.cat(found)):
        near(check, f"token {place}", row, wanted[place], Near.FORWARD, largest=largest)
    check.that(most <= math.ceil((size - 1) / PAGE) + 2, f"{most} pages are used for a window of {size} tokens")
