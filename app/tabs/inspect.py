"""Inspect: what a run's records tell beyond the playground, one panel per view.

Contract: a view is a pure function of `Shown`; this module only lays out panels, redraws them when
the visitor comes here or a run ends, and lets a view's button run its instrument.
"""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import gradio as gr

from app.measuring import measure
from app.page import QUIET, STREAM, Page
from app.panel import Panel, drawn
from app.saying import Status
from app.session import Session
from app.shown import Shown
from app.tabs import log_box, traces
from app.tabs.options import Option
from app.views import (
    acceptance,
    bursts,
    content,
    costs,
    examiner,
    health,
    lab,
    logs,
    names,
    run_lengths,
    runs,
    waterfall,
)
from app.views.blocks import Block, Tone, sentence
from app.visit import Visit
from app.wording import Say
from engine import catalog


@dataclass(frozen=True, slots=True)
class Place:
    """A view's place on the page; `kind` is the instrument that its button runs, if it has one.

    of: what of the visit the view is about.  wide: over both columns.  extra: adds more to the
    place, and returns the events after which the panel is drawn again.  options: what the visitor
    may choose for the instrument.
    """

    name: str
    view: Callable[[Any], list[Block]]
    kind: str = ""
    of: Callable[[Visit], Any] = attrgetter("shown")
    wide: bool = False
    extra: Callable[[Page], Any] | None = None
    options: tuple[Option, ...] = ()

    def blocks(self, visit: Visit) -> list[Block]:
        """Return the view's blocks; a file may hold what a view does not expect."""
        try:
            return self.view(self.of(visit))
        except Exception as error:
            if visit.shown is None or not visit.shown.origin:
                raise
            reason = f"{type(error).__name__}: {error}"
            return [sentence("view.failed", "warn", file=visit.shown.origin, reason=reason)]

    def drawn(self, visit: Visit) -> str:
        """Return the panel's value."""
        return drawn(self.blocks(visit))


_PRESETS = {name: preset.prompt for name, preset in catalog.load().presets.items()}

LAB_OPTIONS = (Option("rule", lab.RULES), Option("num_draws", lab.DRAWS))

PLACES = (
    Place("waterfall", waterfall.view),
    Place("acceptance", acceptance.view),
    Place("content", content.view),
    Place("bursts", bursts.view),
    Place("costs", costs.view, "cost_curve"),
    Place("run_lengths", run_lengths.view, "run_lengths"),
    Place("lab", lab.view, "lab", options=LAB_OPTIONS),
    Place("examiner", examiner.view),
    Place("health", health.view, "canary"),
    Place("logs", logs.view, of=attrgetter("pasted"), wide=True, extra=log_box.build),
    Place("runs", partial(runs.view, presets=_PRESETS), of=attrgetter("runs"), wide=True),
    Place("names", names.view, wide=True),
)
"""In their order on the page."""


def build(page: Page, tab: gr.Tab) -> None:
    """Lay out and wire the tab."""
    panels, buttons = [], []
    opened = traces.row(page, tab)
    page.wording.add(gr.HTML, _index, elem_id="dl-index")
    with gr.Row(elem_id="dl-inspect"):
        for place in PLACES:
            with gr.Column(
                elem_classes="dl-place wide" if place.wide else "dl-place", min_width=300
            ):
                panel = Panel(elem_id=f"view-{place.name}")
                panels.append(panel)
                if place.kind:
                    chosen = [option.switch(page, place.kind) for option in place.options]
                    button = page.wording.button(f"measure-{place.kind}", size="sm")
                    buttons.append((button, place, panel, chosen))
                if place.extra:
                    changed = place.extra(page)
                    changed.then(place.drawn, page.state, panel, **QUIET)

    def redraw(state: Visit, but: Place | None = None) -> list[str]:
        return [place.drawn(state) for place in PLACES if place is not but]

    def follow(state: Visit) -> Any:
        """Draw what a run left; whoever is elsewhere gets it on coming here."""
        return redraw(state) if state.tab == "inspect" else [gr.skip() for _ in panels]

    for button, place, panel, chosen in buttons:
        run = _measure(page.session, place)
        measured = button.click(run, [page.state, *chosen], panel, **STREAM)
        # Its own panel may say why nothing was measured; the others may show the measurement, too.
        others = [each for each in panels if each is not panel]
        measured.then(partial(redraw, but=place), page.state, others, **QUIET)
    tab.select(redraw, page.state, panels, **QUIET)
    page.ran.then(follow, page.state, panels, **QUIET)
    opened.then(redraw, page.state, panels, **QUIET)


def _index(say: Say) -> dict[str, Any]:
    """Word the links to the views."""
    links = [
        f'<a href="#view-{place.name}">{html.escape(say(f"view.{place.name}"))}</a>'
        for place in PLACES
    ]
    label = html.escape(say("inspect.index"), quote=True)
    return {"value": f'<nav aria-label="{label}">{"".join(links)}</nav>'}


def _measure(session: Session, place: Place) -> Callable[..., AsyncGenerator[str, None]]:
    async def handler(state: Visit, *chosen: Any) -> AsyncGenerator[str, None]:
        """Run the view's instrument on what is shown; the view says what goes on."""
        shown = state.shown
        if shown is None:
            yield place.drawn(state)
            return
        options = dict(zip((option.name for option in place.options), chosen, strict=True))
        async with aclosing(measure(session, state, place.kind, shown, **options)) as answers:
            async for answer in answers:
                if isinstance(answer, Shown):
                    state.shown = answer
                    yield place.drawn(state)
                else:
                    yield drawn([said(answer), *place.blocks(state)])

    return handler


def said(status: Status) -> Block:
    """Return a status as a block."""
    tone: Tone = "warn" if status.get("error") else "plain"
    return {"facts": {}, **status, "kind": "sentence", "tone": tone}
