"""The drafter of the Gemma 4 family: a small model that attends to the target's keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.base import Tap
from engine.models.gemma_assistant import Assistant
from engine.proposers.base import Context, Draft, no_draft
from engine.sampling import Sampler, draw


class GemmaAssistant:
    """Chains the assistant on its own hidden states, all at one position.

    There is no cache to keep right: what it attends to comes with the context, cut before the first
    rejected token. All it remembers is the target's last hidden state.
    """

    taps: tuple[Tap, ...] = ("final",)
    wants_shared_kv = True

    def __init__(self, assistant: Assistant, sampler: Sampler, generator: torch.Generator) -> None:
        self._assistant = assistant
        self._sampler = sampler
        self._generator = generator
        self._num_seen = 0
        self._last = torch.empty(0)  # the target's state at the last position it has read  [1, D]

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Take the target's new state, then chain `gamma` steps."""
        self._take(context)
        if gamma <= 0:
            return no_draft(self._assistant.vocab_size, self._assistant.device)
        if context.shared_kv is None:
            raise ValueError("the target's keys and values are missing")
        ids = list(context.token_ids)
        position = len(ids) - 1
        hidden = self._last
        all_logits: list[Tensor] = []
        all_probs: list[Tensor] = []
        for _ in range(gamma):
            logits, hidden = self._assistant.step(ids[-1], hidden, position, context.shared_kv)
            probs = self._sampler.probs(logits, ids)  # [1, V]
            ids.append(draw(probs[0], self._generator))
            all_logits.append(logits)
            all_probs.append(probs)
            if self._sampler.is_unsure(logits, ids[-1]):
                break
        return Draft(
            torch.tensor(ids[position + 1 :], device=self._assistant.device),
            torch.cat(all_probs),
            torch.cat(all_logits),
        )

    def _take(self, context: Context) -> None:
        num_new = context.features.shape[0]
        seen = len(context.token_ids) - 1
        if context.start != self._num_seen or context.start + num_new != seen:
            raise ValueError("features must continue where the last proposal ended")
        if num_new:
            self._last = context.features[-1:]
            self._num_seen = seen
