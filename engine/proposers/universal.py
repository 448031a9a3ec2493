"""Target + draft model with *different* tokenizers: proposals travel as text.

The text so far is spelled in the draft model's tokens, that model goes on greedily, and what it
wrote is spelled in the target's tokens and proposed. Such a token was not drawn from any
distribution over the target's vocabulary, so it is proposed as a point mass (q = 1 for it): the
rule accepts it with probability p, and the text keeps the target's law.

The idea is transformers' universal assisted decoding. Spelling the joined text may join letters
across the border; a proposal must continue the target's own tokens, so only what follows them
unchanged counts, else the new text is spelled by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.base import LanguageModel, Tap
from engine.proposers.base import Context, Draft, certain_draft, no_draft
from engine.text import HFCodec

WINDOW = 24
"""The target's last tokens that are spelled again together with the new text."""

SPARE_STEPS = 4
"""Draft steps beyond gamma: its tokens may be shorter than the target's."""


class Universal:
    """Lets a model with a tokenizer of its own guess the text."""

    taps: tuple[Tap, ...] = ()

    def __init__(
        self,
        model: LanguageModel,
        draft_codec: HFCodec,
        codec: HFCodec,
        *,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._draft_codec = draft_codec
        self._codec = codec
        self._vocab_size = vocab_size
        self._device = device
        model.forget()

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Continue the text and spell what is new in the target's tokens."""
        nothing = no_draft(self._vocab_size, self._device)
        ids = self._spelled(self._codec.decode(context.token_ids), gamma)
        if not ids:
            return nothing
        if gamma <= 0:
            self._model.read(ids, committed=len(ids))
            return nothing
        tail = list(context.token_ids[-WINDOW:])
        proposed: list[int] = []
        drafted: list[int] = []
        for _ in range(gamma + SPARE_STEPS):
            logits = self._model.read([*ids, *drafted], committed=len(ids)).logits
            token = int(logits[0].argmax())
            if token in self._draft_codec.eos_ids:
                break
            drafted.append(token)
            proposed = self._respelled(tail, self._draft_codec.decode(drafted))
            if len(proposed) > gamma:  # the last one might still grow
                break
        proposed = proposed[:gamma]
        return certain_draft(proposed, self._vocab_size, self._device) if proposed else nothing

    def _spelled(self, text: str, gamma: int) -> list[int]:
        """Return a text in the draft model's tokens, the end of it where it is too long."""
        room = self._model.max_length - max(gamma, 0) - SPARE_STEPS
        return self._draft_codec.spell(text)[-room:] if room > 0 else []

    def _respelled(self, tail: Sequence[int], new_text: str) -> list[int]:
        """Return what follows `tail` when `new_text` is added, in the target's tokens."""
        new_text = new_text.rstrip("\ufffd")  # a character that is not whole yet
        joined = self._codec.spell(self._codec.decode(tail) + new_text)
        if joined[: len(tail)] == list(tail):
            new = joined[len(tail) :]
        else:
            new = self._codec.spell(new_text)
        special = next((i for i, token in enumerate(new) if self._codec.is_special(token)), None)
        return [token for token in new[:special] if token < self._vocab_size]
