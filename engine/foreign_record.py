"""What another engine says about speculative decoding, in our words.

Contract: a field is what the engine said, None is "it does not say". `rate` and `length` may be
computed from counts it did say, by the definitions of `engine.metrics`. `doubts` names what cannot
be true; nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ADDABLE = ("vllm", "llama_request", "llama_run")
"""Each of these reports counts a stretch of its own; SGLang's says rates, and llama.cpp's
statistics run on from the start of the server."""

PRINTED = 0.0011
"""Logs print percentages with one decimal: a rate may be off by this much and still agree."""


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """One report of another engine; rates are 0..1, None is "it does not say"."""

    engine: str
    kind: str
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    by_position: tuple[float, ...] | None = None
    tokens_per_second: float | None = None

    @property
    def rate(self) -> float | None:
        """The acceptance rate as said, else accepted / drafted where both are counted."""
        if self.acceptance_rate is not None:
            return self.acceptance_rate
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def length(self) -> float | None:
        """The mean acceptance length as said, else 1 + accepted / rounds where both are counted."""
        if self.mean_acceptance_length is not None:
            return self.mean_acceptance_length
        return (
            1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else None
        )

    def same_tokens(self, other: ForeignRecord) -> bool:
        """Return whether both count the same numbers of drafted and accepted tokens."""
        return (self.drafted, self.accepted) == (other.drafted, other.accepted)

    def doubts(self) -> tuple[str, ...]:
        """Return what cannot be: rate_over_1, accepted_over_drafted, rate_disagrees,
        positions_rise."""
        found = []
        if self.rate is not None and self.rate > 1:
            found.append("rate_over_1")
        if self.drafted is not None and self.accepted is not None:
            if self.accepted > self.drafted:
                found.append("accepted_over_drafted")
            elif self.drafted and abs(self.accepted / self.drafted - (self.rate or 0)) > PRINTED:
                found.append("rate_disagrees")
        if any(later > sooner for sooner, later in pairwise(self.by_position or ())):
            found.append("positions_rise")
        return tuple(found)


def total(records: Sequence[ForeignRecord]) -> ForeignRecord:
    """Return the sum of reports; what cannot be added exactly is None."""
    engines = {record.engine for record in records}
    kinds = {record.kind for record in records}
    engine = engines.pop() if len(engines) == 1 else ""
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind not in ADDABLE:
        return ForeignRecord(engine, kind)
    return ForeignRecord(
        engine,
        kind,
        drafted=_sum(record.drafted for record in records),
        accepted=_sum(record.accepted for record in records),
        rounds=_sum(record.rounds for record in records),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)
