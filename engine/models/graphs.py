"""CUDA graphs for `models/static`: a pass is recorded once and replayed by one call.

Contract: `recorder()` is a `Recorder`. Graphs of one model share a pool of memory. What a graph
gives is overwritten by its next replay. A pass that cannot be recorded runs as it comes; `refusals`
says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.static import Pass

WARM_UPS = 3
"""Runs before recording: libraries set themselves up in the first ones (torch's own advice)."""


class CudaRecorder:
    """Records passes on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self.refusals: list[str] = []

    def __call__(self, run: Pass) -> Pass:
        """Record `run`, or return it as it is where that fails."""
        with torch.cuda.device(self._device):
            return self._record(run)

    def describe(self) -> str:
        """Say how passes run."""
        return f"as they come ({self.refusals[0]})" if self.refusals else "CUDA graphs"

    def _record(self, run: Pass) -> Pass:
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                run()
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                results = run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.refusals.append(str(error).splitlines()[0])
            return run

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return results

        return replay
