"""Inspect: what a run's records tell beyond the playground, one panel per view.

Contract: a view is a pure function of `Shown`; this module only lays out panels, redraws them when
the visitor comes here or a run ends, and lets a view's button run its instrument.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import gradio as gr

from app import i18n
from app.measuring import measure
from app.page import QUIET, STREAM, Page
from app.panel import Panel, drawn
from app.session import Session
from app.shown import Shown
from app.tabs import traces
from app.views import acceptance
from app.views.blocks import Block, Tone, sentence
from app.visit import Status, Visit


@dataclass(frozen=True, slots=True)
class Place:
    """A view's place on the page; `kind` is the instrument that its button runs, if it has one."""

    name: str
    view: Callable[[Shown | None], list[Block]]
    kind: str = ""


PLACES = (Place("acceptance", acceptance.view),)
"""In their order on the page."""


def build(page: Page, tab: gr.Tab) -> None:
    """Lay out and wire the tab."""
    panels, buttons = [], []
    opened = traces.row(page, tab)
    with gr.Row(elem_id="dl-inspect"):
        for place in PLACES:
            with gr.Column(elem_classes="dl-place", min_width=300):
                panel = Panel(words=i18n.words(i18n.DEFAULT), elem_id=f"view-{place.name}")
                panels.append(page.wording.dictionary(panel))
                if place.kind:
                    button = page.wording.button(f"measure-{place.kind}", size="sm")
                    buttons.append((button, place, panel))

    def redraw(state: Visit) -> list[str]:
        return [drawn(_blocks(place, state.shown)) for place in PLACES]

    for button, place, panel in buttons:
        measured = button.click(_measure(page.session, place), page.state, panel, **STREAM)
        measured.then(redraw, page.state, panels, **QUIET)
    tab.select(redraw, page.state, panels, **QUIET)
    page.ran.then(redraw, page.state, panels, **QUIET)
    opened.then(redraw, page.state, panels, **QUIET)


def _blocks(place: Place, shown: Shown | None) -> list[Block]:
    """Return a view's blocks; a file may hold what a view does not expect."""
    try:
        return place.view(shown)
    except Exception as error:
        if shown is None or not shown.origin:
            raise
        reason = f"{type(error).__name__}: {error}"
        return [sentence("view.failed", "warn", file=shown.origin, reason=reason)]


def _measure(session: Session, place: Place) -> Callable[[Visit], AsyncGenerator[str, None]]:
    async def handler(state: Visit) -> AsyncGenerator[str, None]:
        """Run the view's instrument on what is shown; the view says what goes on."""
        shown = state.shown
        if shown is None:
            yield drawn(place.view(None))
            return
        async with aclosing(measure(session, state, place.kind, shown)) as answers:
            async for answer in answers:
                if isinstance(answer, Shown):
                    state.shown = answer
                    yield drawn(place.view(answer))
                else:
                    yield drawn([said(answer), *place.view(shown)])

    return handler


def said(status: Status) -> Block:
    """Return a status as a block."""
    tone: Tone = "warn" if status.get("error") else "plain"
    return {"facts": {}, **status, "kind": "sentence", "tone": tone}
