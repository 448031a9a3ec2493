"""TokenStrip: the right side of the page, fed with JSON messages.

Contract: `value` is one message of `app.visit` (a JSON string), `words` the dictionary of a
language. The template is static and holds no model text; `assets/token_strip.js` builds every node
with `textContent`, so no output of a model can become markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app.theme import LEGEND
from engine.catalog import ASSETS

_TEMPLATE = (ASSETS / "token_strip.html").read_text(encoding="utf-8")
_SCRIPT = (ASSETS / "token_strip.js").read_text(encoding="utf-8")


class TokenStrip(gr.HTML):
    """Numbers, legend, coloured text and footer of one run."""

    def __init__(
        self, value: str = "", *, words: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        # Gradio rebuilds a component from its arguments on every update, hence the defaults.
        fixed: dict[str, Any] = {
            "html_template": _TEMPLATE,
            "js_on_load": _SCRIPT,
            "apply_default_css": False,
            "fates": [mark.fate for mark in LEGEND],
        }
        self.words = dict(words or {})
        super().__init__(value=value, words=self.words, **{**options, **fixed})

    def postprocess(self, value: str | None) -> str | None:
        """Pass a message on; Gradio's own would warn about tags that stay text here."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Describe the value for Gradio's schema."""
        return {"type": "string"}
