"""Series: what the charts draw of one run, one short row per round.

Contract: `add` after every round, with the metrics that already hold it; a row never changes once
it is made, so the browser gets each row once. Row values are in the order of `COLUMNS` and None is
"not known", never 0. Nothing here is averaged for looks: the last `speed_up` is that of the numbers
row, made of the same counters.

Words: *rolling* acceptance is accepted / drafted over the last `WINDOW` rounds that had a draft.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.events import Round
from engine.metrics import Metrics

COLUMNS = (
    *("round", "tokens", "seconds", "speed", "speed_up", "accepted", "drafted"),
    *("rolling", "draft", "verify", "overhead"),
)
"""tokens, seconds, speed and speed_up run from the start of decoding; draft, verify and overhead
are milliseconds of this round."""

WINDOW = 8

Row = list[float | None]


class Series:
    """The rows of one run; `plain_per_second` is the measured baseline, where there is one."""

    def __init__(self, plain_per_second: float | None = None) -> None:
        self.plain_per_second = plain_per_second
        self.rows: list[Row] = []
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def add(self, metrics: Metrics, done: Round) -> None:
        """Add the row of a finished round."""
        accepted, drafted = done.verdict.num_accepted, len(done.proposal.tokens)
        if drafted:
            self._recent.append((accepted, drafted))
        speed, seconds = metrics.tokens_per_second, done.seconds
        self.rows.append(
            [
                done.index + 1,
                metrics.num_emitted - metrics.num_prefill_tokens,
                round(metrics.decode_seconds, 6),
                speed,
                speed_up(metrics, self.plain_per_second),
                accepted,
                drafted,
                self._rolling(),
                _milliseconds(seconds.draft),
                _milliseconds(seconds.verify),
                _milliseconds(seconds.overhead),
            ]
        )

    def totals(self, metrics: Metrics) -> dict[str, Any]:
        """Return what the charts need beside the rows: acceptance by position, plain's pace."""
        plain = self.plain_per_second
        by_position = metrics.acceptance_by_position
        return {
            "position": list(range(1, len(by_position) + 1)),
            "by_position": [100 * rate for rate in by_position],
            "plain_token": None if plain is None else 1000 / plain,
            "one": 1,
        }

    def _rolling(self) -> float | None:
        drafted = sum(count for _, count in self._recent)
        accepted = sum(count for count, _ in self._recent)
        return 100 * accepted / drafted if drafted else None


def speed_up(metrics: Metrics, plain_per_second: float | None) -> float | None:
    """Return own speed over the baseline's; None where either lacks or the run is plain."""
    own = metrics.tokens_per_second
    if own is None or plain_per_second is None or metrics.method == "plain":
        return None
    return own / plain_per_second


def columns(rows: list[Row]) -> dict[str, list[float | None]]:
    """Return rows as named columns."""
    return {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
