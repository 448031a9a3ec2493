"""A visit: what is run, in which order, and what a stop, an error or a recording does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import pump, saying, visit
from app.session import Session
from app.visit import Visit
from engine.errors import PlaygroundError
from engine.events import Finished
from tests.app.fakes import FakeLoader, FakePair
from tests.app.test_form import read

Messages = list[dict[str, Any]]


def session_of(loader: FakeLoader, recording: Path = Path("nowhere")) -> Session:
    return Session(loader, recording=recording)


async def collect(stream: AsyncGenerator[str, None]) -> Messages:
    return [json.loads(text) async for text in stream]


def run(session: Session, state: Visit, **changes: Any) -> Messages:
    state.arm(read(**changes))
    return asyncio.run(collect(visit.perform(session, state)))


def stages(messages: Messages) -> list[str]:
    seen = [m["stage"] for m in messages if m["run"] is not None]
    return list(dict.fromkeys(seen))


def quick() -> FakeLoader:
    return FakeLoader(FakePair(pause=0.001))


def test_the_baseline_is_measured_first_and_only_once_per_work() -> None:
    session, state = session_of(quick()), Visit()
    first = run(session, state)
    assert stages(first) == ["baseline", "method"]
    assert first[-1]["final"]
    assert first[-1]["numbers"]["speed_up"] > 1
    assert stages(run(session, state, method="draft", gamma=2)) == ["method"]
    assert stages(run(session, state, seed=3)) == ["baseline", "method"]


def test_a_plain_run_serves_as_baseline_later() -> None:
    session, state = session_of(quick()), Visit()
    assert stages(run(session, state, method="plain")) == ["method"]
    last = run(session, state)[-1]
    assert stages([last]) == ["method"]
    assert last["numbers"]["plain_per_second"] > 0


def test_without_comparison_the_speed_up_is_not_measured() -> None:
    last = run(session_of(quick()), Visit(), compare=False)[-1]
    assert last["numbers"]["speed_up"] is None
    assert last["numbers"]["plain_per_second"] is None


def test_nothing_runs_without_being_armed() -> None:
    assert asyncio.run(collect(visit.perform(session_of(quick()), Visit()))) == []


def test_a_stop_ends_the_engine_within_a_round_and_leaves_no_baseline() -> None:
    loader = FakeLoader(FakePair(pause=0.02))
    session, state = session_of(loader), Visit()

    async def stop_early() -> Messages:
        state.arm(read())
        messages = []
        async for text in visit.perform(session, state):
            messages.append(json.loads(text))
            if len(messages) == 4:
                state.arm(None)
        return messages

    messages = asyncio.run(stop_early())
    assert messages[-1]["status"]["code"] == "finished.cancelled"
    assert stages(messages) == ["baseline"]
    assert loader.pair.ended == ["cancelled"]
    assert state.baselines == {}


def test_closing_the_stream_ends_the_engine() -> None:
    loader = FakeLoader(FakePair(pause=0.02))
    session, state = session_of(loader), Visit()

    async def leave() -> None:
        state.arm(read())
        stream = visit.perform(session, state)
        async for text in stream:
            if json.loads(text)["run"] is not None:
                break
        await stream.aclose()

    asyncio.run(leave())
    deadline = time.monotonic() + 2
    while loader.pair.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader.pair.ended == ["cancelled"]


def test_two_visitors_never_share_the_engine() -> None:
    loader = quick()
    session = session_of(loader)

    async def both() -> None:
        states = Visit(), Visit()
        for state in states:
            state.arm(read())
        await asyncio.gather(*(collect(visit.perform(session, state)) for state in states))

    asyncio.run(both())
    assert loader.pair.most_alive == 1


def test_who_waits_is_told_the_place_and_moves_up() -> None:
    session = session_of(quick())

    async def three() -> list[Messages]:
        states = [Visit() for _ in range(3)]
        for state in states:
            state.arm(read())
        return await asyncio.gather(*(collect(visit.perform(session, state)) for state in states))

    told = [
        [m["status"]["facts"]["ahead"] for m in messages if "queued" in m["status"]["code"]]
        for messages in asyncio.run(three())
    ]
    assert told[0] == []
    assert set(told[1]) == {1}
    assert told[2] == sorted(told[2], reverse=True)
    assert set(told[2]) == {2, 1}


def test_a_stop_leaves_the_line_at_once() -> None:
    session, state = session_of(quick()), Visit()
    ticket = session.line.join()  # somebody runs

    async def wait_and_stop() -> Messages:
        state.arm(read())
        messages = []
        async for text in visit.perform(session, state):
            messages.append(json.loads(text))
            state.arm(None)
        return messages

    messages = asyncio.run(wait_and_stop())
    assert [m["status"]["code"] for m in messages] == ["queued.one", "stopped"]
    assert session.line.ahead(ticket) == 0
    session.line.leave(ticket)
    assert stages(run(session, Visit())) == ["baseline", "method"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 20_001}, "prompt"),
        ({"seed": None}, "seed"),
        ({"top_p": 3}, "top_p"),
        ({"stop": "x" * 99}, "stop_texts"),
    ],
)
def test_an_error_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlaygroundError) as caught:
        read(**changes)
    assert saying.say_error(caught.value)["field"] == field


def test_loading_is_told_and_can_be_stopped() -> None:
    gate = threading.Event()
    session, state = session_of(FakeLoader(gate=gate)), Visit()

    async def wait_and_stop() -> Messages:
        state.arm(read())
        messages = []
        async for text in visit.perform(session, state):
            messages.append(json.loads(text))
            state.arm(None)
        return messages

    messages = asyncio.run(wait_and_stop())
    gate.set()
    assert [m["status"]["code"] for m in messages] == ["loading", "stopped"]


def test_a_failed_load_is_told_with_its_remedy_and_tried_again_at_the_next_run() -> None:
    error = PlaygroundError("target_missing", "Not here.", "Connect once.", model="M")
    loader = quick()
    loader.error = error
    session, state = session_of(loader), Visit()
    last = run(session, state)[-1]
    assert last["status"]["code"] == "error.target_missing"
    assert last["status"]["plain"] == "Not here. Connect once."
    loader.error = None
    assert run(session, state)[-1]["final"]


def test_an_unforeseen_error_is_told_too() -> None:
    loader = FakeLoader(error=OSError("disk on fire"))
    last = run(session_of(loader), Visit())[-1]
    assert last["status"]["code"] == "error.unexpected"
    assert "disk on fire" in last["status"]["plain"]


def test_an_over_long_prompt_is_refused_before_anything_runs() -> None:
    session, state = session_of(quick()), Visit()
    messages = run(session, state, prompt="x" * 6000)
    assert messages[-1]["status"]["code"] == "error.prompt_too_long"
    assert stages(messages) == []


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(PlaygroundError) as caught:
        session_of(quick()).check(read(method="synthetic"))
    assert caught.value.code == "unknown_method"


def test_a_recording_plays_with_its_own_baseline(recording: Path) -> None:
    session = session_of(quick(), recording)
    found = session.recording()
    assert found is not None
    messages = asyncio.run(collect(visit.replay(found, Visit())))
    assert stages(messages) == ["recording"]
    assert messages[-1]["full"]
    assert messages[-1]["numbers"]["speed_up"] > 1


@pytest.mark.parametrize("content", [None, "", "{}\n", '{"draftlight_trace": 1}\n{"event": 3}\n'])
def test_a_missing_or_broken_recording_is_no_recording(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert session_of(quick(), path).recording() is None


@pytest.mark.parametrize(("active", "hz"), [(0, 20), (1, 20), (12, 10), (1000, 4)])
def test_the_pace_falls_with_the_number_of_streams(
    active: int, hz: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_active", active)
    assert 1 / pump.pace() == pytest.approx(hz)


def test_the_confidence_cut_reaches_the_method_but_never_its_baseline() -> None:
    seen: list[tuple[str, float]] = []

    class Watched(FakePair):
        def run(self, method: str, prompt: str, settings: Any, **options: Any) -> Any:
            seen.append((method, settings.confidence))
            return super().run(method, prompt, settings, **options)

    session, state = session_of(FakeLoader(Watched(pause=0.001))), Visit()
    run(session, state, confidence=0.4)
    run(session, state, confidence=0.2)  # the baseline measured before still serves
    assert seen == [("plain", 0.0), ("mtp", 0.4), ("mtp", 0.2)]


def test_a_bad_confidence_is_shown_at_its_field() -> None:
    with pytest.raises(PlaygroundError) as caught:
        read(confidence=2)
    assert saying.say_error(caught.value)["field"] == "confidence"


def test_runs_of_the_method_are_kept_for_comparing_and_baselines_and_stops_are_not() -> None:
    session, state = session_of(quick()), Visit()
    run(session, state)
    run(session, state, method="draft", compare=False)
    kept = [(one.started.method, len(one.baseline) > 0) for one in state.runs if one.started]
    assert kept == [("mtp", True), ("draft", True)]
    assert state.shown is state.runs[-1]

    async def stop_early() -> None:
        state.arm(read(seed=5, compare=False))
        async for _ in visit.perform(session, state):
            state.arm(None)

    asyncio.run(stop_early())
    assert len(state.runs) == 2


def test_what_the_foot_says_arrives_with_the_last_message() -> None:
    last = run(session_of(quick()), Visit(), adaptive=True)[-1]
    assert last["rested"] > 0
    assert last["first_acceptance"] == 1
    assert last["bit_identical"]
    assert last["where"]["drafters"] == "int8"


class Parting(FakePair):
    """Its methods end with other tokens than plain does."""

    def run(self, method: str, prompt: str, settings: Any, **options: Any) -> Any:
        for event in super().run(method, prompt, settings, **options):
            if isinstance(event, Finished) and method != "plain":
                event = replace(event, token_ids=(*event.token_ids[:5], 7, *event.token_ids[6:]))
            yield event


def test_a_greedy_text_that_parts_from_plain_is_examined_by_itself() -> None:
    state = Visit()
    messages = run(session_of(FakeLoader(Parting(pause=0.001))), state)
    assert "examining" in [each["status"]["code"] for each in messages]
    assert state.shown is not None
    assert [each.kind for each in state.shown.measured] == ["divergence"]
    assert messages[-1]["status"]["code"].startswith("finished.")


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_equal_texts_and_sampled_ones_are_not_examined(temperature: float) -> None:
    for pair in (FakePair(pause=0.001), Parting(pause=0.001)):
        state = Visit()
        run(session_of(FakeLoader(pair)), state, temperature=temperature)
        assert state.shown is not None
        examined = bool(state.shown.measured)
        assert examined == (isinstance(pair, Parting) and temperature == 0)
