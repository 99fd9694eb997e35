"""Cases of the choice of tokens: filters of probabilities, beams, speculative decoding, and ALiBi's distances."""

from __future__ import annotations

import math

import torch

from conformance.accelerators.capabilities import DTYPE, RNG_GENERATOR
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .language_model import VOCABULARY, language_models, some_tokens
from .paged import PagedDecoder
from .test_paged import DTYPES, NEEDS

BATCH = 5
DRAWS = 8192
#: Standard errors that a share may be off.
STANDARD_ERRORS = 6


def scores():
    return 3 * torch.randn(BATCH, VOCABULARY, generator=torch.Generator().manual_seed(91))


def filtered(logits, kind, seen):
    """Return the probabilities after a filter, as devices compute them."""
    if kind.startswith("top-k"):
        least = torch.topk(logits, int(kind[6:]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    elif kind.startswith("top-p"):
        ordered, order = torch.sort(logits, dim=-1, descending=True)
        shares = torch.softmax(ordered, dim=-1)
        # A token stays if the tokens before it do not reach the share.
        dropped = shares.cumsum(-1) - shares >= float(kind[6:])
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -math.inf)
    elif kind.startswith("min-p"):
        shares = torch.softmax(logits, dim=-1)
        logits = logits.masked_fill(shares < float(kind[6:]) * shares.amax(-1, keepdim=True), -math.inf)
    elif kind == "repetition":
        chosen = logits.gather(-1, seen)
        logits = logits.scatter(-1, seen, torch.where(chosen < 0, chosen * 1.5, chosen / 1.5))
    else:
        logits = logits / float(kind)
    return torch.softmax(logits, dim=-1)


def filtered_by_hand(row, kind, seen):
    """Return the same for a list of numbers."""
    row = list(row)
    exponents = [math.exp(value) for value in row]
    shares = [exponent / sum(exponents) for exponent in exponents]
    order = sorted(range(len(row)), key=lambda word: -row[word])
    kept = set(order)
    if kind.startswith("top-k"):
        kept = set(order[: int(kind[6:])])
    elif kind.startswith("top-p"):
        kept, total = set(), 0.0
        for word in order:
            if total >= float(kind[6:]):
                break
            kept.add(word)
            total += shares[word]
    elif kind.startswith("min-p"):
        kept = {word for word in order if shares[word] >= float(kind[6:]) * max(shares)}
    elif kind == "repetition":
        row = [(value * 1.5 if value < 0 else value / 1.5) if word in seen else value for word, value in enumerate(row)]
    else:
        row = [value / float(kind) for value in row]
    exponents = [math.exp(value) if word in kept else 0.0 for word, value in enumerate(row)]
    return [exponent / sum(exponents) for exponent in exponents]


#: Filters with their numbers; a number alone is a temperature.
FILTERS = ("top-k-1", "top-k-7", "top-p-0.5", "top-p-0.9", "min-p-0.1", "repetition", "0.5", "2.0")


@case("inference.filter", requires=NEEDS[1:], axes={"filter": FILTERS})
def test_filter(check, device, filter):
    """Filters of probabilities keep the words that the rule keeps, with the right probabilities."""
    logits, seen = scores(), torch.stack([torch.randperm(VOCABULARY)[:6] for _ in range(BATCH)])

    found = filtered(logits.to(device), filter, seen.to(device))

    for row, (given, words) in enumerate(zip(logits.double().tolist(), seen.tolist(), strict=True)):
        exact = torch.tensor(filtered_by_hand(given, filter, words), dtype=torch.float64)
        check.equal((found[row] > 0).cpu().tolist(), (exact > 0).tolist(), f"the words that row {row} keeps")
        near(check, f"the probabilities of row {row}", found[row], exact, Near.FORWARD)


@case("inference.filter.drawn", requires=[*NEEDS[1:], RNG_GENERATOR], axes={"filter": ("top-k-4", "top-p-0.8")})
def test_drawn(check, device, filter):
    """Words are drawn as often as their filtered probabilities say, and the others never."""
    row = scores()[:1] / 3
    shares = filtered(row.to(device), filter, None)
    generator = torch.Generator(device).manual_seed(92)

    drawn = torch.multinomial(shares[0], DRAWS, replacement=True, generator=generator)
    counts = torch.bincount(drawn, minlength=VOCABULARY).cpu()

    for word, chance in enumerate(filtered_by_hand(row[0].double().tolist(), filter, ())):
        limit = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / DRAWS)
        share = int(counts[word]) / DRAWS
        check.that(abs(share - chance) <= limit, f"word {word} is drawn in {share} of all draws, not {chance}")


