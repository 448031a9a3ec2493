"""The protocol of a proposer: whatever guesses the next tokens.

To add one, write a class with `taps` and `propose`, and an entry in `engine/runtime.py`; the test
suite `tests/engine/test_proposers.py` runs its contract over it. Everything else (acceptance,
rollback, streaming, charts) follows.

Contract of `propose(context, gamma)`:
* return at most gamma tokens, each with the *exact* distribution it was drawn from;
* it may return fewer, or none. It may stop itself after a token because that token looks unsure,
  but must never take back a token it drew: that biases the output;
* gamma = 0 means "read the context, propose nothing" (the proposer's own prefill);
* the object lives for one run; all randomness comes from the generator it was built with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.models.base import LanguageModel, SharedKV, SharesKV, Tap


@dataclass(frozen=True, slots=True)
class Context:
    """What a proposer may look at.

    token_ids: prompt and output so far. The target has not read the last one yet.
    features [n, F]: the target's hidden states (at the proposer's taps) of positions
    start .. len(token_ids) - 2; every position is handed over exactly once, in order.
    shared_kv: the target's keys and values of positions 0 .. len(token_ids) - 2, for a proposer
    whose class says `wants_shared_kv = True`.
    """

    token_ids: Sequence[int]
    features: Tensor
    start: int
    shared_kv: SharedKV | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal of g tokens: token_ids [g]; probs [g, V], what each was drawn from.

    logits [g, V]: the model's own scores before greedy picking, only for display; None if there are
    none. note: where the proposal came from.
    """

    token_ids: Tensor
    probs: Tensor
    logits: Tensor | None = None
    note: str = ""

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


class Proposer(Protocol):
    """Guesses what comes next."""

    taps: tuple[Tap, ...]

    def propose(self, context: Context, gamma: int) -> Draft:
        """Propose at most `gamma` tokens to follow `context`."""
        ...


def with_shared_kv(context: Context, proposer: Proposer, target: LanguageModel) -> Context:
    """Add the target's keys and values where the proposer's class asks for them.

    Raises ValueError for a target that has none to share.
    """
    if not getattr(proposer, "wants_shared_kv", False):
        return context
    if not isinstance(target, SharesKV):
        raise ValueError("the target has no keys and values to share")
    # The target has not read the last token, and may still hold rejected ones in its place.
    return replace(context, shared_kv=target.shared_kv(len(context.token_ids) - 1))


def no_draft(vocab_size: int, device: torch.device) -> Draft:
    """Return an empty proposal."""
    return Draft(
        torch.empty(0, dtype=torch.long, device=device),
        torch.empty(0, vocab_size, device=device),
    )


def certain_draft(
    token_ids: Sequence[int], vocab_size: int, device: torch.device, note: str = ""
) -> Draft:
    """Return a proposal that was not drawn at all: one-hot rows."""
    ids = torch.tensor(list(token_ids), dtype=torch.long, device=device)
    return Draft(ids, torch.nn.functional.one_hot(ids, vocab_size).float(), note=note)
