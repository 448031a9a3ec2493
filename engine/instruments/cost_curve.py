"""What target passes over 1 .. 16 tokens and drafts of every method cost on this machine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from engine.costs import CONTEXT, REPEATS
from engine.events import Settings

if TYPE_CHECKING:
    from engine.runtime import LoadedPair

WIDEST = 16


def measure(
    pair: LoadedPair,
    method: str,
    prompt: str,
    settings: Settings,
    *,
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """Measure the pair; method, prompt and settings make no difference.

    The pair's own costs, by which "auto" decides, become those measured here.
    """
    from engine.runtime import measure as measure_costs

    costs = measure_costs(pair, widest=WIDEST)
    pair.recost(costs)
    drafts = {
        name: {
            "start": one.draft_start,
            "step": one.draft_step,
            "overhead": one.overhead,
            "overhead_step": one.overhead_step,
        }
        for name, one in costs.items()
    }
    any_method = next(iter(costs.values()))
    return {
        "passes": list(any_method.passes),
        "context": CONTEXT,
        "repeats": REPEATS,
        "drafts": drafts,
        "plain_overhead": any_method.plain_overhead,
        "where": dict(pair.where),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
