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

from app import pump
from app.form import Form
from app.race import Lane, Lap, order, standing
from app.saying import Status, say
from app.session import Session
from app.shown import Shown
from app.turn import Cancelled, in_turn
from app.visit import Visit, diverged, examine
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

    def laps(cancelled: Cancelled) -> AsyncGenerator[str, None]:
        return _laps(session, state, entry, cancelled)

    async with aclosing(in_turn(session, state, entry.forms[0].pair, laps)) as answers:
        async for answer in answers:
            yield answer if isinstance(answer, str) else message(answer, None)


async def _laps(
    session: Session, state: Visit, entry: Entry, cancelled: Cancelled
) -> AsyncGenerator[str, None]:
    forms = entry.forms
    for form in forms:
        session.check(form)
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
    yield message(say("race.warming"), standing(lanes, laps))
    for form in forms:
        await _lap(session, _short(form), cancelled)
    for repeat in range(entry.repeats):
        for lane in order(len(forms), repeat):
            facts = {
                "method": forms[lane].method,
                "repeat": repeat + 1,
                "repeats": entry.repeats,
            }
            yield message(say("race.running", **facts), standing(lanes, laps))
            lap = await _lap(session, forms[lane], cancelled)
            last = lap[-1] if lap else None
            if cancelled() or not isinstance(last, Finished):
                yield message(say("race.stopped"), standing(lanes, laps), play=any(laps))
                return
            laps[lane].append(lap)
    told = standing(lanes, laps)
    await _keep(session, state, told, laps, cancelled)
    yield message(say("race.over", repeats=entry.repeats), told, play=True)


async def _lap(session: Session, form: Form, cancelled: Cancelled) -> Lap:
    """Run one lane once, to its end or to a stop."""
    source = pump.each(lambda stop: session.events(form, form.method, stop), cancelled)
    async with aclosing(source) as events:
        return tuple([event async for event in events])


def _short(form: Form) -> Form:
    few = min(WARM_UP_TOKENS, form.settings.max_new_tokens)
    settings = dataclasses.replace(form.settings, max_new_tokens=few)
    return dataclasses.replace(form, settings=settings)


async def _keep(
    session: Session,
    state: Visit,
    told: Sequence[dict[str, Any]],
    laps: Sequence[Sequence[Lap]],
    cancelled: Cancelled,
) -> None:
    """Let Inspect look at a lane beside the plain one: one that diverged, else the fastest."""
    plain = next((i for i, each in enumerate(told) if each["method"] == "plain"), None)
    drafting = [i for i, each in enumerate(told) if i != plain and each["place"] is not None]
    if not drafting:
        return
    baseline = laps[plain][0] if plain is not None else ()
    runs = {i: Shown(laps[i][0], baseline) for i in drafting}
    best = min(drafting, key=lambda i: (not diverged(runs[i]), told[i]["place"]))
    shown = runs[best]
    if diverged(shown):
        shown = await examine(session, shown, cancelled)
    started = shown.started
    state.keep(shown.with_all(session.kept(started.pair)) if started else shown)
