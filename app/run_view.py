"""RunView: folds a run's events into what the token strip and the charts show.

Contract: `add(event)` for every event in order; `delta()` returns only the rounds that changed
since the last call, `snapshot()` all of them. Both are plain JSON values and depend on the events
alone: no clock, no gradio, no language. The browser words and formats them.

Words: a *cell* is one token on screen. Its *fate* is one of `theme.LEGEND`. A *ghost* is a cell
whose token is not in the text; it shows its label instead of its text. A *row* is the cells of one
round; the prefill's row has index -1.
"""

from __future__ import annotations

from typing import Any, assert_never

from app import phases
from app.cells import (
    Cell,
    fate_of,
    judged,
    new_cell,
    own_numbers,
    pending_cells,
    top_choices,
    with_numbers,
)
from app.series import Row, Series, speed_up
from engine.events import Drafted, Event, Finished, Prefilled, Round, Started, Verified
from engine.metrics import Metrics

PROMPT_ROW = -1


class RunView:
    """What is on screen of one run; `baseline` is the metrics of a plain run on the same work."""

    def __init__(self, baseline: Metrics | None = None) -> None:
        self.metrics = Metrics()
        self.baseline = baseline
        self.started: Started | None = None
        self.text = ""
        self._rows: dict[int, list[Cell]] = {}
        self._phases: dict[int, dict[str, Any]] = {}
        self._dirty: set[int] = set()
        self._num_shown = 0
        self._num_undrafted = self._last_gamma = 0
        self.series = Series(self.plain_per_second)
        self._num_sent = 0

    def add(self, event: Event) -> None:
        """Fold one event."""
        self.metrics.add(event)
        match event:
            case Started():
                self.started = event
            case Prefilled():
                self.text = event.text
                self._phases[PROMPT_ROW] = phases.of_prefill(event)
                self._put(PROMPT_ROW, self._first_cells(event))
            case Drafted():
                self._put(event.index, pending_cells(event))
            case Verified():
                self.text += event.round.text
                self._last_gamma = event.round.gamma
                self._num_undrafted += event.round.gamma == 0
                self._phases[event.round.index] = phases.of_round(event.round)
                self._put(event.round.index, self._round_cells(event.round))
                self.series.add(self.metrics, event.round)
            case Finished():
                self._finish(event)
            case _:
                assert_never(event)

    def delta(self) -> dict[str, Any]:
        """Return the rows that changed since the last call, and the numbers."""
        rows = [self._row(index) for index in sorted(self._dirty)]
        points = self.series.rows[self._num_sent :]
        return {"full": False, "rows": rows, **self._head(points)}

    def snapshot(self) -> dict[str, Any]:
        """Return everything; the browser may have missed any delta."""
        rows = [self._row(index) for index in sorted(self._rows)]
        return {"full": True, "rows": rows, **self._head(self.series.rows)}

    def numbers(self) -> dict[str, Any]:
        """Return the numbers row with the counters of its formulas; None is "not known"."""
        metrics = self.metrics
        return {
            "speed_up": self.speed_up,
            "is_baseline": metrics.method == "plain",
            "plain_per_second": self.plain_per_second,
            "per_second": metrics.tokens_per_second,
            "decoded": metrics.num_emitted - metrics.num_prefill_tokens,
            "decode_seconds": metrics.decode_seconds,
            "prefill_seconds": metrics.prefill_seconds,
            "proposer_seconds": metrics.proposer_prefill_seconds,
            # The first token is on screen once both have read the prompt.
            "ttft": (metrics.prefill_seconds + metrics.proposer_prefill_seconds) or None,
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
    def num_rested(self) -> int:
        """Rounds in which an adaptive run chose not to draft; a last round without room is none."""
        if not self.started or not self.started.settings.adaptive:
            return 0
        full = self.metrics.num_emitted >= self.started.settings.max_new_tokens
        return max(self._num_undrafted - (full and self._last_gamma == 0), 0)

    @property
    def first_acceptance(self) -> float | None:
        """Share of the judged first drafts that were accepted; None when nothing was drafted."""
        return next(iter(self.metrics.conditional_acceptance), None)

    @property
    def is_bit_identical(self) -> bool:
        """Whether this is a finished greedy run where passes of any width give the same bits."""
        # Sampled text differs by its coins, whatever the bits are.
        greedy = self.started is not None and self.started.settings.temperature == 0
        over = self.metrics.finish_reason is not None
        return over and greedy and self._where.get("identity") == "bit-identical"

    @property
    def _where(self) -> dict[str, str]:
        return dict(self.started.where) if self.started else {}

    @property
    def plain_per_second(self) -> float | None:
        """Tokens per second of the baseline, where it was measured."""
        return self.baseline.tokens_per_second if self.baseline else None

    @property
    def speed_up(self) -> float | None:
        """Tokens per second of this run over those of the baseline; None where either lacks."""
        return speed_up(self.metrics, self.plain_per_second)

    def _head(self, points: list[Row]) -> dict[str, Any]:
        self._dirty.clear()
        self._num_sent = len(self.series.rows)
        started = self.started
        return {
            "method": started.method if started else "",
            "prompt": started.prompt if started else "",
            "where": self._where,
            "text": self.text,
            # The most tokens an adaptive run may propose; 0 when the length is fixed.
            "adaptive": started.settings.gamma if started and started.settings.adaptive else 0,
            "bit_identical": self.is_bit_identical,
            "greedy": started.settings.temperature == 0 if started else None,
            "rested": self.num_rested,
            "first_acceptance": self.first_acceptance,
            "numbers": self.numbers(),
            "points": points,
            "totals": self.series.totals(self.metrics),
        }

    def _row(self, index: int) -> dict[str, Any]:
        return {"i": index, "cells": self._rows[index], **self._phases.get(index, {})}

    def _put(self, index: int, cells: list[Cell]) -> None:
        self._rows[index] = cells
        self._dirty.add(index)

    def _first_cells(self, event: Prefilled) -> list[Cell]:
        cells = []
        for token, piece in zip(event.output, event.pieces, strict=True):
            self._num_shown += 1
            cell = new_cell(token.id, token.text, "target", text=piece, at=self._num_shown)
            cells.append(
                with_numbers(cell, p=event.p, entropy=event.entropy, top=top_choices(event.top))
            )
        return cells

    def _round_cells(self, done: Round) -> list[Cell]:
        """Lay out a round: what was accepted, what was lost, then the target's own token."""
        verdict = done.verdict
        cells = []
        for i, token in enumerate(done.proposal.tokens):
            taken = i < verdict.num_accepted and i < len(done.output)
            fate = fate_of(i, verdict.num_accepted, len(done.output))
            cell = new_cell(token.id, token.text, fate, text=done.pieces[i] if taken else None)
            if taken:
                self._num_shown += 1
                cell["at"] = self._num_shown
            was = "accepted" if fate == "cut" else None
            cells.append(with_numbers(cell, position=i + 1, was=was, **judged(done, i)))
        cells.append(self._next_cell(done))
        return cells

    def _next_cell(self, done: Round) -> Cell:
        verdict = done.verdict
        n = verdict.num_accepted
        taken = n < len(done.output)
        token = verdict.next_token
        fate = verdict.next_source if taken else "cut"
        cell = new_cell(token.id, token.text, fate, text=done.pieces[n] if taken else None)
        if taken:
            self._num_shown += 1
            cell["at"] = self._num_shown
        was = None if taken else verdict.next_source
        return with_numbers(cell, was=was, **own_numbers(done))

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
            cell.update(fate="cut", was=cell["fate"], ghost=True, text=cell["label"])
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