def beams_by_hand(exact, prompt, width, steps):
    """Return the best ``width`` continuations by the sum of their logarithms, without a cache in float64."""
    beams = [(0.0, prompt.tolist())]
    for _ in range(steps):
        found = []
        for total, words in beams:
            chances = torch.log_softmax(exact(torch.tensor([words]))[0, -1], dim=-1).detach()
            found += [(total + float(chance), [*words, word]) for word, chance in enumerate(chances)]
        beams = sorted(found, key=lambda beam: -beam[0])[:width]
    return beams


@case("inference.beams", requires=NEEDS, axes={"width": ("2", "4"), "dtype": ("float32",)})
def test_beams(check, device, width, dtype):
    """Beams whose caches change places give the continuations that a search without a cache finds."""
    exact, model = language_models(dtype)
    prompt, count, steps = some_tokens(4, seed=6), int(width), 4
    wanted = beams_by_hand(exact, prompt, count, steps)
    decoder = PagedDecoder(model.to(device), 40)
    decoder.pages.begin((0, 0))
    last = decoder((0, 0), prompt)[-1:]
    beams, totals = [[]], torch.zeros(1, device=device)

    for step in range(1, steps + 1):
        chances = totals[:, None] + torch.log_softmax(last, dim=-1)
        totals, places = chances.flatten().topk(count)
        parents, words = (places // VOCABULARY).tolist(), (places % VOCABULARY).tolist()
        rows = []
        for number, (parent, word) in enumerate(zip(parents, words, strict=True)):
            decoder.pages.begin((step, number), like=(step - 1, parent))
            rows.append(decoder((step, number), torch.tensor([word])))
        for number in range(len(beams)):
            decoder.pages.end((step - 1, number))
        beams = [[*beams[parent], word] for parent, word in zip(parents, words, strict=True)]
        last = torch.cat(rows)

    check.equal(beams, [words[len(prompt) :] for _, words in wanted], "the words of all beams")
    sums = torch.tensor([total for total, _ in wanted], dtype=torch.float64)
    near(check, "the sums of logarithms", totals, sums, Near.FORWARD)


def greedy(exact, prompt, count):
    """Return the words that the exact model chooses one after the other."""
    words = prompt.tolist()
    for _ in range(count):
        words.append(int(exact(torch.tensor([words]))[0, -1].argmax()))
    return words[len(prompt) :]


#: Numbers of right words at the beginning of each draft of three.
DRAFTS = {"right": 3, "first-right": 1, "wrong": 0, "two-right": 2}


@case("inference.speculative", requires=[DTYPE.on("float32"), NEEDS[1]], axes={"draft": tuple(DRAFTS)})
def test_speculative(check, device, draft):
    """Drafted words that are checked in one pass give the words of plain decoding, in as many passes as expected."""
    exact, model = language_models("float32")
    prompt, count, drafted = some_tokens(5, seed=7), 12, 3
    wanted = greedy(exact, prompt, count)
    decoder = PagedDecoder(model.to(device), 12)
    decoder.pages.begin("a")
    words, passes = [int(decoder("a", prompt)[-1].argmax())], 0

    while len(words) < count:
        place = len(words)
        guess = [wanted[place + n] if n < DRAFTS[draft] and place + n < count else (wanted[(place + n) % count] + 1)
                 % VOCABULARY for n in range(drafted)]  # fmt: skip
        decoder.pages.begin("trial", like="a")
        chosen = decoder("trial", torch.tensor([words[-1], *guess])).argmax(-1).tolist()
        passes += 1
        taken = 0
        while taken < drafted and chosen[taken] == guess[taken]:
            taken += 1
        # The cache of the trial has refused words: only what was accepted is kept.
        decoder.pages.end("trial")
        decoder("a", torch.tensor([words[-1], *guess[:taken]]))
        words += chosen[: taken + 1]

    check.equal(words[:count], wanted, "the words")
    check.equal(passes, math.ceil((count - 1) / (DRAFTS[draft] + 1)), "passes that check drafts")


@case("inference.speculative.sampled", requires=[*NEEDS[1:], RNG_GENERATOR], axes={"draft": ("close", "far", "same")})
def test_sampled(check, device, draft):
    """Words that are drawn from a draft and refused by the rule have the target's distribution."""
    target = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    guess = {"close": [0.35, 0.3, 0.2, 0.1, 0.05], "far": [0.05, 0.05, 0.1, 0.3, 0.5], "same": target.tolist()}[draft]
    generator = torch.Generator(device).manual_seed(93)
    p, q = target.to(device), torch.tensor(guess, device=device)

    drawn = torch.multinomial(q, DRAWS, replacement=True, generator=generator)
    accepted = torch.rand(DRAWS, generator=generator, device=device) < (p / q)[drawn]
    rest = (p - q).clamp(min=0)
    rest = rest / rest.sum() if draft != "same" else p
    again = torch.multinomial(rest, DRAWS, replacement=True, generator=generator)
    words = torch.where(accepted, drawn, again)

    counts = torch.bincount(words, minlength=5).cpu().tolist()
    for word, chance in enumerate(target.tolist()):
        limit = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / DRAWS)
        check.that(abs(counts[word] / DRAWS - chance) <= limit, f"word {word} has the share {counts[word] / DRAWS}")
    chance = min(1.0, sum(min(a, b) for a, b in zip(target.tolist(), guess, strict=True)))
    limit = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / DRAWS) + 2.0**-20
    share = float(accepted.float().mean())
    check.that(abs(share - chance) <= limit, f"{share} of the drafts are accepted, not {chance}")


