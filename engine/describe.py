"""From tensors to the records people read: most likely choices, entropies, gaps.

Contract: nothing here takes part in a decision; it only looks. With greedy decoding p and q are
one-hot, so `top` and `entropy` show the model's own softmax before greedy picking (temperature 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.events import Choice, Proposal, Token, Verdict
from engine.proposers.base import Draft
from engine.text import Codec
from engine.verify import Decision

NUM_CHOICES = 5


def choices(probs: Tensor, codec: Codec) -> tuple[tuple[Choice, ...], ...]:
    """Return the most likely tokens of each row, best first.  [n, V]"""
    values, ids = probs.topk(min(NUM_CHOICES, probs.shape[-1]), dim=-1)
    return tuple(
        tuple(Choice(i, codec.label(i), v) for i, v in zip(row_ids, row, strict=True) if v > 0)
        for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
    )


def shown_law(probs: Tensor, logits: Tensor | None, *, greedy: bool) -> Tensor:
    """Return the law to show: the one used, or the softmax behind a greedy choice.  [n, V]"""
    return torch.softmax(logits.float(), -1) if greedy and logits is not None else probs


def describe_proposal(draft: Draft, codec: Codec, *, greedy: bool) -> Proposal:
    """Return the record of a proposal."""
    if not len(draft):
        return Proposal((), (), (), draft.note)
    ids = draft.token_ids
    q = draft.probs.gather(1, ids[:, None])[:, 0]
    law = shown_law(draft.probs, draft.logits, greedy=greedy)
    return Proposal(
        tokens=tuple(Token(i, codec.label(i)) for i in ids.tolist()),
        q=tuple(q.tolist()),
        top=choices(law, codec),
        note=draft.note,
    )


def describe_verdict(
    draft: Draft,
    p: Tensor,
    logits: Tensor,
    u: Tensor,
    decision: Decision,
    next_token: int,
    codec: Codec,
    *,
    greedy: bool,
) -> Verdict:
    """Return the record of a verdict.  p, logits [g + 1, V]; u [g]"""
    law = shown_law(p, logits, greedy=greedy)
    top2 = logits.float().topk(2, dim=-1).values  # [g + 1, 2]
    rows = torch.arange(len(draft), device=p.device)
    recovered = decision.next_source == "recovered"
    return Verdict(
        num_accepted=decision.num_accepted,
        next_token=Token(next_token, codec.label(next_token)),
        next_source=decision.next_source,
        p=tuple(p[rows, draft.token_ids].tolist()),
        accept_prob=tuple(decision.accept_prob.tolist()),
        u=tuple(u.tolist()),
        overlap=tuple(torch.minimum(p[:-1], draft.probs).sum(-1).tolist()),
        entropy=tuple(torch.special.entr(law).sum(-1).tolist()),
        top2_gap=tuple((top2[:, 0] - top2[:, 1]).tolist()),
        top=choices(law, codec),
        residual_top=choices(decision.next_probs[None], codec)[0] if recovered else (),
    )
