"""A visitor's turn at the engine: stand in line, load, work, leave, whatever happens.

Contract: `in_turn` yields statuses while it waits, then what `work` yields; `work` is told how to
see that it shall end. A stop and every error are statuses, too; nothing is raised. A newer ticket
of the visit ends it within a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from app import line
from app.saying import Status, say, say_error, say_loading, say_place
from app.session import Loading, Session, unexpected
from engine.errors import PlaygroundError

WAIT_SECONDS = 0.1
"""How often whoever waits looks whether it may go on."""

Cancelled = Callable[[], bool]
Result = TypeVar("Result")


class Ticketed(Protocol):
    """A visit, as far as a turn is concerned."""

    ticket: int


async def in_turn(
    session: Session,
    visit: Ticketed,
    pair: str,
    work: Callable[[Cancelled], AsyncGenerator[Result, None]],
) -> AsyncGenerator[Status | Result, None]:
    """Do `work` with a loaded pair as soon as nobody is ahead."""
    ticket = visit.ticket

    def cancelled() -> bool:
        return visit.ticket != ticket

    try:
        place = session.line.join()
        try:
            async with aclosing(_wait(session, pair, place, cancelled)) as statuses:
                async for status in statuses:
                    yield status
            if cancelled():
                yield say("stopped")
                return
            async with aclosing(work(cancelled)) as results:
                async for result in results:
                    yield result
        finally:
            session.line.leave(place)
    except PlaygroundError as error:
        yield say_error(error)
    except Exception as error:  # whatever broke, the page says so and stays alive
        yield say_error(unexpected(error))


async def _wait(
    session: Session, pair: str, place: line.Ticket, cancelled: Cancelled
) -> AsyncGenerator[Status, None]:
    """Yield what is waited for, until the pair is loaded and nobody is ahead, or until a stop."""
    mine: Loading | None = None
    said: Status | None = None
    since = 0.0
    while not cancelled():
        ahead = session.line.ahead(place)
        if mine is None and not ahead:  # before, whoever is ahead may need another pair
            mine = session.start_loading(pair)
        if mine is not None and mine.error is not None:
            raise mine.error
        if mine is not None and mine.done.is_set():
            if mine.pair is not None:
                return
            mine = session.start_loading(pair)
        loading = mine or session.loading(pair)
        going = loading is not None and not loading.done.is_set()
        now = say_loading(loading) if loading is not None and going else say_place(ahead)
        # Said again now and then: a page that is gone is noticed only when something is sent.
        if now != said or since >= 1:
            yield now
            said, since = now, 0.0
        await asyncio.sleep(WAIT_SECONDS)
        since += WAIT_SECONDS
