"""The replay file: the page's own numbers, nothing from outside, and no half-written file."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import i18n, replay
from app.run_view import RunView
from app.shown import Shown, shown_of
from app.tabs import inspect, traces
from app.theme import LEGEND
from app.visit import Visit
from engine import trace
from engine.catalog import ASSETS
from engine.events import Drafted, Event, Prefilled, Settings, Verified
from engine.sound import REASONS
from tests.app.fakes import XSS, FakePair

BUNDLED = ASSETS / "traces" / "smollm2-mtp.jsonl"


def run(method: str, prompt: str = "hello", gamma: int = 3) -> tuple[Event, ...]:
    pair, settings = FakePair(pause=0), Settings(gamma=gamma)
    return tuple(pair.run(method, prompt, settings, cancelled=lambda: False))


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="replay-data">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def bundled() -> Shown:
    shown = shown_of(trace.read_runs(BUNDLED), BUNDLED.name)
    assert shown is not None
    return shown


def test_its_numbers_are_the_pages_numbers_at_every_frame(bundled: Shown) -> None:
    data = data_of(replay.page_of(bundled))
    view = RunView(bundled.plain)
    frames = iter(data["frames"])
    for event in bundled.events:
        view.add(event)
        if isinstance(event, Prefilled | Drafted | Verified):
            numbers = json.loads(json.dumps(view.numbers()))
            frame = next(frames)
            assert dict(zip(data["numbers"], frame["numbers"], strict=True)) == numbers
    assert data["text"] == view.text
    points = [point for frame in data["frames"] for point in frame["message"]["points"]]
    assert points == json.loads(json.dumps(view.series.rows))


def test_the_last_state_of_every_row_is_that_of_the_page(bundled: Shown) -> None:
    rows = {}
    for frame in data_of(replay.page_of(bundled))["frames"]:
        for row in frame["message"]["rows"]:
            rows[row["i"]] = row["cells"]
    view = RunView(bundled.plain)
    for event in bundled.events:
        view.add(event)
    kept = json.loads(json.dumps(view.snapshot()["rows"]))
    assert rows == {row["i"]: row["cells"] for row in kept}


def test_the_clock_is_the_runs_own_and_never_goes_back(bundled: Shown) -> None:
    clock = [frame["at"] for frame in data_of(replay.page_of(bundled))["frames"]]
    assert clock == sorted(clock)
    metrics = bundled.metrics
    parts = (metrics.prefill_seconds, metrics.proposer_prefill_seconds, metrics.decode_seconds)
    assert clock[-1] == pytest.approx(sum(parts), abs=1e-5)


def test_it_is_small_and_its_policy_allows_only_its_own_script(bundled: Shown) -> None:
    page = replay.page_of(bundled)
    assert len(page.encode()) < 400_000 + BUNDLED.stat().st_size
    data = re.search(r'id="replay-data">(.*?)</script>', page)
    assert data
    assert len(page.encode()) - len(data[1].encode()) < 150_000
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for inline in (script, style):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(|XMLHttpRequest", page)


def test_text_of_a_model_cannot_leave_its_data() -> None:
    hostile = XSS + "</script><script>alert(1)</script><!-- {{script}} {{data}}"
    page = replay.page_of(Shown(run("mtp", f"xss {hostile}")))
    assert page.count("<script") == 2
    assert "<img" not in page
    assert data_of(page)["head"]["prompt"] == f"xss {hostile}"


def test_every_language_has_all_that_the_scripts_ask_for(bundled: Shown) -> None:
    words = data_of(replay.page_of(bundled))["words"]
    assert list(words) == list(i18n.LANGUAGES)
    wanted = {f"fate.{mark.fate}{end}" for mark in LEGEND for end in ("", ".why")}
    for name in replay.SCRIPTS:
        script = (ASSETS / name).read_text(encoding="utf-8")
        wanted |= set(re.findall(r'word\("([\w.]+)"\)', script))
        wanted |= set(re.findall(r'"(replay\.\w+)"', script))
    for language in i18n.LANGUAGES:
        # What only the page says is about its own form and files.
        assert {key for key in wanted if key not in words[language]} <= {"empty"}, language


@pytest.mark.parametrize(
    "cut", [1, 2, 3], ids=["only begun", "only the prompt", "a proposal that waits"]
)
def test_a_run_that_was_cut_off_can_be_replayed_too(cut: int) -> None:
    data = data_of(replay.page_of(Shown(run("mtp")[:cut])))
    assert len(data["frames"]) == cut - 1


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.replay", *map(str, arguments)],
        cwd=ASSETS.parent, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_shell_and_the_button_make_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    done = shell(BUNDLED, target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    state = Visit()
    traces.open_file(state, str(BUNDLED))
    assert state.shown is not None
    assert target.read_text(encoding="utf-8") == traces.MAKERS["html"](state.shown)
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


@pytest.mark.parametrize("content", [None, "", "hello\n", trace.HEADER + '\n{"event": 3}\n'])
def test_a_bad_trace_on_the_shell_is_one_line_and_leaves_the_file(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "bad.jsonl", tmp_path / "kept.html"
    target.write_text("precious", encoding="utf-8")
    if content is not None:
        source.write_text(content, encoding="utf-8")
    assert replay.main([str(source), str(target)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert "bad.jsonl" in said.err
    assert target.read_text(encoding="utf-8") == "precious"


def test_a_place_that_cannot_be_written_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main([str(BUNDLED), str(tmp_path / "none" / "x.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- opening and saving on the page ---


def test_a_file_becomes_what_is_shown_and_names_its_origin(tmp_path: Path) -> None:
    state = Visit()
    path = tmp_path / "mine.jsonl"
    trace.write(path, [*run("plain", gamma=0), *run("mtp")])
    blocks = json.loads(traces.open_file(state, str(path)))["blocks"]
    assert state.shown is state.opened
    assert state.shown is not None
    assert (state.shown.origin, bool(state.shown.baseline)) == ("mine.jsonl", True)
    assert [block["code"] for block in blocks[1:]] == ["view.shown.fixed", "view.shown.file"]
    assert blocks[2]["facts"] == {"file": "mine.jsonl"}
    facts = blocks[1]["facts"]
    assert (facts["method"], facts["gamma"]) == ("mtp", 3)
    assert facts["tokens"] == state.shown.metrics.num_emitted


def test_a_bad_file_is_told_and_leaves_what_was_shown(tmp_path: Path) -> None:
    before = Shown(run("mtp"))
    state = Visit(shown=before)
    path = tmp_path / "bad.jsonl"
    path.write_text(trace.HEADER + "\n{\n", encoding="utf-8")
    first, *rest = json.loads(traces.open_file(state, str(path)))["blocks"]
    assert (first["code"], first["tone"]) == ("error.bad_trace", "warn")
    assert (first["facts"]["line"], first["facts"]["reason"]) == (2, "trace.json")
    assert state.shown is before
    assert state.opened is None
    assert state.ticket == 0
    assert rest == traces.what.view(before)


def test_every_reason_is_worded_in_every_language() -> None:
    for language in i18n.LANGUAGES:
        for reason in REASONS:
            assert f"value.trace.{reason}" in i18n.words(language)


def test_a_saved_trace_opens_as_the_same_run(tmp_path: Path) -> None:
    own = Shown(run("mtp"), run("plain", gamma=0))
    path = tmp_path / "saved.jsonl"
    path.write_text(traces.MAKERS["jsonl"](own), encoding="utf-8")
    again = shown_of(trace.read_runs(path))
    assert again == own


def test_a_files_name_says_what_it_holds_and_nothing_more() -> None:
    today = datetime.date(2026, 1, 2)
    assert traces.file_name(Shown(run("mtp")), "csv", today) == "draftlight-mtp-g3-2026-01-02.csv"
    plain = traces.file_name(Shown(run("plain", gamma=0)), "jsonl", today)
    assert plain == "draftlight-plain-2026-01-02.jsonl"
    hostile = traces.file_name(Shown(run("../../etc/<x>")), "html", today)
    assert hostile == "draftlight-etc-x-g3-2026-01-02.html"


def test_what_is_shown_is_said_in_words() -> None:
    assert [block["code"] for block in traces.what.view(None)] == ["view.shown.empty"]
    plain = traces.what.view(Shown(run("plain", gamma=0)))
    assert [block.get("code") for block in plain] == [None, "view.shown.plain", "view.shown.live"]
    pair, settings = FakePair(pause=0), Settings(gamma=4, adaptive=True)
    auto = tuple(pair.run("mtp", "word " * 99, settings, cancelled=lambda: False))
    prompt, said, _, unfinished = traces.what.view(Shown(auto[:-1]))
    assert (said["code"], said["facts"]["gamma"]) == ("view.shown.auto", 4)
    assert unfinished["code"] == "view.shown.unfinished"
    assert prompt["parts"][0][0].endswith("word …")
    assert len(prompt["parts"][0][0]) <= traces.what.MOST_CHARACTERS + 2


def test_a_view_that_cannot_work_with_a_file_says_so_and_stops_nothing_else() -> None:
    def fails(shown: Shown | None) -> list[Any]:
        raise KeyError("passes")

    place, live = inspect.Place("cost", fails), Shown(run("mtp"))
    (block,) = place.blocks(Visit(shown=replace(live, origin="odd.jsonl")))
    assert (block["code"], block["tone"]) == ("view.failed", "warn")
    assert block["facts"] == {"file": "odd.jsonl", "reason": "KeyError: 'passes'"}
    with pytest.raises(KeyError):  # of a run of our own it is a mistake of ours
        place.blocks(Visit(shown=live))
