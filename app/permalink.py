"""Permalinks: a form as the query of an address, and back.

Contract: `read_query(query_of(fields))` gives the fields back. Unknown names are left alone; a bad
value is not bent into a good one: it is left out, so that its field keeps its default, and returned
as the error to say. Reading an address runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from app.form import LIMITS, MAX_PROMPT_CHARACTERS, read_number, read_stops
from app.saying import Status, say_error
from engine.errors import PlaygroundError

ALWAYS = ("pair", "method", "gamma", "temperature", "seed", "prompt")
DEFAULTS: dict[str, Any] = {
    "adaptive": False,
    "max_new_tokens": 128,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "confidence": 0,
    "head_rows": 0,
    "stop": "",
    "compare": True,
}
"""Of what an address holds only where it differs; those of the page."""

SWITCHES = {"0": False, "1": True}
MOST_CHARACTERS = 50_000
"""Of a query; web servers take up to 64 kB of address and headers."""

Methods = Mapping[str, Sequence[str]]
"""The methods of each pair; the first pair is the page's default."""


@dataclass
class Found:
    """What an address asks for: good values by field, and an error per bad one."""

    fields: dict[str, Any] = field(default_factory=dict)
    bad: list[PlaygroundError] = field(default_factory=list)


def read_query(query: Mapping[str, str], methods: Methods) -> Found:
    """Return the fields of an address."""
    found = Found()
    for name in (*ALWAYS, *DEFAULTS):
        if name in query:
            try:
                pair = found.fields.get("pair", next(iter(methods)))
                found.fields[name] = _read(name, query[name], pair, methods)
            except PlaygroundError as error:
                found.bad.append(error)
    return found


def query_of(fields: Mapping[str, Any], language: str) -> str:
    """Return the query that holds a form as it is, good or not."""
    kept = {name: fields[name] for name in ALWAYS}
    kept |= {name: fields[name] for name, usual in DEFAULTS.items() if fields[name] != usual}
    return urlencode({**{name: _text(value) for name, value in kept.items()}, "lang": language})


def check(query: str, methods: Methods) -> list[PlaygroundError]:
    """Return what keeps an address from giving its form back."""
    if len(query) > MOST_CHARACTERS:
        return [
            PlaygroundError(
                "link_too_long",
                f"The link would have {len(query)} characters; {MOST_CHARACTERS} is the most.",
                "Shorten the prompt.",
                characters=len(query),
                limit=MOST_CHARACTERS,
            )
        ]
    return read_query(dict(parse_qsl(query, keep_blank_values=True)), methods).bad


def complaint(bad: Sequence[PlaygroundError]) -> Status | None:
    """Return what to say of bad values, at the field of the first; None when there are none."""
    if not bad:
        return None
    first = say_error(bad[0])
    if len(bad) == 1:
        return first
    names = ", ".join(str(say_error(error)["field"] or error.code) for error in bad)
    several = PlaygroundError(
        "bad_link",
        f"The link asks for values that cannot be: {names}.",
        "These fields keep their defaults.",
        names=names,
    )
    return {**say_error(several), "field": first["field"]}


def _read(name: str, text: str, pair: str, methods: Methods) -> Any:
    if name in LIMITS:
        return read_number(name, text)
    match name:
        case "pair" if text not in methods:
            known = ", ".join(methods)
            raise PlaygroundError(
                "unknown_pair", "There is no such pair.", "Choose another.",
                pair=text[:40], known=known,
            )  # fmt: skip
        case "method" if text not in methods[pair]:
            known = ", ".join(methods[pair])
            raise PlaygroundError(
                "unknown_method", "There is no such method.", "Choose another.",
                method=text[:40], known=known,
            )  # fmt: skip
        case "prompt" if len(text) > MAX_PROMPT_CHARACTERS:
            raise PlaygroundError(
                "prompt_too_long_characters", "The prompt is too long.", "Shorten it.",
                characters=len(text), limit=MAX_PROMPT_CHARACTERS,
            )  # fmt: skip
        case "stop":
            read_stops(text)
        case "adaptive" | "compare":
            if text not in SWITCHES:
                raise PlaygroundError(
                    "bad_setting", f"{name} is 0 or 1.", "Change it.", name=name, value=text[:40]
                )
            return SWITCHES[text]
        case _:
            pass
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)
