"""Checkpoints of a layout by torch.distributed.checkpoint, which another layout on other ranks can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .layouts import Trained


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True)


def _state_of(trained: Trained) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(trained.model, trained.optimizer, options=_options())
    return {"model": model, "optimizer": optimizer}


def save(trained: Trained, folder: Path, group: Any) -> None:
    """Save model and optimizer. All ranks of the group have to call it."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_state_of(trained), checkpoint_id=folder, process_group=group)


def load(trained: Trained, folder: Path, group: Any) -> None:
    """Load model and optimizer in place. All ranks of the group have to call it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state_of(trained)
    dcp.load(state, checkpoint_id=folder, process_group=group)
    set_state_dict(
        trained.model,
        trained.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_options(),
    )
