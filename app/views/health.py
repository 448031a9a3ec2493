"""Health: whether the run's books balance, and whether its drafter is wired at all.

Contract: the nine laws of `engine.books`, each with the numbers it was checked on, so that a broken
one shows what broke it. The canary is a measurement of its own and is shown only where it was made.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.shown import Shown
from app.views.blocks import Block, Tone, sentence
from engine.books import LAWS, counted, produced
from engine.metrics import Metrics

MARKS = {True: "✓", False: "✗"}


def view(shown: Shown | None) -> list[Block]:
    """Tick the nine laws, say what was not drafted, and show the canary."""
    if shown is None or not shown.rounds:
        return [sentence("view.health.empty", "empty")]
    metrics = shown.metrics
    checks = metrics.invariants()
    broken = [law for law in LAWS if not _holds(law, checks)]
    if broken:
        head = sentence("health.broken", "warn", broken=len(broken), laws=len(LAWS))
    else:
        head = sentence("health.balanced", "good", laws=len(LAWS))
    laws = [_law(law, _holds(law, checks), metrics) for law in LAWS]
    return [head, *_nothing_drafted(metrics), *laws, *_canary(shown)]


def _holds(law: str, checks: Mapping[str, bool]) -> bool:
    return all(checks.get(name, True) for name in LAWS[law])


def _law(law: str, holds: bool, metrics: Metrics) -> Block:
    tone: Tone = "plain" if holds else "warn"
    return sentence(f"health.{law}", tone, mark=MARKS[holds], **_numbers(metrics))


def _numbers(metrics: Metrics) -> dict[str, object]:
    """Return what the laws were checked on; every text takes what it needs."""
    rounds, accepted = counted(metrics)
    rate, length = metrics.acceptance_rate, metrics.mean_acceptance_length
    wall = metrics.decode_seconds
    parts = metrics.draft_seconds + metrics.verify_seconds + metrics.overhead_seconds
    return {
        "counted_rounds": rounds,
        "rounds_with_draft": metrics.num_rounds_with_draft,
        "counted_accepted": accepted,
        "accepted": metrics.num_accepted,
        "drafted": metrics.num_drafted,
        "rejected": metrics.num_rejected,
        "unjudged": metrics.num_unjudged,
        "overdrawn": metrics.num_overdrawn,
        "produced": produced(metrics),
        "cut": metrics.num_cut,
        "emitted": metrics.num_emitted,
        "ids": "—" if metrics.token_ids is None else len(metrics.token_ids),
        "rate": _said(rate),
        "length": _said(length),
        "positions": ", ".join(map(str, metrics.accepted_at)) or "—",
        "sum": sum(metrics.accepted_at),
        "wall": 1000 * wall,
        "parts": 1000 * parts,
        "unaccounted": 1000 * metrics.unaccounted_seconds,
        "percent": 100 * metrics.unaccounted_seconds / wall if wall else "—",
        "starts": metrics.num_starts,
        "prefills": metrics.num_prefill_passes,
        "rounds": metrics.num_rounds,
        "misplaced": metrics.num_out_of_order,
    }


def _nothing_drafted(metrics: Metrics) -> list[Block]:
    if metrics.num_drafted:
        return []
    if metrics.method == "plain":
        return [sentence("health.plain")]
    return [sentence("health.nothing_drafted", "warn", rounds=metrics.num_rounds)]


def _canary(shown: Shown) -> list[Block]:
    method = shown.started.method if shown.started is not None else None
    if method == "plain":
        return [sentence("health.canary.plain", "empty")]
    found = shown.measure_of("canary", method)
    if found is None:
        return [sentence("health.canary.none", "empty")]
    data = found.data
    drafted, accepted, least = (_known(data.get(k)) for k in ("drafted", "accepted", "least"))
    share = accepted / drafted if accepted is not None and drafted else None
    facts = {
        "method": data.get("method", ""),
        "accepted": _said(accepted),
        "drafted": _said(drafted),
        "rounds": _said(_known(data.get("rounds"))),
        "percent": _said(share, 100),
        "least": _said(least, 100),
    }
    good = bool(data.get("ok"))
    code = "health.canary.ok" if good else "health.canary.bad"
    blocks = [sentence(code, "good" if good else "warn", mark=MARKS[good], **facts)]
    if data.get("identical") is False:
        blocks.append(sentence("health.canary.differs", "warn", mark=MARKS[False]))
    return blocks


def _known(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _said(value: float | None, times: float = 1) -> object:
    return "—" if value is None else times * value
