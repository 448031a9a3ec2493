"""Acceptance: how far proposals came, by position and per round.

Contract: all shares are of counted tokens, and the counts stand over the bars.
Marginal: of all rounds with a draft; conditional: of those in which the position was judged.
"""

from __future__ import annotations

from app.shown import Shown
from app.views.blocks import Block, figure, sentence
from engine.metrics import Metrics


def view(shown: Shown | None) -> list[Block]:
    """Show acceptance by position, marginal and conditional, and accepted tokens per round."""
    if shown is None or not shown.rounds:
        return [sentence("view.acceptance.empty", "empty")]
    metrics = shown.metrics
    if not metrics.num_drafted:
        return [sentence("view.acceptance.none", "empty")]
    summary = sentence(
        "acceptance.summary",
        accepted=metrics.num_accepted,
        drafted=metrics.num_drafted,
        rejected=metrics.num_rejected,
        unjudged=metrics.num_unjudged,
        length=metrics.mean_acceptance_length,
    )
    return [summary, _by_position(metrics), _histogram(metrics)]


def _by_position(metrics: Metrics) -> Block:
    place = list(range(1, len(metrics.accepted_at) + 1))
    rounds = metrics.num_rounds_with_draft
    pairs = list(zip(metrics.accepted_at, metrics.judged_at, strict=True))
    marginal = {
        **_bars("@series.marginal", "$accepted"),
        "x": place,
        "y": [100 * rate for rate in metrics.acceptance_by_position],
        "text": [f"{won}/{rounds}" for won, _ in pairs],
    }
    pattern = {"shape": "/", "size": 5, "fgcolor": "$bonus"}
    conditional = {
        **_bars("@series.conditional", "$bonus/0.55"),
        "marker": {"color": "$bonus/0.55", "pattern": pattern},
        "x": place,
        "y": [None if rate is None else 100 * rate for rate in metrics.conditional_acceptance],
        "text": [f"{won}/{judged}" for won, judged in pairs],
    }
    layout = {
        "xaxis": {"title": {"text": "@axis.position"}, "dtick": 1},
        "yaxis": {"range": [0, 112], "ticksuffix": " %", "dtick": 25},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 52, "r": 12, "t": 40, "b": 40},
    }
    return figure("by_position", [marginal, conditional], layout, height=280)


def _histogram(metrics: Metrics) -> Block:
    lengths = list(range(max(metrics.histogram) + 1))
    counts = [metrics.histogram.get(length, 0) for length in lengths]
    bars = {
        **_bars("", "$accepted"),
        "x": lengths,
        "y": counts,
        "text": [str(count) for count in counts],
        "hovertemplate": "%{x}: %{y}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "@axis.accepted_per_round"}, "dtick": 1},
        "yaxis": {"title": {"text": "@axis.rounds"}, "range": [0, 1.18 * max(counts)]},
    }
    return figure("accepted_per_round", [bars], layout, height=230)


def _bars(name: str, colour: str) -> dict[str, object]:
    return {
        "type": "bar",
        "name": name,
        "marker": {"color": colour},
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{x}: %{y:.1f} % (%{text})<extra></extra>",
    }
