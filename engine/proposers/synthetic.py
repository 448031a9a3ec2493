"""A proposer with an acceptance of your choice, for teaching and tests.

It looks at the target's own distribution p and draws from q = alpha p + (1 - alpha) r, with r all
on the target's least likely token. Then sum(min(p, q)) is alpha (plus what p gives that token),
whatever the text is, and measured curves must fall on the closed form. It reads the target once
per proposed token, so it never saves time.
"""

from __future__ import annotations

import torch

from engine.models.base import LanguageModel, Tap
from engine.proposers.base import Context, Draft, no_draft
from engine.sampling import Sampler, draw


class Synthetic:
    """Proposes from a mixture of the target's law and a token it would never choose."""

    taps: tuple[Tap, ...] = ()

    def __init__(
        self,
        oracle: LanguageModel,
        sampler: Sampler,
        generator: torch.Generator,
        *,
        alpha: float,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie in 0..1, not {alpha}")
        self._oracle = oracle
        self._sampler = sampler
        self._generator = generator
        self._alpha = alpha

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Draw `gamma` tokens from the mixture."""
        ids = list(context.token_ids)
        gamma = min(gamma, self._oracle.max_length - len(ids))
        if gamma <= 0:
            return no_draft(self._oracle.vocab_size, self._oracle.device)
        all_probs = []
        for _ in range(gamma):
            p = self._sampler.probs(self._oracle.read(ids).logits, ids)[0]
            q = self._alpha * p
            q[p.argmin()] += 1 - self._alpha
            q = q / q.sum()
            all_probs.append(q)
            ids.append(draw(q, self._generator))
        return Draft(torch.tensor(ids[-gamma:], device=self._oracle.device), torch.stack(all_probs))
