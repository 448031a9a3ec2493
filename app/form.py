"""What the visitor filled in, checked.

Contract: `read_form` turns raw widget values into a `Form` or raises a PlaygroundError that names
the value to mend; nothing impossible gets past it. Lengths in tokens are for the engine to judge.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from engine.errors import PlaygroundError
from engine.events import Settings

LIMITS: dict[str, tuple[float, float]] = {
    "gamma": (1, 8),
    "temperature": (0, 2),
    "seed": (0, 2**31 - 1),
    "max_new_tokens": (1, 512),
    "top_k": (0, 1000),
    "top_p": (0.01, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.5, 2),
    "confidence": (0, 1),
    "head_rows": (0, 1_000_000),
}
WHOLE = {"gamma", "seed", "max_new_tokens", "top_k", "head_rows"}
MOST_STOPS, LONGEST_STOP = 8, 80
MAX_PROMPT_CHARACTERS = 20_000
"""Beyond any context of ours; the exact limit, in tokens, is checked by the engine."""


@dataclass(frozen=True, slots=True)
class Form:
    """One press on Run."""

    pair: str
    method: str
    prompt: str
    settings: Settings
    compare: bool = True

    @property
    def work(self) -> tuple[str, str, Settings]:
        """What a plain run of this form depends on; runs of equal work share one baseline."""
        plain = as_plain(self.settings)
        return self.pair, self.prompt, plain


def as_plain(settings: Settings) -> Settings:
    """Return settings without what only drafters read."""
    return dataclasses.replace(settings, gamma=0, adaptive=False, confidence=0.0, head_rows=0)


def read_form(
    *,
    pair: str,
    method: str,
    prompt: str | None,
    adaptive: bool,
    compare: bool,
    stop: str | None = "",
    **numbers: object,
) -> Form:
    """Check raw values; `numbers` are those of `LIMITS`.

    Raises PlaygroundError: empty_prompt, prompt_too_long_characters, bad_number, bad_whole_number,
    bad_stop.
    """
    prompt = prompt or ""
    if not prompt.strip():
        raise PlaygroundError(
            "empty_prompt", "The prompt is empty.", "Write one or choose a preset."
        )
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise PlaygroundError(
            "prompt_too_long_characters",
            f"The prompt has {len(prompt)} characters; {MAX_PROMPT_CHARACTERS} is the most.",
            "Shorten it.",
            characters=len(prompt),
            limit=MAX_PROMPT_CHARACTERS,
        )
    checked: dict[str, Any] = {name: read_number(name, value) for name, value in numbers.items()}
    settings = Settings(adaptive=bool(adaptive), stop=read_stops(stop or ""), **checked)
    return Form(pair, method, prompt, settings, bool(compare))


def read_stops(typed: str) -> tuple[str, ...]:
    r"""Return the stop texts, one per line; `\n` and `\t` stand for a line break and a tab."""
    lines = [line.replace(r"\n", "\n").replace(r"\t", "\t") for line in typed.splitlines()]
    stops = tuple(dict.fromkeys(line for line in lines if line))
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise PlaygroundError(
            "bad_stop",
            f"At most {MOST_STOPS} stop texts, each of at most {LONGEST_STOP} characters.",
            "Change them and run again.",
            most=MOST_STOPS,
            length=LONGEST_STOP,
        )
    return stops


def read_number(name: str, value: object) -> float | int:
    """Return a number of `LIMITS`.  Raises PlaygroundError: bad_number, bad_whole_number."""
    low, high = LIMITS[name]
    whole = name in WHOLE
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if low <= number <= high and (not whole or number == int(number)):  # False for NaN
        return int(number) if whole else number
    raise PlaygroundError(
        "bad_whole_number" if whole else "bad_number",
        f"{name} must be a {'whole ' if whole else ''}number from {low:g} to {high:.0f}.",
        "Change it and run again.",
        name=name,
        low=_short(low),
        high=_short(high),
    )


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
