"""One visitor's runs: a checked form becomes the messages that the token strip plays.

Contract: `perform` and `replay` yield JSON strings; every message carries a run number and what to
say about it as a code with facts, never as a sentence. A newer ticket ends the run that holds an
older one, so Stop and a second Run need no flags. Baselines are remembered per work.

Words: a *stage* is "baseline", "method" or "recording": whose tokens are on screen.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from app import pump
from app.form import Form
from app.run_view import RunView
from app.saying import Status, say
from app.session import Session
from app.shown import Shown
from app.turn import Cancelled, in_turn
from engine.events import Drafted, Event, Prefilled, Settings, Verified
from engine.metrics import fold
from engine.prefix import parted
from engine.preflight import Preflight

_runs = itertools.count(1)
Work = tuple[str, str, Settings]
MOST_RUNS = 24
"""Runs of a visit that are kept for comparing; the oldest goes first."""


@dataclass(slots=True)
class Visit:
    """What the server remembers of one open page."""

    language: str = "en"
    tab: str = ""
    pair: str = ""
    """The pair that the form names, once the page has said how far it is."""

    found: Preflight | None = None
    """What was found out about that pair before it is loaded."""

    chosen: str = ""
    """The pair of the visitor's own that was named last, where that went well."""

    asked: str = ""
    """The pair that more was asked about last: its card stays unfolded."""

    ticket: int = 0
    waiting: Form | None = None
    stopped: bool = False
    baselines: dict[Work, tuple[Event, ...]] = field(default_factory=dict)
    shown: Shown | None = None
    opened: Shown | None = None
    """A trace that was opened and has not played yet."""

    runs: deque[Shown] = field(default_factory=lambda: deque(maxlen=MOST_RUNS))
    pasted: str = ""

    def keep(self, run: Shown) -> None:
        """Show a run that was made here, and keep it beside the others."""
        self.shown = run
        self.runs.append(run)

    def arm(self, form: Form | None) -> None:
        """Make `form` the next run; whatever runs now ends within a round."""
        self.ticket += 1
        self.waiting = form
        self.stopped = form is None

    def take(self) -> Form | None:
        """Return the form to run now, once."""
        form, self.waiting = self.waiting, None
        return form


def message(status: Status, *, run: int | None = None, stage: str = "", **content: Any) -> str:
    """Return one message; without `run` it changes only what the page says."""
    body = {"n": next(_runs), "run": run, "stage": stage, "status": status, **content}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


async def perform(session: Session, visit: Visit) -> AsyncGenerator[str, None]:
    """Run the form that waits: stand in line, load, measure the baseline where asked, then run."""
    form = visit.take()
    if form is None:
        return
    ticket = visit.ticket

    def work(cancelled: Cancelled) -> AsyncGenerator[str, None]:
        return _runs_of(session, visit, form, cancelled)

    async with aclosing(in_turn(session, visit, form.pair, work)) as answers:
        async for answer in answers:
            if isinstance(answer, str):
                yield answer
            elif visit.ticket == ticket or visit.stopped:  # else a newer run speaks
                yield message(answer)


async def replay(recording: Shown, visit: Visit) -> AsyncGenerator[str, None]:
    """Play a recorded run at its own speed; a newer ticket ends it."""
    run, ticket = next(_runs), visit.ticket
    visit.shown = recording
    view = RunView(fold(recording.baseline) if recording.baseline else None)
    debt = 0.0
    for event in recording.events:
        view.add(event)
        debt += _seconds(event)
        if debt >= pump.pace():
            content = view.delta()
            yield message(say("recording", method=content["method"]), **_on(run, content))
            await asyncio.sleep(debt)
            debt = 0.0
        if visit.ticket != ticket:
            return
    content = view.snapshot()
    yield message(say("recording.done", method=content["method"]), **_on(run, content))


def _plan(form: Form, visit: Visit) -> list[str]:
    wants_baseline = form.compare and form.method != "plain" and form.work not in visit.baselines
    return ["plain", form.method] if wants_baseline else [form.method]


def _on(run: int, content: dict[str, Any], stage: str = "recording") -> dict[str, Any]:
    return {"run": run, "stage": stage, **content}


async def _runs_of(
    session: Session, visit: Visit, form: Form, cancelled: Cancelled
) -> AsyncGenerator[str, None]:
    """Yield the messages of the baseline, where it is wanted, and of the run."""
    session.check(form)
    for method in _plan(form, visit):
        async with aclosing(_one_run(session, visit, form, method, cancelled)) as messages:
            async for text in messages:
                yield text
        if cancelled():
            return


async def _one_run(
    session: Session, visit: Visit, form: Form, method: str, cancelled: Cancelled
) -> AsyncGenerator[str, None]:
    """Yield deltas while one method runs, then the snapshot that closes it."""
    run = next(_runs)
    baseline = visit.baselines.get(form.work, ())
    view = RunView(fold(baseline) if baseline else None)
    seen: list[Event] = []
    stage = "method" if method == form.method else "baseline"
    status = say(f"running.{stage}", method=method)
    source = pump.batches(lambda stop: session.events(form, method, stop), cancelled)
    async with aclosing(source) as batches:
        async for events in batches:
            for event in events:
                view.add(event)
            seen += events
            yield message(status, **_on(run, view.delta(), stage))
    metrics = view.metrics
    if method == "plain" and metrics.finish_reason not in (None, "cancelled"):
        visit.baselines[form.work] = tuple(seen)
    if stage == "method" and not cancelled():
        shown = Shown(tuple(seen), () if method == "plain" else baseline)
        shown = shown.with_all(session.kept(form.pair))
        if diverged(shown):
            yield message(say("examining"), **_on(run, view.delta(), stage))
            shown = await examine(session, shown, cancelled)
        visit.keep(shown)
    # A stopped run, also one that never got the engine, closes as stopped.
    reason = metrics.finish_reason or "cancelled"
    over = stage == "method" or reason == "cancelled"
    if over:
        seconds = round(metrics.wall_seconds, 2)
        facts = {"method": method, "tokens": metrics.num_emitted, "seconds": seconds}
        status = say(f"finished.{reason}", **facts)
    yield message(status, final=over, **_on(run, view.snapshot(), stage))


def diverged(shown: Shown) -> bool:
    """Return whether a greedy run and its baseline went different ways before either ended."""
    started = shown.started
    if started is None or started.settings.temperature > 0 or shown.plain is None:
        return False
    return parted(shown.metrics.token_ids or (), shown.plain.token_ids or ())


async def examine(session: Session, shown: Shown, cancelled: Cancelled) -> Shown:
    """Return the run with what the examiner found where its text parts from the baseline's."""
    started = shown.started
    if started is None or shown.plain is None:
        return shown
    ids = (shown.plain.token_ids or (), shown.metrics.token_ids or ())
    work = (started.method, started.prompt, started.settings)
    source = pump.each(
        lambda stop: session.measure(started.pair, "divergence", *work, stop, token_ids=ids),
        cancelled,
    )
    async with aclosing(source) as found:
        async for measured in found:
            shown = shown.with_measured(measured)
    return shown


def _seconds(event: Event) -> float:
    """Return how long the recorded engine took for an event, within what is watchable."""
    match event:
        case Prefilled():
            return min(event.seconds, 1.0)
        case Drafted():
            return min(event.seconds or 0.0, 0.5)
        case Verified():
            seconds = event.round.seconds
            return min(max(seconds.total - (seconds.draft or 0.0), 0.0), 0.5)
        case _:
            return 0.0
