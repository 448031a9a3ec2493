"""What rounds cost on this machine: measured at load, followed while runs go on.

Contract: `Costs` are seconds, measured once. `Pace` compares every finished round with them and
scales them to what the machine does now: memory that others use as well, a lower clock or a busy
core change what a pass takes by half within the hour, and not what a draft takes by the same half.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.events import Round

if TYPE_CHECKING:
    from engine.models.base import LanguageModel  # torch, which a page that replays has not

WIDEST = 9  # tokens of the widest pass: eight drafts and the token before them
REPEATS = 4
CONTEXT = 96  # tokens before a measured pass
RECENT = 32  # rounds that tell the machine's pace
TRUST = 8  # rounds that the measurement at load counts for until as many were seen


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, measured at load.

    passes: a target pass over 1, 2, ... tokens, at least up to WIDEST.  draft_start, draft_step:
    a proposal of g takes draft_start + g * draft_step.  overhead, overhead_step: what a round with
    a proposal of g takes on top, overhead + g * overhead_step; plain_overhead: one without.
    """

    passes: tuple[float, ...]
    draft_start: float
    draft_step: float
    overhead: float
    plain_overhead: float
    overhead_step: float = 0.0

    @classmethod
    def of(cls, passes: Sequence[float], rounds: Sequence[Round]) -> Costs:
        """Take the medians over recorded rounds; the shortest and longest proposals give a line."""
        drafting: dict[int, list[float]] = {}
        beside: dict[int, list[float]] = {}
        for done in rounds:
            length = len(done.proposal.tokens)
            drafting.setdefault(length, []).append(done.seconds.draft or 0.0)
            beside.setdefault(length, []).append(done.seconds.overhead)
        bare = beside.pop(0, [])
        drafting.pop(0, None)
        start, step = _line(drafting, through_nothing=True)
        overhead, overhead_step = _line(beside, through_nothing=False)
        if not beside:
            overhead = statistics.median(bare or [0.0])
        plain = min(statistics.median(bare), overhead) if bare else overhead
        return cls(tuple(passes), start, step, overhead, plain, overhead_step)

    def draft_seconds(self, gamma: int) -> float:
        """Return what proposing `gamma` tokens takes."""
        return self.draft_start + gamma * self.draft_step if gamma else 0.0

    def overhead_seconds(self, gamma: int) -> float:
        """Return what such a round takes beside the proposal and the target's pass."""
        return self.overhead + gamma * self.overhead_step if gamma else self.plain_overhead

    def round_seconds(self, gamma: int) -> float:
        """Return what a round that proposes `gamma` tokens takes."""
        return self.draft_seconds(gamma) + self.passes[gamma] + self.overhead_seconds(gamma)


def _line(seconds: Mapping[int, Sequence[float]], *, through_nothing: bool) -> tuple[float, float]:
    """Return start and step of the line through the medians at the shortest and longest length.

    One length alone gives a line through nothing, or a level one.
    """
    if not seconds:
        return 0.0, 0.0
    short, long = min(seconds), max(seconds)
    first, last = statistics.median(seconds[short]), statistics.median(seconds[long])
    step = max(last - first, 0.0) / max(long - short, 1)
    if through_nothing:
        step = step or first / short
    return max(first - short * step, 0.0), step


def _ones() -> deque[float]:
    return deque([1.0] * TRUST, RECENT)


@dataclass(slots=True)
class Pace:
    """How long things take now, as a multiple of what they took when their costs were measured.

    The target's passes share one multiple, whatever the method; drafting and the rest of a round
    have one per method. Each is the median of its last `RECENT` rounds, so that a round which the
    operating system held up moves nothing.
    """

    _passes: deque[float] = field(default_factory=_ones)
    _drafting: dict[str, deque[float]] = field(default_factory=dict)
    _overhead: dict[str, deque[float]] = field(default_factory=dict)

    def see(self, method: str, costs: Costs, done: Round) -> None:
        """Compare a finished round with the costs of its method."""
        self.see_pass(costs.passes, done)
        if length := len(done.proposal.tokens):
            for kept, spent, measured in (
                (self._drafting, done.seconds.draft, costs.draft_seconds(length)),
                (self._overhead, done.seconds.overhead, costs.overhead_seconds(length)),
            ):
                if spent is not None:
                    _add(kept.setdefault(method, _ones()), spent, measured)

    def see_pass(self, passes: Sequence[float], done: Round) -> None:
        """Compare the target's pass alone: all that a method without costs can tell."""
        length = len(done.proposal.tokens)
        if length < len(passes):
            _add(self._passes, done.seconds.verify, passes[length])

    def now(self, method: str, costs: Costs) -> Costs:
        """Return the costs as they are now."""
        passes = statistics.median(self._passes)
        drafting = statistics.median(self._drafting.get(method, (1.0,)))
        overhead = statistics.median(self._overhead.get(method, (1.0,)))
        return dataclasses.replace(
            costs,
            passes=tuple(passes * seconds for seconds in costs.passes),
            draft_start=drafting * costs.draft_start,
            draft_step=drafting * costs.draft_step,
            overhead=overhead * costs.overhead,
            plain_overhead=overhead * costs.plain_overhead,
            overhead_step=overhead * costs.overhead_step,
        )

    def forget(self) -> None:
        """Start again: the costs were just measured."""
        self._passes = _ones()
        self._drafting.clear()
        self._overhead.clear()


def _add(kept: deque[float], spent: float, measured: float) -> None:
    if measured > 0:
        kept.append(spent / measured)


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
