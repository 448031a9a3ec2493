"""Tables: a run's rounds as a data frame, every number the one on the page."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pandas as pd
import pytest

from app.run_view import RunView
from app.series import columns
from app.shown import Shown
from app.tables import COLUMNS, csv_of, rounds_frame
from engine.events import Event, Settings, Verified
from tests.app.fakes import FakePair


def run(method: str, gamma: int = 3, **options: object) -> tuple[Event, ...]:
    settings = Settings(gamma=gamma, **options)  # type: ignore[arg-type]
    pair = FakePair(pause=0)
    return tuple(pair.run(method, "hello", settings, cancelled=lambda: False))


def shown(**options: object) -> Shown:
    return Shown(run("mtp", **options), run("plain", 0))


def test_a_row_stands_for_a_round_and_says_what_became_of_its_tokens() -> None:
    own = shown()
    frame = rounds_frame(own)
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == len(own.rounds)
    assert list(frame["round"]) == list(range(1, len(frame) + 1))
    second = frame.iloc[1]  # the toy loses the second token of every third proposal
    told = [second[name] for name in ("proposed", "accepted", "rejected", "unjudged", "emitted")]
    assert told == [3, 1, 1, 1, 2]
    assert second["next_source"] == "recovered"
    assert (frame["accepted"] + frame["rejected"] + frame["unjudged"] == frame["proposed"]).all()


def test_its_numbers_are_those_of_the_charts() -> None:
    own = shown()
    view = RunView(own.plain)
    for event in own.events:
        view.add(event)
    charts, frame = columns(view.series.rows), rounds_frame(own)
    for name, column in (
        ("speed_up", "speed_up_so_far"), ("tokens", "tokens_so_far"), ("draft", "draft_ms"),
        ("verify", "verify_ms"), ("overhead", "overhead_ms"), ("speed", "tokens_per_second_so_far"),
    ):  # fmt: skip
        assert list(frame[column]) == charts[name], column
    rolling = [None if rate is None else rate / 100 for rate in charts["rolling"]]
    assert list(frame["rolling_acceptance"]) == rolling
    assert frame["speed_up_so_far"].iloc[-1] == view.speed_up


def test_what_is_not_known_is_an_empty_cell_never_0() -> None:
    events = [
        replace(event, round=replace(event.round, seconds=replace(event.round.seconds, draft=None)))
        if isinstance(event, Verified)
        else event
        for event in run("mtp")
    ]
    table = pd.read_csv(io.StringIO(csv_of(Shown(tuple(events)))))
    assert table["draft_ms"].isna().all()
    assert table["speed_up_so_far"].isna().all()
    assert table["verify_ms"].notna().all()


def test_the_file_gives_the_texts_back_and_no_cell_is_a_formula() -> None:
    own = shown()
    assert any('"' in "".join(done.pieces) or "\n" in "".join(done.pieces) for done in own.rounds)
    text = csv_of(own)
    table = pd.read_csv(io.StringIO(text))
    pieces = [json.loads(cell) for cell in table["text"]]
    assert pieces == ["".join(done.pieces) for done in own.rounds]
    cells = [str(cell) for cell in table["text"]]
    assert all(cell.startswith('"') for cell in cells)


@pytest.mark.parametrize("events", [(), run("mtp")[:2]])
def test_a_run_without_rounds_is_a_table_without_rows(events: tuple[Event, ...]) -> None:
    frame = rounds_frame(Shown(events))
    assert len(frame) == 0
    assert list(frame.columns) == list(COLUMNS)
    assert csv_of(Shown(events)) == ",".join(COLUMNS) + "\n"
