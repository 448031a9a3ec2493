"""Race: one prompt, up to four lanes, one clock, with the pair that the playground names.

Contract: `build` lays the tab out and wires it; `app.racing` runs, `RaceStrip` shows. The lanes'
methods follow the pair whenever the tab is opened; what a pair lacks becomes an empty lane.
"""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import gradio as gr

from app import i18n, pairs
from app.controls import NUMBERS, prompt_box
from app.form import Form, read_form
from app.page import QUIET, STREAM, Page
from app.race import MOST_LANES
from app.race_strip import RaceStrip
from app.racing import Entry, message, run_race
from app.saying import say_error
from app.session import Session
from app.visit import Visit
from app.wording import Say
from engine.errors import PlaygroundError

START = ("plain", "mtp", "draft", "lookup")
"""The methods that the lanes begin with, where a pair has them."""

NOBODY, AUTO = "", "auto"
REPEATS = (1, 3, 5)


def build(page: Page, tab: gr.Tab) -> None:
    """Lay out and wire the tab."""
    with gr.Row(elem_id="dl-race"):
        with gr.Column(elem_id="dl-race-controls", scale=0, min_width=320):
            pair, values = _form(page)
            with gr.Row(elem_id="dl-race-actions"):
                start = page.wording.button("race-run", variant="primary")
                stop = page.wording.button("race-stop")
        with gr.Column(elem_id="dl-race-stage", scale=1, min_width=320):
            strip = RaceStrip(elem_id="race-strip")
    start.click(_start(page.session), [page.state, *values], strip, **STREAM)
    stop.click(_stop, page.state, None, **QUIET)
    lanes = values[-2 * MOST_LANES :: 2]
    known = [page.state, page.language, *lanes]
    triggers = [tab.select, page.language.input, page.opened.then]
    for trigger in triggers:
        trigger(partial(offer, page.session), known, [pair, *lanes], **QUIET)


def _form(page: Page) -> tuple[Any, list[Any]]:
    """Lay the fields out: the pair's line; prompt, repeats, numbers, lanes."""
    wording, session = page.wording, page.session
    pair = gr.HTML("", elem_id="race-pair")
    prompt = prompt_box(session, wording, lines=3, before="race-")
    methods = session.methods(session.default_pair)
    lanes: list[Any] = []
    for number in range(MOST_LANES):
        lanes += _lane(page, number, methods)
    with gr.Row(elem_classes="fields"):
        numbers = [
            wording.add(
                gr.Number,
                partial(_labelled, f"label.{name}"),
                value=64 if name == "max_new_tokens" else value,
                step=step,
                min_width=60,
                elem_id=f"race-{name}",
                interactive=True,
            )
            for name, value, step in NUMBERS
        ]
    repeats = wording.add(
        gr.Radio,
        lambda say: {"label": say("race.repeats")},
        choices=[(str(count), count) for count in REPEATS],
        value=REPEATS[0],
        elem_id="race-repeats",
        elem_classes="segmented",
        interactive=True,
    )
    return pair, [prompt, repeats, *numbers, *lanes]


def _lane(page: Page, number: int, methods: tuple[str, ...]) -> list[Any]:
    """Lay out one lane's two choices."""
    method = START[number] if START[number] in methods else NOBODY
    best = page.session.catalog.methods[method].gamma if method else 0
    with gr.Row(elem_classes="race-lane"):
        chosen = page.wording.add(
            gr.Dropdown,
            partial(_lane_label, number),
            value=method,
            choices=_lane_choices(partial(i18n.text, i18n.DEFAULT), methods),
            min_width=100,
            elem_id=f"race-method-{number}",
            interactive=True,
        )
        gamma = page.wording.add(
            gr.Dropdown,
            _gamma_choices,
            value=str(best or 2),
            min_width=80,
            elem_id=f"race-gamma-{number}",
            interactive=True,
        )
    return [chosen, gamma]


def offer(session: Session, state: Visit, language: str, *chosen: str) -> list[Any]:
    """Name the pair, and let each lane choose among its methods; a choice it has not is emptied."""
    say = partial(i18n.text, language)
    pair = session.catalog.pair(_pair_of(session, state))
    line = say("race.pair", pair=pairs.label(say, session.catalog, pair))
    methods = session.methods(pair.id)
    choices = _lane_choices(say, methods)
    return [
        f'<div class="dl-note">{html.escape(line)}</div>',
        *(
            gr.update(choices=choices, value=method if method in methods else NOBODY)
            for method in chosen
        ),
    ]


def _pair_of(session: Session, state: Visit) -> str:
    return state.pair or session.default_pair


def _lane_label(number: int, say: Say) -> dict[str, Any]:
    return {"label": say("race.lane", number=number + 1)}


def _lane_choices(say: Say, methods: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(say("race.none"), NOBODY), *((say(f"method.{name}"), name) for name in methods)]


def _gamma_choices(say: Say) -> dict[str, Any]:
    lengths = [(str(gamma), str(gamma)) for gamma in range(1, 9)]
    return {"label": say("race.lane.gamma"), "choices": [(say("race.auto"), AUTO), *lengths]}


def _labelled(key: str, say: Say) -> dict[str, Any]:
    return {"label": say(key)}


def read_entry(session: Session, pair: str, prompt: str, repeats: int, *values: Any) -> Entry:
    """Return the race that the widgets ask for.

    values: the numbers, then method and draft length of each lane. Raises what `read_form` raises,
    and PlaygroundError("no_lanes").
    """
    numbers = dict(zip((name for name, *_ in NUMBERS), values, strict=False))
    lanes = values[len(NUMBERS) :]
    forms: list[Form] = []
    for method, gamma in zip(lanes[::2], lanes[1::2], strict=True):
        if method == NOBODY:
            continue
        form = read_form(
            pair=pair,
            method=method,
            prompt=prompt,
            adaptive=gamma == AUTO,
            compare=False,
            gamma=8 if gamma == AUTO else gamma,
            **numbers,
        )
        session.check(form)
        forms.append(form)
    if not forms:
        raise PlaygroundError("no_lanes", "No lane has a method.", "Choose at least one.")
    return Entry(tuple(forms), int(repeats))


def _start(session: Session) -> Callable[..., AsyncGenerator[str, None]]:
    async def handler(state: Visit, *values: Any) -> AsyncGenerator[str, None]:
        """Check the entry at once and race, or say what to mend."""
        try:
            entry = read_entry(session, _pair_of(session, state), *values)
        except PlaygroundError as error:
            yield message(say_error(error), None)
            return
        async for text in run_race(session, state, entry):
            yield text

    return handler


def _stop(state: Visit) -> None:
    """End the race; what is finished stays."""
    state.arm(None)
