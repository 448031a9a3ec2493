"""Runs an instrument for one visitor: the same line, the same stop, the same errors as a run.

Contract: `measure` yields statuses while it waits and works, and last the new `Shown` that holds
the measurement; an error is a status, too. A newer ticket of the visit ends it within a moment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from app import pump, visit
from app.session import Session, unexpected
from app.shown import Shown
from app.visit import Status, Visit
from engine.errors import PlaygroundError
from engine.events import Settings


async def measure(
    session: Session,
    state: Visit,
    kind: str,
    shown: Shown,
    *,
    method: str | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncGenerator[Status | Shown, None]:
    """Measure `kind` for the work of `shown`; options are those of the instrument."""
    started = shown.started
    if started is None:
        return
    state.arm(None)
    ticket = state.ticket
    work = (method or started.method, started.prompt, settings or started.settings)

    def cancelled() -> bool:
        return state.ticket != ticket

    try:
        place = session.line.join()
        try:
            waiting = visit.wait(session, state, ticket, started.pair, place)
            async with aclosing(waiting) as statuses:
                async for status in statuses:
                    yield status
            if cancelled():
                yield visit.say("stopped")
                return
            yield visit.say(f"measuring.{kind}")
            source = pump.batches(
                lambda stop: session.measure(started.pair, kind, *work, stop, **options), cancelled
            )
            async with aclosing(source) as batches:
                async for batch in batches:
                    for measured in batch:
                        shown = shown.with_measured(measured)
            yield visit.say("stopped") if cancelled() else shown
        finally:
            session.line.leave(place)
    except PlaygroundError as error:
        yield visit.say_error(error)
    except Exception as error:  # whatever broke, the page says so and stays alive
        yield visit.say_error(unexpected(error))
