"""Why two greedy texts of the same work differ: rounding at a near-tie, or a fault.

The target reads the place where they part twice: by itself, and inside passes over several tokens,
at every offset such a pass can have. The two likeliest tokens lie a *gap* apart; the logits of the
passes differ by rounding. A gap that rounding can bridge is a tie; nothing else may change a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.events import Settings
from engine.prefix import common_prefix, parted
from engine.sampling import Sampler

if TYPE_CHECKING:
    from engine.runtime import LoadedPair

CONTEXT_TOKENS, TEXT_TOKENS = 24, 12  # how much of the texts the record quotes


def measure(
    pair: LoadedPair,
    method: str,
    prompt: str,
    settings: Settings,
    *,
    cancelled: Callable[[], bool],
    methods: Sequence[str] = (),
    token_ids: Sequence[Sequence[int]] = ((), ()),
) -> dict[str, Any]:
    """Examine two texts given as token ids.

    Raises ValueError when they do not differ within their common length.
    """
    a, b = token_ids
    if not parted(a, b):
        raise ValueError("the texts do not part")
    place = common_prefix(a, b)
    width = max(settings.gamma, 1) + 1
    context = [*pair.codec.encode(prompt, raw=settings.raw), *a[:place]]
    one, wide = _read_both(pair, context, list(b[place:]), width, Sampler(settings))
    differences = (wide - one).abs()
    worst = wide[int(differences.amax(1).argmax())]
    difference = float(differences.max())
    chosen = torch.stack([one[a[place]], one[b[place]]])
    gap = float((chosen[0] - chosen[1]).abs())
    favourite = float(one.max() - chosen.min())
    tie = favourite <= 2 * difference
    return {
        "method": method,
        "methods": list(methods or ("plain", method)),
        "position": place,
        "context": _spell(pair, context[-CONTEXT_TOKENS:]),
        "texts": [_spell(pair, ids[place : place + TEXT_TOKENS]) for ids in (a, b)],
        "width": width,
        "one": _top2(pair, one),
        "wide": _top2(pair, worst),
        "gap": gap,
        "difference": difference,
        "dtype": pair.where.get("dtype", "float32"),
        "verdict": "tie" if tie else "fault",
    }


@torch.inference_mode()
def _read_both(
    pair: LoadedPair, context: list[int], behind: list[int], width: int, sampler: Sampler
) -> tuple[Tensor, Tensor]:
    """Return the scores after `context`, read by itself [V] and at every offset [width, V]."""
    with pair.exclusive():
        target = pair.target
        target.forget()
        target.tap(())
        if len(context) > 1:
            target.read(context[:-1])
        one = sampler.scores(target.read(context).logits, context)[0]
        rows = []
        for offset in range(min(width, len(context))):
            after = behind[: width - 1 - offset]
            known = context[: len(context) - 1 - offset]
            if known:
                target.read(known)
            seen = [*context, *after]
            want = len(seen) - len(known)
            logits = target.read(seen, want=want).logits
            rows.append(sampler.scores(logits[: offset + 1], context)[offset])
    return one, torch.stack(rows)


def _top2(pair: LoadedPair, scores: Tensor) -> dict[str, Any]:
    values, ids = scores.topk(2)
    logits = [float(value) for value in values]
    labels = [pair.codec.label(token) for token in ids.tolist()]
    return {"labels": labels, "logits": logits, "gap": logits[0] - logits[1]}


def _spell(pair: LoadedPair, ids: Sequence[int]) -> str:
    pieces = pair.codec.pieces()
    return "".join([*(pieces.add(token) for token in ids), pieces.flush()])
