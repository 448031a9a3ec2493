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
from app.line import Ticket
from app.run_view import RunView
from app.session import Loading, Session, unexpected
from app.shown import Shown
from engine.errors import PlaygroundError
from engine.events import Drafted, Event, Prefilled, Settings, Verified
from engine.metrics import Metrics, fold

_runs = itertools.count(1)
_FIELD_OF = {
    "empty_prompt": "prompt",
    "prompt_too_long": "prompt",
    "prompt_too_long_characters": "prompt",
    "bad_stop": "stop_texts",
    "unknown_method": "method",
    "unknown_pair": "pair",
    "link_too_long": "prompt",
}
Status = dict[str, Any]
Work = tuple[str, str, Settings]
WAIT_SECONDS = 0.1
"""How often a waiting run looks whether it may go on."""
MOST_RUNS = 24
"""Runs of a visit that are kept for comparing; the oldest goes first."""


@dataclass(slots=True)
class Visit:
    """What the server remembers of one open page."""

    language: str = "en"
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

    def take(self) -> tuple[int, Form] | None:
        """Return the ticket and form to run now, once."""
        form, self.waiting = self.waiting, None
        return None if form is None else (self.ticket, form)


def message(status: Status, *, run: int | None = None, stage: str = "", **content: Any) -> str:
    """Return one message; without `run` it changes only what the page says."""
    body = {"n": next(_runs), "run": run, "stage": stage, "status": status, **content}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def say(code: str, **facts: Any) -> Status:
    """Return something to say."""
    return {"code": code, "facts": facts}


def say_error(error: PlaygroundError) -> Status:
    """Return an error to say, and at which field; the browser words it by its code."""
    facts = {
        name: fact if isinstance(fact, int | float) else str(fact)
        for name, fact in error.facts.items()
    }
    field_name = _FIELD_OF.get(error.code)
    if error.code in ("bad_number", "bad_whole_number", "bad_setting"):
        field_name = str(error.facts.get("name", ""))
    return {
        "code": f"error.{error.code}",
        "facts": facts,
        "plain": str(error),
        "error": True,
        "field": field_name,
    }


async def perform(session: Session, visit: Visit) -> AsyncGenerator[str, None]:
    """Run the form that waits: stand in line, load, measure the baseline where asked, then run."""
    job = visit.take()
    if job is None:
        return
    ticket, form = job
    try:
        place = session.line.join()
        try:
            async with aclosing(wait(session, visit, ticket, form.pair, place)) as statuses:
                async for status in statuses:
                    yield message(status)
            if visit.ticket != ticket:
                if visit.stopped:  # else a newer run speaks
                    yield message(say("stopped"))
                return
            session.check(form)
            for method in _plan(form, visit):
                async with aclosing(_one_run(session, visit, ticket, form, method)) as messages:
                    async for text in messages:
                        yield text
                if visit.ticket != ticket:
                    return
        finally:
            session.line.leave(place)
    except PlaygroundError as error:
        yield message(say_error(error))
    except Exception as error:  # whatever broke, the page says so and stays alive
        yield message(say_error(unexpected(error)))


async def wait(
    session: Session, visit: Visit, ticket: int, pair: str, place: Ticket
) -> AsyncGenerator[Status, None]:
    """Yield what is waited for, until the pair is loaded and nobody is ahead, or until a stop."""
    loading = session.start_loading(pair)
    said: Status | None = None
    since = 0.0
    while visit.ticket == ticket:
        ahead = session.line.ahead(place)
        if loading.error is not None:
            raise loading.error
        if loading.done.is_set() and not ahead:
            return
        now = say_place(ahead) if loading.done.is_set() else say_loading(loading)
        # Said again now and then: a page that is gone is noticed only when something is sent.
        if now != said or since >= 1:
            yield now
            said, since = now, 0.0
        await asyncio.sleep(WAIT_SECONDS)
        since += WAIT_SECONDS


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


def say_loading(loading: Loading) -> Status:
    """Return how far loading is."""
    percent = "" if loading.fraction is None else f"{loading.fraction:.0%}"
    return say("loading", stage=f"stage.{loading.stage}", percent=percent, detail=loading.detail)


def say_place(ahead: int) -> Status:
    """Return the place in line."""
    return say("queued.one" if ahead == 1 else "queued", ahead=ahead)


def _plan(form: Form, visit: Visit) -> list[str]:
    wants_baseline = form.compare and form.method != "plain" and form.work not in visit.baselines
    return ["plain", form.method] if wants_baseline else [form.method]


def _on(run: int, content: dict[str, Any], stage: str = "recording") -> dict[str, Any]:
    return {"run": run, "stage": stage, **content}


async def _one_run(
    session: Session, visit: Visit, ticket: int, form: Form, method: str
) -> AsyncGenerator[str, None]:
    """Yield deltas while one method runs, then the snapshot that closes it."""
    run = next(_runs)
    baseline = visit.baselines.get(form.work, ())
    view = RunView(fold(baseline) if baseline else None)
    seen: list[Event] = []
    stage = "method" if method == form.method else "baseline"
    status = say(f"running.{stage}", method=method)

    def cancelled() -> bool:
        return visit.ticket != ticket

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
    if stage == "method" and visit.ticket == ticket:
        shown = Shown(tuple(seen), () if method == "plain" else baseline)
        if parted(shown):
            yield message(say("examining"), **_on(run, view.delta(), stage))
            shown = await examine(session, visit, ticket, shown)
        visit.keep(shown)
    # A stopped run, also one that never got the engine, closes as stopped.
    reason = metrics.finish_reason or "cancelled"
    over = stage == "method" or reason == "cancelled"
    if over:
        facts = {"method": method, "tokens": metrics.num_emitted, "seconds": _wall(metrics)}
        status = say(f"finished.{reason}", **facts)
    yield message(status, final=over, **_on(run, view.snapshot(), stage))


def parted(shown: Shown) -> bool:
    """Return whether a greedy run and its baseline went different ways before either ended."""
    started = shown.started
    if started is None or started.settings.temperature > 0 or shown.plain is None:
        return False
    own, plain = shown.metrics.token_ids or (), shown.plain.token_ids or ()
    return any(a != b for a, b in zip(own, plain, strict=False))


async def examine(session: Session, visit: Visit, ticket: int, shown: Shown) -> Shown:
    """Return the run with what the examiner found where its text parts from the baseline's."""
    started = shown.started
    if started is None or shown.plain is None:
        return shown
    ids = (shown.plain.token_ids or (), shown.metrics.token_ids or ())
    work = (started.method, started.prompt, started.settings)
    source = pump.batches(
        lambda stop: session.measure(started.pair, "divergence", *work, stop, token_ids=ids),
        lambda: visit.ticket != ticket,
    )
    async with aclosing(source) as batches:
        async for batch in batches:
            for measured in batch:
                shown = shown.with_measured(measured)
    return shown


def _wall(metrics: Metrics) -> float:
    parts = (metrics.prefill_seconds, metrics.proposer_prefill_seconds, metrics.decode_seconds)
    return round(sum(parts), 2)


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
