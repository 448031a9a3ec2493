"""Does a pass over k tokens give the bits of k passes over one token, here, and at what cost?

Where it does, greedy text cannot depend on the drafter: the outputs are identical, not only equal
up to rounding. It depends on the processor and on the linear kernels, so it is tried at every load
instead of assumed, at the thread count in use.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from engine.models.base import LanguageModel
from engine.models.lean import LeanLlama

MOST_COST = 1.05  # row-wise attention may make a pass this much dearer, at most
PLACES = (23, 64, 130)  # context lengths to try
WIDTHS = (2, 3, 5, 9)
USUAL = 3  # tokens of the pass whose cost counts: two drafts and the token before them
TRIES = 7


@dataclass(frozen=True, slots=True)
class Identity:
    """bit_identical: whether passes agree bit for bit.  cost: row-wise pass over the other kind."""

    bit_identical: bool
    cost: float


def settle(model: LanguageModel) -> Identity:
    """Turn row-wise attention on where it gives bit-identity for at most `MOST_COST`."""
    if not isinstance(model, LeanLlama):
        return Identity(bit_identical=False, cost=1.0)
    model.row_wise = True
    identical = all(passes_agree(model, place) for place in PLACES)
    cost = _cost(model) if identical else 1.0
    model.row_wise = identical and cost <= MOST_COST
    model.forget()
    return Identity(model.row_wise, cost)


def passes_agree(model: LanguageModel, place: int) -> bool:
    """Compare passes over several tokens with passes over one, behind `place` tokens."""
    ids = _some_ids(model, place + max(WIDTHS))
    model.forget()
    model.read(ids[: place - 1])  # the last token of the context gets a pass of its own, each time
    passes = [model.read(ids[:end]).logits for end in range(place, len(ids) + 1)]
    expected = torch.cat(passes[1:])  # [max(WIDTHS), V]
    for width in WIDTHS:
        model.read(ids[:place])
        got = model.read(ids[: place + width], want=width).logits
        if not torch.equal(got, expected[:width]):
            return False
    return True


def _cost(model: LeanLlama) -> float:
    """Return the median ratio of interleaved passes, row-wise over together."""
    ids = _some_ids(model, PLACES[-1] + USUAL)
    ratios = []
    for _ in range(TRIES):
        seconds = {}
        for model.row_wise in (False, True):
            model.read(ids[: PLACES[-1]])
            begun = time.perf_counter()
            model.read(ids, want=USUAL)
            seconds[model.row_wise] = time.perf_counter() - begun
        ratios.append(seconds[True] / seconds[False])
    return statistics.median(ratios)


def _some_ids(model: LanguageModel, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(0, model.vocab_size, (count,), generator=generator).tolist()
    return ids
