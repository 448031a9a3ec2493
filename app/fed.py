"""Fed: a part of the page that the browser draws from JSON messages.

Contract: a subclass names its `TEMPLATE` and its `SCRIPTS` (parts of one function, in this order)
and says in `facts` what else its script reads of `props`. The template is static and holds no model
text; the scripts build every node with `textContent`, so no output of a model can become markup.
The page has one dictionary: the component that is given `words` hands it to all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gradio as gr

from engine.catalog import ASSETS


def script_of(names: Sequence[str]) -> str:
    """Return scripts as one."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


class Fed(gr.HTML):
    """What all of them share; `value` is one message, a JSON string."""

    TEMPLATE: ClassVar[str] = ""
    SCRIPT: ClassVar[str] = ""

    def __init__(
        self, value: str = "", *, words: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        # Gradio rebuilds a component from its arguments on every update, hence the defaults.
        fixed: dict[str, Any] = {
            "html_template": self.TEMPLATE,
            "js_on_load": self.SCRIPT,
            "apply_default_css": False,
            **self.facts(),
        }
        said = {} if words is None else {"words": dict(words)}
        super().__init__(value=value, **{**options, **fixed, **said})

    def facts(self) -> dict[str, Any]:
        """Return the props that never change."""
        return {}

    def postprocess(self, value: str | None) -> str | None:
        """Pass a message on; Gradio's own would warn about tags that stay text here."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Describe the value for Gradio's schema."""
        return {"type": "string"}
