"""Replay: how a greedy run would have gone at any draft length, without a model.

Contract: a greedy text is the same for every draft length, so one map of it (`Measured`
"run_lengths") tells how each round of any run would have ended: `rounds_*` walk over the map by
the very rules of `engine.decode` and return what its rounds would hold. Nothing here draws, reads
a clock or knows a model. A map that is not `exact` gives what it says, no more.

Words: *room* is how many tokens a proposal may have before the text is full. The *oracle* proposes
each round exactly the drafts that will be accepted; it never drafts in vain, but a round that
stops earlier may land at a better place, so it need not be the fewest passes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Played(NamedTuple):
    """One round: tokens asked for, tokens proposed, proposed tokens that the text took."""

    gamma: int
    drafted: int
    accepted: int


class Policy(Protocol):
    """Chooses draft lengths; `engine.policy` has some."""

    def next_gamma(self) -> int:
        """Return the draft length to use now."""

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn how a round went."""


class Costs(Protocol):
    """What rounds take; `engine.policy.Costs` is one."""

    @property
    def draft_start(self) -> float:
        """Seconds of asking the drafter, also when it has nothing to offer."""

    def round_seconds(self, gamma: int) -> float:
        """Return the seconds of a round that proposes `gamma` tokens."""


@dataclass(frozen=True, slots=True)
class RunLengths:
    """How far drafts match from every place of a text of n tokens.

    lengths, proposed: [n - 1] as in `engine.instruments`. longest: tokens proposed at most.
    limit: where the run would have been cut; None where it is not known and cannot matter.
    """

    lengths: tuple[int, ...]
    proposed: tuple[int, ...]
    longest: int
    limit: int | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], max_new_tokens: int | None = None) -> RunLengths:
        """Return the map of a `Measured`; a text that did not end by itself was cut at its end."""
        lengths = tuple(data["lengths"])
        limit = max_new_tokens if data["stop"] else len(lengths) + 1
        return cls(lengths, tuple(data["proposed"]), data["longest"], limit)

    @property
    def num_decoded(self) -> int:
        """Tokens behind the first one, which comes from reading the prompt."""
        return len(self.lengths)

    def play(self, known: int, wanted: int) -> Played:
        """Return the round at the place where `known` tokens are known."""
        room = self.longest if self.limit is None else self.limit - known - 1
        gamma = max(0, min(wanted, room))
        if gamma > self.longest:
            raise ValueError(f"the map knows proposals of up to {self.longest}, not {gamma}")
        drafted = min(gamma, self.proposed[known - 1])
        return Played(gamma, drafted, min(drafted, self.lengths[known - 1]))


@dataclass(frozen=True, slots=True)
class Totals:
    """What rounds come to; `seconds` is None without costs."""

    num_decoded: int
    num_rounds: int
    num_drafted: int
    num_accepted: int
    seconds: float | None

    @property
    def tokens_per_pass(self) -> float | None:
        """Decoded tokens per target pass; the mean acceptance length when nothing was cut."""
        return self.num_decoded / self.num_rounds if self.num_rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens per second that the costs predict."""
        return self.num_decoded / self.seconds if self.seconds else None


def rounds_fixed(run_map: RunLengths, gamma: int) -> list[Played]:
    """Return the rounds of a run that always asks for `gamma` tokens; 0 is plain decoding.

    Raises ValueError for more than the map's `longest`.
    """
    if not 0 <= gamma <= run_map.longest:
        raise ValueError(f"the map knows proposals of 0 to {run_map.longest}, not {gamma}")
    return _walk(run_map, lambda _: gamma)


def rounds_adaptive(run_map: RunLengths, policy: Policy) -> list[Played]:
    """Return the rounds of a run that asks a policy, which learns on the way."""
    played: list[Played] = []
    known = 1
    while known <= run_map.num_decoded:
        done = run_map.play(known, min(policy.next_gamma(), run_map.longest))
        policy.observe(done.drafted, done.accepted)
        played.append(done)
        known += done.accepted + 1
    return played


def rounds_oracle(run_map: RunLengths) -> list[Played]:
    """Return the rounds of a run that knows how many drafts will be accepted."""
    return _walk(run_map, lambda known: run_map.lengths[known - 1])


def totals(num_decoded: int, played: Iterable[Played], costs: Costs | None = None) -> Totals:
    """Add rounds up; with costs, also the seconds they take."""
    rounds = list(played)
    return Totals(
        num_decoded,
        len(rounds),
        sum(done.drafted for done in rounds),
        sum(done.accepted for done in rounds),
        None if costs is None else sum(round_seconds(done, costs) for done in rounds),
    )


def round_seconds(done: Played, costs: Costs) -> float:
    """Return what a round takes; a drafter that was asked in vain costs its start."""
    in_vain = costs.draft_start if done.gamma and not done.drafted else 0.0
    return costs.round_seconds(done.drafted) + in_vain


def _walk(run_map: RunLengths, wanted: Callable[[int], int]) -> list[Played]:
    played: list[Played] = []
    known = 1
    while known <= run_map.num_decoded:
        done = run_map.play(known, wanted(known))
        played.append(done)
        known += done.accepted + 1
    return played
