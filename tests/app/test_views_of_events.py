"""The views that need only a run's events: hand-made events become the right blocks and figures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from app import i18n
from app.shown import Shown
from app.tabs import inspect
from app.views import (
    acceptance,
    bursts,
    content,
    health,
    logs,
    names,
    runs,
    waterfall,
)
from app.views.blocks import Block
from app.visit import MOST_RUNS, Visit
from engine.events import (
    Event,
    Finished,
    Measured,
    Prefilled,
    Proposal,
    Round,
    Settings,
    Started,
    Token,
    Verified,
)
from engine.ledger import PHASES
from tests.app.fakes import MEASURED, FakePair, timings, verdict

PROMPT = "Tell me why the sky is blue, please"


def played(method: str = "mtp", prompt: str = PROMPT, **settings: Any) -> tuple[Event, ...]:
    chosen = Settings(**{"gamma": 0 if method == "plain" else 3, **settings})
    return tuple(FakePair(pause=0).run(method, prompt, chosen, cancelled=lambda: False))


def shown(method: str = "mtp", **settings: Any) -> Shown:
    return Shown(played(method, **settings), () if method == "plain" else played("plain"))


def by_hand(*rounds: tuple[list[str], int], finish: bool = True, method: str = "mtp") -> Shown:
    """A run of rounds, each of labels that were proposed and how many were accepted."""
    events: list[Event] = [
        Started(method, "smollm2", "T", "P", Settings(), PROMPT, (1,)),
        Prefilled(1, (Token(1, "a"),), ("a",), "a", 0.1, 0.0),
    ]
    for index, (labels, accepted) in enumerate(rounds):
        proposed = tuple(Token(10 + i, text) for i, text in enumerate(labels))
        last = Token(2, "z")
        source = "bonus" if accepted == len(labels) else "recovered"
        output = (*proposed[:accepted], last)
        events.append(
            Verified(
                Round(
                    index, 3, Proposal(proposed), verdict(len(labels), accepted, last, source),
                    output, tuple(t.text for t in output), "", timings(0.1, 0.01), 0, 1,
                )
            )
        )  # fmt: skip
    emitted = 1 + sum(accepted + 1 for _, accepted in rounds)
    if finish:
        events.append(Finished(tuple(range(emitted)), "", "", 0, "length"))
    return Shown(tuple(events))


def figure_of(blocks: list[Block], name: str) -> Block:
    (found,) = [block for block in blocks if block.get("name") == name]
    return found


def sentences(blocks: list[Block]) -> dict[str, Block]:
    return {block["code"]: block for block in blocks if block["kind"] == "sentence"}


def tables(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block["kind"] == "table"]


# --- where the speed-up went ---


def test_the_waterfall_falls_from_the_mean_acceptance_length_to_the_measured_speed_up() -> None:
    run = shown()
    bars = figure_of(waterfall.view(run), "waterfall")["traces"][0]
    assert run.plain is not None
    own, plain = run.metrics.tokens_per_second, run.plain.tokens_per_second
    assert own is not None
    assert plain is not None
    assert bars["x"][0] == pytest.approx(run.metrics.mean_acceptance_length)
    assert bars["x"][-1] == pytest.approx(own / plain)
    assert bars["x"][0] - sum(bars["x"][1:-1]) == pytest.approx(bars["x"][-1])
    assert bars["base"][-2] == pytest.approx(bars["x"][-1])
    assert bars["y"][1:-1] == [f"@value.part.{phase}" for phase in PHASES]


def test_the_seconds_in_the_table_sum_to_the_wall() -> None:
    run = shown()
    rows = tables(waterfall.view(run))[0]["rows"]
    seconds = [row[1] for row in rows]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1]) == run.metrics.decode_seconds
    assert sum(row[3] for row in rows[:-1]) == pytest.approx(100)


def test_the_cause_is_said_in_plain_steps_that_add_up() -> None:
    said = sentences(waterfall.view(shown()))
    facts = said["waterfall.cause"]["facts"]
    assert facts["verify"] + facts["draft"] + facts["rest"] == pytest.approx(facts["need"])
    assert said["waterfall.pays"]["tone"] == "good"
    assert said["waterfall.worst"]["facts"]["part"] == "part.draft"


def test_a_slow_run_is_told_what_it_needed() -> None:
    said = sentences(waterfall.view(shown("lookup")))
    outcome = said["waterfall.loses"]
    assert outcome["tone"] == "warn"
    assert outcome["facts"]["need"] > outcome["facts"]["got"]
    assert said["waterfall.worst"]["facts"]["part"] == "part.verify"


def test_an_unknown_split_of_draft_and_verify_is_said_and_not_invented() -> None:
    run = shown()
    fused = tuple(
        Verified(
            dataclasses.replace(
                event.round, seconds=dataclasses.replace(event.round.seconds, draft=None)
            )
        )
        if isinstance(event, Verified)
        else event
        for event in run.events
    )
    blocks = waterfall.view(dataclasses.replace(run, events=fused))
    assert "waterfall.cause.unsplit" in sentences(blocks)
    labels = figure_of(blocks, "waterfall")["traces"][0]["y"]
    assert "@value.part.draft_verify" in labels
    assert not {"@value.part.draft", "@value.part.verify"} & set(labels)


def test_tokens_past_the_end_have_a_bar_of_their_own() -> None:
    run = shown(stop=(" air",), gamma=6)
    assert run.metrics.num_cut > 0
    bars = figure_of(waterfall.view(run), "waterfall")["traces"][0]
    assert bars["y"][1] == "@value.part.cut"
    assert bars["x"][1] == pytest.approx(run.metrics.num_cut / run.metrics.num_rounds)
    assert bars["x"][0] - sum(bars["x"][1:-1]) == pytest.approx(bars["x"][-1])


# --- acceptance ---


def test_acceptance_by_position_comes_with_both_denominators() -> None:
    run = by_hand((["a", "b", "c"], 3), (["a", "b", "c"], 1), (["a", "b"], 0))
    marginal, conditional = figure_of(acceptance.view(run), "by_position")["traces"]
    assert marginal["text"] == ["2/3", "1/3", "1/3"]
    assert conditional["text"] == ["2/3", "1/2", "1/1"]
    assert conditional["y"] == pytest.approx([200 / 3, 50, 100])


def test_the_histogram_has_a_bar_for_every_length_also_for_those_that_never_came() -> None:
    run = by_hand((["a", "b", "c"], 3), (["a", "b", "c"], 0), (["a", "b"], 0))
    bars = figure_of(acceptance.view(run), "accepted_per_round")["traces"][0]
    assert (bars["x"], bars["y"]) == ([0, 1, 2, 3], [2, 0, 0, 1])


def test_a_position_that_was_never_judged_is_not_0() -> None:
    run = by_hand((["a", "b"], 0))
    conditional = figure_of(acceptance.view(run), "by_position")["traces"][1]
    assert conditional["y"] == [0, None]


# --- content ---


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        (" the", "word_start"), ("The", "word_start"), ("ing", "word_rest"), ("'s", "word_rest"),
        (" my_name", "identifier"), ("getValue", "identifier"), ("x1", "identifier"),
        ("12", "digit"), (" 7", "digit"), ("):", "punctuation"), (" -", "punctuation"),
        ("  ", "space"), ("\n\n", "space"), (" città", "word_start"), ("天", "other_script"),
        (" мир", "other_script"), ("⟨e4bd⟩", "part"), ("<|im_end|>", "special"),
        ("", "space"), ("<b>", "word_rest"),
    ],
)  # fmt: skip
def test_the_kind_of_a_token_is_told_by_its_label(label: str, kind: str) -> None:
    assert content.kind_of(label) == kind
    assert kind in content.KINDS


def test_only_judged_tokens_count_by_kind() -> None:
    run = by_hand(([" the", "12", " an"], 1), ([" an", "34"], 2))
    bars = figure_of(content.view(run), "by_kind")["traces"][0]
    found = dict(zip(bars["y"], bars["text"], strict=True))
    assert found == {"@kind.word_start": "2/2", "@kind.digit": "1/2"}


def test_acceptance_by_entropy_takes_the_targets_entropy_at_the_judged_place() -> None:
    run = by_hand(([" a", " b"], 1), ([" c"], 1))
    entropies = [(0.05, 2.5, 9.0), (0.05, 9.0)]
    events = [event for event in run.events if isinstance(event, Verified)]
    changed = [
        Verified(
            dataclasses.replace(
                event.round, verdict=dataclasses.replace(event.round.verdict, entropy=values)
            )
        )
        for event, values in zip(events, entropies, strict=True)
    ]
    bars = figure_of(content.view(Shown((*run.events[:2], *changed))), "by_entropy")["traces"][0]
    assert bars["x"] == ["0–0.1", "2–3"]
    assert bars["text"] == ["2/2", "0/1"]


def test_without_entropies_none_are_made_up() -> None:
    run = by_hand(([" a"], 1))
    event = run.events[2]
    assert isinstance(event, Verified)
    blind = dataclasses.replace(event.round.verdict, entropy=None)
    events = (*run.events[:2], Verified(dataclasses.replace(event.round, verdict=blind)))
    blocks = content.view(Shown(events))
    assert "content.no_entropy" in sentences(blocks)
    assert "by_entropy" not in {block.get("name") for block in blocks}


# --- how the text arrives ---


def test_the_text_arrives_in_steps_of_a_round() -> None:
    run = shown()
    blocks = bursts.view(run)
    ours, plain = figure_of(blocks, "arrival")["traces"]
    assert ours["x"][-1] == pytest.approx(run.metrics.decode_seconds)
    assert ours["y"][-1] == plain["y"][-1] == run.metrics.num_emitted - 1
    assert ours["line"]["shape"] == "hv"
    row, row_of_plain = tables(blocks)[0]["rows"]
    assert row[1] == pytest.approx(21)
    assert row[4] == pytest.approx((run.metrics.num_emitted - 1) / len(run.rounds))
    assert row_of_plain[4] == row_of_plain[5] == 1


def test_without_a_baseline_the_gaps_have_no_line_to_compare_with() -> None:
    blocks = bursts.view(Shown(played()))
    assert "shapes" not in figure_of(blocks, "gaps")["layout"]
    assert len(figure_of(blocks, "arrival")["traces"]) == 1


# --- health ---


def test_all_nine_laws_are_ticked_with_their_numbers() -> None:
    blocks = health.view(by_hand((["a", "b"], 2), (["a", "b"], 0)))
    assert sentences(blocks)["health.balanced"]["tone"] == "good"
    laws = [block for block in blocks if block["facts"].get("mark") == "✓"]
    assert len(laws) == 9
    assert sentences(blocks)["health.drafted"]["facts"]["rejected"] == 1


def test_a_broken_law_turns_red_and_shows_the_numbers_that_broke_it() -> None:
    run = by_hand((["a", "b"], 2))
    wrong = (*run.events[:-1], Finished((1, 2), "", "", 0, "length"))
    said = sentences(health.view(Shown(wrong)))
    assert said["health.broken"]["facts"] == {"broken": 1, "laws": 9}
    law = said["health.emitted"]
    assert (law["tone"], law["facts"]["mark"]) == ("warn", "✗")
    assert (law["facts"]["emitted"], law["facts"]["ids"]) == (4, 2)
    assert said["health.time"]["tone"] == "plain"


def test_a_damaged_round_is_reported_and_does_not_break_the_page() -> None:
    run = by_hand((["a", "b"], 2))
    event = run.events[2]
    assert isinstance(event, Verified)
    many = dataclasses.replace(event.round.verdict, num_accepted=5)
    damaged = Shown((*run.events[:2], Verified(dataclasses.replace(event.round, verdict=many))))
    assert sentences(health.view(damaged))["health.drafted"]["tone"] == "warn"
    for place in inspect.PLACES:
        assert place.view(place.of(Visit(shown=damaged)))


def test_nothing_drafted_is_said_plainly() -> None:
    drafted_nothing = by_hand(([], 0), ([], 0))
    assert sentences(health.view(drafted_nothing))["health.nothing_drafted"]["tone"] == "warn"
    said = sentences(health.view(shown("plain")))
    assert "health.plain" in said
    assert "health.canary.plain" in said
    assert said["health.no_draft"]["facts"]["rate"] == "—"


@pytest.mark.parametrize(
    ("change", "code", "tone"),
    [
        ({}, "health.canary.ok", "good"),
        ({"accepted": 1, "ok": False}, "health.canary.bad", "warn"),
        ({"identical": False, "ok": False}, "health.canary.differs", "warn"),
    ],
)
def test_the_canary_says_whether_the_drafter_is_wired(
    change: dict[str, Any], code: str, tone: str
) -> None:
    measured = Measured("canary", {**MEASURED["canary"], "method": "mtp", **change})
    said = sentences(health.view(shown().with_measured(measured)))
    assert said[code]["tone"] == tone


def test_the_canary_of_another_method_is_not_shown() -> None:
    measured = Measured("canary", {**MEASURED["canary"], "method": "draft"})
    assert "health.canary.none" in sentences(health.view(shown().with_measured(measured)))


# --- runs ---

PRESETS = {"prose": PROMPT, "code": "Write a loop"}


def test_every_run_of_the_visit_has_its_row() -> None:
    made = [shown("plain"), shown(temperature=0.5), shown(adaptive=True, prompt="<b>x</b>")]
    rows = tables(runs.view(made, PRESETS))[0]["rows"]
    assert [row[0]["code"] for row in rows] == ["method.plain", "method.mtp", "method.mtp"]
    assert rows[0][1] is None
    assert rows[0][4] is rows[0][5] is rows[0][8] is None
    assert rows[1][1:3] == ["3", 0.5]
    assert rows[1][3]["code"] == "preset.prose"
    assert rows[1][8] > 1
    assert rows[2][1]["facts"] == {"most": 3}
    assert rows[2][3] == "<b>x</b>"  # a table's cell is text, whatever it holds


def test_two_temperatures_of_the_same_work_make_a_line() -> None:
    made = [shown(temperature=1.0), shown(temperature=0.0), shown("draft")]
    (line,) = figure_of(runs.view(made, PRESETS), "by_temperature")["traces"]
    assert line["x"] == [0.0, 1.0]
    assert line["name"] == "@preset.prose"
    rate = made[0].metrics.acceptance_rate
    assert rate is not None
    assert line["y"][1] == pytest.approx(100 * rate)


@pytest.mark.parametrize("change", [{"gamma": 2}, {"top_k": 5}, {"prompt": "other"}])
def test_runs_that_differ_in_more_than_temperature_are_not_joined(change: dict[str, Any]) -> None:
    blocks = runs.view([shown(), shown(temperature=1.0, **change)], PRESETS)
    assert "by_temperature" not in {block.get("name") for block in blocks}
    assert "view.runs.sweep" in sentences(blocks)


def test_prompts_of_equal_settings_are_compared_and_escaped() -> None:
    made = [shown(), shown(prompt="<b>bold</b> words"), shown("draft"), shown()]
    block = figure_of(runs.view(made, PRESETS), "by_prompt")
    assert block["layout"]["yaxis"]["ticktext"] == [
        "@preset.prose",
        "&lt;b&gt;bold&lt;/b&gt; words",
    ]


def test_a_visit_keeps_a_bounded_number_of_runs() -> None:
    visit = Visit()
    for _ in range(MOST_RUNS + 3):
        visit.keep(shown())
    assert len(visit.runs) == MOST_RUNS
    assert visit.shown is visit.runs[-1]


# --- names and logs ---


def test_every_number_of_the_playground_has_a_row_of_names() -> None:
    assert {"speed_up", "per_second", "rate", "length", "ttft", "saved"} <= set(names.NAMES)
    assert all(len(row) == len(names.TOOLS) for row in names.NAMES.values())
    assert "vLLM: mean acceptance length" in names.also("length")
    assert names.also("saved") == ""


def test_a_pasted_line_becomes_a_row_and_several_become_a_sum() -> None:
    line = "draft acceptance = 0.5 (  10 accepted /   20 generated)"
    (table,) = tables(logs.view(line))
    assert table["rows"][0][:5] == ["llama.cpp", 20, 10, None, 50]
    (both,) = tables(logs.view(f"{line}\n{line}"))
    assert both["rows"][-1][1:5] == [40, 20, None, 50]


def test_a_bad_line_is_an_error_with_a_remedy() -> None:
    (block,) = logs.view("GET / 200")
    assert (block["code"], block["tone"]) == ("error.bad_log", "warn")


def test_impossible_numbers_of_a_log_are_shown_and_named() -> None:
    blocks = logs.view("Decode batch, accept len: 2.0, accept rate: 1.63")
    assert tables(blocks)[0]["rows"][0][4] == pytest.approx(163)
    assert sentences(blocks)["logs.doubt.rate_over_1"]["tone"] == "warn"


# --- all of them ---

VIEWS: list[Callable[[Shown | None], list[Block]]] = [
    *(waterfall.view, acceptance.view, content.view, bursts.view, health.view)
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__module__.split(".")[-1])
def test_an_empty_view_says_what_to_do(view: Callable[[Shown | None], list[Block]]) -> None:
    for nothing in (None, Shown(played()[:2])):
        (block,) = view(nothing)
        assert block["tone"] == "empty"


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (waterfall.view, "view.waterfall.plain"),
        (acceptance.view, "view.acceptance.none"),
        (content.view, "view.acceptance.none"),
    ],
)
def test_a_plain_run_says_what_it_cannot_show(view: Any, code: str) -> None:
    assert set(sentences(view(shown("plain")))) == {code}


def test_without_a_baseline_the_waterfall_says_how_to_get_one() -> None:
    assert set(sentences(waterfall.view(Shown(played())))) == {"view.waterfall.no_baseline"}


def keys_of(value: object) -> set[str]:
    """Every text a block asks for."""
    if isinstance(value, dict):
        own = {value["code"]} if "code" in value else set()
        own |= {f"figure.{value['name']}"} if value.get("kind") == "figure" else set()
        return own.union(*(keys_of(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(keys_of(item) for item in value))
    text = str(value)
    return {text[1:]} if re.fullmatch(r"@[a-z_.]+", text) else set()


def every_block() -> list[Block]:
    visit = Visit(shown=shown(), pasted="accept len: 2\nDecode batch, accept len: 2.0")
    canary = Measured("canary", {**MEASURED["canary"], "method": "mtp"})
    visit.runs.extend([shown(), shown(temperature=1.0), shown(prompt="other")])
    others = [shown("plain"), shown().with_measured(canary), by_hand(([], 0)), None]
    blocks = [block for place in inspect.PLACES for block in place.view(place.of(visit))]
    return blocks + [block for view in VIEWS for run in others for block in view(run)]


def test_every_text_of_a_block_exists_with_all_its_facts() -> None:
    words = i18n.words("en")
    blocks = every_block()
    tools = set(names.TOOLS)
    assert keys_of(blocks) - set(words) - tools == set()
    for block in blocks:
        if block["kind"] == "sentence":
            assert i18n.placeholders(words[block["code"]]) <= set(block["facts"]), block["code"]


def test_every_place_has_a_title_an_explanation_and_texts_for_its_parts() -> None:
    words = set(i18n.words("en"))
    for place in inspect.PLACES:
        assert {f"view.{place.name}", f"view.{place.name}.why"} <= words
        assert not place.kind or f"button.measure-{place.kind}" in words
    assert {f"kind.{kind}" for kind in content.KINDS} <= words
    parts = (*PHASES, "draft_verify", "cut", "ideal", "measured", "one_step", "wall")
    assert {f"value.part.{part}" for part in parts} <= words
    assert {f"names.{number}" for number in names.NAMES} <= words
    doubts = ("rate_over_1", "accepted_over_drafted", "rate_disagrees", "positions_rise")
    assert {f"logs.doubt.{doubt}" for doubt in doubts} <= words
