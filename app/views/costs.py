"""Costs: what passes and drafts cost here, the acceptance that pays, and what that predicts.

Contract: all costs come from a `Measured` "cost_curve", acceptance and speed-up from the shown run.
A plain token is the unit: its one-token pass and what a plain round costs beside it. Formulas are
those of `engine.theory` (Leviathan et al. 2023, with measured c and v(k)).
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from app.series import speed_up
from app.shown import Shown
from app.views.blocks import LEGEND_ABOVE, Block, Tone, column, figure, sentence, table
from app.views.measured import costs_of, named, provenance
from engine.costs import Costs
from engine.events import Measured
from engine.replay import Played, totals
from engine.theory import needed_tokens, tokens_measured

GAMMAS = range(1, 9)


def view(shown: Shown | None) -> list[Block]:
    """Show the measured curve; with a run that drafts also what it needs and what it predicts."""
    curve = shown.measure_of("cost_curve") if shown else None
    if shown is None or curve is None:
        return [sentence("view.costs.empty", "empty")]
    blocks = [*provenance(shown, curve), _curve(curve), _unit(curve), _drafts(curve)]
    method = shown.metrics.method
    costs = costs_of(curve, method)
    if method == "plain" or not shown.metrics.num_drafted:
        return [*blocks, sentence("costs.no_draft", "empty")]
    if costs is None:
        return [*blocks, sentence("costs.not_measured", "empty", method=method)]
    return [*blocks, *_break_even(shown, costs), _prediction(shown, costs)]


def needed(costs: Costs, gamma: int) -> float:
    """Return the tokens a round of `gamma` drafts must give to be as fast as plain decoding."""
    unit = costs.round_seconds(0)
    return needed_tokens(
        gamma,
        c=costs.draft_step / unit,
        v=costs.passes[gamma] / unit,
        overhead=(costs.draft_start + costs.overhead_seconds(gamma)) / unit,
    )


def given(shown: Shown) -> list[float | None]:
    """Return the tokens a full round of each of `GAMMAS` gives at the run's acceptance; [8].

    None where the run drafted too short to know.
    """
    rates = shown.metrics.conditional_acceptance
    known = [rate for rate in takewhile(lambda rate: rate is not None, rates) if rate is not None]
    return [tokens_measured(known[:g]) if g <= len(known) else None for g in GAMMAS]


def predicted(shown: Shown, costs: Costs) -> float | None:
    """Return the speed-up that the costs predict for the rounds this run made."""
    played = [
        Played(done.gamma, len(done.proposal.tokens), done.verdict.num_accepted)
        for done in shown.rounds
    ]
    metrics = shown.metrics
    speed = totals(metrics.num_emitted - metrics.num_prefill_tokens, played, costs)
    per_second = speed.tokens_per_second
    return None if per_second is None else per_second * costs.round_seconds(0)


def _curve(curve: Measured) -> Block:
    passes: Any = curve.data["passes"]
    widths = list(range(1, len(passes) + 1))
    ratios = [seconds / passes[0] for seconds in passes]
    measured = {
        **_line(widths, ratios, "bonus"),
        "mode": "lines+markers",
        "hovertemplate": "k = %{x}: %{y:.2f}×<extra></extra>",
    }
    one = {**_line([widths[0], widths[-1]], [1, 1], "muted", "dash"), "hoverinfo": "skip"}
    layout = {
        "xaxis": {
            "title": {"text": "@axis.pass_width"},
            "tickvals": [1, 2, *range(4, len(widths) + 1, 2)],
            "tickangle": 0,
            "showgrid": False,
        },
        "yaxis": {"range": [0, 1.15 * max(ratios)], "ticksuffix": "×", "nticks": 6},
    }
    return figure("verify_cost", [one, measured], layout, height=230)


def _unit(curve: Measured) -> Block:
    data: dict[str, Any] = curve.data
    return sentence(
        "costs.unit",
        milliseconds=1000 * data["passes"][0],
        eight=data["passes"][7] / data["passes"][0],
    )


def _drafts(curve: Measured) -> Block:
    data: dict[str, Any] = curve.data
    rows = [
        [
            named(f"method.{method}", method),
            draft["step"] / data["passes"][0],
            1000 * draft["step"],
            1000 * draft["start"],
            1000 * (draft["overhead"] + draft.get("overhead_step", 0.0)),
        ]
        for method, draft in data["drafts"].items()
    ]
    columns = [
        column("costs.method"),
        column("costs.c", 3),
        column("costs.step", 2, "ms"),
        column("costs.start", 2, "ms"),
        column("costs.overhead", 2, "ms"),
    ]
    return table(columns, rows)


def _break_even(shown: Shown, costs: Costs) -> list[Block]:
    gammas = list(GAMMAS)
    need, got = [needed(costs, g) for g in gammas], given(shown)
    known = [(g, tokens) for g, tokens in zip(gammas, got, strict=True) if tokens is not None]
    hover = "γ = %{x}: %{y:.2f}<extra></extra>"
    traces = [
        {
            **_line(gammas, need, "rejected", "dash"),
            "name": "@costs.need",
            "hovertemplate": hover,
        },
        {
            **_line(gammas, got, "accepted"),
            "mode": "lines+markers",
            "name": "@costs.give",
            "hovertemplate": hover,
        },
    ]
    layout = {
        "showlegend": True,
        "legend": LEGEND_ABOVE,
        "xaxis": {"title": {"text": "@axis.gamma"}, "dtick": 1, "showgrid": False},
        "yaxis": {"title": {"text": "@axis.tokens_per_round"}, "rangemode": "tozero"},
    }
    blocks = [figure("break_even", traces, layout)]
    if known:
        blocks.append(_best(known, need))
    if len(known) < len(gammas):
        blocks.append(sentence("costs.known_to", longest=len(known)))
    return blocks


def _best(known: list[tuple[int, float]], need: list[float]) -> Block:
    gamma, tokens = max(known, key=lambda each: each[1] / need[each[0] - 1])
    least = need[gamma - 1]
    tone: Tone = "good" if tokens > least else "warn"
    code = "costs.pays" if tokens > least else "costs.pays_not"
    return sentence(code, tone, gamma=gamma, tokens=tokens, needed=least, speed_up=tokens / least)


def _prediction(shown: Shown, costs: Costs) -> Block:
    expected = predicted(shown, costs)
    plain = shown.plain
    measured = speed_up(shown.metrics, plain.tokens_per_second if plain else None)
    if expected is None:
        return sentence("costs.no_draft", "empty")
    if measured is None:
        return sentence("costs.predicted", predicted=expected)
    return sentence("costs.predicted_measured", predicted=expected, measured=measured)


def _line(x: list[Any], y: list[Any], colour: str, dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": f"${colour}", "width": 2.5, "dash": dash},
    }
