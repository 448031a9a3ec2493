"""Waterfall: from the speed-up that the accepted tokens allow down to the one that was measured.

Contract: every number comes from `engine.ledger`; the parts in the figure and in the table sum to
the wall. The view claims nothing without a measured plain run.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from app.shown import Shown, rounds_of
from app.views.blocks import Block, column, figure, sentence, table
from engine.ledger import UNSPLIT, Ledger, Part, ledger

COLOURS = {"draft": "$accepted", "verify": "$bonus", UNSPLIT: "$bonus"}
"""Those of the chart of times; every other phase is the muted "rest" there."""


def view(shown: Shown | None) -> list[Block]:
    """Show what took the speed-up."""
    if shown is None or not shown.rounds:
        return [sentence("view.waterfall.empty", "empty")]
    if shown.started is not None and shown.started.method == "plain":
        return [sentence("view.waterfall.plain", "empty")]
    split = ledger(shown.rounds, rounds_of(shown.baseline))
    if split is None:
        return [sentence("view.waterfall.no_baseline", "empty")]
    return [*_causes(split), _figure(split), _table(split)]


def _causes(split: Ledger) -> list[Block]:
    costs = {part.name: part.total / split.plain_share for part in split.parts}
    facts: dict[str, Any] = {
        "k": split.num_read / split.num_rounds,
        "need": split.need,
        "got": split.got,
        "rest": sum(cost for name, cost in costs.items() if name not in COLOURS),
    }
    if split.is_split:
        facts |= {"verify": costs["verify"], "draft": costs["draft"]}
        cause = sentence("waterfall.cause", **facts)
    else:
        cause = sentence("waterfall.cause.unsplit", both=costs[UNSPLIT], **facts)
    pays = split.speed_up >= 1
    outcome = sentence(
        "waterfall.pays" if pays else "waterfall.loses",
        "good" if pays else "warn",
        need=split.need,
        got=split.got,
        speed_up=split.speed_up,
    )
    return [outcome, cause, _worst(split)]


def _worst(split: Ledger) -> Block:
    worst = split.worst
    if worst is None:
        return sentence("waterfall.none_taken", ideal=split.ideal, speed_up=split.speed_up)
    return sentence(
        "waterfall.worst",
        part=f"part.{worst.name}",
        cost=worst.cost,
        ideal=split.ideal,
        percent=round(100 * worst.seconds / split.wall),
    )


def _steps(split: Ledger) -> list[Part]:
    """Return what is taken from the ideal, in order."""
    cut = [Part("cut", 0.0, 0.0, split.cut_cost)] if split.cut_cost else []
    return [*cut, *split.parts]


def _figure(split: Ledger) -> Block:
    steps = _steps(split)
    levels = list(accumulate((-part.cost for part in steps), initial=split.ideal))
    names = [f"@value.part.{name}" for name in ("ideal", *(p.name for p in steps), "measured")]
    lengths = [split.ideal, *(part.cost for part in steps), split.speed_up]
    bases = [0.0, *levels[1:], 0.0]
    muted = [COLOURS.get(part.name, "$muted/0.7") for part in steps]
    whole = "%{text:.2f}×"
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": lengths,
        "base": bases,
        "text": [abs(length) for length in lengths],
        "texttemplate": [whole, *(_change(part.cost) for part in steps), whole],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": ["$text", *muted, "$text"]},
        "hovertemplate": "%{y}: %{text:.3f}<extra></extra>",
    }
    level = {"color": "$muted", "width": 1, "dash": "dash"}
    most = max(split.ideal, *levels, split.speed_up, 1)
    layout = {
        "xaxis": {"title": {"text": "@axis.speed_up"}, "range": [0, 1.02 * most]},
        "yaxis": {"autorange": "reversed"},
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper",
                    "line": level}],
        "margin": {"l": 52, "r": 54, "t": 26, "b": 40},
        "annotations": [{"x": 1, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left",
                         "showarrow": False, "text": "@chart.plain_level"}],
    }  # fmt: skip
    return figure("waterfall", [bars], layout, height=72 + 29 * len(names))


def _change(cost: float) -> str:
    """Return the template of a step's label; plotly's own signs would not be worded."""
    sign = "" if abs(cost) < 0.005 else "−" if cost > 0 else "+"
    return sign + "%{text:.2f}"


def _table(split: Ledger) -> Block:
    columns = [
        column("waterfall.column.part"),
        column("waterfall.column.seconds", 3, "s"),
        column("waterfall.column.per_round", 2, "ms"),
        column("waterfall.column.share", 1, "%"),
    ]
    whole = [("one_step", split.plain_share), *((p.name, p.seconds) for p in split.parts)]
    rows = [
        [
            sentence(f"value.part.{name}"),
            seconds,
            1000 * seconds / split.num_rounds,
            100 * seconds / split.wall,
        ]
        for name, seconds in [*whole, ("wall", split.wall)]
    ]
    return table(columns, rows)
