"""Ways of choosing draft lengths on one greedy text, and the best of them in hindsight.

Contract: plain decoding comes first, then each fixed length, auto and the oracle. Where the
instrument drove the drafter itself, its rounds count; what it did not drive is replayed on the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.costs import Costs
from engine.policy import Adaptive, CostAware
from engine.replay import (
    Played,
    RunLengths,
    Totals,
    rounds_adaptive,
    rounds_fixed,
    rounds_oracle,
    totals,
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of choosing draft lengths; `gamma` is None for auto and the oracle."""

    name: str
    gamma: int | None
    sums: Totals

    @property
    def said(self) -> str:
        """How a figure's axis names it."""
        return str(self.gamma) if self.gamma else f"@run_lengths.{self.name}"


def ways_of(data: Mapping[str, Any], run_map: RunLengths, costs: Costs | None) -> list[Way]:
    """Return every way with its totals: as the instrument drove it, else replayed on the map."""

    def way(name: str, gamma: int | None, played: Sequence[Played]) -> Way:
        return Way(name, gamma, totals(run_map.num_decoded, played, costs))

    driven = {
        name: [Played(*done) for done in rounds] for name, rounds in data.get("driven", {}).items()
    }
    lengths = range(1, run_map.longest + 1)
    fixed = [way("fixed", g, driven.get(str(g)) or rounds_fixed(run_map, g)) for g in lengths]
    policy = Adaptive(run_map.longest) if costs is None else CostAware(run_map.longest, costs)
    return [
        way("plain", 0, rounds_fixed(run_map, 0)),
        *fixed,
        way("auto", None, driven.get("auto") or rounds_adaptive(run_map, policy)),
        way("oracle", None, rounds_oracle(run_map)),
    ]


def best(ways: Sequence[Way]) -> Way:
    """Return the best fixed length in hindsight: the fastest, or without costs the fewest passes.

    Plain decoding takes part only where seconds are known: it never saves a pass.
    """
    if all(way.sums.seconds is not None for way in ways):
        fixed = [way for way in ways if way.gamma is not None]
        return max(fixed, key=lambda way: way.sums.tokens_per_second or 0.0)
    drafting = [way for way in ways if way.gamma]
    return min(drafting, key=lambda way: way.sums.num_rounds)
