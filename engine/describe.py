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
BLOCK = 512


def choices(probs: Tensor, codec: Codec) -> tuple[tuple[Choice, ...], ...]:
    """Return the most likely tokens of each row, best first.  [n, V]"""
    values, ids = top(probs, min(NUM_CHOICES, probs.shape[-1]))
    return tuple(
        tuple(Choice(i, codec.label(i), v) for i, v in zip(row_ids, row, strict=True) if v > 0)
        for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
    )


def top(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and where they are, best first.  [n, V] -> [n, k] x 2

    In two stages: the k largest lie in the k blocks with the largest maxima.
    """
    num_rows, width = rows.shape
    if width % BLOCK or width // BLOCK < k:
        values, ids = rows.topk(k, dim=-1)
        return values, ids
    blocks = rows.view(num_rows, -1, BLOCK)
    best = blocks.amax(-1).topk(k, dim=-1).indices  # [n, k]
    some = blocks.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).view(num_rows, -1)
    values, places = some.topk(k, dim=-1)
    ids = best.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    return values, ids


def entropies(law: Tensor, logits: Tensor | None, *, greedy: bool) -> Tensor:
    """Return the entropy of each row in nats.  law, logits [n, V] -> [n]

    Of a softmax it is log(sum(exp(x))) - sum(p x), without a logarithm per token.
    """
    if greedy and logits is not None:
        scores = logits.float()
        peak = scores.amax(-1)
        # log p of the favourite is peak - log(sum(exp(x)))
        entropy: Tensor = peak - law.amax(-1).log() - torch.linalg.vecdot(law, scores)
        if bool(entropy.isfinite().all()):
            return entropy.clamp(min=0.0)
    each: Tensor = torch.special.entr(law).sum(-1)
    return each


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
    top2 = top(logits.float(), 2)[0]  # [g + 1, 2]
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
        entropy=tuple(entropies(law, logits, greedy=greedy).tolist()),
        top2_gap=tuple((top2[:, 0] - top2[:, 1]).tolist()),
        top=choices(law, codec),
        residual_top=choices(decision.next_probs[None], codec)[0] if recovered else (),
    )
