"""Losslessness lab: do drawn tokens follow the target's own law, under a right or a wrong rule?

Contract: shows a `Measured` "lab". The verdict is the instrument's; what it can and cannot tell at
this number of draws is said beside it. A greedy run has nothing to draw: the lab then draws at
temperature 1, and says so.
"""

from __future__ import annotations

from typing import Any

from app.shown import Shown
from app.views.blocks import LEGEND_ABOVE, Block, figure, label, sentence, significant

RULES = ("exact", "no_residual", "own_sample", "greedy_accept")
DRAWS = (500, 2000, 8000)
HATCH = {"fillmode": "overlay", "fgcolor": "$panel", "fgopacity": 0.8, "solidity": 0.25, "size": 6}


def view(shown: Shown | None) -> list[Block]:
    """Show the target's law beside what was drawn, the distance of both, and the verdict."""
    method = shown.metrics.method if shown else ""
    found = shown.measure_of("lab", method) if shown else None
    if shown is None or found is None:
        plain = method == "plain"
        return [sentence("measure.needs_draft" if plain else "view.lab.empty", "empty")]
    data: dict[str, Any] = found.data
    return [
        sentence(f"lab.rule.{data['rule']}"),
        _said(shown, data),
        _law(data),
        _distance(data),
        _verdict(data),
        sentence("lab.acceptance", accepted=_percent(data["acceptance"]),
                 expected=_percent(data["expected"])),
    ]  # fmt: skip


def _said(shown: Shown, data: dict[str, Any]) -> Block:
    own = shown.started.settings.temperature if shown.started else 0.0
    temperature = data.get("temperature") or own or 1.0
    facts = {"draws": data["num_draws"], "method": data["method"], "temperature": temperature}
    return sentence("lab.drawn" if own else "lab.drawn_greedy", **facts)


def _law(data: dict[str, Any]) -> Block:
    names = [label(text) if text else "@lab.rest" for text in data["labels"]]
    series = (
        ("target", data["target"], "muted", ""),
        ("with_draft", data["with_draft"], "accepted", "/"),
        ("without", data["without"], "bonus", "."),
    )
    traces = [
        {
            "type": "bar",
            # Places, not names: two tokens may look alike.
            "x": list(range(len(names))),
            "y": [_percent(share) for share in shares],
            "customdata": names,
            "name": f"@lab.{name}",
            "marker": {"color": f"${colour}", "pattern": {"shape": shape, **HATCH}},
            "hovertemplate": "%{customdata}: %{y:.1f} %<extra></extra>",
        }
        for name, shares, colour, shape in series
    ]
    layout = {
        "showlegend": True,
        "legend": LEGEND_ABOVE,
        "bargap": 0.25,
        "xaxis": {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False},
        "yaxis": {"ticksuffix": " %", "rangemode": "tozero", "nticks": 5},
    }
    return figure("lab_law", traces, layout)


def _distance(data: dict[str, Any]) -> Block:
    """Draw both distances as marks over the band in which exact draws lie."""
    low, high = data["band"]
    rows = ["@lab.without", "@lab.with_draft"]
    lossless = data["lossless"]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [data["distance_without"], data["distance"]],
        "y": rows,
        "marker": {
            "size": 13,
            "color": ["$bonus", "$accepted" if lossless else "$rejected"],
            "symbol": ["circle", "diamond" if lossless else "x"],
        },
        "hovertemplate": "%{x:.4f}<extra></extra>",
    }
    band = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0},
        "fillcolor": "$accepted/0.18",
        "layer": "below",
    }
    most = max(high, data["distance"], data["distance_without"])
    layout = {
        "shapes": [band],
        "xaxis": {"title": {"text": "@axis.distance"}, "range": [0, 1.15 * most]},
        "yaxis": {"type": "category", "range": [-0.6, 1.6], "showgrid": False},
    }
    return figure("lab_distance", [marks], layout, height=150)


def _verdict(data: dict[str, Any]) -> Block:
    distance, upper = significant(data["distance"]), significant(data["band"][1])
    facts = {"distance": distance, "upper": upper, "draws": data["num_draws"]}
    if data["rule"] == "exact":
        if data["lossless"]:
            return sentence("lab.lossless", "good", **facts)
        return sentence("lab.exact_outside", "warn", **facts)
    if data["lossless"]:
        return sentence("lab.wrong_unseen", "warn", **facts)
    return sentence("lab.wrong_seen", "warn", **facts)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
