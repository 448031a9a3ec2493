"""The race: recorded runs in, figures and verdicts out; and how it is run."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import i18n, race, racing
from app.race import Lane, Lap, order, standing, timeline, verdict
from app.racing import Entry, run_race
from app.session import Session
from app.tabs.race import AUTO, NOBODY, offer, read_entry
from app.visit import Visit
from engine.catalog import pair_of
from engine.errors import PlaygroundError
from engine.events import Finished, Prefilled, Settings, Verified
from tests.app.fakes import FakeLoader, FakePair

PLAIN, MTP = Lane("plain", memory=600), Lane("mtp", 2)


def lap(method: str, *, slower: float = 1.0, **settings: Any) -> Lap:
    """Return a recorded run whose rounds take `slower` times as long."""
    chosen = Settings(gamma=0 if method == "plain" else 2, **settings)
    events = FakePair(pause=0).run(method, "prompt", chosen, cancelled=lambda: False)
    return tuple(
        replace(event, round=replace(event.round, seconds=stretched(event.round.seconds, slower)))
        if isinstance(event, Verified)
        else event
        for event in events
    )


def stretched(seconds: Any, factor: float) -> Any:
    return replace(seconds, verify=seconds.verify * factor, total=seconds.total * factor)


def changed(run: Lap, place: int) -> Lap:
    """Return the run with another token at `place`."""
    *before, last = run
    assert isinstance(last, Finished)
    ids = list(last.token_ids)
    ids[place] = 7
    return (*before, replace(last, token_ids=tuple(ids)))


def test_a_timeline_holds_the_whole_text_at_its_recorded_times() -> None:
    run = lap("mtp")
    pieces = timeline(run)
    last = run[-1]
    assert isinstance(last, Finished)
    assert "".join(piece for _, piece, _ in pieces) == last.text
    times = [at for at, _, _ in pieces]
    assert times == sorted(times)
    prefill = next(event for event in run if isinstance(event, Prefilled))
    assert times[0] == pytest.approx(1000 * (prefill.seconds + prefill.proposer_seconds), abs=0.01)
    walls = standing([MTP], [[run]])[0]["wall"]
    assert times[-1] == pytest.approx(1000 * walls["median"], abs=0.01)
    assert {fate for _, _, fate in pieces} >= {"target", "accepted", "recovered", "bonus"}


def test_equal_texts_are_called_identical_and_compared_by_the_clock() -> None:
    plain, mtp = standing([PLAIN, MTP], [[lap("plain")], [lap("mtp")]])
    assert plain["verdict"]["code"] == "race.yardstick"
    assert plain["speed_up"] is None
    assert mtp["verdict"]["code"] == "race.identical"
    assert mtp["speed_up"]["median"] == pytest.approx(
        plain["wall"]["median"] / mtp["wall"]["median"]
    )
    assert mtp["decode_speed_up"]["median"] > 1
    assert (mtp["place"], plain["place"]) == (1, 2)
    assert (plain["memory"], mtp["memory"]) == (600, None)
    assert mtp["drafted"] > mtp["accepted"] > 0


def test_the_first_token_that_differs_is_named() -> None:
    own, plain = changed(lap("mtp"), 5), lap("plain")
    assert verdict(own, plain) == {"code": "race.diverged", "facts": {"token": 6}}


def test_sampled_texts_may_differ_and_then_only_their_pace_is_compared() -> None:
    plain = lap("plain", temperature=1.0)
    own = lap("mtp", temperature=1.0, max_new_tokens=20)
    _, told = standing([PLAIN, MTP], [[plain], [own]])
    assert told["verdict"]["code"] == "race.sampled"
    assert told["speed_up"] is None
    assert told["decode_speed_up"]["median"] > 0


def test_a_shorter_greedy_text_diverges_at_its_end() -> None:
    told = verdict(lap("mtp", max_new_tokens=20), lap("plain"))
    assert told == {"code": "race.diverged", "facts": {"token": 21}}


def test_intervals_appear_with_three_laps_and_settle_what_can_be_said() -> None:
    two = standing([PLAIN, MTP], [[lap("plain")] * 2, [lap("mtp")] * 2])[1]
    assert (two["wall"]["low"], two["inconclusive"]) == (None, False)
    clear = [[lap("plain", slower=f) for f in (1, 1.1, 1.2)], [lap("mtp")] * 3]
    assert standing([PLAIN, MTP], clear)[1]["inconclusive"] is False
    muddled = [
        [lap("plain", slower=f) for f in (0.2, 1, 1.2)],
        [lap("mtp", slower=f) for f in (0.5, 1, 5)],
    ]
    told = standing([PLAIN, MTP], muddled)[1]
    assert told["inconclusive"] is True
    assert told["wall"]["low"] < told["wall"]["median"] < told["wall"]["high"]


def test_a_lane_without_a_lap_claims_nothing() -> None:
    plain, mtp = standing([PLAIN, MTP], [[lap("plain")], []])
    assert (mtp["wall"], mtp["speed_up"], mtp["verdict"], mtp["place"]) == (None, None, None, None)
    assert plain["place"] == 1


def test_without_a_plain_lane_nothing_is_a_speed_up() -> None:
    (told,) = standing([MTP], [[lap("mtp")]])
    assert (told["speed_up"], told["verdict"]) == (None, None)


def test_the_order_of_lanes_alternates() -> None:
    assert [order(3, repeat) for repeat in range(3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


# --- running it ---


def entry_of(session: Session, *lanes: str, repeats: int = 1, tokens: int = 24) -> Entry:
    values = [part for lane in lanes for part in (lane, "2")]
    return read_entry(session, session.default_pair, "A prompt", repeats, 0, 0, tokens, *values)


async def collect(session: Session, state: Visit, entry: Entry) -> list[dict[str, Any]]:
    return [json.loads(text) async for text in run_race(session, state, entry)]


def session_of(pair: FakePair) -> Session:
    return Session(FakeLoader(pair), recording=Path("nowhere"))


def test_lanes_run_one_at_a_time_warm_and_leave_a_run_to_inspect() -> None:
    pair, state = FakePair(pause=0.001), Visit()
    session = session_of(pair)
    entry = entry_of(session, "plain", "mtp", NOBODY, "draft", repeats=2)
    messages = asyncio.run(collect(session, state, entry))
    assert pair.most_alive == 1
    assert len(pair.ended) == 3 * (1 + 2)
    codes = [each["status"]["code"] for each in messages]
    assert codes.index("race.warming") < codes.index("race.running")
    lanes = [
        each["status"]["facts"]["method"]
        for each in messages
        if each["status"]["code"] == "race.running"
    ]
    assert lanes == ["plain", "mtp", "draft", "draft", "mtp", "plain"]
    last = messages[-1]
    assert (last["status"]["code"], last["play"]) == ("race.over", True)
    assert [lane["laps"] for lane in last["lanes"]] == [2, 2, 2]
    assert last["lanes"][1]["memory"] == 620_000_000
    assert state.shown is not None
    assert state.shown.started is not None
    assert state.shown.started.method in ("mtp", "draft")
    assert state.shown.plain is not None


def test_a_lane_that_diverged_is_examined_and_shown() -> None:
    class Parting(FakePair):
        def run(self, method: str, *all: Any, **options: Any) -> Any:
            run = tuple(super().run(method, *all, **options))
            last = run[-1]
            return iter(changed(run, 5) if method == "draft" and len(last.token_ids) > 9 else run)

    session, state = session_of(Parting(pause=0)), Visit()
    entry = entry_of(session, "plain", "mtp", "draft")
    messages = asyncio.run(collect(session, state, entry))
    codes = [lane["verdict"]["code"] for lane in messages[-1]["lanes"]]
    assert codes == ["race.yardstick", "race.identical", "race.diverged"]
    assert state.shown is not None
    assert state.shown.started is not None
    assert state.shown.started.method == "draft"
    assert [each.kind for each in state.shown.measured] == ["divergence"]


def test_a_stop_keeps_what_is_finished() -> None:
    class Stopping(FakePair):
        def run(self, method: str, *all: Any, **options: Any) -> Any:
            if method == "mtp" and self.ended.count("eos") >= 1:
                state.arm(None)
            return super().run(method, *all, **options)

    state = Visit()
    session = session_of(Stopping(pause=0.001))
    entry = entry_of(session, "plain", "mtp", tokens=512)
    messages = asyncio.run(collect(session, state, entry))
    assert messages[-1]["status"]["code"] == "race.stopped"
    plain, mtp = messages[-1]["lanes"]
    assert plain["laps"] == 1
    assert mtp["wall"] is None
    assert state.shown is None


def test_what_breaks_is_said() -> None:
    class Broken(FakePair):
        def run(self, *all: Any, **options: Any) -> Any:
            raise OSError("the disk is gone")

    session = session_of(Broken())
    messages = asyncio.run(collect(session, Visit(), entry_of(session, "plain")))
    assert messages[-1]["status"]["code"] == "error.unexpected"
    assert "the disk is gone" in messages[-1]["status"]["plain"]
    assert session.line.ahead(session.line.join()) == 0


def test_a_race_waits_in_the_line_and_can_be_stopped_there() -> None:
    session, state = session_of(FakePair(pause=0.001)), Visit()
    session.start_loading(session.default_pair).done.wait(5)
    session.line.join()

    async def stopped_soon() -> list[dict[str, Any]]:
        entry = entry_of(session, "plain")
        task = asyncio.create_task(collect(session, state, entry))
        begun = time.monotonic()
        while not state.ticket and time.monotonic() - begun < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        state.arm(None)
        return await task

    codes = [each["status"]["code"] for each in asyncio.run(stopped_soon())]
    assert codes == ["queued.one", "stopped"]


# --- reading the form ---


def test_auto_lets_a_lane_choose_up_to_the_longest_draft() -> None:
    session = session_of(FakePair())
    entry = read_entry(
        session, session.default_pair, "A prompt", 3, 0, 0, 24, "mtp", AUTO, NOBODY, "2"
    )
    (form,) = entry.forms
    assert (form.settings.adaptive, form.settings.gamma, entry.repeats) == (True, 8, 3)


@pytest.mark.parametrize(
    ("prompt", "temperature", "lanes", "code"),
    [
        ("A prompt", 0, (NOBODY, "2"), "no_lanes"),
        (" ", 0, ("plain", "2"), "empty_prompt"),
        ("A prompt", 9, ("plain", "2"), "bad_number"),
        ("A prompt", 0, ("magic", "2"), "unknown_method"),
    ],
)
def test_a_bad_entry_is_refused_by_name(
    prompt: str, temperature: float, lanes: tuple[str, ...], code: str
) -> None:
    with pytest.raises(PlaygroundError) as caught:
        read_entry(session_of(FakePair()), "smollm2", prompt, 1, temperature, 0, 24, *lanes)
    assert caught.value.code == code


def test_a_warm_up_is_short() -> None:
    form = entry_of(session_of(FakePair()), "mtp", tokens=512).forms[0]
    assert racing._short(form).settings.max_new_tokens == racing.WARM_UP_TOKENS
    assert race.MOST_LANES == 4


def test_the_lanes_offer_what_the_pair_has_and_race_with_it() -> None:
    session = session_of(FakePair())
    state = Visit(pair="qwen3-8b")
    line, *lanes = offer(session, state, "en", "plain", "mtp", "draft", NOBODY)
    assert "Qwen3-8B + Qwen3-0.6B" in line
    assert [lane["value"] for lane in lanes] == ["plain", NOBODY, "draft", NOBODY]
    assert [value for _, value in lanes[0]["choices"]] == [NOBODY, "plain", "draft", "lookup"]
    entry = read_entry(session, state.pair, "A prompt", 1, 0, 0, 24, "plain", "2", "draft", "2")
    assert {form.pair for form in entry.forms} == {"qwen3-8b"}


def test_before_the_form_is_known_the_page_s_own_pair_races() -> None:
    line, first, *_ = offer(session_of(FakePair()), Visit(), "it", "mtp", NOBODY, NOBODY, NOBODY)
    assert "SmolLM2-135M-Instruct" in line
    assert (first["value"], len(first["choices"])) == ("mtp", 5)
    assert (i18n.text("it", "race.none"), NOBODY) in first["choices"]


def test_the_pair_s_line_is_text() -> None:
    named = pair_of("<script>alert(1)</script>").id
    line, *_ = offer(session_of(FakePair()), Visit(pair=named), "en", NOBODY)
    assert "<script" not in line
