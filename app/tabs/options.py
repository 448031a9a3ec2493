"""Options: switches beside a view's button, for what its instrument leaves to the visitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.page import Page
from app.wording import Say


@dataclass(frozen=True, slots=True)
class Option:
    """One argument of an instrument and its choices; the first one is made at the start."""

    name: str
    choices: tuple[Any, ...]

    def texts(self, say: Say) -> dict[str, Any]:
        """Word the switch: `option.<name>`, and `option.<name>.<choice>` unless it is a number."""
        labels = [
            str(choice) if isinstance(choice, int) else say(f"option.{self.name}.{choice}")
            for choice in self.choices
        ]
        pairs = list(zip(labels, self.choices, strict=True))
        return {"label": say(f"option.{self.name}"), "choices": pairs}

    def switch(self, page: Page, kind: str) -> Any:
        """Make the switch of the instrument `kind`."""
        return page.wording.add(
            gr.Radio,
            self.texts,
            value=self.choices[0],
            interactive=True,
            elem_id=f"{kind}-{self.name}",
            elem_classes="segmented",
        )
