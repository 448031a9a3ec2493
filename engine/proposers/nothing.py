"""Plain decoding: propose nothing. The baseline differs from other runs by this class alone."""

from __future__ import annotations

import torch

from engine.models.base import Tap
from engine.proposers.base import Context, Draft, no_draft


class Nothing:
    """Never proposes."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self._empty = no_draft(vocab_size, device)

    def propose(self, context: Context, gamma: int) -> Draft:
        """Return the empty proposal."""
        return self._empty
