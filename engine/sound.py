"""What a record must be for every reader of it to work, beyond its types.

Contract: `check` passes every record that `decode` can make, and what it passes cannot make a count
negative, a list too short or a sum infinite. `Order` passes whole runs and those that were cut off,
and refuses events out of their place. Both raise `UnsoundError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from engine.events import (
    Drafted,
    Finished,
    Measured,
    Prefilled,
    Proposal,
    Record,
    Round,
    Started,
    Verified,
)

REASONS = {
    "header": "the header of a trace is expected",
    "version": "the version is not known here",
    "long": "the line is too long",
    "text": "the text is not UTF-8",
    "json": "the line is not (or not all of) a JSON object",
    "deep": "the line is nested too deeply",
    "event": "the kind of record is not known here",
    "type": "a value is of the wrong kind",
    "missing": "a field is missing",
    "range": "a value is impossible",
    "length": "two lists do not fit together",
    "order": "the record is out of its place",
    "no_run": "no run begins",
}
"""What can be wrong, for `trace.<reason>` among the page's texts."""

MOST_SECONDS, LEAST_SECONDS = 1e9, 1e-12
"""Between them, sums and quotients stay finite."""


class UnsoundError(ValueError):
    """A record that cannot be used: the reason, and the field."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(REASONS[reason] + (f" ({place})" if place else ""))
        self.reason = reason
        self.place = place

    def inside(self, outer: str) -> UnsoundError:
        """Return the same with its place seen from one level further out."""
        dot = "." if self.place and not self.place.startswith("[") else ""
        return UnsoundError(self.reason, f"{outer}{dot}{self.place}")


def check(record: Record) -> None:
    """Refuse impossible values.  Raises `UnsoundError`."""
    match record:
        case Started():
            _at_least_0(**{"settings.gamma": record.settings.gamma})
            _at_least_0(**{"settings.max_new_tokens": record.settings.max_new_tokens})
        case Prefilled():
            _same_length("pieces", record.output, record.pieces)
            _at_least_0(num_prompt_tokens=record.num_prompt_tokens)
            _seconds(seconds=record.seconds, proposer_seconds=record.proposer_seconds)
            _probabilities("p", [record.p])
        case Drafted():
            _at_least_0(index=record.index, gamma=record.gamma)
            _check_proposal(record.proposal)
            _seconds(seconds=record.seconds)
        case Verified():
            try:
                _check_round(record.round)
            except UnsoundError as error:
                raise error.inside("round") from None
        case Finished():
            _at_least_0(num_hidden=record.num_hidden)
            if record.num_hidden > len(record.token_ids):
                raise UnsoundError("range", "num_hidden")
        case Measured():
            pass
        case _:
            assert_never(record)


class Order:
    """Follows the records of a file and refuses the first that is out of its place."""

    def __init__(self) -> None:
        self.num_runs = 0
        self._expects: tuple[type, ...] = (Started,)
        self._index = 0

    def check(self, record: Record) -> None:
        """Take the next record.  Raises `UnsoundError`."""
        if isinstance(record, Measured):
            return
        kind = type(record)
        # A new run may begin anywhere: the one before it was cut off.
        if kind not in self._expects and kind is not Started:
            raise UnsoundError("order", kind.__name__)
        match record:
            case Started():
                self.num_runs += 1
                self._index = 0
                self._expects = (Prefilled, Finished)
            case Prefilled():
                self._expects = (Drafted, Verified, Finished)
            case Drafted():
                self._check_index(record.index)
                self._expects = (Verified, Finished)
            case Verified():
                self._check_index(record.round.index)
                self._index += 1
                self._expects = (Drafted, Verified, Finished)
            case Finished():
                self._expects = (Started,)
            case _:
                assert_never(record)

    def _check_index(self, index: int) -> None:
        if index != self._index:
            raise UnsoundError("order", "index")


def _check_proposal(proposal: Proposal, outer: str = "proposal") -> None:
    g = len(proposal.tokens)
    if proposal.q is not None:
        _same_length(f"{outer}.q", proposal.q, proposal.tokens)
        _probabilities(f"{outer}.q", proposal.q)
    if len(proposal.top) not in (0, g):
        raise UnsoundError("length", f"{outer}.top")


def _check_round(done: Round) -> None:
    verdict, g = done.verdict, len(done.proposal.tokens)
    _check_proposal(done.proposal)
    _at_least_0(
        index=done.index,
        gamma=done.gamma,
        num_rolled_back=done.num_rolled_back,
        num_forwarded=done.num_forwarded,
        num_cut=done.num_cut,
        **{"verdict.num_accepted": verdict.num_accepted},
    )
    if verdict.num_accepted > g:
        raise UnsoundError("range", "verdict.num_accepted")
    if verdict.next_source == "draft":
        raise UnsoundError("range", "verdict.next_source")
    _same_length("pieces", done.output, done.pieces)
    for name, length in (("p", g), ("accept_prob", g), ("u", g), ("overlap", g)):
        values = getattr(verdict, name)
        if values is not None and len(values) != length:
            raise UnsoundError("length", f"verdict.{name}")
        _probabilities(f"verdict.{name}", values or ())
    for name in ("entropy", "top2_gap"):
        values = getattr(verdict, name)
        if values is not None and len(values) != g + 1:
            raise UnsoundError("length", f"verdict.{name}")
    if len(verdict.top) not in (0, g + 1):
        raise UnsoundError("length", "verdict.top")
    times = done.seconds
    _seconds(
        **{
            f"seconds.{name}": getattr(times, name)
            for name in ("draft", "verify", "sampling", "rule", "text", "bookkeeping", "total")
        }
    )


def _at_least_0(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise UnsoundError("range", name)


def _seconds(**times: float | None) -> None:
    for name, seconds in times.items():
        if seconds and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            raise UnsoundError("range", name)


def _probabilities(name: str, values: Iterable[float | None]) -> None:
    for value in values:
        # A little above 1 is rounding: these are sums of single-precision numbers.
        if value is not None and not 0 <= value <= 1.001:
            raise UnsoundError("range", name)


def _same_length(name: str, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    if len(one) != len(other):
        raise UnsoundError("length", name)
