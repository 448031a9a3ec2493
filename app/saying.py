"""What the page says: codes with facts, which the browser words in the visitor's language."""

from __future__ import annotations

from typing import Any

from app.session import Loading
from engine.errors import PlaygroundError

Status = dict[str, Any]
"""`code` and `facts`; an error also has `plain` (English), `error` and the `field` to mend."""

_FIELD_OF = {
    "empty_prompt": "prompt",
    "prompt_too_long": "prompt",
    "prompt_too_long_characters": "prompt",
    "bad_stop": "stop_texts",
    "unknown_method": "method",
    "unknown_pair": "pair",
    "link_too_long": "prompt",
}


def say(code: str, **facts: Any) -> Status:
    """Return something to say."""
    return {"code": code, "facts": facts}


def say_error(error: PlaygroundError) -> Status:
    """Return an error to say, and at which field; the browser words it by its code."""
    facts = {
        name: fact if isinstance(fact, int | float) else str(fact)
        for name, fact in error.facts.items()
    }
    field_name = _FIELD_OF.get(error.code)
    if error.code in ("bad_number", "bad_whole_number", "bad_setting"):
        field_name = str(error.facts.get("name", ""))
    return {
        "code": f"error.{error.code}",
        "facts": facts,
        "plain": str(error),
        "error": True,
        "field": field_name,
    }


def say_loading(loading: Loading) -> Status:
    """Return how far loading is."""
    percent = "" if loading.fraction is None else f"{loading.fraction:.0%}"
    return say("loading", stage=f"stage.{loading.stage}", percent=percent, detail=loading.detail)


def say_place(ahead: int) -> Status:
    """Return the place in line."""
    return say("queued.one" if ahead == 1 else "queued", ahead=ahead)
