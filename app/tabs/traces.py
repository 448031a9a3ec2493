"""Traces: the row above the views that says what is shown, opens a file and saves one.

Contract: `row` lays it out inside the tab and returns the event after which `state.shown` may be a
file's run; its views then work on that run and the playground's strip replays it. A file that
cannot be read changes nothing and says why. Files to save are made when asked for, of the visitor's
own run.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import gradio as gr

from app import replay, tables, visit
from app.page import QUIET, STREAM, Page
from app.panel import Panel, drawn
from app.saying import say_error
from app.shown import Shown, shown_of
from app.views import what
from app.views.blocks import Block
from app.visit import Visit
from engine import trace
from engine.catalog import ASSETS
from engine.errors import PlaygroundError

MAKERS: dict[str, Callable[[Shown], str]] = {
    "jsonl": lambda shown: "".join(trace.lines(shown.records())),
    "csv": tables.csv_of,
    "html": replay.page_of,
}
"""What makes the text of a file, by its ending."""

DROP = (ASSETS / "drop.js").read_text(encoding="utf-8")
SAVE = """(file) => {
  if (!file) return;
  const link = document.createElement("a");
  Object.assign(link, { href: file.url, download: file.orig_name });
  document.body.append(link);
  link.click();
  link.remove();
}"""


def row(page: Page, tab: gr.Tab) -> Any:
    """Lay the row out and wire it; return the event after a file was opened."""
    panel = Panel(elem_id="view-shown")
    with gr.Row(elem_id="dl-traces"):
        upload = page.wording.add(
            gr.UploadButton,
            lambda say: {"label": say("button.trace-open")},
            file_types=[".jsonl"],
            size="sm",
            elem_id="trace-open",
        )
        savers = {ending: page.wording.button(f"trace-{ending}", size="sm") for ending in MAKERS}
        file = gr.DownloadButton(visible="hidden", elem_id="trace-file")
        gr.HTML("<span></span>", js_on_load=DROP, visible="hidden")

    def draw(state: Visit) -> str:
        return drawn(what.view(state.shown))

    for ending, button in savers.items():
        made = button.click(_save(file, ending), page.state, [file, panel], **QUIET)
        made.then(None, file, None, js=SAVE, **QUIET)
    tab.select(draw, page.state, panel, **QUIET)
    page.ran.then(draw, page.state, panel, **QUIET)
    opened = upload.upload(open_file, [page.state, upload], panel, **QUIET)
    opened.then(play, page.state, page.strip, **STREAM)
    return opened


def open_file(state: Visit, path: str | None) -> str:
    """Show a file's run, or say why not."""
    if not path:
        return drawn(what.view(state.shown))
    try:
        shown = shown_of(trace.read_runs(Path(path)), Path(path).name)
    except PlaygroundError as error:
        return drawn([said(error), *what.view(state.shown)])
    state.arm(None)  # what runs now ends and cannot take the file's place
    state.shown = state.opened = shown
    return drawn(what.view(shown))


async def play(state: Visit) -> AsyncGenerator[Any, None]:
    """Replay what was opened in the playground; without that, do nothing."""
    shown, state.opened = state.opened, None
    if shown is None:
        yield gr.skip()
        return
    async for message in visit.replay(shown, state):
        yield message


def file_name(shown: Shown, ending: str, today: datetime.date) -> str:
    """Return a name that says what the file holds."""
    started = shown.started
    method = re.sub(r"[^a-z0-9]+", "-", started.method.lower())[:20] if started else ""
    gamma = f"g{started.settings.gamma}-" if started and started.settings.gamma else ""
    return f"draftlight-{method.strip('-') or 'run'}-{gamma}{today.isoformat()}.{ending}"


def said(error: PlaygroundError) -> Block:
    """Return an error as a block."""
    return {**say_error(error), "kind": "sentence", "tone": "warn"}


def _save(file: gr.DownloadButton, ending: str) -> Callable[[Visit], tuple[str | None, str]]:
    def handler(state: Visit) -> tuple[str | None, str]:
        """Make the file of what is shown; without a run, say so."""
        shown = state.shown
        panel = drawn(what.view(shown))
        if shown is None:
            return None, panel
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file_name(shown, ending, datetime.date.today())
            path.write_text(MAKERS[ending](shown), encoding="utf-8", newline="\n")
            # Gradio's copy lies under a name made of its content: only who has it can ask for it.
            return file.move_resource_to_block_cache(path), panel

    return handler
