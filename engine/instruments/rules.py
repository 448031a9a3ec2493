"""Acceptance rules that look plausible and are wrong, for the losslessness lab.

Each has the signature of `engine.verify.verify` and breaks one line of it; the law of what they
emit is not the target's, and the lab shows by how much.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.verify import Decision, Rule, verify


def no_residual(token_ids: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Decision:
    """After a loss draw from p itself: tokens the drafter likes get a second chance."""
    right = verify(token_ids, q, p, u)
    if right.next_source != "recovered":
        return right
    return right._replace(next_probs=p[right.num_accepted])


def own_sample(token_ids: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Decision:
    """After a loss keep the target's favourite token instead of drawing one."""
    right = verify(token_ids, q, p, u)
    if right.next_source != "recovered":
        return right
    row = p[right.num_accepted]
    favourite = torch.nn.functional.one_hot(row.argmax(), row.shape[0]).to(row.dtype)
    return right._replace(next_probs=favourite)


def greedy_accept(token_ids: Tensor, q: Tensor, p: Tensor, u: Tensor) -> Decision:
    """Throw no coin: accept exactly where p >= q."""
    return verify(token_ids, q, p, torch.ones_like(u))


RULES: dict[str, Rule] = {
    "exact": verify,
    "no_residual": no_residual,
    "own_sample": own_sample,
    "greedy_accept": greedy_accept,
}
