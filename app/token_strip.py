"""TokenStrip: the right side of the page, fed with JSON messages.

Contract: `value` is one message of `app.visit` (a JSON string), `words` the dictionary of a
language. The template is static and holds no model text; the scripts build every node with
`textContent`, so no output of a model can become markup. Numbers, text and charts are one component
so that they are always of the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app import charts
from app.series import COLUMNS
from app.theme import LEGEND
from app.views import names
from engine.catalog import ASSETS

_TEMPLATE = (ASSETS / "token_strip.html").read_text(encoding="utf-8")
SCRIPTS = (
    *("words.js", "plot.js", "numbers.js", "charts.js", "fields.js"),
    *("coin.js", "microscope.js", "player.js", "token_strip.js"),
)
"""Parts of one function, in this order."""

_SCRIPT = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)


class TokenStrip(gr.HTML):
    """Numbers, legend, step player, coloured text, microscope, charts and footer of one run."""

    def __init__(
        self, value: str = "", *, words: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        # Gradio rebuilds a component from its arguments on every update, hence the defaults.
        fixed: dict[str, Any] = {
            "html_template": _TEMPLATE,
            "js_on_load": _SCRIPT,
            "apply_default_css": False,
            "fates": [mark.fate for mark in LEGEND],
            "charts": _charts(),
            "names": {number: names.also(number) for number in names.NAMES},
        }
        self.words = dict(words or {})
        super().__init__(value=value, words=self.words, **{**options, **fixed})

    def postprocess(self, value: str | None) -> str | None:
        """Pass a message on; Gradio's own would warn about tags that stay text here."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Describe the value for Gradio's schema."""
        return {"type": "string"}


def _charts() -> dict[str, Any]:
    return {
        "script": charts.script_path().as_posix(),
        "columns": list(COLUMNS),
        "facts": charts.FACTS,
        "light": charts.templates(dark=False),
        "dark": charts.templates(dark=True),
    }
