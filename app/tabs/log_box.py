"""The box in which a visitor pastes a log line of another engine.

Contract: `build` adds the box and its button to the open place and returns the event after which
`visit.pasted` holds what was pasted. What was typed is never changed.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.page import QUIET, Page
from app.views.logs import LONGEST
from app.visit import Visit


def build(page: Page) -> Any:
    """Add the box and its button."""
    box = page.wording.add(
        gr.Textbox,
        lambda say: {"label": say("label.log"), "placeholder": say("log.placeholder")},
        lines=4,
        max_lines=8,
        max_length=LONGEST,
        interactive=True,
        elem_id="log",
    )
    button = page.wording.button("read-log", size="sm")
    return gr.on([button.click, box.submit], _take, [page.state, box], None, **QUIET)


def _take(state: Visit, pasted: str | None) -> None:
    """Remember what was pasted; the view reads it."""
    state.pasted = (pasted or "")[:LONGEST]
