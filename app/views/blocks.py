"""Blocks: what a view is made of, as plain JSON values that `assets/panel.js` draws.

Contract: no block holds a sentence, only keys of `app.i18n` with facts, so that a language switch
re-labels a finished view. In a figure, a string that begins with "@" is such a key, "$name" or
"$name/0.4" a colour of `app.theme` (with opacity), light or dark as the page is. Text of a model
goes through `label`, which nothing takes for markup, key or colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Block = dict[str, Any]
Tone = Literal["plain", "good", "warn", "empty"]
Value = str | float | None

LEGEND_ABOVE: dict[str, Any] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""A legend that never covers its figure, whatever its width."""


def sentence(code: str, tone: Tone = "plain", **facts: object) -> Block:
    """Return one sentence; `empty` stands in the place of a figure and says what to do."""
    return {"kind": "sentence", "code": code, "facts": facts, "tone": tone}


def significant(value: float) -> dict[str, float]:
    """Return a fact that a sentence shows with two digits that count, however small it is."""
    return {"significant": value}


def figure(
    name: str,
    traces: Sequence[dict[str, Any]],
    layout: dict[str, Any] | None = None,
    *,
    height: int = 260,
) -> Block:
    """Return a plotly figure; the panel adds fonts, grounds, margins and colours of axes.

    name: the key `figure.<name>` titles it.
    """
    return {
        "kind": "figure",
        "name": name,
        "traces": list(traces),
        "layout": layout or {},
        "height": height,
    }


def column(code: str, digits: int | None = None, unit: str = "") -> dict[str, Any]:
    """Return a table's column; without digits its values are text."""
    return {"code": code, "digits": digits, "unit": unit}


def table(columns: Sequence[dict[str, Any]], rows: Sequence[Sequence[Any]]) -> Block:
    """Return a table. A cell is text, a number, None for "not known", or a `sentence`."""
    return {"kind": "table", "columns": list(columns), "rows": [list(row) for row in rows]}


def pieces(*parts: tuple[str, str]) -> Block:
    """Return text of a model, in pieces of (text, class)."""
    return {"kind": "pieces", "parts": [list(part) for part in parts]}


def label(text: str) -> str:
    """Return a token as a figure may show it: visible blanks, no markup, no "@" or "$" in front."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"\u200b{shown}" if shown[:1] in ("@", "$") else shown


def visible(text: str) -> str:
    """Return a token with its blanks spelled out, for a table, which takes nothing for markup."""
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def message(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return what a panel is given."""
    return {"blocks": list(blocks)}
