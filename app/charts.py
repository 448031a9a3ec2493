"""The three live charts, as plotly describes them: pure functions, no data of their own.

Contract: `templates(dark)` returns layouts and traces without data, as plain JSON; the browser
(`assets/charts.js`) and `figure` fill them in the same way, so what a test reads is what a visitor
sees. A trace's `meta` names its columns of `app.series`; a single number makes a level line. Texts
that begin with "@" are keys of `app.i18n`, filled with `FACTS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import theme
from app.series import WINDOW, Row, columns

if TYPE_CHECKING:
    import plotly.graph_objects as go

NAMES = ("speed_up", "acceptance", "latency")
FACTS: dict[str, object] = {"rounds": WINDOW}
FONT_SIZE = 13
"""One more than plotly's own: these are read from the back of a room."""

LATENCY_PARTS = (("draft", "accepted", "/"), ("verify", "bonus", ""), ("overhead", "muted", "."))
"""Phase, colour and fill pattern, from the bottom of the stack; the caption shows the same."""

Say = Callable[..., str]


def script_path() -> Path:
    """Return plotly.js of the installed plotly package, which the page serves itself."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("plotly is not installed: pip install -r requirements.txt")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def templates(dark: bool) -> dict[str, dict[str, Any]]:
    """Return each chart's `traces` and `layout`, without data."""
    return {
        "speed_up": _speed_up(dark),
        "acceptance": _acceptance(dark),
        "latency": _latency(dark),
    }


def figure(
    name: str, rows: list[Row], totals: Mapping[str, Any], say: Say, *, dark: bool = False
) -> go.Figure:
    """Return one chart with data, as the browser draws it."""
    import plotly.graph_objects as go  # a second of import that the page itself never needs

    template = templates(dark)[name]
    data = {**columns(rows), **totals}
    traces = [_filled(trace, data) for trace in template["traces"]]
    return go.Figure(_worded([t for t in traces if t], say), _worded(template["layout"], say))


def _filled(trace: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
    x, y = (data[trace["meta"][axis]] for axis in ("x", "y"))
    if not isinstance(y, list):
        if y is None:
            return None
        y = [y] * len(x)
    return {**trace, "x": x, "y": y} if any(value is not None for value in y) else None


def _worded(value: Any, say: Say) -> Any:
    """Replace every "@key" by its text."""
    if isinstance(value, dict):
        return {name: _worded(item, say) for name, item in value.items()}
    if isinstance(value, list):
        return [_worded(item, say) for item in value]
    if isinstance(value, str) and value.startswith("@"):
        return say(value[1:], **FACTS)
    return value


def _speed_up(dark: bool) -> dict[str, Any]:
    own = {
        **_line("tokens", "speed_up", theme.colour("text", dark), width=2.5),
        "hovertemplate": "%{y:.2f}×<extra></extra>",
    }
    plain = _line("tokens", "one", theme.colour("muted", dark), dash="dash")
    layout = _layout(dark, x="@axis.tokens", suffix="×")
    layout["xaxis"]["rangemode"] = "tozero"
    layout["annotations"] = [
        {
            "text": "@chart.plain_level",
            "showarrow": False,
            "font": {"size": FONT_SIZE},
            "x": 0.01,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "y",
            "yanchor": "top",
        }
    ]
    return {"traces": [plain, own], "layout": layout}


def _acceptance(dark: bool) -> dict[str, Any]:
    green = theme.colour("accepted", dark)
    rolling = {
        **_line("round", "rolling", green, width=2.5),
        "hovertemplate": "%{y:.0f} %<extra></extra>",
    }
    bars = {
        "type": "bar",
        "meta": {"x": "position", "y": "by_position"},
        "xaxis": "x2",
        "marker": {"color": green},
        "hovertemplate": "%{x}: %{y:.0f} %<extra></extra>",
    }
    layout = _layout(dark, x="@axis.rolling", suffix="")
    layout["xaxis"]["domain"] = [0, 0.58]
    layout["xaxis2"] = {
        **_axis(dark, "@axis.position"),
        "domain": [0.66, 1],
        "showgrid": False,
        "fixedrange": True,
        "tick0": 1,
        "dtick": 1,
        "tickangle": 0,
    }
    # A little above 100 %, so that a line of clean sweeps is not half hidden by the edge.
    layout["yaxis"].update(
        range=[0, 104], tickvals=[0, 50, 100], ticktext=["0 %", "50 %", "100 %"], fixedrange=True
    )
    return {"traces": [rolling, bars], "layout": layout}


def _latency(dark: bool) -> dict[str, Any]:
    traces = []
    for name, colour_name, pattern in LATENCY_PARTS:
        colour = theme.colour(colour_name, dark)
        # Half see-through, so that plain's line stays visible across it.
        pale = f"rgba({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:], 16)}, 0.55)"
        traces.append(
            {
                **_line("round", name, colour),
                "line": {"color": colour, "width": 1, "shape": "hvh"},
                "name": f"@series.{name}",
                "stackgroup": "round",
                "fillcolor": pale,
                "fillpattern": {
                    "shape": pattern,
                    "bgcolor": pale,
                    "size": 5,
                    "solidity": 0.3,
                    "fgcolor": theme.colour("panel", dark),
                },
                "hovertemplate": "%{fullData.name} %{y:.1f} ms<extra></extra>",
            }
        )
    plain = {
        **_line("round", "plain_token", theme.colour("text", dark), dash="dash"),
        "name": "@series.plain_token",
        "hovertemplate": "%{fullData.name} %{y:.1f} ms<extra></extra>",
    }
    return {"traces": [*traces, plain], "layout": _layout(dark, x="@axis.round", suffix=" ms")}


def _line(
    x: str, y: str, colour: str, *, width: float = 1.5, dash: str = "solid"
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": {"x": x, "y": y},
        "line": {"color": colour, "width": width, "dash": dash},
        "hoverinfo": "skip",
    }


def _layout(dark: bool, *, x: str, suffix: str) -> dict[str, Any]:
    """Return a layout without data; the browser adds its height, width and `uirevision`."""
    panel, line, text = (theme.colour(name, dark) for name in ("panel", "line", "text"))
    return {
        # A template holds looks, so that what stands below it says only what a chart shows.
        "template": {
            "layout": {
                "font": {"family": "system-ui, sans-serif", "size": FONT_SIZE, "color": text},
                "paper_bgcolor": "rgba(0,0,0,0)",
                "plot_bgcolor": "rgba(0,0,0,0)",
                "hoverlabel": {"bgcolor": panel, "bordercolor": line, "font": {"color": text}},
                "margin": {"l": 52, "r": 8, "t": 6, "b": 36},
            }
        },
        "showlegend": False,
        "bargap": 0.25,
        "hovermode": "closest",
        "xaxis": {**_axis(dark, x), "showgrid": False},
        "yaxis": {**_axis(dark), "rangemode": "tozero", "ticksuffix": suffix, "nticks": 4},
    }


def _axis(dark: bool, title: str = "") -> dict[str, Any]:
    line, muted = theme.colour("line", dark), theme.colour("muted", dark)
    axis: dict[str, Any] = {
        "gridcolor": line,
        "zerolinecolor": line,
        "linecolor": line,
        "tickfont": {"color": muted},
    }
    if title:
        axis["title"] = {"text": title, "standoff": 2, "font": {"color": muted, "size": FONT_SIZE}}
    return axis
