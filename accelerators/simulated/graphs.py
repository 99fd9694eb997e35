"""Graph capture and replay, with the interface of ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from conformance.accelerators.simulated.device_profile import DeviceProfile

#: Two numbers, like PyTorch's pool handles.
Pool = tuple[int, int]


def make_graph_class(profile: DeviceProfile, core: ModuleType) -> type:
    """Return the graph class, under the name that the profile gives it."""

    class Graph:
        """Work that is recorded without running. ``replay`` runs it on the current values of its inputs."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._graph = core.Graph()

        def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
            self._graph.begin(pool[1] if pool else 0)

        def capture_end(self) -> None:
            self._graph.end()

        def replay(self) -> None:
            self._graph.replay()

        def reset(self) -> None:
            self._graph.reset()

        def pool(self) -> Pool:
            return (0, self._graph.pool())

    Graph.__name__ = Graph.__qualname__ = profile.graph
    return Graph


def make_graph_context(profile: DeviceProfile) -> type:
    """Return the context manager that captures the work launched inside it into a graph."""

    class graph:  # noqa: N801 - PyTorch's spelling
        def __init__(self, graph: Any, pool: Pool | None = None, stream: torch.Stream | None = None,
                     capture_error_mode: str = "global") -> None:  # fmt: skip
            self._graph, self._pool = graph, pool
            self._stream = stream or torch.Stream(device=profile.device)
            self._entered = getattr(torch, profile.device).stream(self._stream)

        def __enter__(self) -> None:
            torch.accelerator.synchronize()
            # Freed blocks must not move between the graph's pool and other work, in either direction. Dead cycles may
            # stay: their blocks are of another pool. torch.cuda.graph does not collect them any more either.
            torch.accelerator.empty_cache()
            self._entered.__enter__()
            try:
                self._graph.capture_begin(self._pool)
            except BaseException:
                self._entered.__exit__(None, None, None)
                raise

        def __exit__(self, *error: Any) -> None:
            try:
                self._graph.capture_end()
            finally:
                self._entered.__exit__(None, None, None)

    return graph
