"""Charts: recorded traces become the right rows and the right figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app import charts, i18n, theme
from app.run_view import RunView
from app.series import COLUMNS, WINDOW, columns
from engine import trace
from engine.events import Event, Settings, Started
from engine.metrics import fold
from tests.app.fakes import FakePair
from tests.app.test_run_view import B, C, D, E, begin, verified, view_of

say = partial(i18n.text, "en")


@pytest.fixture
def runs(recording: Path) -> tuple[list[Event], list[Event]]:
    """The plain and the mtp run of the recorded trace."""
    both: list[list[Event]] = []
    for record in trace.read(recording):
        if isinstance(record, Started):
            both.append([])
        both[-1].append(record)  # type: ignore[arg-type]
    return both[0], both[1]


def folded(events: list[Event], baseline: list[Event] | None = None) -> RunView:
    view = RunView(fold(baseline) if baseline else None)
    for event in events:
        view.add(event)
    return view


def drawn(view: RunView, name: str, **options: Any) -> Any:
    totals = view.series.totals(view.metrics)
    return charts.figure(name, view.series.rows, totals, say, **options)


def test_the_last_speed_up_on_screen_is_that_of_the_stats(
    runs: tuple[list[Event], list[Event]],
) -> None:
    plain, mtp = runs
    view = folded(mtp, plain)
    own, base = fold(mtp).stats(), fold(plain).stats()
    wanted = own["tokens_per_second"] / base["tokens_per_second"]  # type: ignore[operator]
    assert wanted > 1
    assert drawn(view, "speed_up").data[1].y[-1] == wanted
    assert view.snapshot()["numbers"]["speed_up"] == wanted
    assert view.snapshot()["points"][-1][COLUMNS.index("speed_up")] == wanted


def test_every_point_is_cumulative(runs: tuple[list[Event], list[Event]]) -> None:
    plain, mtp = runs
    view = folded(mtp, plain)
    data = columns(view.series.rows)
    base = fold(plain).tokens_per_second
    for tokens, seconds, ratio in zip(
        data["tokens"], data["seconds"], data["speed_up"], strict=True
    ):
        assert tokens is not None
        assert seconds
        assert base
        assert ratio == pytest.approx(tokens / seconds / base, rel=1e-3)
    assert data["round"] == list(range(1, view.metrics.num_rounds + 1))


def test_the_line_at_one_is_drawn_and_the_axis_begins_at_zero(
    runs: tuple[list[Event], list[Event]],
) -> None:
    figure = drawn(folded(runs[1], runs[0]), "speed_up")
    assert set(figure.data[0].y) == {1}
    assert figure.layout.yaxis.rangemode == "tozero"
    assert figure.layout.annotations[0].text == "plain"


def test_without_a_baseline_nothing_is_drawn_for_speed_up(
    runs: tuple[list[Event], list[Event]],
) -> None:
    view = folded(runs[1])
    assert [trace.y[0] for trace in drawn(view, "speed_up").data] == [1]
    assert set(columns(view.series.rows)["speed_up"]) == {None}


def test_acceptance_is_drawn_over_rounds_and_by_position(
    runs: tuple[list[Event], list[Event]],
) -> None:
    view = folded(runs[1])
    rolling, bars = drawn(view, "acceptance").data
    metrics = view.metrics
    assert list(bars.x) == [1, 2, 3]
    assert list(bars.y) == [100 * rate for rate in metrics.acceptance_by_position]
    data = columns(view.series.rows)
    drafted = [count for count in data["drafted"] if count][-WINDOW:]
    accepted = [a for a, d in zip(data["accepted"], data["drafted"], strict=True) if d][-WINDOW:]
    assert rolling.y[-1] == pytest.approx(100 * sum(accepted) / sum(drafted))  # type: ignore[arg-type]


def test_a_loss_and_a_sweep_give_the_rolling_rate_by_hand() -> None:
    view = view_of(
        *begin(), verified((B, C, D), 1, E, "recovered"), verified((B,), 1, C, "bonus", index=1)
    )
    assert columns(view.series.rows)["rolling"] == [pytest.approx(100 / 3), 50]


def test_without_a_proposal_there_is_no_rate_to_draw(
    runs: tuple[list[Event], list[Event]],
) -> None:
    assert drawn(folded(runs[0]), "acceptance").data == ()


def test_latency_stacks_to_the_time_of_the_round(runs: tuple[list[Event], list[Event]]) -> None:
    plain, mtp = runs
    view = folded(mtp, plain)
    *parts, line = drawn(view, "latency").data
    assert [part.name for part in parts] == ["draft", "verify", "rest"]
    assert len({part.fillpattern.shape for part in parts}) == 3
    stacked = sum(sum(part.y) for part in parts)
    assert stacked == pytest.approx(1000 * view.metrics.decode_seconds, rel=1e-3)
    base = fold(plain).tokens_per_second
    assert base
    assert set(line.y) == {1000 / base}


def test_an_unknown_split_draws_no_draft_time() -> None:
    done = verified((B,), 1, C, "bonus")
    seconds = type(done.round.seconds)(None, 0.08, 0.0, 0.0, 0.0, 0.0, 0.1)
    fields = {name: getattr(done.round, name) for name in done.round.__slots__}
    bare = type(done.round)(**{**fields, "seconds": seconds})
    view = view_of(*begin(), type(done)(bare))
    names = [part.name for part in drawn(view, "latency").data]
    assert names == ["verify", "rest"]


def test_deltas_carry_each_row_once_and_the_snapshot_all() -> None:
    view, sent = RunView(), []
    for event in FakePair(pause=0).run("mtp", "x", Settings(), cancelled=lambda: False):
        view.add(event)
        sent += view.delta()["points"]
    assert sent == view.series.rows == view.snapshot()["points"]
    assert len(sent) == view.metrics.num_rounds
    assert view.delta()["points"] == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", charts.NAMES)
def test_a_figure_is_worded_coloured_and_quiet(
    name: str, dark: bool, runs: tuple[list[Event], list[Event]]
) -> None:
    view = folded(runs[1], runs[0])
    totals = view.series.totals(view.metrics)
    zh = partial(i18n.text, "zh")
    figure = charts.figure(name, view.series.rows, totals, zh, dark=dark)
    text = figure.to_json()
    assert '"@' not in text
    assert "{" not in figure.layout.xaxis.title.text
    assert figure.layout.template.layout.font.size == 13
    assert figure.layout.showlegend is False
    palette = {colour.upper() for colour in theme.colours(dark)}
    lines = {trace.line.color for trace in figure.data if trace.type == "scatter"}
    assert {colour.upper() for colour in lines} <= palette


def test_plotly_itself_is_served_from_its_package() -> None:
    assert charts.script_path().is_file()
