"""Runs an instrument for one visitor: the same line, the same stop, the same errors as a run.

Contract: `measure` yields statuses while it waits and works, and last the new `Shown` that holds
the measurement; an error is a status, too. A newer ticket of the visit ends it within a moment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from app import pump
from app.saying import Status, say
from app.session import Session
from app.shown import Shown
from app.turn import Cancelled, in_turn
from app.visit import Visit
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
    pair, work = (
        started.pair,
        (method or started.method, started.prompt, settings or started.settings),
    )

    async def measuring(cancelled: Cancelled) -> AsyncGenerator[Status | Shown, None]:
        yield say(f"measuring.{kind}")
        found = shown
        source = pump.each(
            lambda stop: session.measure(pair, kind, *work, stop, **options), cancelled
        )
        async with aclosing(source) as measurements:
            async for measured in measurements:
                found = found.with_measured(measured)
        yield say("stopped") if cancelled() else found

    async with aclosing(in_turn(session, state, pair, measuring)) as answers:
        async for answer in answers:
            yield answer
