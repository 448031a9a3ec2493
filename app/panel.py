"""Panel: one view on the page, drawn from blocks.

Contract: `value` is `json.dumps(app.views.blocks.message(...))`; the browser words and draws it,
again after a language or theme switch, and only while it can be seen. `elem_id` is `view-<name>`,
which gives the texts `view.<name>` and `view.<name>.why`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app import charts
from app.fed import Fed, script_of
from app.views.blocks import Block, message

SCRIPTS = ("words.js", "plot.js", "panel.js")


class Panel(Fed):
    """Title, explanation and blocks of one view."""

    TEMPLATE = '<section class="dl-view"></section>'
    SCRIPT = script_of(SCRIPTS)

    def facts(self) -> dict[str, Any]:
        """Return where the plotting library lies and what the texts about charts need."""
        return {"charts": {"script": charts.script_path().as_posix(), "facts": charts.FACTS}}


def drawn(blocks: Sequence[Block]) -> str:
    """Return a panel's value."""
    return json.dumps(message(blocks), ensure_ascii=False, separators=(",", ":"))
