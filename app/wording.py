"""Widgets and how they are worded, so that a language switch re-labels the whole page at once.

Contract: everything with a text is made through `Wording.add`, or joined with `Wording.dictionary`;
`updates(language)` gives one Gradio update per widget of `widgets`, in its order, and touches
neither what was typed nor what was run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from app import i18n

Say = Callable[..., str]
Texts = Callable[[Say], dict[str, Any]]


class Wording:
    """The page's texts, by widget."""

    def __init__(self) -> None:
        self._worded: list[tuple[Any, Callable[[str], dict[str, Any]]]] = []

    @property
    def widgets(self) -> list[Any]:
        """The widgets that `updates` words, in its order."""
        return [widget for widget, _ in self._worded]

    def updates(self, language: str) -> list[dict[str, Any]]:
        """Return an update for each of `widgets`."""
        return [gr.update(**texts(language)) for _, texts in self._worded]

    def add(self, kind: Any, texts: Texts, **options: Any) -> Any:
        """Make a widget and remember how it is worded."""

        def in_language(language: str) -> dict[str, Any]:
            return texts(partial(i18n.text, language))

        widget = kind(**in_language(i18n.DEFAULT), **options)
        self._worded.append((widget, in_language))
        return widget

    def button(self, name: str, **options: Any) -> Any:
        """Make a button with the text `button.<name>`."""
        return self.add(
            gr.Button, lambda say: {"value": say(f"button.{name}")}, elem_id=name, **options
        )

    def dictionary(self, widget: Any) -> None:
        """Keep a widget's `words` the whole dictionary; the browser hands it to all others."""
        self._worded.append((widget, lambda language: {"words": dict(i18n.words(language))}))
