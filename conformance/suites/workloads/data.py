"""Training data from installed Python packages; nothing is downloaded."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from conformance.judging.finding import environment_lacks

Batch = tuple[torch.Tensor, torch.Tensor]
#: Token of all bytes from 127 on, which are no printable ASCII characters.
OTHER = 127


@dataclass(frozen=True)
class Split:
    """Inputs and targets for training and for evaluation, on the host."""

    train: Batch
    held_out: Batch


@functools.cache
def text() -> torch.Tensor:
    """Return the English text of CPython's language reference as int64 ASCII codes."""
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(joined.encode("utf-8")), dtype=torch.uint8).to(torch.int64)
    return codes.clamp(max=OTHER)


def unigram_entropy() -> float:
    """Return the entropy of single bytes, in nats: the best loss of a model that knows only byte frequencies."""
    counts = torch.bincount(text(), minlength=OTHER + 1).to(torch.float64)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log()).sum())


def text_batches(size: int, context: int, steps: int, seed: int) -> list[Batch]:
    """Return ``steps`` batches of windows from the first 90 % of the text.

    Inputs and targets have shape (size, context); a target is the byte after each input byte.
    """
    return list(_windows(text()[: _border()], size, context, steps, seed))


def held_out_text(size: int, context: int, seed: int) -> Batch:
    """Return one batch from the last 10 % of the text."""
    return next(_windows(text()[_border() :], size, context, 1, seed))


def _border() -> int:
    return math.floor(text().numel() * 0.9)


def _windows(codes: torch.Tensor, size: int, context: int, steps: int, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(codes.numel() - context, (size, 1), generator=generator)
        window = codes[starts + torch.arange(context + 1)]
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


@functools.cache
def digits() -> Split:
    """Return scikit-learn's 1,797 handwritten digits, of which 297 are held out.

    Images have 8 × 8 pixels, with mean 0 and variance 1 over all images. Skip the case if scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except Exception as error:
        # A package that is installed and does not load is another problem with another cure.
        if isinstance(error, ModuleNotFoundError) and error.name == "sklearn":
            environment_lacks("scikit-learn is not installed; in the checkout, pip install '.[workloads]'")
        environment_lacks(f"scikit-learn is installed, but does not load: {type(error).__name__}: {error}")
    loaded = load_digits()
    images = torch.from_numpy(loaded.images).to(torch.float32)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(loaded.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return Split((images[:1500], labels[:1500]), (images[1500:], labels[1500:]))


def digit_batches(size: int, steps: int, seed: int) -> list[Batch]:
    """Return ``steps`` batches of ``size`` digits, drawn without repetition within an epoch."""
    images, labels = digits().train
    generator = torch.Generator().manual_seed(seed)
    epochs = math.ceil(steps * size / len(labels))
    order = torch.cat([torch.randperm(len(labels), generator=generator) for _ in range(epochs)])
    chosen = order[: steps * size].view(steps, size)
    return [(images[rows], labels[rows]) for rows in chosen]
