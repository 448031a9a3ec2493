"""A race: the same work by several methods, told on one clock. Pure functions of recorded runs.

Contract: lanes run one after the other on the device, so none disturbs another; `standing` tells
what they did as plain JSON values, and the browser plays all timelines at once in their real
proportion. Nothing here sleeps, and no time is made up: a timeline holds recorded times only.

Words: a *lap* is one run of a lane; a lane's *wall* is prefill (the target's and the drafter's) and
decoding. Every repeat gives each lane one lap, and a lane's figures are medians over its laps with
their smallest and largest. Speed-ups pair the laps of one repeat.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.cells import fate_of
from engine.events import Event, Finished, Prefilled, Started, Verified
from engine.metrics import fold
from engine.prefix import first_difference

MOST_LANES = 4
ENOUGH_LAPS = 3
"""From so many laps on a lane has an interval."""

Lap = tuple[Event, ...]
Piece = list[Any]
"""[milliseconds, text, fate]"""


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane runs: a method and its draft length, at most so long with `adaptive`."""

    method: str
    gamma: int = 0
    adaptive: bool = False
    memory: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return what names the lane on screen."""
        return {"method": self.method, "gamma": self.gamma, "adaptive": self.adaptive}


def timeline(lap: Lap) -> list[Piece]:
    """Return when which piece of text appeared, from the start of the run."""
    now = 0.0
    pieces: list[Piece] = []
    for event in lap:
        match event:
            case Prefilled():
                now += event.seconds + event.proposer_seconds
                pieces += [[_ms(now), piece, "target"] for piece in event.pieces]
            case Verified():
                done = event.round
                now += done.seconds.total
                for i, piece in enumerate(done.pieces):
                    fate = fate_of(i, done.verdict.num_accepted, len(done.output))
                    source = done.verdict.next_source
                    own = source if i >= done.verdict.num_accepted else fate
                    pieces.append([_ms(now), piece, own])
    return pieces


def standing(lanes: Sequence[Lane], laps: Sequence[Sequence[Lap]]) -> list[dict[str, Any]]:
    """Return every lane's figures; laps [lane][repeat], fewer where the race was stopped.

    Speed-ups are over the first plain lane; None where there is none, and for it itself.
    """
    plain = next((i for i, lane in enumerate(lanes) if lane.method == "plain"), None)
    told = [_lane(lane, own) for lane, own in zip(lanes, laps, strict=True)]
    places = sorted(
        (each["wall"]["median"], i) for i, each in enumerate(told) if each["wall"] is not None
    )
    for place, (_, i) in enumerate(places, start=1):
        told[i]["place"] = place
    if plain is not None and laps[plain]:
        for i, each in enumerate(told):
            if i != plain and laps[i]:
                each.update(_against(laps[i], laps[plain]))
                each["inconclusive"] = _overlap(each["wall"], told[plain]["wall"])
        told[plain]["verdict"] = {"code": "race.yardstick", "facts": {}}
    return told


def _lane(lane: Lane, laps: Sequence[Lap]) -> dict[str, Any]:
    blank: dict[str, Any] = {
        **lane.facts(),
        "memory": lane.memory,
        "place": None,
        "wall": None,
        "speed_up": None,
        "decode_speed_up": None,
        "inconclusive": False,
        "verdict": None,
        "timeline": [],
    }
    if not laps:
        return blank
    counts = [fold(lap) for lap in laps]
    walls = [each.wall_seconds for each in counts]
    middle = walls.index(statistics.median_low(walls))
    shown = counts[middle]
    return {
        **blank,
        "laps": len(laps),
        "wall": spread(walls),
        "timeline": timeline(laps[middle]),
        "tokens": shown.num_emitted,
        "passes": shown.num_target_passes,
        "drafted": shown.num_drafted,
        "accepted": shown.num_accepted,
        "per_second": shown.tokens_per_second,
        "ended": shown.finish_reason or "cancelled",
    }


def _against(own: Sequence[Lap], plain: Sequence[Lap]) -> dict[str, Any]:
    """Compare a lane with the plain lane, repeat by repeat."""
    pairs = [(fold(a), fold(b)) for a, b in zip(own, plain, strict=False)]
    told: dict[str, Any] = {"verdict": verdict(own[0], plain[0])}
    # Other tokens are other work: their wall clocks cannot be compared, the pace of decoding can.
    if all(a.num_emitted == b.num_emitted for a, b in pairs):
        told["speed_up"] = spread([b.wall_seconds / a.wall_seconds for a, b in pairs])
    rates = [
        a.tokens_per_second / b.tokens_per_second
        for a, b in pairs
        if a.tokens_per_second and b.tokens_per_second
    ]
    told["decode_speed_up"] = spread(rates) if rates else None
    return told


def verdict(own: Lap, plain: Lap) -> dict[str, Any]:
    """Say whether the texts are the same, by token ids."""
    started = own[0] if own and isinstance(own[0], Started) else None
    ids, others = _ids(own), _ids(plain)
    if ids is None or others is None:
        return {"code": "race.unfinished", "facts": {}}
    place = first_difference(ids, others)
    if place is None:
        return {"code": "race.identical", "facts": {"tokens": len(ids)}}
    if started is not None and started.settings.temperature > 0:
        return {"code": "race.sampled", "facts": {}}
    return {"code": "race.diverged", "facts": {"token": place + 1}}


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return the median, and the smallest and largest where there are enough laps."""
    enough = len(values) >= ENOUGH_LAPS
    return {
        "median": statistics.median(values),
        "low": min(values) if enough else None,
        "high": max(values) if enough else None,
    }


def _overlap(a: dict[str, Any] | None, b: dict[str, Any] | None) -> bool:
    """Return whether two intervals share a point; without intervals nothing is claimed."""
    if a is None or b is None or a["low"] is None or b["low"] is None:
        return False
    return bool(a["low"] <= b["high"] and b["low"] <= a["high"])


def order(num_lanes: int, repeat: int) -> list[int]:
    """Return which lane runs when: there and back, so that no lane is always first."""
    lanes = list(range(num_lanes))
    return lanes if repeat % 2 == 0 else lanes[::-1]


def _ids(lap: Lap) -> tuple[int, ...] | None:
    last = lap[-1] if lap else None
    return last.token_ids if isinstance(last, Finished) and last.reason != "cancelled" else None


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
