"""MTP: the drafter is a module of the target and eats its hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from engine.models.base import Tap
from engine.proposers.base import Context, Draft, no_draft
from engine.sampling import Sampler, draw


class Chain(Protocol):
    """A module that can be run on its own output; its caches are its own kind, with `crop`.

    What `run` returns is what is chained: behind the module's last norm in most families.
    """

    def new_cache(self) -> Any:
        """Return an empty cache for `run`."""
        ...

    def run(self, embeddings: Tensor, hidden: Tensor, first: int, cache: Any) -> Tensor:
        """Run positions from `first` on behind what `cache` holds.  [n, D] x 2 -> [n, D]"""
        ...


class Depth(NamedTuple):
    """A module trained for one position, and the head that reads what it chains."""

    module: Chain
    head: nn.Module


@dataclass(frozen=True, slots=True)
class MTPParts:
    """What a drafting module needs; shared by all runs.

    embedding: the target's.  head: hidden [n, D] -> logits [n, V], -inf for tokens it never drafts.
    taps: which of the target's states the module reads.  deeper: the modules for the positions
    behind the first, where each position has its own (`mtp_depths`); else the first is chained.
    cut: makes a head over the first so many of the tokens that `head` scores; None: there is none.
    """

    module: Chain
    embedding: nn.Module
    head: nn.Module
    vocab_size: int
    device: torch.device
    taps: tuple[Tap, ...] = ("final",)
    deeper: tuple[Depth, ...] = ()
    cut: Callable[[int], nn.Module] | None = None

    def with_rows(self, num_rows: int) -> MTPParts:
        """Return the same with a head over the first `num_rows` tokens; 0: as it is.

        Raises ValueError where no shorter head can be made.
        """
        if not num_rows:
            return self
        if self.cut is None:
            raise ValueError("this module's head cannot be cut")
        return replace(self, head=self.cut(num_rows))


class MTP:
    """Chains the module on its own output, in its own cache.

    Entry i of that cache comes from (token i + 1, hidden state of position i). Entries made while
    drafting hold the module's *own* hidden states; at the next `propose` they are dropped and the
    accepted positions are ingested again from the target's true features. No prefix rule could see
    this, so the proposer does it itself.
    """

    def __init__(self, parts: MTPParts, sampler: Sampler, generator: torch.Generator) -> None:
        self.taps: tuple[Tap, ...] = parts.taps
        self._parts = parts
        self._sampler = sampler
        self._generator = generator
        self._cache = parts.module.new_cache()
        self._num_ingested = 0
        self._last = torch.empty(0)  # module output at the last ingested position  [1, D]

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Ingest the target's new features, then chain `gamma` steps."""
        self._cache.crop(self._num_ingested)
        self._ingest(context)
        if gamma <= 0:
            return no_draft(self._parts.vocab_size, self._parts.device)
        ids = list(context.token_ids)
        hidden = self._last
        all_logits, all_probs = [], []
        for i in range(gamma):
            if i:
                hidden = self._forward(ids[-1:], hidden, first=len(ids) - 2)
            logits = self._parts.head(hidden).float()  # [1, V]
            probs = self._sampler.probs(logits, ids)
            ids.append(draw(probs[0], self._generator))
            all_logits.append(logits)
            all_probs.append(probs)
            if self._sampler.is_unsure(logits, ids[-1]):
                break
        return Draft(
            torch.tensor(ids[-len(all_probs) :], device=self._parts.device),
            torch.cat(all_probs),
            torch.cat(all_logits),
        )

    def _ingest(self, context: Context) -> None:
        """Replace guesses by truth: entries from the target's own hidden states."""
        num_new = context.features.shape[0]
        if context.start != self._num_ingested or context.start + num_new != (
            len(context.token_ids) - 1
        ):
            raise ValueError("features must continue where the last proposal ended")
        if num_new:
            tokens = context.token_ids[context.start + 1 :]
            self._last = self._forward(tokens, context.features, first=context.start)
            self._num_ingested += num_new

    def _forward(self, tokens: Sequence[int], hidden: Tensor, *, first: int) -> Tensor:
        """Run the module on tokens [n] and hidden [n, D]; return its last output [1, D]."""
        ids = torch.tensor(tokens, device=self._parts.device)
        embeddings = self._parts.embedding(ids)
        return self._parts.module.run(embeddings, hidden, first, self._cache)[-1:]
