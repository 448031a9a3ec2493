"""TokenStrip: the right side of the page, fed with the messages of `app.visit`.

Contract: numbers, text and charts are one component so that they are always of the same message. It
is the one that keeps the page's dictionary.
"""

from __future__ import annotations

from typing import Any

from app import charts
from app.fed import Fed, script_of
from app.series import COLUMNS
from app.theme import LEGEND
from app.views import names
from engine.catalog import ASSETS

SCRIPTS = (
    *("words.js", "plot.js", "numbers.js", "charts.js", "fields.js"),
    *("coin.js", "microscope.js", "player.js", "token_strip.js"),
)


class TokenStrip(Fed):
    """Numbers, legend, step player, coloured text, microscope, charts and footer of one run."""

    TEMPLATE = (ASSETS / "token_strip.html").read_text(encoding="utf-8")
    SCRIPT = script_of(SCRIPTS)

    def facts(self) -> dict[str, Any]:
        """Return the fates, the charts and the names of the numbers elsewhere."""
        return {
            "fates": [mark.fate for mark in LEGEND],
            "charts": {
                "script": charts.script_path().as_posix(),
                "columns": list(COLUMNS),
                "facts": charts.FACTS,
                "light": charts.templates(dark=False),
                "dark": charts.templates(dark=True),
            },
            "names": {number: names.also(number) for number in names.NAMES},
        }
