"""Panel: one view on the page, drawn from blocks.

Contract: `value` is `json.dumps(app.views.blocks.message(...))`; the browser words and draws it,
again after a language or theme switch, and only while it can be seen. `elem_id` is `view-<name>`,
which gives the texts `view.<name>` and `view.<name>.why`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from app import charts
from app.views.blocks import Block, message
from engine.catalog import ASSETS

SCRIPTS = ("words.js", "plot.js", "panel.js")
_SCRIPT = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
_TEMPLATE = '<section class="dl-view"></section>'


class Panel(gr.HTML):
    """Title, explanation and blocks of one view."""

    def __init__(
        self,
        value: str = "",
        *,
        words: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        # Gradio rebuilds a component from its arguments on every update, hence the defaults.
        fixed: dict[str, Any] = {
            "html_template": _TEMPLATE,
            "js_on_load": _SCRIPT,
            "apply_default_css": False,
            "charts": {"script": charts.script_path().as_posix(), "facts": charts.FACTS},
        }
        self.words = dict(words or {})
        super().__init__(value=value, words=self.words, **{**options, **fixed})

    def postprocess(self, value: str | None) -> str | None:
        """Pass a message on; Gradio's own would warn about tags that stay text here."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Describe the value for Gradio's schema."""
        return {"type": "string"}


def drawn(blocks: Sequence[Block]) -> str:
    """Return a panel's value."""
    return json.dumps(message(blocks), ensure_ascii=False, separators=(",", ":"))
