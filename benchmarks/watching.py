"""What blame costs on a right device: recording alone beside the model's own run, and the whole answer."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.table import Row, main, times
from conformance.accelerators.registry import resolve
from conformance.blame.program import Program
from conformance.blame.runs import LocalRuns
from conformance.blame.verdict import Answer, blame
from conformance.blame.watching import watch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watched", default="cpu", help="accelerator (default: cpu)")
    parser.add_argument("--watched-rounds", type=int, default=5, help="alternating rounds (default: 5)")


def llama(channels: int) -> Callable[[torch.device], Any]:
    """Return a program: a Llama of two layers, trained for one step with AdamW on 2 sequences of 64 tokens."""

    def train(device: torch.device) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes: dict[str, Any] = {
            "hidden_size": channels,
            "intermediate_size": 4 * channels,
            "num_attention_heads": channels // 16,
        }
        config = LlamaConfig(vocab_size=1000, num_hidden_layers=2, num_key_value_heads=channels // 32, **sizes)
        model: Any = LlamaForCausalLM(config)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.arange(128).reshape(2, 64).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return {"loss": loss, "model": model}

    return train


def measure(arguments: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    device = torch.device(resolve(arguments.watched).load().current_device_name())
    return [
        *(_recording(device, channels, arguments.watched_rounds) for channels in (32, 256)),
        *(_answer(device, channels) for channels in (32, 256)),
    ]


def _recording(device: torch.device, channels: int, rounds: int) -> Row:
    program = Program("llama", llama(channels))
    pairs = [(_seconds(program, device), _watched(program, device)) for _ in range(rounds + 1)][1:]
    alone, watched = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(
        f"recording a two-layer llama of {channels} channels, {device.type}",
        f"{watched * 1e3:.0f} ms",
        "≤ 3×",
        f"{alone * 1e3:.0f} ms (not watched)",
        times(watched / alone),
    )


def _seconds(program: Program, device: torch.device) -> float:
    begun = time.process_time()
    program.run(device)
    return time.process_time() - begun


def _watched(program: Program, device: torch.device) -> float:
    begun = time.process_time()
    watch(program, device, judged=False)
    return time.process_time() - begun


def _answer(device: torch.device, channels: int) -> Row:
    begun = time.process_time()
    found = blame(LocalRuns(Program("llama", llama(channels)), device))
    if found.answer not in (Answer.RIGHT, Answer.ROUNDING):
        raise SystemExit(f"{device} is blamed: {found.answer}")
    seconds = time.process_time() - begun
    return Row(f"blame of a two-layer llama of {channels} channels, {device.type}", f"{seconds:.1f} s", "≤ 60 s")


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
