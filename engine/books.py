"""The books of a run: what must hold between its counters, whatever was run.

Contract: `checks(metrics)` is True everywhere in a correct run, at any moment of it; nothing is
clamped first, so a broken counter cannot hide. `LAWS` groups the checks into the nine laws that are
shown to people; each has been broken by some published counter.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.metrics import Metrics

MOST_UNACCOUNTED = 0.03
"""Share of the wall that no phase may claim."""

LAWS: dict[str, tuple[str, ...]] = {
    "histogram": ("histogram counts rounds", "histogram counts accepted"),
    "drafted": ("drafted tokens add up", "accepted within drafted"),
    "emitted": ("emitted tokens add up", "final ids are the emitted tokens"),
    "rate": ("rate within 0 and 1",),
    "positions": ("positions never rise", "positions sum to accepted"),
    "no_draft": ("no draft, no rate",),
    "all_rejected": ("none accepted, length 1",),
    "time": ("time parts sum to the wall", "little time is unaccounted"),
    "one_run": ("one run, rounds in order",),
}
"""Law -> its checks; the last of "emitted" is made once the run has finished."""


def checks(metrics: Metrics) -> dict[str, bool]:
    """Return every check by its name."""
    done = {**_counts(metrics), **_rates(metrics), **_clocks(metrics)}
    if metrics.token_ids is not None:
        done["final ids are the emitted tokens"] = len(metrics.token_ids) == metrics.num_emitted
    return done


def counted(metrics: Metrics) -> tuple[int, int]:
    """Return rounds and accepted tokens as the histogram counts them."""
    rounds = sum(metrics.histogram.values())
    return rounds, sum(accepted * count for accepted, count in metrics.histogram.items())


def produced(metrics: Metrics) -> int:
    """Return the tokens that were made: of prefill, accepted, and one of the target a round."""
    return metrics.num_prefill_tokens + metrics.num_accepted + metrics.num_rounds


def _counts(metrics: Metrics) -> dict[str, bool]:
    rounds, accepted = counted(metrics)
    told_apart = metrics.num_accepted + metrics.num_rejected + metrics.num_unjudged
    one_run = max(metrics.num_starts, metrics.num_prefill_passes) <= 1
    return {
        "histogram counts rounds": rounds == metrics.num_rounds_with_draft,
        "histogram counts accepted": accepted == metrics.num_accepted,
        "drafted tokens add up": metrics.num_drafted == told_apart,
        "accepted within drafted": 0 <= metrics.num_accepted <= metrics.num_drafted
        and not metrics.num_overdrawn,
        "emitted tokens add up": metrics.num_emitted == produced(metrics) - metrics.num_cut,
        "one run, rounds in order": one_run and not metrics.num_out_of_order,
    }


def _rates(metrics: Metrics) -> dict[str, bool]:
    rate, length = metrics.acceptance_rate, metrics.mean_acceptance_length
    none_won = metrics.num_accepted == 0
    return {
        "rate within 0 and 1": rate is None or 0 <= rate <= 1,
        "positions never rise": all(a >= b for a, b in pairwise(metrics.acceptance_by_position)),
        "positions sum to accepted": sum(metrics.accepted_at) == metrics.num_accepted,
        "no draft, no rate": (rate is None) == (metrics.num_drafted == 0),
        "none accepted, length 1": (length is None or (length == 1) == none_won)
        and (rate is None or (rate == 0) == none_won),
    }


def _clocks(metrics: Metrics) -> dict[str, bool]:
    wall = metrics.decode_seconds
    parts = metrics.draft_seconds + metrics.verify_seconds + metrics.overhead_seconds
    unclaimed = MOST_UNACCOUNTED * wall + 1e-3 * max(1, metrics.num_rounds)
    return {
        "time parts sum to the wall": abs(parts - wall) <= MOST_UNACCOUNTED * wall + 1e-9,
        "little time is unaccounted": -1e-9 <= metrics.unaccounted_seconds <= unclaimed,
    }
