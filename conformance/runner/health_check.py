"""The canary: a tiny computation after each case that tells whether the device still works."""

from __future__ import annotations

from typing import Any

_SIZE = 16


class Canary:
    """Adds on the device and reads the result back. Silent where the device cannot do even that from the start."""

    def __init__(self, accelerator: Any, device: Any) -> None:
        self._accelerator, self._device = accelerator, device
        self.trusted = self.complaint() is None

    def complaint(self) -> str | None:
        """What is wrong with the device, or None."""
        import torch

        try:
            total = (torch.ones(_SIZE, device=self._device) + 1).sum().item()
            self._accelerator.synchronize()
        except Exception as error:  # noqa: BLE001 - the device's state is the question; every answer but the right one counts
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return None if total == 2 * _SIZE else f"adding {_SIZE} ones to ones gives {total}, not {2 * _SIZE}"
