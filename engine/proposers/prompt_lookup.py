"""Prompt lookup: copy what followed the same words earlier in the context.

Saxena 2023, "Prompt Lookup Decoding". The longest n-gram (3 to 1 tokens) at the end of the context
is looked up, its latest earlier occurrence wins, and the tokens after it are proposed with
certainty (one-hot q). It costs next to nothing and needs no weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.base import Tap
from engine.proposers.base import Context, Draft, certain_draft, no_draft


class PromptLookup:
    """Proposes copies; nothing when the last token never occurred before."""

    taps: tuple[Tap, ...] = ()

    def __init__(self, *, vocab_size: int, device: torch.device, longest: int = 3) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._longest = longest

    def propose(self, context: Context, gamma: int) -> Draft:
        """Copy up to `gamma` tokens."""
        ids = context.token_ids
        start, size = find_latest(ids, self._longest) if gamma > 0 else (0, 0)
        if not size:
            return no_draft(self._vocab_size, self._device)
        found = ids[start : start + gamma]
        note = f"{size} tokens matched at {start - size}"
        return certain_draft(found, self._vocab_size, self._device, note)


def find_latest(token_ids: Sequence[int], longest: int) -> tuple[int, int]:
    """Find the longest suffix (at most `longest`) that occurred before, latest occurrence first.

    Return where its continuation begins and the suffix's length; (0, 0) if there is none.
    """
    ids = list(token_ids)
    for size in range(min(longest, len(ids) - 1), 0, -1):
        suffix = ids[-size:]
        for start in range(len(ids) - size - 1, -1, -1):
            if ids[start] == suffix[0] and ids[start : start + size] == suffix:
                return start + size, size
    return 0, 0
