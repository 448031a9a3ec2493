"""Phases: what a step player says about a round beside its tokens, as plain JSON values.

Contract: counted and recorded only; None is "not known". `run_view` adds these to a row.

Words: `read` counts the tokens the target read, `dropped` the stale cache entries it let go of
first: those of the round before. `ms` holds milliseconds by phase; `judge` is drawing and the
acceptance rule, `rest` whatever of the round no other phase has, so that they add up to the round.
"""

from __future__ import annotations

from typing import Any

from engine.events import Prefilled, Round


def of_prefill(event: Prefilled) -> dict[str, Any]:
    """Return what is said about reading the prompt."""
    return {
        "read": event.num_prompt_tokens,
        "ms": {
            "prefill": _milliseconds(event.seconds),
            "proposer": _milliseconds(event.proposer_seconds),
        },
    }


def of_round(done: Round) -> dict[str, Any]:
    """Return what is said about a finished round."""
    seconds = done.seconds
    judge = seconds.sampling + seconds.rule
    return {
        "read": done.num_forwarded,
        "dropped": done.num_rolled_back,
        "ms": {
            "draft": None if seconds.draft is None else _milliseconds(seconds.draft),
            "verify": _milliseconds(seconds.verify),
            "judge": _milliseconds(judge),
            "rest": _milliseconds(seconds.overhead - judge),
        },
    }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 4)
