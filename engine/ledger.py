"""Where the time of decoding went, against a plain run on the same machine.

Contract: exact arithmetic on recorded clocks. `ledger(rounds, plain_rounds)` returns None where
either has no decoded token or no time. The parts sum to the wall by construction: what no phase
claims is a part of its own, "unaccounted".

Words: a *plain step* is what plain decoding needs for one token, all its phases together. In the
*ideal* every round costs exactly one plain step; then the speed-up is the mean acceptance length.
A *part* is what one phase took beyond its share of one plain step per round; it is negative where
the phase was cheaper than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.events import Round

PHASES = ("draft", "verify", "sampling", "rule", "text", "bookkeeping", "unaccounted")
"""The phases of `Timings`, in the order of a round; together they are its total."""

UNSPLIT = "draft_verify"
"""Takes the place of "draft" and "verify" where a source does not tell them apart."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its phase's seconds, those beyond a plain step, and the speed-up these took."""

    name: str
    total: float
    seconds: float
    cost: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """The wall of one run, split.

    num_tokens: decoded and kept.  num_produced: with those past the end of the text.
    num_read: tokens the target's passes were about, one more than proposed each.
    plain_step, wall: seconds.  parts: in the order of a round.  is_split: whether drafting and
    verifying were timed apart.
    """

    num_rounds: int
    num_tokens: int
    num_produced: int
    num_read: int
    plain_step: float
    wall: float
    parts: tuple[Part, ...]
    is_split: bool

    @property
    def ideal(self) -> float:
        """The speed-up if a round cost one plain step: the mean acceptance length."""
        return self.num_produced / self.num_rounds

    @property
    def cut_cost(self) -> float:
        """The part of the ideal that went into tokens past the end of the text."""
        return (self.num_produced - self.num_tokens) / self.num_rounds

    @property
    def speed_up(self) -> float:
        """Plain seconds for these tokens over the seconds they took."""
        return self.num_tokens * self.plain_step / self.wall

    @property
    def plain_share(self) -> float:
        """Seconds of one plain step per round."""
        return self.num_rounds * self.plain_step

    @property
    def got(self) -> float:
        """Tokens a round brought."""
        return self.num_tokens / self.num_rounds

    @property
    def need(self) -> float:
        """Tokens a round must bring to be worth its time: what it costs in plain steps."""
        return self.wall / self.plain_share

    @property
    def worst(self) -> Part | None:
        """The part that took most of the ideal; None where none took anything."""
        taken = [part for part in self.parts if part.cost > 0]
        return max(taken, key=lambda part: part.cost, default=None)


def ledger(rounds: Sequence[Round], plain_rounds: Sequence[Round]) -> Ledger | None:
    """Return the split wall of `rounds`.

    Each part takes of the ideal its share of the wall, so the order of the parts does not matter:
    with S rounds, N tokens, plain step t and wall W = S t + sum(parts), the speed-up is
    N t / W = N / S - sum(N / S * part / W).
    """
    tokens, plain_tokens = _kept(rounds), _kept(plain_rounds)
    wall, plain_wall = _wall(rounds), _wall(plain_rounds)
    if not tokens or not plain_tokens or wall <= 0 or plain_wall <= 0:
        return None
    split = all(done.seconds.draft is not None for done in rounds)
    own, plain = _phases(rounds, split), _phases(plain_rounds, split)
    got = tokens / len(rounds)
    parts = []
    for name, seconds in own.items():
        beyond = seconds - len(rounds) * plain[name] / plain_tokens
        parts.append(Part(name, seconds, beyond, got * beyond / wall))
    return Ledger(
        num_rounds=len(rounds),
        num_tokens=tokens,
        num_produced=sum(done.verdict.num_accepted + 1 for done in rounds),
        num_read=sum(len(done.proposal.tokens) + 1 for done in rounds),
        plain_step=plain_wall / plain_tokens,
        wall=wall,
        parts=tuple(parts),
        is_split=split,
    )


def _kept(rounds: Iterable[Round]) -> int:
    return sum(len(done.output) for done in rounds)


def _wall(rounds: Iterable[Round]) -> float:
    return sum(done.seconds.total for done in rounds)


def _phases(rounds: Sequence[Round], split: bool) -> dict[str, float]:
    """Return the seconds of each phase; without a split, drafting and verifying are one."""
    found = {name: sum(getattr(r.seconds, name) or 0.0 for r in rounds) for name in PHASES}
    if split:
        return found
    both = found.pop("draft") + found.pop("verify")
    return {UNSPLIT: both, **found}
