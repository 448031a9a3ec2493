"""A language model small enough to enumerate: its logits are a table over the last tokens.

Contract: a real `LanguageModel` in every respect (prefix rule, rollback counts, features), with
logits that are a fixed random function of the last `order` tokens. It serves tests, lessons and
pages without weights. `ToyCodec` spells its tokens as letters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.base import Reading, Tap, num_kept


class ToyModel:
    """A table model over `vocab_size` tokens.

    `noise` > 0 perturbs the logits of the model with the same seed: a draft that agrees sometimes.
    """

    def __init__(
        self,
        vocab_size: int = 8,
        *,
        seed: int = 0,
        order: int = 2,
        noise: float = 0.0,
        sharpness: float = 2.0,
        max_length: int = 4096,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.device = torch.device("cpu")
        self._order = order
        num_rows = (vocab_size + 1) ** order
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(num_rows, vocab_size, generator=generator) * sharpness
        if noise:
            other = torch.Generator().manual_seed(seed + 10_007)
            self.table += torch.randn(num_rows, vocab_size, generator=other) * noise
        self._held: list[int] = []
        self._taps: tuple[Tap, ...] = ()

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Accept any taps; features are the logits themselves."""
        self._taps = taps

    def forget(self) -> None:
        """Start cold."""
        self._held = []

    def read(
        self,
        token_ids: Sequence[int],
        *,
        want: int = 1,
        features: int = 0,
        committed: int | None = None,
    ) -> Reading:
        """Have read `token_ids`; see `LanguageModel.read`."""
        ids = list(token_ids)
        kept = num_kept(self._held, ids, want=want, features=features)
        rolled_back = len(self._held) - kept
        self._held = ids
        return Reading(
            logits=self._rows(ids, want),
            features=self._rows(ids, features) if self._taps else torch.empty(0, 0),
            num_rolled_back=rolled_back,
            num_forwarded=len(ids) - kept,
        )

    def _rows(self, ids: list[int], count: int) -> Tensor:
        """Return the logits after each of the last `count` positions.  -> [count, V]"""
        rows = []
        for end in range(len(ids) - count + 1, len(ids) + 1):
            index = 0
            for token in ids[max(0, end - self._order) : end]:
                index = index * (self.vocab_size + 1) + token + 1
            rows.append(index)
        return self.table[torch.tensor(rows, dtype=torch.long)]


class ToyCodec:
    """Spell token n as the n-th letter; the last token of the vocabulary is the end of text."""

    def __init__(self, vocab_size: int = 8, *, with_eos: bool = False) -> None:
        self._letters = [chr(ord("a") + i) for i in range(vocab_size)]
        self.eos_ids: frozenset[int] = frozenset({vocab_size - 1} if with_eos else ())

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Return the ids of the letters that exist here; `raw` makes no difference."""
        return [self._letters.index(c) for c in prompt.lower() if c in self._letters]

    def label(self, token_id: int) -> str:
        """Return the visible label of one token."""
        return "</s>" if token_id in self.eos_ids else self._letters[token_id]

    def pieces(self) -> ToyPieces:
        """Return a fresh incremental decoder."""
        return ToyPieces(self)


class ToyPieces:
    """Turn ids into text one at a time."""

    def __init__(self, codec: ToyCodec) -> None:
        self._codec = codec

    def add(self, token_id: int) -> str:
        """Return the text that this token completes."""
        return "" if token_id in self._codec.eos_ids else self._codec.label(token_id)

    def flush(self) -> str:
        """Return what is still incomplete: never anything here."""
        return ""
