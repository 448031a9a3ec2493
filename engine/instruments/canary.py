"""A canary: a text that repeats itself, on which every drafter that is wired at all does well.

A drafter fed with the wrong states still gives exact text, only slowly: nothing else would tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.events import Finished, Settings
from engine.metrics import fold

if TYPE_CHECKING:
    from engine.runtime import LoadedPair

TEXT = "One two three four five six seven eight nine ten. " * 6
LEAST = 0.25
"""Accepted share below which something is wrong; measured on the bundled trio: far above."""


def measure(
    pair: LoadedPair,
    method: str,
    prompt: str,
    settings: Settings,
    *,
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """Continue the text greedily with `method` and with plain decoding."""
    settings = Settings(gamma=2, max_new_tokens=48, raw=True)
    plain = list(pair.run("plain", TEXT, settings, cancelled=cancelled))
    events = list(pair.run(method, TEXT, settings, cancelled=cancelled))
    metrics = fold(events)
    rate = metrics.acceptance_rate
    identical = _ids(plain) == _ids(events)
    return {
        "method": method,
        "rounds": metrics.num_rounds,
        "drafted": metrics.num_drafted,
        "accepted": metrics.num_accepted,
        "least": LEAST,
        "identical": identical,
        "ok": identical and (method == "plain" or (rate is not None and rate >= LEAST)),
    }


def _ids(events: list[Any]) -> tuple[int, ...]:
    last = events[-1]
    return last.token_ids if isinstance(last, Finished) else ()
