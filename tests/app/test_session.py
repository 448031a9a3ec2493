"""One pair in memory: another one replaces it, a failure leaves a page that goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from app import visit
from app.form import Form
from app.session import Session
from app.visit import Visit
from engine.catalog import pair_of
from engine.errors import PlaygroundError
from tests.app.fakes import UNTIL_STOPPED, FakePair
from tests.app.test_form import read

FIRST, SECOND = "smollm2", "qwen3.5-4b"
LACK = PlaygroundError("out_of_memory", "Too big.", "Choose another.", model="M", needed=9, free=1)


@dataclass
class CountingLoader:
    """Makes a new pair for every call, and notes which pairs are alive when it is asked."""

    refused: dict[str, PlaygroundError] = field(default_factory=dict)
    gate: threading.Event | None = None
    asked: list[str] = field(default_factory=list)
    alive_at_start: list[list[str]] = field(default_factory=list)
    running_at_start: list[int] = field(default_factory=list)
    made: list[weakref.ref[FakePair]] = field(default_factory=list)

    def alive(self) -> list[FakePair]:
        gc.collect()
        return [pair for ref in self.made if (pair := ref()) is not None]

    def __call__(
        self, pair_id: str, *, device: str | None, report: Callable[[Any], None]
    ) -> FakePair:
        self.asked.append(pair_id)
        self.alive_at_start.append([pair.id for pair in self.alive()])
        self.running_at_start.append(sum(pair.alive for pair in self.alive()))
        if self.gate is not None:
            self.gate.wait(10)
        if pair_id in self.refused:
            raise self.refused[pair_id]
        pair = FakePair(id=pair_id, pause=0.001)
        self.made.append(weakref.ref(pair))
        return pair


def session_of(loader: CountingLoader) -> Session:
    return Session(loader, recording=__file__)  # type: ignore[arg-type]


def run(session: Session, **changes: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        state = Visit()
        state.arm(read(**changes))
        return [json.loads(text) async for text in visit.perform(session, state)]

    return asyncio.run(collect())


def test_another_pair_replaces_the_one_before() -> None:
    loader = CountingLoader()
    session = session_of(loader)
    for pair in (FIRST, SECOND, FIRST):
        assert run(session, pair=pair)[-1]["final"]
    assert loader.asked == [FIRST, SECOND, FIRST]
    assert loader.alive_at_start == [[], [], []]
    assert [pair.id for pair in loader.alive()] == [FIRST]
    assert session.loading(SECOND) is None


def test_the_same_pair_is_loaded_once() -> None:
    loader = CountingLoader()
    session = session_of(loader)
    run(session)
    run(session, method="draft")
    assert loader.asked == [FIRST]


def test_a_pair_is_let_go_only_after_the_run_that_uses_it() -> None:
    loader = CountingLoader()
    session = session_of(loader)
    session.start_loading(FIRST).done.wait(5)
    stop = threading.Event()
    form: Form = read(prompt=UNTIL_STOPPED)
    events = session.events(form, "mtp", stop.is_set)
    for _ in range(4):
        next(events)
    second = session.start_loading(SECOND)
    assert not second.done.wait(0.2)
    assert loader.asked == [FIRST]
    stop.set()
    list(events)
    assert second.done.wait(5)
    assert loader.alive_at_start[-1] == []
    assert loader.running_at_start[-1] == 0


def test_a_pair_that_cannot_be_loaded_leaves_the_one_before_loadable() -> None:
    loader = CountingLoader(refused={SECOND: LACK})
    session = session_of(loader)
    assert run(session)[-1]["final"]
    told = run(session, pair=SECOND)[-1]["status"]
    assert (told["code"], told["facts"]["needed"]) == ("error.out_of_memory", 9)
    assert run(session)[-1]["final"]
    loader.refused = {}
    assert run(session, pair=SECOND)[-1]["final"]
    assert loader.asked == [FIRST, SECOND, FIRST, SECOND]


def test_the_error_that_is_kept_holds_nothing_of_what_was_loaded() -> None:
    def load(pair_id: str, **_: Any) -> FakePair:
        half = FakePair()
        kept.append(weakref.ref(half))
        raise PlaygroundError("cannot_load", "No.", "Another.")

    kept: list[weakref.ref[FakePair]] = []
    session = Session(load, recording=__file__)  # type: ignore[arg-type]
    loading = session.start_loading(FIRST)
    loading.done.wait(5)
    gc.collect()
    assert loading.error is not None
    assert kept[0]() is None


def test_who_asked_last_decides_what_is_loaded() -> None:
    loader = CountingLoader(gate=threading.Event())
    session = session_of(loader)
    first = session.start_loading(FIRST)
    others = [session.start_loading(name) for name in (SECOND, "qwen3-8b", FIRST, "qwen3-4b")]
    assert loader.gate is not None
    loader.gate.set()
    for loading in (first, *others):
        assert loading.done.wait(5)
    assert session.loading("qwen3-4b") is others[-1]
    assert others[-1].pair is not None
    assert set(loader.asked) <= {FIRST, "qwen3-4b"}
    assert session.loading(SECOND) is None
    assert [pair.id for pair in loader.alive()] == ["qwen3-4b"]


def test_two_visitors_with_two_pairs_both_get_their_runs() -> None:
    loader = CountingLoader()
    session = session_of(loader)

    async def both() -> list[list[dict[str, Any]]]:
        async def one(pair: str) -> list[dict[str, Any]]:
            state = Visit()
            state.arm(read(pair=pair))
            return [json.loads(text) async for text in visit.perform(session, state)]

        return await asyncio.gather(one(FIRST), one(SECOND), one(FIRST))

    for messages in asyncio.run(both()):
        assert messages[-1]["final"]
        assert messages[-1]["status"]["code"].startswith("finished.")
    assert loader.asked == [FIRST, SECOND, FIRST]
    assert all(alive == [] for alive in loader.alive_at_start)


def test_a_pair_that_a_visitor_named_is_checked_and_run() -> None:
    loader = CountingLoader()
    session = session_of(loader)
    pair = pair_of("/some/folder", draft="owner/small").id
    assert session.methods(pair) == ("plain", "draft", "lookup")
    assert run(session, pair=pair, method="draft")[-1]["final"]
    assert loader.asked == [pair]
    told = run(session, pair=pair, method="mtp")[-1]["status"]
    assert told["code"] == "error.unknown_method"


def test_a_space_serves_its_own_list_only(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    named = pair_of("/some/folder").id
    assert "plain" in session.methods(named)
    monkeypatch.setenv("SYSTEM", "spaces")
    monkeypatch.setenv("SPACE_ID", "someone/draftlight")
    with pytest.raises(PlaygroundError) as caught:
        session.methods(named)
    assert caught.value.code == "unknown_pair"
    assert session.methods(session.default_pair)


def test_the_cost_curve_is_kept_for_later_runs_and_other_measurements_are_not() -> None:
    session = session_of(CountingLoader())
    session.start_loading(FIRST).done.wait(10)
    work = ("mtp", "a prompt", read().settings)
    assert session.kept(FIRST) == ()
    for kind in ("cost_curve", "run_lengths"):
        list(session.measure(FIRST, kind, *work, lambda: False))
    assert [each.kind for each in session.kept(FIRST)] == ["cost_curve"]
    state = Visit()
    state.arm(read(prompt="another one", compare=False))

    async def run() -> None:
        async for _ in visit.perform(session, state):
            pass

    asyncio.run(run())
    assert state.shown is not None
    assert [each.kind for each in state.shown.measured] == ["cost_curve"]
