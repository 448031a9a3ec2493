"""The fields for a pair of one's own: hub ids or folders, checked before they are chosen.

Contract: `OwnPair` lays out its fields inside an open `gr.Blocks`; `names` are what
`engine.catalog.pair_of` takes, in the order of `PARTS`. On a Space there are none: a stranger must
not name that machine's folders.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr
from gradio.utils import get_space

from app.wording import Say, Wording
from engine.catalog import PARTS


class OwnPair:
    """The widgets, inside an accordion."""

    def __init__(self, wording: Wording) -> None:
        self.accordion = wording.add(
            gr.Accordion,
            lambda say: {"label": say("label.own")},
            open=False,
            visible=not get_space(),
            elem_id="own",
        )
        with self.accordion:
            with gr.Row(elem_id="dl-own-fields", elem_classes="fields"):
                self.names = [
                    wording.add(
                        gr.Textbox,
                        partial(_texts, part),
                        elem_id=f"own-{part}",
                        max_lines=1,
                        min_width=120,
                        interactive=True,
                    )
                    for part in PARTS
                ]
            wording.add(
                gr.HTML,
                lambda say: {"value": f'<div class="dl-note">{say("own.why")}</div>'},
                elem_id="own-why",
            )
            self.use = wording.button("own-use", size="sm", min_width=0, elem_classes="chip")


def _texts(part: str, say: Say) -> dict[str, Any]:
    return {"label": say(f"label.own-{part}"), "placeholder": say(f"own.placeholder.{part}")}
