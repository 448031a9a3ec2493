"""The playground: controls on the left, one run on the right.

Contract: `build` lays the tab out inside an open `gr.Blocks` and wires it. Handlers only translate
between widgets and `app.visit`. A language switch re-labels everything and touches neither what was
typed nor what was run.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr

from app import i18n, pairs, permalink, preflight_card, visit
from app.controls import (
    FIELDS,
    MORE_NUMBERS,
    Controls,
    default_method,
    method_choices,
    offered,
)
from app.form import read_form
from app.page import QUIET, STREAM, Page
from app.saying import say, say_error, say_loading
from app.session import Loading, Session
from app.token_strip import TokenStrip
from app.visit import Visit
from engine.catalog import PARTS, pair_of
from engine.errors import PlaygroundError


def build(page: Page, tab: gr.Tab) -> None:
    """Lay out and wire the tab inside the open blocks of `page`."""
    controls = Controls(page.session, page.wording)
    with gr.Row(elem_id="dl-main"):
        with gr.Column(elem_id="dl-controls", scale=0, min_width=320):
            controls.form()
        with gr.Column(elem_id="dl-stage", scale=1, min_width=320):
            empty = visit.message(say("empty"))
            strip = TokenStrip(empty, words=i18n.words(i18n.DEFAULT), elem_id="strip")
    page.wording.dictionary(strip)
    page.strip = strip
    _wire(page, Handlers(page.session), controls, strip)


def _wire(page: Page, handlers: Handlers, controls: Controls, strip: TokenStrip) -> None:
    state, pair, model = page.state, controls.pair, controls.model
    start = [controls.run.click, controls.prompt.submit]  # Shift+Enter in the prompt runs, too
    armed = gr.on(start, handlers.arm, [state, *controls.values], strip, **QUIET)
    page.ran = armed.then(handlers.run, state, strip, **STREAM)
    controls.stop.click(handlers.stop, state, strip, **QUIET)
    changed = pair.input(handlers.change_pair, [state, pair], [controls.method, model], **QUIET)
    looked = [controls.preflight, controls.ask_hub, controls.profile]
    changed.then(handlers.look, [state, pair], looked, **QUIET)
    there = changed.then(handlers.watch_model, [state, pair], model, **STREAM)
    there.then(handlers.look, [state, pair], looked, **QUIET)  # counted now, not foretold
    controls.ask_hub.click(handlers.ask_hub, [state, pair], looked, **STREAM)
    controls.profile.click(handlers.profile, [state, pair], looked, **STREAM)
    page.language.input(handlers.word_card, [page.language, state], controls.preflight, **QUIET)
    own = controls.own
    lists = [pair, controls.method]
    chosen = own.use.click(handlers.choose, [state, *own.names], [*lists, model, strip], **QUIET)
    chosen.then(handlers.ask_chosen, state, looked, **STREAM)
    chosen.then(handlers.watch_chosen, state, model, **STREAM)
    page.language.input(handlers.describe_model, [page.language, pair], model, **QUIET)
    page.language.input(handlers.offer, [page.language, pair], lists, **QUIET)
    controls.link.click(handlers.link, [state, *controls.values], strip, **QUIET)
    filled = page.opened.then(handlers.restore, state, [*controls.values, controls.more], **QUIET)
    filled.then(handlers.look, [state, pair], looked, **QUIET)
    there = filled.then(handlers.watch_model, [state, pair], model, **STREAM)
    there.then(handlers.look, [state, pair], looked, **QUIET)
    page.opened.then(handlers.replay, state, strip, **STREAM)


class Handlers:
    """What the page does on each event; one object for all visitors, so it keeps nothing."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def arm(self, state: Visit, *values: Any) -> str:
        """Check the form at once and make it the next run, or say what to mend."""
        try:
            form = read_form(**dict(zip(FIELDS, values, strict=True)))
            self.session.check(form)
        except PlaygroundError as error:
            return visit.message(say_error(error))
        state.arm(form)
        return visit.message(say("waiting"))

    async def run(self, state: Visit) -> AsyncGenerator[Any, None]:
        """Run what was armed; without that, do nothing."""
        async for message in visit.perform(self.session, state):
            yield message

    def stop(self, state: Visit) -> str:
        """End the visitor's run, also one that still waits."""
        state.arm(None)
        return visit.message(say("stopped"))

    def change_pair(self, state: Visit, pair: str) -> Any:
        """Offer the methods of another pair, and say what to know about it."""
        methods = self.session.methods(pair)
        choices = method_choices(partial(i18n.text, state.language), methods)
        chosen = gr.update(choices=choices, value=default_method(methods))
        return chosen, self.describe_model(state.language, pair)

    def look(self, state: Visit, pair: str) -> list[Any]:
        """Say what the files on this machine tell of a pair."""
        return self._looked(state, pair)

    def ask_hub(self, state: Visit, pair: str) -> Iterator[list[Any]]:
        """Say what the hub's small files tell of a pair, too."""
        yield self._waiting(state)
        state.asked = pair
        yield self._looked(state, pair, ask_hub=True)

    def profile(self, state: Visit, pair: str) -> Iterator[list[Any]]:
        """Time this machine for a pair's shape, and predict."""
        yield self._waiting(state)
        state.asked = pair
        yield self._looked(state, pair, measure=True)

    def choose(self, state: Visit, *names: str) -> list[Any]:
        """Choose the pair that was named, or say what to mend."""
        state.chosen = ""
        try:
            pair = pair_of(**dict(zip(PARTS, names, strict=True))).id
            self.session.methods(pair)
        except PlaygroundError as error:
            return [*[gr.skip()] * 3, visit.message(say_error(error))]
        state.chosen = state.pair = pair  # whoever says how far another pair is ends
        lists = offered(self.session, state.language, pair)
        methods = self.session.methods(pair)
        chosen = {**lists[1], "value": default_method(methods)}
        return [lists[0], chosen, self.describe_model(state.language, pair), gr.skip()]

    def ask_chosen(self, state: Visit) -> Iterator[list[Any]]:
        """Look at the pair that was just named, wherever its files are."""
        yield from self.ask_hub(state, state.chosen) if state.chosen else ()

    async def watch_chosen(self, state: Visit) -> AsyncGenerator[str, None]:
        """Say how far the pair is that was just named."""
        if state.chosen:
            async for line in self.watch_model(state, state.chosen):
                yield line

    def word_card(self, language: str, state: Visit) -> Any:
        """Word what was found in another language."""
        if state.found is None:
            return gr.skip()
        return self._card(language, state)

    def _card(self, language: str, state: Visit) -> str:
        """Word what was found; it stays unfolded where the visitor asked for it."""
        assert state.found is not None
        say, unfolded = partial(i18n.text, language), state.found.pair == state.asked
        return preflight_card.card(say, self.session.catalog, state.found, unfolded=unfolded)

    def _waiting(self, state: Visit) -> list[Any]:
        say = partial(i18n.text, state.language)
        return [preflight_card.looking(say), gr.skip(), gr.skip()]

    def _looked(self, state: Visit, pair: str, **how: bool) -> list[Any]:
        state.found = found = self.session.look(pair, **how)
        return [
            self._card(state.language, state),
            gr.update(visible=found.on_hub),
            gr.update(visible=found.unmeasured),
        ]

    def offer(self, language: str, pair: str) -> Any:
        """Word the lists of pairs and methods in another language."""
        return offered(self.session, language, pair)

    def describe_model(self, language: str, pair: str) -> str:
        """Say how far loading is, in another language."""
        known = self.session.catalog
        note = pairs.note(partial(i18n.text, language), known, known.pair(pair))
        return model_line(language, self.session.loading(pair), note)

    async def replay(self, state: Visit, request: gr.Request) -> AsyncGenerator[Any, None]:
        """Play the recorded run until the visitor does something; say what a link cannot have."""
        recording = self.session.recording()
        said = permalink.complaint(self._asked(request).bad)
        if recording is not None and not state.ticket:
            async for message in visit.replay(recording, state):
                yield message
                if said is not None:  # now that it cannot be talked over
                    yield visit.message(said)
                    said = None
        yield gr.skip() if said is None else visit.message(said)

    def restore(self, state: Visit, request: gr.Request) -> list[Any]:
        """Fill the form in from the page's address; nothing runs."""
        fields = self._asked(request).fields
        if "method" in fields and "gamma" not in fields:
            fields["gamma"] = self.session.catalog.methods[fields["method"]].gamma or 1
        updates = {name: {"value": value} for name, value in fields.items()}
        pair = fields.get("pair", self.session.default_pair)
        offers = offered(self.session, state.language, pair)
        if "pair" in fields:
            method = default_method(self.session.methods(pair))
            updates["method"] = {"value": method, **updates.get("method", {})}
        for name, offer in zip(("pair", "method"), offers, strict=True):
            updates[name] = {**offer, **updates.get(name, {})}
        opens = any(name in fields for name in ("stop", *(name for name, *_ in MORE_NUMBERS)))
        more = gr.update(open=True) if opens else gr.skip()
        return [*(gr.update(**updates.get(name, {})) for name in FIELDS), more]

    def link(self, state: Visit, *values: Any) -> str:
        """Give the browser this form's address to copy, or say what to mend."""
        query = permalink.query_of(dict(zip(FIELDS, values, strict=True)), state.language)
        methods = self._methods(str(dict(zip(FIELDS, values, strict=True))["pair"]))
        said = permalink.complaint(permalink.check(query, methods))
        if said is not None:
            return visit.message(said)
        return visit.message(say("link.copied"), link=query)

    def _methods(self, asked: str) -> permalink.Methods:
        """Return the methods of every pair of the catalogue, and of `asked` where it is one."""
        known = {pair: self.session.methods(pair) for pair in self.session.catalog.pairs}
        if asked and asked not in known:
            with suppress(PlaygroundError):
                known[asked] = self.session.methods(asked)
        return known

    def _asked(self, request: gr.Request) -> permalink.Found:
        query = dict(request.query_params)
        return permalink.read_query(query, self._methods(query.get("pair", "")))

    async def watch_model(self, state: Visit, pair: str) -> AsyncGenerator[str, None]:
        """Say how far loading is until the model is there or another pair is chosen."""
        shown = None
        state.pair = pair
        while state.pair == pair:
            loading = self.session.loading(pair)
            line = self.describe_model(state.language, pair)
            if line != shown:
                yield line
                shown = line
            if loading is not None and loading.pair is not None:
                return
            going = loading is not None and not loading.done.is_set()
            await asyncio.sleep(0.5 if going else 2)


def model_line(language: str, loading: Loading | None, note: str = "") -> str:
    """Return what is loaded and how far, and a note on the pair, as escaped HTML."""
    text = partial(i18n.text, language)
    if loading is None:
        state, line = "idle", text("model.idle")
    elif loading.error is not None:
        state, line = "error", i18n.error_text(language, loading.error)
    elif loading.pair is not None:
        state, line = "ready", text("model.ready")
    else:
        facts = say_loading(loading)["facts"]
        state, line = "loading", text("model.loading", **facts)
    below = f'<div class="dl-note">{html.escape(note)}</div>' if note else ""
    return f'<div class="dl-model {state}">{html.escape(line.strip())}</div>{below}'
