"""Bursts: how the text arrives for somebody who reads along.

Contract: speculative text comes in clumps, one per round; an average per token hides that. Gaps are
the recorded seconds of rounds, without the time of this page; a token counts when the text took it.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median

from app.shown import Shown, rounds_of
from app.views.blocks import Block, column, figure, sentence, table
from engine.events import Round
from engine.metrics import Metrics


def view(shown: Shown | None) -> list[Block]:
    """Show the gaps between rounds, tokens per burst and the time to the first token."""
    if shown is None or not shown.rounds:
        return [sentence("view.bursts.empty", "empty")]
    plain = rounds_of(shown.baseline)
    return [_table(shown, plain), _arrival(shown, plain), _gaps(shown)]


def _table(shown: Shown, plain: tuple[Round, ...]) -> Block:
    columns = [
        column("bursts.column.run"),
        column("bursts.column.ttft", 0, "ms"),
        column("bursts.column.gap", 1, "ms"),
        column("bursts.column.longest", 1, "ms"),
        column("bursts.column.burst", 2),
        column("bursts.column.biggest", 0),
    ]
    method = shown.started.method if shown.started else ""
    rows = [[sentence(f"method.{method}"), *_numbers(shown.rounds, shown.metrics)]]
    if plain and shown.plain is not None:
        rows.append([sentence("method.plain"), *_numbers(plain, shown.plain)])
    return table(columns, rows)


def _numbers(rounds: tuple[Round, ...], metrics: Metrics) -> list[float | None]:
    gaps = [1000 * done.seconds.total for done in rounds]
    bursts = [len(done.output) for done in rounds]
    ttft = 1000 * (metrics.prefill_seconds + metrics.proposer_prefill_seconds)
    return [ttft or None, median(gaps), max(gaps), sum(bursts) / len(bursts), max(bursts)]


def _arrival(shown: Shown, plain: tuple[Round, ...]) -> Block:
    traces = [_stairs(shown.rounds, "@series.this_run", "$accepted", "solid")]
    if plain:
        traces.append(_stairs(plain, "@series.plain_token", "$text", "dot"))
    layout = {
        "xaxis": {"title": {"text": "@axis.decode_seconds"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "@axis.tokens"}, "rangemode": "tozero"},
        "showlegend": bool(plain),
        "legend": {"x": 0.02, "y": 0.98, "bgcolor": "rgba(0,0,0,0)"},
    }
    return figure("arrival", traces, layout, height=240)


def _stairs(rounds: tuple[Round, ...], name: str, colour: str, dash: str) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [0.0, *accumulate(done.seconds.total for done in rounds)],
        "y": [0, *accumulate(len(done.output) for done in rounds)],
        "line": {"shape": "hv", "color": colour, "width": 2, "dash": dash},
        "hovertemplate": "%{x:.2f} s: %{y}<extra></extra>",
    }


def _gaps(shown: Shown) -> Block:
    rounds = shown.rounds
    bars = {
        "type": "bar",
        "x": [done.index + 1 for done in rounds],
        "y": [1000 * done.seconds.total for done in rounds],
        "customdata": [len(done.output) for done in rounds],
        "marker": {"color": "$bonus/0.55", "line": {"color": "$bonus", "width": 1}},
        "hovertemplate": "%{x}: %{y:.1f} ms, +%{customdata}<extra></extra>",
    }
    layout: dict[str, object] = {
        "xaxis": {"title": {"text": "@axis.round"}},
        "yaxis": {"title": {"text": "@axis.gap"}, "rangemode": "tozero"},
    }
    plain = shown.plain.tokens_per_second if shown.plain is not None else None
    if plain is not None:
        level = 1000 / plain
        layout["shapes"] = [
            {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": level, "y1": level,
             "line": {"color": "$text", "width": 2, "dash": "dash"}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": 1, "xref": "paper", "y": level, "xanchor": "right", "yanchor": "bottom",
             "showarrow": False, "text": "@series.plain_token", "bgcolor": "$panel"}
        ]  # fmt: skip
    return figure("gaps", [bars], layout, height=210)