def slopes(heads):
    """Return ALiBi's slopes (Press et al., 2021, arXiv:2108.12409): powers of two, and every other one in between."""
    whole = 2 ** math.floor(math.log2(heads))
    found = [2.0 ** (-8 * (head + 1) / whole) for head in range(whole)]
    return found + [2.0 ** (-4 * (2 * head + 1) / whole) for head in range(heads - whole)]


def by_distances(query, key, value):
    """Return attention with ALiBi of one sequence (heads, tokens, width), row by row in float64."""
    heads, tokens, width = query.shape
    rows = torch.zeros_like(query)
    for head, slope in enumerate(slopes(heads)):
        for place in range(tokens):
            line = [float(query[head, place] @ key[head, other]) / math.sqrt(width) - slope * (place - other)
                    for other in range(place + 1)]  # fmt: skip
            shares = torch.softmax(torch.tensor(line, dtype=torch.float64), 0)
            rows[head, place] = shares @ value[head, : place + 1]
    return rows


@case("inference.alibi", requires=NEEDS, axes={
    "heads": ("4", "6"), "way": ("whole", "cached", "sdpa"), "dtype": DTYPES})  # fmt: skip
def test_alibi(check, device, heads, way, dtype):
    """Attention with ALiBi's distances agrees with float64, all at once and with a cache, for any number of heads."""
    count, tokens, width, kind = int(heads), 9, 8, getattr(torch, dtype)
    generator = torch.Generator().manual_seed(94)
    given = [torch.randn(count, tokens, width, generator=generator).to(kind) for _ in "qkv"]
    exact = by_distances(*(tensor.double() for tensor in given))
    query, key, value = (tensor.to(device) for tensor in given)
    rates = torch.tensor(slopes(count), device=device, dtype=torch.float32).view(-1, 1, 1)

    def attention(rows, first):
        """Attend from rows that begin at ``first`` to all keys up to their end."""
        total = first + rows.shape[1]
        places = torch.arange(total, device=device)
        distance = (places[first:, None] - places).float()
        bias = (-rates * distance).masked_fill(distance < 0, -math.inf)
        if way == "sdpa":
            mixed = torch.nn.functional.scaled_dot_product_attention(
                rows[None], key[None, :, :total], value[None, :, :total], attn_mask=bias.to(kind)[None]
            )
            return mixed[0]
        line = (rows @ key[:, :total].transpose(-1, -2)).float() / math.sqrt(width) + bias
        return torch.softmax(line, dim=-1).to(kind) @ value[:, :total]

    if way == "cached":
        found = torch.cat(
            [attention(query[:, :4], 0), *(attention(query[:, at : at + 1], at) for at in range(4, 9))], 1
        )
    else:
        found = attention(query, 0)

    near(check, "the mixed values", found, exact, Near.FORWARD, largest=float(given[2].abs().max()))
