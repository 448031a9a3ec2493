"""Runs a race for one visitor: the same line, stop and errors as a run.

Contract: `run_race` yields JSON messages for `RaceStrip`: a status, the lanes' standing so far and,
at the end, `play`. Lanes run one after the other; a lap that was stopped does not count, finished
ones stay. Before the first repeat every lane warms up for a few tokens that nobody counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from app import pump, visit
from app.form import Form
from app.race import Lane, Lap, order, standing
from app.session import Session, unexpected
from app.shown import Shown
from app.visit import Status, Visit
from engine.errors import PlaygroundError
from engine.events import Finished

WARM_UP_TOKENS = 6
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One race: a checked form per lane, all on the same work."""

    forms: tuple[Form, ...]
    repeats: int = 1


def message(status: Status, lanes: Sequence[dict[str, Any]] | None, *, play: bool = False) -> str:
    """Return one message; without lanes it changes only what is said."""
    body = {"n": next(_numbers), "status": status, "lanes": lanes, "play": play}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


async def run_race(session: Session, state: Visit, entry: Entry) -> AsyncGenerator[str, None]:
    """Race; a newer ticket of the visit ends it."""
    state.arm(None)
    ticket = state.ticket
    pair = entry.forms[0].pair
    try:
        place = session.line.join()
        try:
            waiting = visit.wait(session, state, ticket, pair, place)
            async with aclosing(waiting) as statuses:
                async for status in statuses:
                    yield message(status, None)
            if state.ticket != ticket:
                yield message(visit.say("stopped"), None)
                return
            for form in entry.forms:
                session.check(form)
            async with aclosing(_laps(session, state, ticket, entry)) as messages:
                async for text in messages:
                    yield text
        finally:
            session.line.leave(place)
    except PlaygroundError as error:
        yield message(visit.say_error(error), None)
    except Exception as error:  # whatever broke, the page says so and stays alive
        yield message(visit.say_error(unexpected(error)), None)


async def _laps(
    session: Session, state: Visit, ticket: int, entry: Entry
) -> AsyncGenerator[str, None]:
    forms = entry.forms
    lanes = [
        Lane(
            form.method,
            form.settings.gamma if form.method != "plain" else 0,
            form.settings.adaptive and form.method != "plain",
            session.memory(form.pair, form.method),
        )
        for form in forms
    ]
    laps: list[list[Lap]] = [[] for _ in forms]
    yield message(visit.say("race.warming"), standing(lanes, laps))
    for form in forms:
        await _lap(session, state, ticket, _short(form))
    for repeat in range(entry.repeats):
        for lane in order(len(forms), repeat):
            facts = {
                "method": forms[lane].method,
                "repeat": repeat + 1,
                "repeats": entry.repeats,
            }
            yield message(visit.say("race.running", **facts), standing(lanes, laps))
            lap = await _lap(session, state, ticket, forms[lane])
            last = lap[-1] if lap else None
            if state.ticket != ticket or not isinstance(last, Finished):
                yield message(visit.say("race.stopped"), standing(lanes, laps), play=any(laps))
                return
            laps[lane].append(lap)
    told = standing(lanes, laps)
    _keep(state, told, laps)
    yield message(visit.say("race.over", repeats=entry.repeats), told, play=True)


async def _lap(session: Session, state: Visit, ticket: int, form: Form) -> Lap:
    """Run one lane once, to its end or to a stop."""

    def cancelled() -> bool:
        return state.ticket != ticket

    events: list[Any] = []
    source = pump.batches(lambda stop: session.events(form, form.method, stop), cancelled)
    async with aclosing(source) as batches:
        async for batch in batches:
            events += batch
    return tuple(events)


def _short(form: Form) -> Form:
    few = min(WARM_UP_TOKENS, form.settings.max_new_tokens)
    settings = dataclasses.replace(form.settings, max_new_tokens=few)
    return dataclasses.replace(form, settings=settings)


def _keep(state: Visit, told: Sequence[dict[str, Any]], laps: Sequence[Sequence[Lap]]) -> None:
    """Let Inspect look at the fastest lane that drafts, beside the plain one."""
    plain = next((i for i, each in enumerate(told) if each["method"] == "plain"), None)
    drafting = [i for i, each in enumerate(told) if i != plain and each["place"] is not None]
    if drafting:
        best = min(drafting, key=lambda i: told[i]["place"])
        baseline = laps[plain][0] if plain is not None else ()
        state.keep(Shown(laps[best][0], baseline))
