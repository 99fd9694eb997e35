"""Faults of context parallelism are red in the exact cases, and an unchanged run is green. Ranks are forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from conformance.judging.checker import Checker
from conformance.suites import rank_functions
from conformance.suites.workloads.exact import context, ranks
from conformance.suites.workloads.exact.reference import reference

RANKS = 2


def _nothing() -> None:
    pass


def _stale_block() -> None:
    """Let a rank use its own keys and values in the place of those that came."""
    rank_functions._shifted = lambda x, group, step, shape: x.clone() if step == 1 else x * 1


def _lost_gradient() -> None:
    """Lose the gradients of keys and values that other ranks used."""
    shifted = rank_functions._shifted
    rank_functions._shifted = lambda x, group, step, shape: (
        shifted(x, group, step, shape) if step == 1 else torch.zeros_like(shifted(x, group, step, shape))
    )


def _swapped_ranks() -> None:
    rank_functions.Group.gathered, whole = lambda self, x: whole(self, x)[::-1], rank_functions.Group.gathered  # type: ignore[method-assign]


def _not_averaged() -> None:
    context._average = lambda model, group: None


def _one_element() -> None:
    """Change one element of one gradient by the smallest step."""
    average = context._average

    def change(model: torch.nn.Module, group: rank_functions.Group) -> None:
        average(model, group)
        gradient = next(model.parameters()).grad
        gradient.view(-1)[5] += 2.0**-6  # type: ignore[union-attr]

    context._average = change


FAULTS: dict[tuple[str, str], Callable[[], None]] = {
    ("ring", "nothing"): _nothing,
    ("gather", "nothing"): _nothing,
    ("ring", "a stale block"): _stale_block,
    ("ring", "a lost gradient"): _lost_gradient,
    ("gather", "swapped ranks"): _swapped_ranks,
    ("ring", "no average"): _not_averaged,
    ("gather", "one element"): _one_element,
}


def _train(way: str, fault: Callable[[], None], rank: int, folder: Path) -> str:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    fault()
    try:
        context.check_context(Checker(), way, torch.device("cpu"))
    except AssertionError as error:
        return str(error)
    return "passed"


def said(way: str, fault: Callable[[], None]) -> str:
    """Return what the ranks say of a training with a fault."""
    reference(ranks.decoder(2), ranks.decoder(2).steps)
    with tempfile.TemporaryDirectory() as name:
        folder, pids = Path(name), []
        for rank in range(RANKS):
            pid = os.fork()
            if not pid:
                try:
                    (folder / f"end-{rank}").write_text(_train(way, fault, rank, folder))
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        return "; ".join((folder / f"end-{rank}").read_text() for rank in range(RANKS))


@pytest.fixture(scope="module")
def all_said() -> dict[str, str]:
    """Return what the ranks say with each fault. Another process forks them: autograd's threads do not survive it."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("way", "name"), FAULTS)
def test_a_fault_is_named_with_its_place(all_said: dict[str, str], way: str, name: str) -> None:
    text = all_said[f"{way}: {name}"]

    if name == "nothing":
        assert text == "passed; passed"
    else:
        assert f"cp by {way}" in text
        assert "step 1" in text
        assert "weight" in text


if __name__ == "__main__":
    print(json.dumps({f"{way}: {name}": said(way, fault) for (way, name), fault in FAULTS.items()}))
