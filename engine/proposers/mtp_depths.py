"""MTP with one trained module per position: the first drafts one token ahead, the next a second.

Module k reads, at position i, token i + 1 + k and what module k - 1 chained at i (the first reads
the target's hidden state), and predicts token i + 2 + k. So all of them run over the same
positions, with the tokens rolled on by one, and a draft is at most as long as there are modules
(DeepSeek-V3, arXiv 2412.19437, section 2.2; Step 3.5 and MiMo-V2 ship three).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.models.base import Tap
from engine.proposers.base import Context, Draft, no_draft
from engine.proposers.mtp import Depth, MTPParts
from engine.sampling import Sampler, draw


class MTPDepths:
    """Runs each module over the new positions in turn, in a cache of its own.

    The last k entries of module k come from drafted tokens. They are dropped at the next `propose`
    and made again of true ones, as `MTP` does with its guesses.
    """

    def __init__(self, parts: MTPParts, sampler: Sampler, generator: torch.Generator) -> None:
        self.taps: tuple[Tap, ...] = parts.taps
        self._parts = parts
        self._sampler = sampler
        self._generator = generator
        self._num_features = 0
        self._depths = [_Running(each) for each in (Depth(parts.module, parts.head), *parts.deeper)]

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Ingest the target's new features, then draft a token with each of the first modules."""
        ids = list(context.token_ids)
        end = len(ids) - 1  # positions whose hidden state is known
        if context.start != self._num_features or end != context.start + len(context.features):
            raise ValueError("features must continue where the last proposal ended")
        self._num_features = end
        self._depths[0].take(context.features, num_true=end)
        all_logits, all_probs = [], []
        for k, depth in enumerate(self._depths):
            if 0 < gamma == k:
                break
            # Of the last k positions, this module needs tokens that are drafts, if they are at all.
            chained = self._run(depth, ids[k + 1 :], num_true=max(0, end - k))
            if k + 1 < len(self._depths):
                self._depths[k + 1].take(chained, num_true=depth.num_true)
            if not gamma:
                continue
            logits = depth.head(depth.last).float()  # [1, V]
            probs = self._sampler.probs(logits, ids)
            ids.append(draw(probs[0], self._generator))
            all_logits.append(logits)
            all_probs.append(probs)
            if self._sampler.is_unsure(logits, ids[-1]):
                break
        if not all_probs:
            return no_draft(self._parts.vocab_size, self._parts.device)
        return Draft(
            torch.tensor(ids[end + 1 :], device=self._parts.device),
            torch.cat(all_probs),
            torch.cat(all_logits),
        )

    def _run(self, depth: _Running, tokens: Sequence[int], *, num_true: int) -> Tensor:
        """Run a module from its first untrue entry on; tokens[i] belongs to position i."""
        new = torch.tensor(tokens[depth.num_true :], dtype=torch.long, device=self._parts.device)
        return depth.run(self._parts.embedding(new), num_true=num_true)


class _Running:
    """One module in a run: its cache, and the inputs that wait for it.

    num_true: how many entries of the cache were made of true tokens; those behind are guesses.
    """

    def __init__(self, depth: Depth) -> None:
        self.head = depth.head
        self.num_true = 0
        self.last = torch.empty(0)  # what it chained at the last position  [1, D]
        self._module = depth.module
        self._cache: Any = depth.module.new_cache()
        self._inputs = torch.empty(0)  # of the positions behind the true entries  [*, D]
        self._num_lasting = 0  # so many of the inputs are true

    def take(self, hidden: Tensor, *, num_true: int) -> None:
        """Put inputs [n, D] behind the true ones that wait; positions below `num_true` are true."""
        lasting = self._inputs[: self._num_lasting]
        self._inputs = torch.cat([lasting, hidden]) if len(lasting) else hidden
        self._num_lasting = num_true - self.num_true

    def run(self, embeddings: Tensor, *, num_true: int) -> Tensor:
        """Make entries of embeddings [n, D] behind the true ones; `num_true` will then be.

        -> [n, D], what is chained.
        """
        if not len(embeddings):
            return embeddings
        self._cache.crop(self.num_true)
        inputs = self._inputs[: len(embeddings)]
        out = self._module.run(embeddings, inputs, self.num_true, self._cache)
        self.last = out[-1:]
        done = max(num_true, self.num_true) - self.num_true
        self.num_true += done
        self._num_lasting -= done
        self._inputs = self._inputs[done : done + self._num_lasting].clone()
        return out
