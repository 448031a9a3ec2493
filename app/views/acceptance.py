"""Acceptance: how far proposals came, by position, per round."""

from __future__ import annotations

from app.shown import Shown
from app.views.blocks import Block, figure, sentence


def view(shown: Shown | None) -> list[Block]:
    """Show acceptance by position, marginal and conditional."""
    if shown is None or not shown.metrics.num_drafted:
        return [sentence("view.acceptance.empty", "empty")]
    metrics = shown.metrics
    place = list(range(1, len(metrics.accepted_at) + 1))
    marginal = [100 * rate for rate in metrics.acceptance_by_position]
    bars = {"type": "bar", "x": place, "y": marginal, "marker": {"color": "$accepted"}}
    layout = {
        "xaxis": {"title": {"text": "@axis.position"}, "dtick": 1},
        "yaxis": {"range": [0, 104], "ticksuffix": " %"},
    }
    return [figure("by_position", [bars], layout)]
