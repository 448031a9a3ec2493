"""How many tokens to propose next. A policy is asked by the loop, never by a proposer.

`CostAware` weighs what a draft of g tokens would bring against what it costs on this machine:

    tokens per second at g = [1 + a_1 + a_1 a_2 + ...] / [draft(g) + T(g + 1) + overhead(g)]

with a_j, the measured share of drafts accepted at position j among those judged there (Leviathan et
al. 2023, section 3.3, without its assumptions that all a_j are equal and a verify pass costs one
step). The costs are measured once, at load (`Costs`), so no clock runs while it decides, and the
same seed gives the same run as long as the pair stays loaded. When no g > 0 pays it proposes
nothing, and looks again every `PROBE_EVERY` rounds, unless not even full acceptance could pay.

`Adaptive` is for models whose costs nobody measured: it only counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.events import Round, Settings

if TYPE_CHECKING:
    from engine.models.base import LanguageModel  # torch, which a page that replays has not

PROBE_EVERY = 24
MEMORY = 0.97  # how much of the past a round leaves: about 30 rounds count
GUESS, GUESS_WEIGHT = 0.5, 3.0  # acceptance to assume before anything was seen, in drafts
WIDEST = 9  # tokens of the widest pass: eight drafts and the token before them
REPEATS = 4
CONTEXT = 96  # tokens before a measured pass


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


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, measured at load.

    passes: a target pass over 1, 2, ... tokens, at least up to WIDEST.  draft_start, draft_step:
    a proposal of g takes draft_start + g * draft_step.  overhead: what a round with a proposal
    takes on top; plain_overhead: what one without takes.
    """

    passes: tuple[float, ...]
    draft_start: float
    draft_step: float
    overhead: float
    plain_overhead: float

    @classmethod
    def of(cls, passes: Sequence[float], rounds: Sequence[Round]) -> Costs:
        """Take the medians over recorded rounds; lengths 1 and the longest give the draft line."""
        by_length: dict[int, list[float]] = {}
        for done in rounds:
            by_length.setdefault(len(done.proposal.tokens), []).append(done.seconds.draft or 0.0)
        medians = {length: statistics.median(seconds) for length, seconds in by_length.items()}
        drafting = {length: seconds for length, seconds in medians.items() if length}
        start = step = 0.0
        if drafting:
            short, long = min(drafting), max(drafting)
            step = max(drafting[long] - drafting[short], 0.0) / max(long - short, 1)
            step = step or drafting[short] / short
            start = max(drafting[short] - short * step, 0.0)
        extra = [done.seconds.overhead for done in rounds if done.proposal.tokens]
        bare = [done.seconds.overhead for done in rounds if not done.proposal.tokens]
        overhead = statistics.median(extra or bare or [0.0])
        plain = min(statistics.median(bare), overhead) if bare else overhead
        return cls(tuple(passes), start, step, overhead, plain)

    def round_seconds(self, gamma: int) -> float:
        """Return what a round that proposes `gamma` tokens takes."""
        if gamma == 0:
            return self.passes[0] + self.plain_overhead
        drafting = self.draft_start + gamma * self.draft_step
        return drafting + self.passes[gamma] + self.overhead


@dataclass(slots=True)
class CostAware:
    """The draft length with the most tokens per second, 0 when drafting does not pay."""

    largest: int
    costs: Costs
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
        tokens, reached = 1.0, 1.0
        speeds = [1.0 / self.costs.round_seconds(0)]
        for gamma, rate in enumerate(self.acceptance(), start=1):
            reached *= rate
            tokens += reached
            speeds.append(tokens / self.costs.round_seconds(gamma))
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


def policy_for(settings: Settings, costs: Costs | None = None) -> Policy:
    """Return the policy the settings ask for."""
    if not settings.adaptive:
        return Fixed(settings.gamma)
    return Adaptive(settings.gamma) if costs is None else CostAware(settings.gamma, costs)


def pass_seconds(model: LanguageModel, widest: int = WIDEST) -> list[float]:
    """Return the median seconds of a pass over 1 .. widest tokens behind a short context."""
    longest = min(CONTEXT + widest, model.max_length)
    widest = min(widest, longest - 1)
    ids = [(7 * i) % model.vocab_size for i in range(longest)]
    start = longest - widest
    times: list[list[float]] = [[] for _ in range(widest)]
    model.forget()
    for _ in range(REPEATS):
        for width in range(1, widest + 1):
            model.read(ids[:start])  # roll back to the same context, outside the clock
            begun = time.perf_counter()
            model.read(ids[: start + width], want=width)
            times[width - 1].append(time.perf_counter() - begun)
    return [statistics.median(seconds) for seconds in times]
