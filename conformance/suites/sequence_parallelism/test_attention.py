"""Sequence parallelism cases: all-to-all exchange, attention by heads (Ulysses) and in a ring, and a masked loss."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, COMM_P2P
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .cutting import attention, heads_for, keys_to_heads, ring_attention, shares, tensors, to_heads, to_tokens

NEEDS = (COMM, COMM_DTYPE.on("float32"))
WORLDS = (2, 3)
#: Tokens and heads: a pair that 2 and 3 ranks divide, and a pair that they do not divide.
LENGTHS = {"even": (12, 6), "uneven": (13, 5)}
#: Key heads that several of the six query heads share: fewer than ranks, and a number that cuts a group in two.
KEY_HEADS = ("1", "2", "3")


def own_tokens(tensor, rank, world_size):
    return tensor.split(shares(tensor.shape[1], world_size), dim=1)[rank]


def exact_attention(given):
    """Return output and gradients of attention in one process in float64."""
    whole = [tensor.double().requires_grad_() for tensor in given]
    query, *shared = whole
    output = attention(query, *(heads_for(tensor, len(query)) for tensor in shared))
    output.square().sum().backward()
    return output.detach(), [tensor.grad for tensor in whole]


def check_part(check, output, mine, exact, rank, world_size):
    """Check the rank's part of the output and of the gradients against whole attention."""
    expected, gradients = exact
    near(check, "the output", output, own_tokens(expected, rank, world_size), Near.FORWARD)
    for name, tensor, gradient in zip(("queries", "keys", "values"), mine, gradients, strict=True):
        near(check, f"the gradient of {name}", tensor.grad, own_tokens(gradient, rank, world_size), Near.GRADIENTS,
             largest=float(gradient.abs().max()))  # fmt: skip


@case("sequence_parallelism.exchange", requires=[*NEEDS, COMM_ALL_TO_ALL], axes={"lengths": tuple(LENGTHS)},
      world_size=(2, 3, 4))  # fmt: skip
def test_exchange(check, device, lengths, rank, world_size, group):
    """An exchange from own tokens to own heads places every element correctly, and the way back restores it."""
    tokens, heads = LENGTHS[lengths]
    whole = tensors(tokens, heads)[0]
    mine = own_tokens(whole, rank, world_size).to(device)

    by_head = to_heads(mine, rank, world_size, tokens, heads)
    back = to_tokens(by_head, rank, world_size, tokens, heads)

    check.equal(by_head.cpu(), whole.split(shares(heads, world_size))[rank], "own heads, all tokens")
    check.equal(back.cpu(), mine.cpu(), "own tokens, all heads")


@case("sequence_parallelism.ulysses", requires=[*NEEDS, COMM_ALL_TO_ALL], axes={"lengths": tuple(LENGTHS)},
      world_size=WORLDS)  # fmt: skip
def test_ulysses(check, device, lengths, rank, world_size, group):
    """Ulysses attention gives the output and gradients of one process: each rank computes its heads for all tokens."""
    tokens, heads = LENGTHS[lengths]
    given = tensors(tokens, heads)
    mine = [own_tokens(tensor, rank, world_size).to(device).requires_grad_() for tensor in given]

    by_head = attention(*(to_heads(tensor, rank, world_size, tokens, heads) for tensor in mine))
    output = to_tokens(by_head, rank, world_size, tokens, heads)
    output.square().sum().backward()

    check_part(check, output, mine, exact_attention(given), rank, world_size)


@case("sequence_parallelism.ulysses.shared_keys", requires=[*NEEDS, COMM_ALL_TO_ALL], axes={"key_heads": KEY_HEADS},
      world_size=(2, 4))  # fmt: skip
def test_ulysses_of_shared_keys(check, device, key_heads, rank, world_size, group):
    """Ulysses attention is right where query heads share keys: a key head on several ranks adds up its gradients."""
    tokens, heads = 13, 6
    given = tensors(tokens, heads, int(key_heads))
    mine = [own_tokens(tensor, rank, world_size).to(device).requires_grad_() for tensor in given]
    query, *shared = mine

    by_head = [to_heads(query, rank, world_size, tokens, heads)]
    by_head += [keys_to_heads(tensor, rank, world_size, tokens, heads) for tensor in shared]
    output = to_tokens(attention(*by_head), rank, world_size, tokens, heads)
    output.square().sum().backward()

    check_part(check, output, mine, exact_attention(given), rank, world_size)


@case("sequence_parallelism.ring", requires=[*NEEDS, COMM_P2P], axes={"lengths": tuple(LENGTHS)},
      world_size=(2, 3, 4))  # fmt: skip
def test_ring(check, device, lengths, rank, world_size, group):
    """Ring attention gives the output and gradients of one process, also where ranks have blocks of other lengths."""
    tokens, _ = LENGTHS[lengths]
    given = tensors(tokens, 4, 2)
    mine = [own_tokens(tensor, rank, world_size).to(device).requires_grad_() for tensor in given]

    output = ring_attention(*mine, rank, world_size, tokens)
    output.square().sum().backward()

    check_part(check, output, mine, exact_attention(given), rank, world_size)


@case("sequence_parallelism.loss", requires=NEEDS, world_size=WORLDS)
def test_loss(check, device, rank, world_size, group):
    """A loss is the mean over unmasked tokens of all ranks, and a rank without such tokens adds no NaN."""
    tokens = 4 * world_size
    generator = torch.Generator().manual_seed(6)
    logits, targets = torch.randn(tokens, 9, generator=generator), torch.randint(9, (tokens,), generator=generator)
    targets[-4:], targets[1] = -100, -100  # cross_entropy ignores -100: the last rank has no token that counts
    whole = logits.double().requires_grad_()
    exact = torch.nn.functional.cross_entropy(whole, targets)
    exact.backward()
    rows = slice(4 * rank, 4 * rank + 4)
    mine, counted = logits[rows].to(device).requires_grad_(), targets[rows].to(device)

    count = (counted >= 0).sum().to(torch.float32)
    dist.all_reduce(count)
    part = torch.nn.functional.cross_entropy(mine, counted, reduction="sum") / count
    part.backward()
    total = part.detach().clone()
    dist.all_reduce(total)

    near(check, "the loss", total, exact.detach(), Near.FORWARD)
    largest = float(whole.grad.abs().max())
    near(check, "the gradient", mine.grad, whole.grad[rows], Near.GRADIENTS, largest=largest)
