"""What the visitor filled in, checked.

Contract: `read_form` turns raw widget values into a `Form` or raises a PlaygroundError that names
the value to mend; nothing impossible gets past it. Lengths in tokens are for the engine to judge.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from engine.errors import PlaygroundError
from engine.events import Settings

LIMITS: dict[str, tuple[float, float]] = {
    "gamma": (1, 8),
    "temperature": (0, 2),
    "seed": (0, 2**31 - 1),
    "max_new_tokens": (1, 512),
}
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
        plain = dataclasses.replace(self.settings, gamma=0, adaptive=False)
        return self.pair, self.prompt, plain


def read_form(
    *,
    pair: str,
    method: str,
    prompt: str | None,
    gamma: object,
    adaptive: bool,
    temperature: object,
    seed: object,
    max_new_tokens: object,
    compare: bool,
) -> Form:
    """Check raw values.  Raises PlaygroundError: empty_prompt, prompt_too_long, bad_number."""
    if not (prompt or "").strip():
        raise PlaygroundError(
            "empty_prompt", "The prompt is empty.", "Write one or choose a preset."
        )
    if len(prompt or "") > MAX_PROMPT_CHARACTERS:
        raise PlaygroundError(
            "prompt_too_long_characters",
            f"The prompt has {len(prompt or '')} characters; {MAX_PROMPT_CHARACTERS} is the most.",
            "Shorten it.",
            characters=len(prompt or ""),
            limit=MAX_PROMPT_CHARACTERS,
        )
    settings = Settings(
        gamma=int(_number("gamma", gamma, whole=True)),
        adaptive=bool(adaptive),
        max_new_tokens=int(_number("max_new_tokens", max_new_tokens, whole=True)),
        temperature=_number("temperature", temperature),
        seed=int(_number("seed", seed, whole=True)),
    )
    return Form(pair, method, prompt or "", settings, bool(compare))


def _number(name: str, value: object, *, whole: bool = False) -> float:
    low, high = LIMITS[name]
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if low <= number <= high and (not whole or number == int(number)):  # False for NaN
        return number
    raise PlaygroundError(
        "bad_whole_number" if whole else "bad_number",
        f"{name} must be a {'whole ' if whole else ''}number from {low:g} to {high:.0f}.",
        "Change it and run again.",
        name=name,
        low=f"{low:.0f}",
        high=f"{high:.0f}",
    )
