"""What can be refused before anything is loaded."""

from __future__ import annotations

import math

from engine.errors import PlaygroundError
from engine.events import Settings

LARGEST_GAMMA = 8


def check_request(prompt: str, settings: Settings) -> None:
    """Raise PlaygroundError for what can be refused before anything is loaded."""
    if not prompt.strip():
        raise empty_prompt()
    check_settings(settings)


def empty_prompt() -> PlaygroundError:
    """Return the error for a prompt without a word."""
    return PlaygroundError("empty_prompt", "The prompt is empty.", "Write something first.")


def check_settings(settings: Settings) -> None:
    """Raise PlaygroundError("bad_setting") for a number that no run can use."""
    limits: tuple[tuple[str, float, float], ...] = (
        ("gamma", 0, LARGEST_GAMMA),
        ("max_new_tokens", 0, 1_000_000),
        ("temperature", 0, 10),
        ("top_k", 0, 1_000_000),
        ("min_p", 0, 1),
        ("seed", 0, 2**62),
        ("alpha", 0, 1),
        ("confidence", 0, 1),
        ("head_rows", 0, 1_000_000),
    )
    for name, low, high in limits:
        value = getattr(settings, name)
        if not low <= value <= high:  # also false for NaN
            raise _bad_setting(name, value, f"between {low:g} and {high:g}")
    if not 0 < settings.top_p <= 1:
        raise _bad_setting("top_p", settings.top_p, "above 0 and at most 1")
    if not 0 < settings.repetition_penalty < math.inf:
        raise _bad_setting("repetition_penalty", settings.repetition_penalty, "above 0")
    if any(not stop for stop in settings.stop):
        raise _bad_setting("stop", "''", "at least one character long")


def _bad_setting(name: str, value: object, allowed: str) -> PlaygroundError:
    return PlaygroundError(
        "bad_setting",
        f"{name} is {value}.",
        f"It must be {allowed}.",
        name=name,
        value=value,
        allowed=allowed,
    )
