"""What several views read of a `Measured`: costs, where they come from, names of methods.

Contract: as of every view; nothing is taken over from a measurement that another place gave
without saying so.
"""

from __future__ import annotations

from typing import Any

from app.shown import Shown
from app.views.blocks import Block, column, sentence, table
from engine.costs import Costs
from engine.events import Measured, Started


def costs_of(curve: Measured, method: str) -> Costs | None:
    """Return what rounds of a method take by a cost curve; None where it was not measured."""
    data: dict[str, Any] = curve.data
    draft = data["drafts"].get(method)
    if draft is None:
        return None
    return Costs(
        passes=tuple(data["passes"]),
        draft_start=draft["start"],
        draft_step=draft["step"],
        overhead=draft["overhead"],
        plain_overhead=data["plain_overhead"],
        overhead_step=draft.get("overhead_step", 0.0),
    )


def provenance(shown: Shown, curve: Measured) -> list[Block]:
    """Say where and when a curve was measured, and what differs from where the run ran."""
    data: dict[str, Any] = curve.data
    where: dict[str, str] = data["where"]
    facts: dict[str, Any] = {name: where.get(name, "—") for name in ("device", "threads", "dtype")}
    if processor := where.get("processor"):
        facts["device"] = f"{facts['device']} ({processor})"
    facts |= {"date": day(curve), "context": data["context"], "repeats": data["repeats"]}
    said = sentence("costs.provenance", **facts)
    differs = differences(shown.started, where)
    if not differs:
        return [said]
    names = ("costs.where", "costs.where_measured", "costs.where_run")
    return [
        said,
        sentence("costs.foreign", "warn"),
        table([column(name) for name in names], differs),
    ]


def day(measured: Measured) -> str:
    """Return when something was measured, to the minute, in UTC."""
    return str(measured.data["date"])[:16].replace("T", " ")


def differences(started: Started | None, where: dict[str, str]) -> list[list[Any]]:
    """Return rows (what, at the measurement, at the run) of what both know and what differs."""
    own = started.where if started else {}
    return [
        [named(f"where.{name}", name), where[name], own[name]]
        for name in where
        if name in own and own[name] != where[name]
    ]


def named(code: str, plain: str) -> Block:
    """Return a cell with the name of something; `plain` serves where the page has no word."""
    return {**sentence(code), "plain": plain}
