"""Run lengths: how far the drafter comes from every place, and what each draft length would do.

Contract: counts come from a `Measured` "run_lengths" (`app.views.ways`), seconds from a `Measured`
"cost_curve" where there is one. What is replayed or predicted is called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.shown import Shown
from app.views.blocks import LEGEND_ABOVE, Block, column, figure, label, sentence, table
from app.views.measured import costs_of, day, differences, named
from app.views.ways import Way, best, ways_of
from engine.events import Measured
from engine.replay import RunLengths


def view(shown: Shown | None) -> list[Block]:
    """Show the map, what every draft length would have done with it, and the best of them."""
    method = shown.metrics.method if shown else ""
    found = shown.measure_of("run_lengths", method) if shown else None
    if shown is None or found is None or not found.data["lengths"]:
        plain = method == "plain"
        return [sentence("measure.needs_draft" if plain else "view.run_lengths.empty", "empty")]
    data: dict[str, Any] = found.data
    most = shown.started.settings.max_new_tokens if shown.started else None
    run_map = RunLengths.of(data, most)
    curve = shown.measure_of("cost_curve")
    costs = costs_of(curve, method) if curve else None
    ways = ways_of(data, run_map, costs)
    blocks = [_said(data), _strip(data), _bars(ways), *_speeds(ways)]
    blocks += [_best(ways), *_against_run(shown, data, ways), _table(ways)]
    return [*blocks, *_where_costs_come_from(shown, curve if costs else None)]


def _said(data: dict[str, Any]) -> Block:
    facts = {"checked": data["checked"], "method": data["method"], "longest": data["longest"]}
    if data["exact"]:
        return sentence("run_lengths.exact", **facts)
    return sentence("run_lengths.approximate", "warn", **facts)


def _strip(data: dict[str, Any]) -> Block:
    lengths, proposed, labels = data["lengths"], data["proposed"], data["labels"]
    places = list(range(1, len(lengths) + 1))
    hover = [
        [label(labels[i]), label("".join(labels[i + 1 : i + 1 + lengths[i]])), proposed[i]]
        for i in range(len(lengths))
    ]
    offered = {
        "type": "bar",
        "x": places,
        "y": proposed,
        "marker": {"color": "$unjudged/0.22"},
        "hoverinfo": "skip",
        "name": "@run_lengths.proposed",
    }
    matched = {
        "type": "bar",
        "x": places,
        "y": lengths,
        "customdata": hover,
        "marker": {"color": "$accepted"},
        "hovertemplate": "@run_lengths.hover",
        "name": "@run_lengths.matched",
    }
    layout = {
        "barmode": "overlay",
        "bargap": 0.1,
        "showlegend": True,
        "legend": LEGEND_ABOVE,
        "xaxis": {"title": {"text": "@axis.known"}, "showgrid": False},
        "yaxis": {"title": {"text": "@axis.drafts"}, "range": [0, data["longest"] + 0.4]},
    }
    return figure("run_lengths", [offered, matched], layout, height=230)


def _bars(ways: Sequence[Way]) -> Block:
    shown = [way for way in ways if way.gamma != 0]
    bars = _bar(shown, [way.sums.tokens_per_pass for way in shown], "%{y:.2f}", best(ways))
    return figure("replayed_passes", [bars], _categories("@axis.tokens_per_pass"), height=230)


def _speeds(ways: Sequence[Way]) -> list[Block]:
    if any(way.sums.seconds is None for way in ways):
        return [sentence("run_lengths.no_costs", "empty")]
    bars = _bar(ways, [way.sums.tokens_per_second for way in ways], "%{y:.0f}", best(ways))
    plain = {
        "type": "scatter",
        "mode": "lines",
        "x": [ways[0].said, ways[-1].said],
        "y": [ways[0].sums.tokens_per_second] * 2,
        "line": {"color": "$text", "dash": "dash", "width": 1.5},
        "hoverinfo": "skip",
    }
    layout = _categories("@axis.predicted_speed")
    return [figure("replayed_speed", [bars, plain], layout, height=230)]


def _bar(
    ways: Sequence[Way], heights: list[float | None], form: str, winner: Way
) -> dict[str, Any]:
    colour = {"auto": "bonus", "oracle": "recovered", "plain": "muted", "fixed": "accepted"}
    return {
        "type": "bar",
        "x": [way.said for way in ways],
        "y": heights,
        "texttemplate": form,
        "textposition": "outside",
        "textangle": 0,
        "cliponaxis": False,
        "marker": {
            "color": [
                f"${colour[way.name]}" + ("/0.4" if way.gamma and way is not winner else "")
                for way in ways
            ]
        },
        "hovertemplate": "%{x}: " + form + "<extra></extra>",
    }


def _categories(y: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": "@axis.gamma"}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero", "nticks": 5},
    }


def _best(ways: Sequence[Way]) -> Block:
    won, plain = best(ways), ways[0].sums
    sums = won.sums
    facts: dict[str, Any] = {
        "gamma": won.gamma,
        "passes": sums.num_rounds,
        "tokens": sums.num_decoded,
        "length": sums.tokens_per_pass,
    }
    if sums.seconds is None:
        return sentence("run_lengths.best_passes", **facts)
    if won.gamma == 0:
        return sentence(
            "run_lengths.best_plain", "warn", speed=round(sums.tokens_per_second or 0.0, 1)
        )
    speed = sums.tokens_per_second or 0.0
    gain = speed / (plain.tokens_per_second or speed)
    return sentence("run_lengths.best_speed", "good", speed=round(speed, 1), gain=gain, **facts)


def _against_run(shown: Shown, data: dict[str, Any], ways: Sequence[Way]) -> list[Block]:
    """Hold the map against the shown run, where both have the same greedy text."""
    started, metrics = shown.started, shown.metrics
    if started is None or started.settings.adaptive or metrics.token_ids is None:
        return []
    settings = started.settings
    same = list(metrics.token_ids) == data["token_ids"] and settings.temperature == 0
    same = same and settings.confidence == 0  # with a cut the run drafts less than the map
    if not same or not 0 < settings.gamma <= data["longest"]:
        return []
    said = ways[settings.gamma].sums.num_rounds
    facts: dict[str, Any] = {"gamma": settings.gamma, "replayed": said, "real": metrics.num_rounds}
    if said == metrics.num_rounds:
        return [sentence("run_lengths.run_agrees", **facts)]
    return [sentence("run_lengths.run_differs", "warn", **facts)]


def _table(ways: Sequence[Way]) -> Block:
    rows = [
        [
            str(way.gamma) if way.gamma else named(f"run_lengths.{way.name}", way.name),
            way.sums.num_rounds,
            way.sums.num_drafted,
            way.sums.num_accepted,
            way.sums.tokens_per_pass,
            way.sums.seconds,
            way.sums.tokens_per_second,
        ]
        for way in ways
    ]
    columns = [
        column("axis.gamma"),
        column("run_lengths.passes", 0),
        column("run_lengths.drafted", 0),
        column("run_lengths.accepted", 0),
        column("axis.tokens_per_pass", 2),
        column("run_lengths.seconds", 2, "s"),
        column("axis.predicted_speed", 1),
    ]
    return table(columns, rows)


def _where_costs_come_from(shown: Shown, curve: Measured | None) -> list[Block]:
    if curve is None:
        return []
    where: Any = curve.data["where"]
    foreign = bool(differences(shown.started, where))
    code = "run_lengths.costs_foreign" if foreign else "run_lengths.costs_from"
    return [sentence(code, "warn" if foreign else "plain", date=day(curve))]
