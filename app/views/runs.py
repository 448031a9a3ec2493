"""Runs: all runs of this visit side by side, by prompt and by temperature.

Contract: `view(runs, presets)` takes the runs in the order they were made and the prompts of the
presets; it compares only what was run, with the counts of each. A figure appears where there are
two points of the same method on otherwise equal settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.series import speed_up
from app.shown import Shown
from app.views.blocks import Block, Value, column, figure, label, sentence, table
from engine.events import Settings, Started

WORDS = 6
"""First words of a prompt that is no preset."""

COLOURS = {"mtp": "$accepted", "draft": "$bonus", "lookup": "$recovered"}
DASHES = ("solid", "dash", "dot", "dashdot")
MARKS = {"mtp": "circle", "draft": "square", "lookup": "diamond"}
Point = tuple[Started, float, str]
"""How a run began, its acceptance in percent, and its counts."""


def view(runs: Sequence[Shown], presets: Mapping[str, str]) -> list[Block]:
    """Show a table of the runs, and acceptance against temperature and prompt."""
    begun = [run for run in runs if run.started is not None and run.rounds]
    if not begun:
        return [sentence("view.runs.empty", "empty")]
    rows = [_row(run, run.started, presets) for run in begun if run.started is not None]
    points = [_point(run, run.started) for run in begun if run.started and run.metrics.num_drafted]
    figures = [*_by_temperature(points, presets), *_by_prompt(points, presets)]
    return [_table(rows), *(figures or [sentence("view.runs.sweep", "empty")])]


def _table(rows: list[list[object]]) -> Block:
    columns = [
        column("label.method"),
        column("runs.column.gamma"),
        column("label.temperature", 2),
        column("label.prompt"),
        column("runs.column.first", 0, "%"),
        column("number.rate", 0, "%"),
        column("number.mean_length", 2),
        column("runs.column.per_second", 1),
        column("number.speed_up", 2, "×"),
    ]
    return table(columns, rows)


def _row(run: Shown, started: Started, presets: Mapping[str, str]) -> list[object]:
    metrics, settings = run.metrics, started.settings
    first = next(iter(metrics.conditional_acceptance), None)
    plain = run.plain.tokens_per_second if run.plain is not None else None
    if settings.adaptive and started.method != "plain":
        gamma: Value | Block = sentence("runs.auto", most=settings.gamma)
    else:
        gamma = str(settings.gamma) if settings.gamma else None
    return [
        sentence(f"method.{started.method}"),
        gamma,
        settings.temperature,
        _prompt(started, presets),
        None if first is None else 100 * first,
        None if metrics.acceptance_rate is None else 100 * metrics.acceptance_rate,
        metrics.mean_acceptance_length,
        metrics.tokens_per_second,
        speed_up(metrics, plain),
    ]


def _prompt(started: Started, presets: Mapping[str, str]) -> Block | str:
    name = _preset(started, presets)
    return _first_words(started.prompt) if name is None else sentence(f"preset.{name}")


def _preset(started: Started, presets: Mapping[str, str]) -> str | None:
    return next((name for name, text in presets.items() if text == started.prompt), None)


def _first_words(prompt: str) -> str:
    words = prompt.split(maxsplit=WORDS)
    shown = " ".join(words[:WORDS])[:48]
    return shown if shown == prompt.strip() else f"{shown} …"


def _point(run: Shown, started: Started) -> Point:
    metrics = run.metrics
    rate = 100 * metrics.num_accepted / metrics.num_drafted
    return started, rate, f"{metrics.num_accepted}/{metrics.num_drafted}"


def _by_temperature(points: list[Point], presets: Mapping[str, str]) -> list[Block]:
    """Draw a line for every method, prompt and draft length that ran at two temperatures."""
    lines: dict[object, list[Point]] = defaultdict(list)
    for point in points:
        settings = point[0].settings
        lines[_series(point, replace(settings, temperature=0.0, seed=0))].append(point)
    traces: list[dict[str, object]] = []
    for line in lines.values():
        if len({started.settings.temperature for started, _, _ in line}) < 2:
            continue
        ordered = sorted(line, key=lambda point: point[0].settings.temperature)
        traces.append(_line(ordered, DASHES[len(traces) % len(DASHES)], presets))
    layout = {
        "xaxis": {"title": {"text": "@label.temperature"}, "rangemode": "tozero"},
        "yaxis": {"range": [0, 104], "ticksuffix": " %"},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 52, "r": 12, "t": 40, "b": 40},
    }
    return [figure("by_temperature", traces, layout)] if traces else []


def _series(point: Point, settings: Settings) -> object:
    started = point[0]
    return started.method, started.pair, started.prompt, settings


def _line(points: list[Point], dash: str, presets: Mapping[str, str]) -> dict[str, object]:
    started = points[0][0]
    method = started.method
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "cliponaxis": False,
        "name": _axis_name(started, presets),
        "legendgroup": method,
        "legendgrouptitle": {"text": f"@method.{method}"},
        "x": [each.settings.temperature for each, _, _ in points],
        "y": [rate for _, rate, _ in points],
        "text": [counts for _, _, counts in points],
        "line": {"color": COLOURS.get(method, "$text"), "dash": dash},
        "marker": {"symbol": MARKS.get(method, "x"), "size": 9},
        "hovertemplate": f"γ {started.settings.gamma}, T %{{x}}: %{{y:.1f}} % (%{{text}})"
        "<extra></extra>",
    }


def _by_prompt(points: list[Point], presets: Mapping[str, str]) -> list[Block]:
    """Draw bars by prompt for the newest run's method and settings, where two prompts ran so."""
    if not points:
        return []
    newest = points[-1]
    same = {  # a prompt that ran twice counts with its newest run
        started.prompt: (started, rate, counts)
        for started, rate, counts in points
        if (started.method, started.pair, started.settings)
        == (newest[0].method, newest[0].pair, newest[0].settings)
    }
    if len(same) < 2:
        return []
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(same))),
        "x": [rate for _, rate, _ in same.values()],
        "text": [counts for _, _, counts in same.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": COLOURS.get(newest[0].method, "$text")},
        "hovertemplate": "%{x:.1f} % (%{text})<extra></extra>",
    }
    layout = {
        "xaxis": {"range": [0, 118], "ticksuffix": " %", "dtick": 50},
        # Two prompts may begin alike, so the names are labels, not places.
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(range(len(same))),
            "ticktext": [_axis_name(started, presets) for started, _, _ in same.values()],
        },
    }
    return [figure("by_prompt", [bars], layout, height=76 + 30 * len(same))]


def _axis_name(started: Started, presets: Mapping[str, str]) -> str:
    name = _preset(started, presets)
    # A prompt is prose: its blanks need no marks.
    words = label(_first_words(started.prompt)).replace("␣", " ")
    return words if name is None else f"@preset.{name}"
