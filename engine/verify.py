"""The acceptance rule of speculative sampling.

Leviathan, Kalman and Matias 2023, algorithm 1 (arXiv 2211.17192): token i passes with probability
min(1, p_i / q_i); after the first loss the next token comes from normalise(max(p - q, 0)); after a
clean sweep it comes from the target's own next distribution. The law of the emitted tokens is then
exactly the target's, whatever q is, as long as q is what the tokens were drawn from.

Contract: this module draws nothing. Uniform numbers come in, a distribution goes out; with one-hot
rows it is greedy decoding, with g = 0 it is plain decoding.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.events import Source


class Decision(NamedTuple):
    """num_accepted; accept_prob [g]; next_probs [V], the law of the next token; its source."""

    num_accepted: int
    accept_prob: Tensor
    next_probs: Tensor
    next_source: Source


class Rule(Protocol):
    """Anything with the signature of `verify`."""

    def __call__(self, token_ids: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Decision:
        """Judge a proposal."""
        ...


def verify(token_ids: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Decision:
    """Judge g proposed tokens: token_ids [g], q [g, V], p [g + 1, V], u [g] in [0, 1).

    Raises ValueError when a proposed token has q = 0: it cannot have been drawn from q.
    """
    num_proposed = token_ids.shape[0]
    rows = torch.arange(num_proposed, device=p.device)
    p_token, q_token = p[rows, token_ids], q[rows, token_ids]  # [g]
    if bool((q_token <= 0).any()):
        raise ValueError("a proposed token has q = 0")
    # u * q < p, not u < p / q: no division, and p = 0 never passes, not even at u = 0.
    passed = (p_token > 0) & ((p_token >= q_token) | (u * q_token < p_token))
    accept_prob = (p_token / q_token).clamp(max=1.0)
    num_accepted = int(passed.long().cumprod(0).sum())
    if num_accepted == num_proposed:
        return Decision(num_accepted, accept_prob, p[-1], "bonus" if num_proposed else "target")
    residual = (p[num_accepted] - q[num_accepted]).clamp(min=0.0)
    mass = residual.sum()
    # p and q may agree up to rounding; then the loss itself was rounding, and p is the right law.
    next_probs = residual / mass if bool(mass > 0) else p[num_accepted]
    return Decision(num_accepted, accept_prob, next_probs, "recovered")
