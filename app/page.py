"""The frame around the tabs: header, language, and what all tabs share.

Contract: one `Page` is made inside an open `gr.Blocks`; every tab gets it, adds its widgets through
`page.wording` and keeps what it must remember of a visitor in `page.state`. After all tabs are
built, `wire` connects the header. `opened` is the event after which the page speaks the visitor's
language: what a tab wants to do by itself hangs there. `ran` is the event after a run of the
playground is over (and `state.shown` holds it), `strip` the component that plays runs.
"""

from __future__ import annotations

import html
from functools import partial
from typing import Any

import gradio as gr

from app import i18n
from app.session import Session
from app.visit import Visit
from app.wording import Say, Wording

QUIET: dict[str, Any] = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
"""How an event is wired that answers at once."""

STREAM: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": None,
}
"""How an event is wired that yields for a while."""

DARK = "() => { document.body.classList.toggle('dark') }"


class Page:
    """What every tab is given."""

    def __init__(self, session: Session, blocks: gr.Blocks) -> None:
        self.session = session
        self.blocks = blocks
        self.wording = Wording()
        self.state = gr.State(Visit())
        self._header()
        self.ran: Any = None
        self.strip: Any = None
        self.opened = blocks.load(_greet, self.state, self.language, **QUIET)

    def _header(self) -> None:
        with gr.Row(elem_id="dl-header"):
            self.wording.add(gr.HTML, lambda say: {"value": _title(say)}, elem_id="title")
            self.language = self.wording.add(
                gr.Radio,
                lambda say: {"label": say("language.label")},
                value=i18n.DEFAULT,
                choices=[(label, code) for code, label in i18n.LANGUAGES.items()],
                interactive=True,
                container=False,
                elem_id="language",
                elem_classes="segmented",
            )
            self.dark = self.wording.button("dark", size="sm")

    def tab(self, name: str) -> Any:
        """Open a tab; its label is the text `tab.<name>`, and `state.tab` says where one is."""
        tab = self.wording.add(
            gr.Tab, lambda say: {"label": say(f"tab.{name}")}, id=name, elem_id=f"tab-{name}"
        )
        tab.select(partial(_go, name), self.state, None, **QUIET)
        return tab

    def wire(self) -> None:
        """Connect the header; every widget with a text exists by now."""
        self.dark.click(None, js=DARK, **QUIET)
        widgets = self.wording.widgets
        self.language.input(self._speak, [self.state, self.language], widgets, **QUIET)
        self.opened.then(self._speak, [self.state, self.language], widgets, **QUIET)

    def _speak(self, state: Visit, language: str) -> list[Any]:
        """Word everything in a language; what was run re-labels itself in the browser."""
        state.language = language
        return self.wording.updates(language)


def _go(name: str, state: Visit) -> None:
    """Remember on which tab the visitor is."""
    state.tab = name


def _greet(state: Visit, request: gr.Request) -> str:
    """Choose the language that the page's address or the visitor's browser asks for."""
    wish = request.query_params.get("lang")
    state.language = i18n.choose(wish, request.headers.get("accept-language"))
    return state.language


def _title(say: Say) -> str:
    return f"<h1>Draftlight</h1><p>{html.escape(say('title.below'))}</p>"
