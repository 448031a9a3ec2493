"""Puts the page together.

Contract: `build` returns the page and `launch_options` what `Blocks.launch` must be told with it.
Neither loads a model. Nothing leaves the machine but the wish for a model that somebody chose.
"""

from __future__ import annotations

import os
from typing import Any

# Read by gradio when it is imported; a playground has nobody to report to.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Gradio builds a table of all past events after each one; nobody reads it here.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "500")

import gradio as gr

from app import charts, theme
from app.page import Page
from app.session import Session
from app.tabs import inspect, playground, race
from engine import trace

TABS = {"playground": playground.build, "race": race.build, "inspect": inspect.build}
"""In their order on the page."""

BLOCKS: dict[str, Any] = {"analytics_enabled": False, "delete_cache": (3600, 6 * 3600)}
"""Files that visitors open or save are deleted after some hours."""


def build(session: Session | None = None) -> gr.Blocks:
    """Return the page; `session` may hold a toy loader."""
    gr.set_static_paths([charts.script_path()])
    with gr.Blocks(title="Draftlight", fill_width=True, **BLOCKS) as demo:
        page = Page(session or Session(), demo)
        with gr.Tabs(elem_id="dl-tabs"):
            for name, build_tab in TABS.items():
                with page.tab(name) as tab:
                    build_tab(page, tab)
        page.wire()
    # Runs stand in `app.line`, which words the place; Gradio's own queue lets everything through.
    demo.queue(default_concurrency_limit=None)
    return demo


def launch_options() -> dict[str, Any]:
    """Return the arguments of `launch` that belong to the page."""
    return {
        "theme": theme.theme(),
        "css": theme.css(),
        "share": False,
        "run_history": False,
        "footer_links": [],
        "ssr_mode": False,
        "pwa": False,
        "enable_monitoring": False,
        "show_error": True,
        "quiet": True,
        "max_file_size": trace.MOST_BYTES,
    }
