"""RunView: folds a run's events into what the token strip shows.

Contract: `add(event)` for every event in order; `delta()` returns only the rounds that changed
since the last call, `snapshot()` all of them. Both are plain JSON values and depend on the events
alone: no clock, no gradio, no language. The browser words and formats them.

Words: a *cell* is one token on screen. Its *fate* is one of `theme.LEGEND`. A *ghost* is a cell
whose token is not in the text; it shows its label instead of its text. A *row* is the cells of one
round; the prefill's row has index -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from engine.events import Choice, Drafted, Event, Finished, Prefilled, Round, Started, Verified
from engine.metrics import Metrics

Cell = dict[str, Any]
PROMPT_ROW = -1


class RunView:
    """What is on screen of one run; `baseline` is the metrics of a plain run on the same work."""

    def __init__(self, baseline: Metrics | None = None) -> None:
        self.metrics = Metrics()
        self.baseline = baseline
        self.started: Started | None = None
        self.text = ""
        self._rows: dict[int, list[Cell]] = {}
        self._dirty: set[int] = set()
        self._num_shown = 0

    def add(self, event: Event) -> None:
        """Fold one event."""
        self.metrics.add(event)
        match event:
            case Started():
                self.started = event
            case Prefilled():
                self.text = event.text
                self._put(PROMPT_ROW, self._first_cells(event))
            case Drafted():
                self._put(event.index, _pending_cells(event))
            case Verified():
                self.text += event.round.text
                self._put(event.round.index, self._round_cells(event.round))
            case Finished():
                self._finish(event)
            case _:
                assert_never(event)

    def delta(self) -> dict[str, Any]:
        """Return the rows that changed since the last call, and the numbers."""
        rows = [self._row(index) for index in sorted(self._dirty)]
        self._dirty.clear()
        return {"full": False, "rows": rows, **self._head()}

    def snapshot(self) -> dict[str, Any]:
        """Return everything; the browser may have missed any delta."""
        self._dirty.clear()
        rows = [self._row(index) for index in sorted(self._rows)]
        return {"full": True, "rows": rows, **self._head()}

    def numbers(self) -> dict[str, Any]:
        """Return the numbers row with the counters of its formulas; None is "not known"."""
        metrics = self.metrics
        return {
            "speed_up": self.speed_up,
            "is_baseline": metrics.method == "plain",
            "plain_per_second": self.baseline.tokens_per_second if self.baseline else None,
            "per_second": metrics.tokens_per_second,
            "decoded": metrics.num_emitted - metrics.num_prefill_tokens,
            "decode_seconds": metrics.decode_seconds,
            "prefill_seconds": metrics.prefill_seconds + metrics.proposer_prefill_seconds,
            "rate": metrics.acceptance_rate,
            "drafted": metrics.num_drafted,
            "accepted": metrics.num_accepted,
            "length": metrics.mean_acceptance_length,
            "rounds": metrics.num_rounds,
            "emitted": metrics.num_emitted,
            "passes": metrics.num_target_passes,
            "saved": metrics.num_passes_saved,
            "broken_books": [name for name, holds in metrics.invariants().items() if not holds],
        }

    @property
    def speed_up(self) -> float | None:
        """Tokens per second of this run over those of the baseline; None where either lacks."""
        own = self.metrics.tokens_per_second
        plain = self.baseline.tokens_per_second if self.baseline else None
        if own is None or plain is None or self.metrics.method == "plain":
            return None
        return own / plain

    def _head(self) -> dict[str, Any]:
        started = self.started
        return {
            "method": started.method if started else "",
            "prompt": started.prompt if started else "",
            "where": dict(started.where) if started else {},
            "text": self.text,
            # The most tokens an adaptive run may propose; 0 when the length is fixed.
            "adaptive": started.settings.gamma if started and started.settings.adaptive else 0,
            "numbers": self.numbers(),
        }

    def _row(self, index: int) -> dict[str, Any]:
        return {"i": index, "cells": self._rows[index]}

    def _put(self, index: int, cells: list[Cell]) -> None:
        self._rows[index] = cells
        self._dirty.add(index)

    def _first_cells(self, event: Prefilled) -> list[Cell]:
        cells = []
        for token, piece in zip(event.output, event.pieces, strict=True):
            self._num_shown += 1
            cell = _cell(token.id, token.text, "target", text=piece, at=self._num_shown)
            cells.append(_with(cell, p=event.p, entropy=event.entropy, top=_top(event.top)))
        return cells

    def _round_cells(self, done: Round) -> list[Cell]:
        """Lay out a round: what was accepted, what was lost, then the target's own token."""
        verdict = done.verdict
        cells = []
        for i, token in enumerate(done.proposal.tokens):
            taken = i < verdict.num_accepted and i < len(done.output)
            fate = _fate(i, verdict.num_accepted, len(done.output))
            cell = _cell(token.id, token.text, fate, text=done.pieces[i] if taken else None)
            if taken:
                self._num_shown += 1
                cell["at"] = self._num_shown
            cells.append(_with(cell, position=i + 1, **_judged(done, i)))
        cells.append(self._next_cell(done))
        return cells

    def _next_cell(self, done: Round) -> Cell:
        verdict = done.verdict
        n = verdict.num_accepted
        taken = n < len(done.output)
        token = verdict.next_token
        fate = verdict.next_source if taken else "cut"
        cell = _cell(token.id, token.text, fate, text=done.pieces[n] if taken else None)
        if taken:
            self._num_shown += 1
            cell["at"] = self._num_shown
        top = verdict.top[n] if n < len(verdict.top) else ()
        known = {choice.id: choice.prob for choice in top}
        return _with(
            cell,
            p=known.get(token.id),
            entropy=_at(verdict.entropy, n),
            top=_top(top),
            residual=_top(verdict.residual_top),
        )

    def _finish(self, event: Finished) -> None:
        """Recolour what the text did not keep and drop a proposal that was never judged."""
        self.text = event.text
        for index, cells in self._rows.items():
            if any(cell["fate"] == "pending" for cell in cells):
                self._put(index, [])
        hidden = [
            (index, cell)
            for index in sorted(self._rows, reverse=True)
            for cell in reversed(self._rows[index])
            if not cell["ghost"]
        ][: event.num_hidden]
        before = dict(hidden[-1][1]) if hidden else {}
        for index, cell in hidden:
            cell.update(fate="cut", ghost=True, text=cell["label"])
            self._dirty.add(index)
        if hidden:
            self._keep_rest(event.text, *hidden[-1], before)

    def _keep_rest(self, text: str, index: int, first_hidden: Cell, before: Cell) -> None:
        """Show the part of the first hidden token that still belongs to the text, if any."""
        shown = "".join(
            cell["text"]
            for row in sorted(self._rows)
            for cell in self._rows[row]
            if not cell["ghost"]
        )
        rest = text[len(shown) :]
        if rest:
            cells = self._rows[index]
            place = next(i for i, cell in enumerate(cells) if cell is first_hidden)
            cells.insert(place, {**before, "text": rest})


