"""What the inspectors look at: the run on screen, its baseline and what was measured beside it.

Contract: built from records alone, so a live run, a recording and a dropped trace are the same to
every view. `records()` gives them back in the order of a trace file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from engine.events import Event, Measured, Record, Round, Started, Verified
from engine.metrics import Metrics, fold


@dataclass(frozen=True)
class Shown:
    """One run; `baseline` is empty or a plain run on the same work; `origin` names a file."""

    events: tuple[Event, ...]
    baseline: tuple[Event, ...] = ()
    measured: tuple[Measured, ...] = ()
    origin: str = ""

    @cached_property
    def started(self) -> Started | None:
        """How the run began."""
        return next((event for event in self.events if isinstance(event, Started)), None)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The run's finished rounds."""
        return rounds_of(self.events)

    @cached_property
    def metrics(self) -> Metrics:
        """The run's counts."""
        return fold(self.events)

    @cached_property
    def plain(self) -> Metrics | None:
        """The baseline's counts; a plain run is its own."""
        if self.started is not None and self.started.method == "plain":
            return self.metrics
        return fold(self.baseline) if self.baseline else None

    def measure_of(self, kind: str, method: str | None = None) -> Measured | None:
        """Return the newest measurement of a kind (and method), or None."""
        return next(
            (
                each
                for each in reversed(self.measured)
                if each.kind == kind and method in (None, each.data.get("method"))
            ),
            None,
        )

    def with_measured(self, new: Measured) -> Shown:
        """Return the same run with one more measurement; it replaces its like."""
        kept = [
            each
            for each in self.measured
            if (each.kind, each.data.get("method")) != (new.kind, new.data.get("method"))
        ]
        return replace(self, measured=(*kept, new))

    def with_all(self, known: Iterable[Measured]) -> Shown:
        """Return the same run with what was measured before."""
        shown = self
        for each in known:
            shown = shown.with_measured(each)
        return shown

    def records(self) -> tuple[Record, ...]:
        """Return everything, as a trace file holds it."""
        return (*self.baseline, *self.events, *self.measured)


def rounds_of(events: Iterable[Event]) -> tuple[Round, ...]:
    """Return the finished rounds of a run."""
    return tuple(event.round for event in events if isinstance(event, Verified))


def shown_of(records: Iterable[Record], origin: str = "") -> Shown | None:
    """Return what a trace shows: its last run, and a plain run before it on the same work."""
    runs: list[list[Event]] = []
    measured: list[Measured] = []
    for record in records:
        if isinstance(record, Measured):
            measured.append(record)
            continue
        if isinstance(record, Started):
            runs.append([])
        if runs:
            runs[-1].append(record)
    if not runs:
        return None
    last = runs[-1]
    plain = next((run for run in reversed(runs[:-1]) if _is_baseline(run, last)), [])
    return Shown(tuple(last), tuple(plain), tuple(measured), origin)


def _is_baseline(run: list[Event], of: list[Event]) -> bool:
    first, other = run[0], of[0]
    return (
        isinstance(first, Started)
        and isinstance(other, Started)
        and first.method == "plain"
        and first.prompt_ids == other.prompt_ids
    )
