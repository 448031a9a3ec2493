"""RaceStrip: the lanes of a race on one clock, fed with the messages of `app.racing`.

Contract: `value` is one message (a JSON string), `words` the dictionary of a language. The browser
plays the recorded times; it never waits for the engine, and the engine never for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from engine.catalog import ASSETS

SCRIPTS = ("words.js", "race.js")
_SCRIPT = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
_TEMPLATE = (ASSETS / "race.html").read_text(encoding="utf-8")


class RaceStrip(gr.HTML):
    """Lanes, clock and verdicts of one race."""

    def __init__(
        self, value: str = "", *, words: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        # Gradio rebuilds a component from its arguments on every update, hence the defaults.
        fixed: dict[str, Any] = {
            "html_template": _TEMPLATE,
            "js_on_load": _SCRIPT,
            "apply_default_css": False,
        }
        self.words = dict(words or {})
        super().__init__(value=value, words=self.words, **{**options, **fixed})

    def postprocess(self, value: str | None) -> str | None:
        """Pass a message on; Gradio's own would warn about tags that stay text here."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Describe the value for Gradio's schema."""
        return {"type": "string"}
