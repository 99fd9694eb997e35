"""Inputs and losses of the families, by kind of data: text, images, sound, captions, noise and clicks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from .data import digit_batches, text_batches
from .loop import widened

Inputs = dict[str, torch.Tensor]
#: Target that no loss counts.
IGNORED = -100
ROWS, LENGTH, IMAGES = 4, 48, 8
#: Token that stands for a hidden byte; the text has none of it, because ASCII control codes do not occur.
_MASK = 3


@dataclass(frozen=True)
class Kind:
    """Kind of data: its batches, its loss, and what it counts for the throughput.

    ``loss`` takes the output of the model and the targets. A loss is ``separable`` if that of a batch is the mean of
    the losses of its rows, weighted by their counted targets.
    """

    batches: Callable[[int], list[tuple[Inputs, torch.Tensor]]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    logits: Callable[[Any], torch.Tensor]
    unit: str
    items: int
    separable: bool = True


def _cross_entropy(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy. Whether autocast widens logits differs between devices, so it happens here."""
    return F.cross_entropy(widened(output.logits).flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def _logits(output: Any) -> torch.Tensor:
    return output.logits


def _contrast(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return CLIP's loss: each image has to choose its text, and each text its image."""
    scores = widened(output.logits_per_text)
    targets = targets - targets[0]  # the rows of a micro-batch are counted from its first
    return (F.cross_entropy(scores, targets) + F.cross_entropy(scores.t(), targets)) / 2


def _text(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    return [({"input_ids": ids}, targets) for ids, targets in text_batches(ROWS, LENGTH, steps, seed=11)]


def _masked(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Hide every seventh byte, and pad half of the rows."""
    batches = []
    for ids, _ in text_batches(ROWS, LENGTH, steps, seed=12):
        hidden = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
        hidden[:, 3:36:7] = True
        mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
        mask[::2, 37:] = 0
        targets = torch.where(hidden, ids, IGNORED)
        batches.append(({"input_ids": torch.where(hidden, _MASK, ids), "attention_mask": mask}, targets))
    return batches


def _pairs(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Let the second half of a text follow from the first half, which is padded in half of the rows."""
    batches = []
    for ids, following in text_batches(ROWS, LENGTH, steps, seed=13):
        half = LENGTH // 2
        mask = torch.ones(ROWS, half, dtype=torch.int64)
        mask[::2, half - 5 :] = 0
        inputs = {"input_ids": ids[:, :half], "attention_mask": mask, "decoder_input_ids": ids[:, half:]}
        batches.append(({name: part.contiguous() for name, part in inputs.items()}, following[:, half:].contiguous()))
    return batches


def _audio(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return spectrograms (rows, 80 bands, 64 frames) of chirps, each of which a text describes."""
    batches = []
    for step, (ids, following) in enumerate(text_batches(ROWS, 24, steps, seed=14)):
        sounds = {"input_features": _chirps(step), "decoder_input_ids": ids}
        batches.append((sounds, following))
    return batches


def _chirps(seed: int) -> torch.Tensor:
    """Return the logarithm of the power of chirps with seeded pitch, slope and noise, as Whisper scales it."""
    generator = torch.Generator().manual_seed(1000 + seed)
    time = torch.arange(64 * 160 + 240, dtype=torch.float64) / 16000
    pitch, slope = (torch.rand(ROWS, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    sound = torch.sin(2 * torch.pi * (200 + 2000 * pitch + 3000 * slope * time) * time)
    sound = sound + 0.05 * torch.randn(sound.shape, generator=generator, dtype=torch.float64)
    window = torch.hann_window(400, dtype=torch.float64)
    power = torch.stft(sound, 400, 160, window=window, center=False, return_complex=True).abs() ** 2
    bands = F.adaptive_avg_pool1d(power[..., :64].transpose(1, 2), 80).transpose(1, 2)
    levels = bands.clamp(min=1e-10).log10()
    levels = torch.maximum(levels, levels.amax((1, 2), keepdim=True) - 8)
    return ((levels + 4) / 4).float().contiguous()


def _images(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return digits as colour images of 32 × 32 pixels, smooth because equal neighbours are ties of a pool."""
    return [({"pixel_values": _scaled(digits)}, labels) for digits, labels in digit_batches(IMAGES, steps, seed=15)]


def _scaled(digits: torch.Tensor) -> torch.Tensor:
    colours = torch.tensor([1.0, 0.6, -0.8]).view(1, 3, 1, 1)
    return F.interpolate(digits[:, None], scale_factor=4, mode="bilinear") * colours


_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _caption(label: int) -> list[int]:
    """Return the name of a digit as 16 codes: a start, the letters, an end, and padding."""
    codes = [1, *_NAMES[label].encode(), 127]
    return codes + [0] * (16 - len(codes))


def _captions(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    batches = []
    for digits, labels in digit_batches(IMAGES, steps, seed=16):
        ids = torch.tensor([_caption(int(label)) for label in labels])
        inputs = {"pixel_values": _scaled(digits), "input_ids": ids, "attention_mask": (ids != 0).to(torch.int64)}
        batches.append((inputs, torch.arange(IMAGES)))
    return batches


def _noise(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return digits with the noise of a schedule's step; the target is the noise."""
    from .models.unet import STEPS, signal_share

    generator, share = torch.Generator().manual_seed(17), signal_share()
    batches = []
    for digits, labels in digit_batches(IMAGES, steps, seed=17):
        step = torch.randint(STEPS, (IMAGES,), generator=generator)
        noise = torch.randn(IMAGES, 1, 8, 8, generator=generator)
        signal = share[step].view(-1, 1, 1, 1)
        noisy = (signal.sqrt() * digits[:, None] + (1 - signal).sqrt() * noise).float()
        captions = torch.tensor([_caption(int(label)) for label in labels])
        batches.append(({"noisy": noisy, "step": step, "caption": captions}, noise))
    return batches


def _squared(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(widened(output), targets.to(widened(output).dtype))


def _clicks(steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return rows whose click depends on the user and on the first item."""
    from .models.recommender import ITEMS, NUMBERS, USERS

    generator = torch.Generator().manual_seed(18)
    batches = []
    for _ in range(steps):
        rows = 16
        clicked = torch.randint(1, ITEMS, (rows, 5), generator=generator)
        history = torch.randint(1, ITEMS, (rows, 7), generator=generator)
        history[::3, 4:] = 0  # padding, which is left out of the mean
        user = torch.randint(USERS, (rows,), generator=generator)
        numbers = torch.randn(rows, NUMBERS, generator=generator)
        weights = torch.rand(rows, 5, generator=generator)
        inputs = {"clicked": clicked, "weights": weights, "history": history, "user": user, "numbers": numbers}
        batches.append((inputs, ((user + clicked[:, 0]) % 2).float()))
    return batches


def _likelihood(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(widened(output), targets.to(widened(output).dtype))


def _itself(output: Any) -> torch.Tensor:
    return output


KINDS: Mapping[str, Kind] = {
    "text": Kind(_text, _cross_entropy, _logits, "tokens", ROWS * LENGTH),
    "masked": Kind(_masked, _cross_entropy, _logits, "tokens", ROWS * LENGTH),
    "pairs": Kind(_pairs, _cross_entropy, _logits, "tokens", ROWS * LENGTH // 2),
    "audio": Kind(_audio, _cross_entropy, _logits, "tokens", ROWS * 24),
    "images": Kind(_images, _cross_entropy, _logits, "samples", IMAGES),
    "captions": Kind(_captions, _contrast, lambda output: output.logits_per_text, "samples", IMAGES, separable=False),
    "noise": Kind(_noise, _squared, _itself, "samples", IMAGES),
    "clicks": Kind(_clicks, _likelihood, _itself, "samples", 16),
}


@functools.cache
def batches_of(kind: str, steps: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return ``steps`` batches of a kind of data: inputs by name, and targets."""
    return KINDS[kind].batches(steps)
