"""The protocol of a language model, and the helper that makes its cache follow the context.

Contract of `read(token_ids)`: the model is asked to have read exactly `token_ids`. It keeps the
longest prefix that it already holds, rolls back the rest and forwards the remainder. Callers never
say "roll back", so a proposer cannot get it wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from engine.prefix import common_prefix

Tap = Literal["final", "pre_norm"] | int
"""A place where hidden states can be read: after or before the final norm, or after layer n."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What `read` returns.

    logits [want, V]: row -1 predicts the token after the last one.
    features [features, F]: hidden states of the last positions, taps concatenated.
    num_rolled_back, num_forwarded: cache entries dropped, tokens run through the model.
    """

    logits: Tensor
    features: Tensor
    num_rolled_back: int
    num_forwarded: int


@dataclass(frozen=True, slots=True)
class SharedKV:
    """Keys and values for a drafter that has none of its own.

    Of the last layer of each kind that computes its own: (keys, values), each [1, H, length, D].
    They hold every position, whatever a sliding layer can see. They are views of the cache: read
    them before the next `read`.
    """

    sliding: tuple[Tensor, Tensor]
    full: tuple[Tensor, Tensor]


class LanguageModel(Protocol):
    """A causal model over token ids, one sequence at a time."""

    vocab_size: int
    max_length: int
    device: torch.device

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Choose what `read` returns as features; () for none."""
        ...

    def read(
        self,
        token_ids: Sequence[int],
        *,
        want: int = 1,
        features: int = 0,
        committed: int | None = None,
    ) -> Reading:
        """Have read `token_ids`; return logits and features of the last positions.

        `committed` (tokens that will never be taken back) is a hint for snapshot caches.
        Raises ValueError for an empty context, or when want or features exceed its length.
        """
        ...

    def forget(self) -> None:
        """Drop the cache: the next read starts cold."""
        ...


@runtime_checkable
class SharesKV(Protocol):
    """What a language model may also offer."""

    def shared_kv(self, length: int) -> SharedKV:
        """Return keys and values of the first `length` positions read, and of no later one.

        Nothing is rolled back. Raises ValueError when it has not read so much, or cannot share.
        """
        ...


def num_kept(held: Sequence[int], token_ids: Sequence[int], *, want: int, features: int) -> int:
    """Return how many cached positions a read may keep.

    At most the common prefix, and so few that every wanted row is computed afresh.
    """
    if not token_ids:
        raise ValueError("a context needs at least one token")
    if want < 1 or max(want, features) > len(token_ids):
        raise ValueError(f"want={want}, features={features} do not fit {len(token_ids)} tokens")
    return min(common_prefix(held, token_ids), len(token_ids) - max(want, features))
