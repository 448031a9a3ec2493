"""Every sentence the user reads, from `assets/locales/<language>.json`.

Contract: all languages have the same keys with the same `{placeholders}`; a test keeps it so. The
token strip gets the same dictionaries and words its texts in the browser, so that a language switch
re-labels a finished run too.

Words: *facts* are the values of the placeholders. A fact that is itself a name (a method, a
setting) is worded by the key `value.<fact>` where there is one.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from functools import cache

from engine.catalog import ASSETS
from engine.errors import PlaygroundError

LANGUAGES: dict[str, str] = {"en": "EN", "zh": "中文", "it": "IT"}
"""Code and what the switch shows, in the order of the switch."""

DEFAULT = "en"


@cache
def words(language: str) -> Mapping[str, str]:
    """Return the dictionary of a language (that of `DEFAULT` for an unknown one)."""
    name = language if language in LANGUAGES else DEFAULT
    path = ASSETS / "locales" / f"{name}.json"
    texts: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return texts


def text(language: str, key: str, **facts: object) -> str:
    """Return one text with its facts filled in.  Raises KeyError for an unknown key."""
    return fill(language, words(language)[key], facts)


def fill(language: str, template: str, facts: Mapping[str, object]) -> str:
    """Fill `{placeholders}`.  Raises KeyError when a fact is missing."""
    table = words(language)
    named = {name: table.get(f"value.{fact}", str(fact)) for name, fact in facts.items()}
    return template.format_map(named)


def placeholders(template: str) -> set[str]:
    """Return the names of a text's placeholders."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def error_text(language: str, error: PlaygroundError) -> str:
    """Word an error by its code; the engine's English serves where no text (or fact) is known."""
    template = words(language).get(f"error.{error.code}", "")
    if template and placeholders(template) <= set(error.facts):
        return fill(language, template, error.facts)
    return str(error)


def choose(query: str | None, accept_language: str | None) -> str:
    """Return the language of `?lang=`, else the first known in Accept-Language, else English."""
    for wish in (query or "", *(accept_language or "").split(",")):
        code = wish.strip().split(";")[0].split("-")[0].lower()
        if code in LANGUAGES:
            return code
    return DEFAULT
