"""How many tokens to propose next. A policy is asked by the loop, never by a proposer.

`CostAware` weighs what a draft of g tokens would bring against what it costs on this machine:

    tokens per second at g = [1 + a_1 + a_1 a_2 + ...] / [draft(g) + T(g + 1) + overhead(g)]

with a_j, the measured share of drafts accepted at position j among those judged there (Leviathan et
al. 2023, section 3.3, without its assumptions that all a_j are equal and a verify pass costs one
step). The costs were measured at load (`engine.costs`). Where the text cannot depend on draft
lengths (temperature 0) they follow the machine's `Pace`; elsewhere they stay as they are, so that
the same seed gives the same text as long as the pair stays loaded. When no g > 0 pays it proposes
nothing, and looks again every `PROBE_EVERY` rounds, unless not even full acceptance could pay.

`Adaptive` is for models whose costs nobody measured: it only counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.costs import Costs
from engine.events import Settings

PROBE_EVERY = 24
MEMORY = 0.97  # how much of the past a round leaves: about 30 rounds count
GUESS, GUESS_WEIGHT = 0.5, 3.0  # acceptance to assume before anything was seen, in drafts


class Policy(Protocol):
    """Chooses the draft length of each round."""

    def next_gamma(self) -> int:
        """Return the draft length to use now."""
        ...

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn how a round went."""
        ...


@dataclass(slots=True)
class Fixed:
    """Always the same draft length."""

    gamma: int

    def next_gamma(self) -> int:
        """Return the fixed draft length."""
        return self.gamma

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn nothing."""


@dataclass(slots=True)
class Adaptive:
    """One more after a clean sweep, else one more than were accepted; within 1..largest."""

    largest: int
    _gamma: int = field(init=False)

    def __post_init__(self) -> None:
        self._gamma = min(2, self.largest)

    def next_gamma(self) -> int:
        """Return the draft length that the last round suggests."""
        return self._gamma

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Follow the run length that was reached."""
        if num_drafted:
            wanted = num_accepted + 1  # after a sweep of g this is g + 1
            self._gamma = max(1, min(self.largest, wanted))


@dataclass(slots=True)
class CostAware:
    """The draft length with the most tokens per second, 0 when drafting does not pay.

    `now` gives the costs of this moment, where they are followed; `costs` are those at the start.
    """

    largest: int
    costs: Costs
    now: Callable[[], Costs] | None = None
    _accepted: list[float] = field(init=False)
    _judged: list[float] = field(init=False)
    _rested: int = 0

    def __post_init__(self) -> None:
        self.largest = min(self.largest, len(self.costs.passes) - 1)
        if not self._could_pay():
            self.largest = 0  # no text can change that: a look now and then would be wasted
        self._accepted = [0.0] * self.largest
        self._judged = [0.0] * self.largest

    def _could_pay(self) -> bool:
        """Return whether any draft length is faster than none when everything is accepted."""
        seconds = self.costs.round_seconds
        return any((g + 1) * seconds(0) > seconds(g) for g in range(1, self.largest + 1))

    def acceptance(self) -> list[float]:
        """Return a_1 .. a_largest; a position seen little leans on the one before.  [largest]"""
        rates = []
        expected = GUESS
        for accepted, judged in zip(self._accepted, self._judged, strict=True):
            expected = (accepted + GUESS_WEIGHT * expected) / (judged + GUESS_WEIGHT)
            rates.append(expected)
        return rates

    def speeds(self) -> list[float]:
        """Return the tokens per second to expect at draft length 0 .. largest.  [largest + 1]"""
        costs = self.now() if self.now else self.costs
        tokens, reached = 1.0, 1.0
        speeds = [1.0 / costs.round_seconds(0)]
        for gamma, rate in enumerate(self.acceptance(), start=1):
            reached *= rate
            tokens += reached
            speeds.append(tokens / costs.round_seconds(gamma))
        return speeds

    def next_gamma(self) -> int:
        """Return the best draft length; while that is 0, the best other one now and then."""
        speeds = self.speeds()
        best = max(range(len(speeds)), key=speeds.__getitem__)
        if best or self.largest == 0:
            self._rested = 0
            return best
        self._rested += 1
        if self._rested < PROBE_EVERY:
            return 0
        self._rested = 0
        return max(range(1, len(speeds)), key=speeds.__getitem__)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Count what was judged: everything up to the first loss."""
        if not num_drafted:
            return
        for position in range(self.largest):
            self._accepted[position] *= MEMORY
            self._judged[position] *= MEMORY
        for position in range(min(num_accepted + 1, num_drafted, self.largest)):
            self._judged[position] += 1
            self._accepted[position] += position < num_accepted


def policy_for(
    settings: Settings, costs: Costs | None = None, now: Callable[[], Costs] | None = None
) -> Policy:
    """Return the policy the settings ask for.

    `costs` are those measured at load, `now` gives those of the moment: these depend on clocks, so
    they only choose where the text cannot depend on the choice.
    """
    if not settings.adaptive:
        return Fixed(settings.gamma)
    if costs is None:
        return Adaptive(settings.gamma)
    if now is None or settings.temperature > 0:
        return CostAware(settings.gamma, costs)
    return CostAware(settings.gamma, now(), now)
