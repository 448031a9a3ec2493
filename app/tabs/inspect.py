"""Inspect: what a run's records tell beyond the playground, one panel per view.

Contract: a view is a pure function of `Shown`; this module only lays out panels, redraws them when
the visitor comes here or a run ends, and lets a view's button run its instrument.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from app import i18n
from app.measuring import measure
from app.page import QUIET, STREAM, Page
from app.panel import Panel, drawn
from app.session import Session
from app.shown import Shown
from app.views import acceptance, costs, examiner, lab, run_lengths
from app.views.blocks import Block, Tone
from app.visit import Status, Visit
from app.wording import Say


@dataclass(frozen=True, slots=True)
class Option:
    """A choice that an instrument leaves to the visitor; the first one is made at the start."""

    name: str
    choices: tuple[Any, ...]

    def texts(self, say: Say) -> dict[str, Any]:
        """Word the switch: `option.<name>`, and `option.<name>.<choice>` unless it is a number."""
        labels = [
            str(choice) if isinstance(choice, int) else say(f"option.{self.name}.{choice}")
            for choice in self.choices
        ]
        pairs = list(zip(labels, self.choices, strict=True))
        return {"label": say(f"option.{self.name}"), "choices": pairs}


@dataclass(frozen=True, slots=True)
class Place:
    """A view's place on the page; `kind` is the instrument that its button runs, if it has one.

    options: what the visitor may choose for the instrument.
    """

    name: str
    view: Callable[[Shown | None], list[Block]]
    kind: str = ""
    options: tuple[Option, ...] = ()


LAB_OPTIONS = (Option("rule", lab.RULES), Option("num_draws", lab.DRAWS))

PLACES = (
    Place("acceptance", acceptance.view),
    Place("costs", costs.view, "cost_curve"),
    Place("run_lengths", run_lengths.view, "run_lengths"),
    Place("lab", lab.view, "lab", LAB_OPTIONS),
    Place("examiner", examiner.view),
)
"""In their order on the page."""


def build(page: Page, tab: gr.Tab) -> None:
    """Lay out and wire the tab."""
    panels, buttons = [], []
    with gr.Row(elem_id="dl-inspect"):
        for place in PLACES:
            with gr.Column(elem_classes="dl-place", min_width=300):
                panel = Panel(words=i18n.words(i18n.DEFAULT), elem_id=f"view-{place.name}")
                panels.append(page.wording.dictionary(panel))
                if place.kind:
                    chosen = [_switch(page, place, option) for option in place.options]
                    button = page.wording.button(f"measure-{place.kind}", size="sm")
                    buttons.append((button, place, panel, chosen))

    def redraw(state: Visit, but: Place | None = None) -> list[str]:
        return [drawn(place.view(state.shown)) for place in PLACES if place is not but]

    for button, place, panel, chosen in buttons:
        run = _measure(page.session, place)
        measured = button.click(run, [page.state, *chosen], panel, **STREAM)
        # Its own panel may say why nothing was measured; the others may show the measurement, too.
        others = [each for each in panels if each is not panel]
        measured.then(partial(redraw, but=place), page.state, others, **QUIET)
    tab.select(redraw, page.state, panels, **QUIET)
    page.ran.then(redraw, page.state, panels, **QUIET)


def _switch(page: Page, place: Place, option: Option) -> Any:
    return page.wording.add(
        gr.Radio,
        option.texts,
        value=option.choices[0],
        interactive=True,
        elem_id=f"{place.kind}-{option.name}",
        elem_classes="segmented",
    )


def _measure(session: Session, place: Place) -> Callable[..., AsyncGenerator[str, None]]:
    async def handler(state: Visit, *chosen: Any) -> AsyncGenerator[str, None]:
        """Run the view's instrument on what is shown; the view says what goes on."""
        shown = state.shown
        if shown is None:
            yield drawn(place.view(None))
            return
        options = dict(zip((option.name for option in place.options), chosen, strict=True))
        async with aclosing(measure(session, state, place.kind, shown, **options)) as answers:
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
