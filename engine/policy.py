"""How many tokens to propose next. A policy is asked by the loop, never by a proposer.

`Adaptive` uses counts only, no clock, so that the same seed gives the same run: after a clean
sweep it asks for one more (up to `largest`), after a loss for one more than were accepted. It
settles near the run length that the drafter reaches on this text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.events import Settings


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


def policy_for(settings: Settings) -> Policy:
    """Return the policy the settings ask for."""
    return Adaptive(settings.gamma) if settings.adaptive else Fixed(settings.gamma)
