"""Counts and times of one run, folded from its events.

Contract: `Metrics.add(event)` may be called while the run goes on; every property is defined by the
counters beside it. Nothing is clamped: a broken counter shows as a broken number and `invariants`
names it.

Definitions (those of vLLM, where it has one):
* acceptance rate = accepted / drafted; None when nothing was drafted.
* mean acceptance length = 1 + accepted / rounds, tokens per target pass with the bonus token;
  prefill is not a round.
* acceptance by position i = rounds that accepted more than i / rounds with a draft.
* conditional acceptance at i = rounds that accepted more than i / rounds in which i was judged.
* tokens per second = decoded tokens / decode seconds; the first token belongs to prefill.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from engine import books
from engine.events import Drafted, Event, Finished, Prefilled, Round, Started, Verified


@dataclass(slots=True)
class Metrics:
    """Running totals of one run; cut tokens were produced but not taken by the text.

    num_out_of_order: rounds whose index is not their place.  num_overdrawn: rounds that accepted
    more than was proposed, or whose text took more than they produced.
    """

    method: str = ""
    gamma: int = 0
    num_prefill_tokens: int = 0
    num_rounds: int = 0
    num_rounds_with_draft: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_unjudged: int = 0
    num_emitted: int = 0
    num_cut: int = 0
    num_prefill_passes: int = 0
    num_starts: int = 0
    num_out_of_order: int = 0
    num_overdrawn: int = 0
    accepted_at: list[int] = field(default_factory=list)
    judged_at: list[int] = field(default_factory=list)
    histogram: dict[int, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    proposer_prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    unaccounted_seconds: float = 0.0
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None

    def add(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Started():
                self.num_starts += 1
                self.method = event.method
                self.gamma = event.settings.gamma
            case Prefilled():
                self.num_prefill_passes += 1
                self.num_prefill_tokens += len(event.output)
                self.num_emitted += len(event.output)
                self.prefill_seconds += event.seconds
                self.proposer_prefill_seconds += event.proposer_seconds
            case Drafted():
                pass  # a proposal counts when it has been judged
            case Verified():
                self._add_round(event.round)
            case Finished():
                self.token_ids = event.token_ids
                self.finish_reason = event.reason
            case _:
                assert_never(event)

    def _add_round(self, done: Round) -> None:
        drafted = len(done.proposal.tokens)
        accepted = done.verdict.num_accepted
        self.num_out_of_order += done.index != self.num_rounds
        self.num_overdrawn += accepted > drafted or done.num_cut < 0
        self.num_rounds += 1
        self.num_drafted += drafted
        self.num_accepted += accepted
        self.num_emitted += len(done.output)
        self.num_cut += done.num_cut
        if drafted:
            lost = accepted < drafted
            self.num_rounds_with_draft += 1
            self.num_rejected += lost
            self.num_unjudged += drafted - accepted - lost
            self.histogram[accepted] = self.histogram.get(accepted, 0) + 1
            missing = max(drafted, accepted) - len(self.accepted_at)
            self.accepted_at += [0] * missing
            self.judged_at += [0] * missing
            for i in range(accepted):
                self.accepted_at[i] += 1
            for i in range(min(accepted + 1, drafted)):
                self.judged_at[i] += 1
        self.decode_seconds += done.seconds.total
        self.draft_seconds += done.seconds.draft or 0.0
        self.verify_seconds += done.seconds.verify
        self.overhead_seconds += done.seconds.overhead
        self.unaccounted_seconds += done.seconds.unaccounted

    @property
    def num_target_passes(self) -> int:
        """Target passes, the prefill pass included."""
        return self.num_rounds + self.num_prefill_passes

    @property
    def num_new_tokens(self) -> int:
        """Tokens the text holds."""
        return self.num_emitted

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted, or None without a draft."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Marginal acceptance by position; sums to accepted / rounds with a draft."""
        rounds = self.num_rounds_with_draft
        return [count / rounds for count in self.accepted_at]

    @property
    def conditional_acceptance(self) -> list[float | None]:
        """Acceptance at a position given that all before it were accepted."""
        pairs = zip(self.accepted_at, self.judged_at, strict=True)
        return [won / judged if judged else None for won, judged in pairs]

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per target pass, or None before the first round."""
        return 1 + self.num_accepted / self.num_rounds if self.num_rounds else None

    @property
    def wall_seconds(self) -> float:
        """Prefill, the drafter's prefill and decoding together."""
        return self.prefill_seconds + self.proposer_prefill_seconds + self.decode_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens (the prefill token excluded) per second of decoding."""
        tokens = self.num_emitted - self.num_prefill_tokens
        return tokens / self.decode_seconds if self.decode_seconds and tokens else None

    @property
    def num_passes_saved(self) -> int:
        """Target passes that plain decoding would have needed beyond those made."""
        return self.num_emitted - self.num_target_passes

    def stats(self) -> dict[str, object]:
        """Return what `--stats` prints."""
        return {
            "method": self.method,
            "gamma": self.gamma,
            "token_ids": list(self.token_ids or ()),
            "num_new_tokens": self.num_new_tokens,
            "num_target_passes": self.num_target_passes,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "mean_acceptance_length": self.mean_acceptance_length,
            "prefill_seconds": self.prefill_seconds + self.proposer_prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
            "overhead_seconds": self.overhead_seconds,
            "unaccounted_seconds": self.unaccounted_seconds,
            "tokens_per_second": self.tokens_per_second,
            "finish_reason": self.finish_reason,
        }

    def invariants(self) -> dict[str, bool]:
        """Check the books. Every value is True in a correct run, at any moment of it."""
        return books.checks(self)


def fold(events: Iterable[Event]) -> Metrics:
    """Return the metrics of a finished or partial run."""
    metrics = Metrics()
    for event in events:
        metrics.add(event)
    return metrics
