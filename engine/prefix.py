"""Where two sequences of token ids part."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading tokens two sequences share."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # the usual case, at C speed
        return shorter
    pairs = zip(a, b, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first place where two sequences differ or one of them ends; None if equal."""
    place = common_prefix(a, b)
    return None if place == len(a) == len(b) else place


def parted(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two sequences differ before either ends."""
    return common_prefix(a, b) < min(len(a), len(b))