def _pending_cells(event: Drafted) -> list[Cell]:
    proposal = event.proposal
    return [
        _with(
            _cell(token.id, token.text, "pending"),
            position=i + 1,
            q=_at(proposal.q, i),
            proposed=_top(proposal.top[i] if i < len(proposal.top) else ()),
            note=proposal.note or None,
        )
        for i, token in enumerate(proposal.tokens)
    ]


def _fate(i: int, num_accepted: int, num_output: int) -> str:
    if i < num_accepted:
        return "accepted" if i < num_output else "cut"
    return "rejected" if i == num_accepted else "unjudged"


def _judged(done: Round, i: int) -> dict[str, Any]:
    """Return the card's numbers of a proposed token; u only where it decided something."""
    verdict, proposal = done.verdict, done.proposal
    return {
        "p": _at(verdict.p, i),
        "q": _at(proposal.q, i),
        "accept": _at(verdict.accept_prob, i),
        "u": _at(verdict.u, i) if i <= verdict.num_accepted else None,
        "entropy": _at(verdict.entropy, i),
        "top": _top(verdict.top[i] if i < len(verdict.top) else ()),
        "proposed": _top(proposal.top[i] if i < len(proposal.top) else ()),
        "note": proposal.note or None,
    }


def _cell(
    token_id: int, label: str, fate: str, *, text: str | None = None, at: int | None = None
) -> Cell:
    cell: Cell = {
        "id": token_id,
        "label": label,
        "fate": fate,
        "ghost": text is None,
        "text": label if text is None else text,
    }
    return cell if at is None else {**cell, "at": at}


def _with(cell: Cell, **numbers: Any) -> Cell:
    """Add what is known; five digits are plenty on screen and keep the messages small."""
    for name, value in numbers.items():
        if value is None or value == []:
            continue
        cell[name] = round(value, 5) if isinstance(value, float) else value
    return cell


def _at(values: Sequence[float] | None, i: int) -> float | None:
    return values[i] if values is not None and i < len(values) else None


def _top(choices: Sequence[Choice]) -> list[list[Any]]:
    return [[choice.text, round(choice.prob, 5)] for choice in choices[:4]]
