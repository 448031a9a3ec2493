"""Race: one prompt, up to four lanes, one clock.

Contract: `build` lays the tab out and wires it; `app.racing` runs, `RaceStrip` shows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import gradio as gr

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
            values = _form(page)
            with gr.Row(elem_id="dl-race-actions"):
                start = page.wording.button("race-run", variant="primary")
                stop = page.wording.button("race-stop")
        with gr.Column(elem_id="dl-race-stage", scale=1, min_width=320):
            strip = RaceStrip(elem_id="race-strip")
    start.click(_start(page.session), [page.state, *values], strip, **STREAM)
    stop.click(_stop, page.state, None, **QUIET)


def _form(page: Page) -> list[Any]:
    """Lay the fields out: prompt, lanes, numbers, repeats."""
    wording, session = page.wording, page.session
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
    return [prompt, repeats, *numbers, *lanes]


def _lane(page: Page, number: int, methods: tuple[str, ...]) -> list[Any]:
    """Lay out one lane's two choices."""
    method = START[number] if START[number] in methods else NOBODY
    best = page.session.catalog.methods[method].gamma if method else 0
    with gr.Row(elem_classes="race-lane"):
        chosen = page.wording.add(
            gr.Dropdown,
            partial(_lane_choices, number, methods),
            value=method,
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


def _lane_choices(number: int, methods: tuple[str, ...], say: Say) -> dict[str, Any]:
    choices = [(say("race.none"), NOBODY), *((say(f"method.{name}"), name) for name in methods)]
    return {"label": say("race.lane", number=number + 1), "choices": choices}


def _gamma_choices(say: Say) -> dict[str, Any]:
    lengths = [(str(gamma), str(gamma)) for gamma in range(1, 9)]
    return {"label": say("race.lane.gamma"), "choices": [(say("race.auto"), AUTO), *lengths]}


def _labelled(key: str, say: Say) -> dict[str, Any]:
    return {"label": say(key)}


def read_entry(session: Session, prompt: str, repeats: int, *values: Any) -> Entry:
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
            pair=session.default_pair,
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
            entry = read_entry(session, *values)
        except PlaygroundError as error:
            yield message(say_error(error), None)
            return
        async for text in run_race(session, state, entry):
            yield text

    return handler


def _stop(state: Visit) -> None:
    """End the race; what is finished stays."""
    state.arm(None)
