"""The views of measurements: what they count, what they say, and what they leave unsaid."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from app import i18n
from app.shown import Shown
from app.tabs.inspect import LAB_OPTIONS, PLACES
from app.views import costs, examiner, lab, run_lengths
from app.views.blocks import significant
from app.views.measured import costs_of
from app.views.ways import best, ways_of
from app.visit import Visit
from engine.events import Measured, Settings, Token, Verified
from engine.replay import RunLengths
from tests.app.fakes import MEASURED, FakePair


def ran(method: str = "mtp", **settings: Any) -> tuple[Any, ...]:
    chosen = Settings(**{"gamma": 4, "max_new_tokens": 40, **settings})
    return tuple(FakePair(pause=0).run(method, "A prompt", chosen, cancelled=lambda: False))


def measured(kind: str, **changes: Any) -> Measured:
    own = {} if kind == "cost_curve" else {"method": "mtp"}
    return Measured(kind, {**deepcopy(MEASURED[kind]), **own, **changes})


def shown(*measurements: Measured, method: str = "mtp", **settings: Any) -> Shown:
    baseline = () if method == "plain" else ran("plain", **{**settings, "gamma": 0})
    return Shown(ran(method, **settings), baseline, measurements)


def codes(blocks: list[dict[str, Any]]) -> list[str]:
    return [block["code"] for block in blocks if block["kind"] == "sentence"]


def fact(blocks: list[dict[str, Any]], code: str) -> dict[str, Any]:
    return next(b["facts"] for b in blocks if b["kind"] == "sentence" and b["code"] == code)


def figure(blocks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(b for b in blocks if b["kind"] == "figure" and b["name"] == name)


def tables(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in blocks if block["kind"] == "table"]


VIEWS = {
    "costs": (costs.view, "cost_curve"),
    "run_lengths": (run_lengths.view, "run_lengths"),
    "lab": (lab.view, "lab"),
    "examiner": (examiner.view, "divergence"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_without_a_run_a_view_says_what_to_do(name: str) -> None:
    (block,) = VIEWS[name][0](None)
    assert (block["code"], block["tone"]) == (f"view.{name}.empty", "empty")


@pytest.mark.parametrize("name", ["costs", "run_lengths", "lab"])
def test_without_a_measurement_a_view_says_what_to_do(name: str) -> None:
    (block,) = VIEWS[name][0](shown())
    assert (block["code"], block["tone"]) == (f"view.{name}.empty", "empty")


@pytest.mark.parametrize("name", ["run_lengths", "lab"])
def test_a_plain_run_is_told_that_it_has_no_drafter(name: str) -> None:
    (block,) = VIEWS[name][0](shown(method="plain"))
    assert block["code"] == "measure.needs_draft"


@pytest.mark.parametrize("name", VIEWS)
def test_a_damaged_measurement_of_a_file_is_said_and_breaks_nothing(name: str) -> None:
    damaged = Measured(VIEWS[name][1], {"method": "mtp"})
    run = replace(shown(damaged), baseline=(), origin="a file")
    place = next(place for place in PLACES if place.name == name)
    assert codes(place.blocks(Visit(shown=run))) == ["view.failed"]


@pytest.mark.parametrize("name", VIEWS)
def test_everything_a_view_says_has_a_text_with_these_facts(name: str) -> None:
    words = i18n.words("en")
    everything = shown(*(measured(kind) for kind in MEASURED))
    foreign = shown(
        *(measured(kind) for kind in MEASURED), measured("cost_curve", where={"dtype": "x"})
    )
    parted = replace(everything, baseline=ran("plain", gamma=0, max_new_tokens=30))
    cells = []
    for run in (everything, foreign, parted, shown(temperature=1.0), shown(method="plain")):
        for block in VIEWS[name][0](run):
            if block["kind"] == "table":
                cells += [cell for row in block["rows"] for cell in row if isinstance(cell, dict)]
                assert {column["code"] for column in block["columns"]} <= set(words)
            elif block["kind"] == "figure":
                assert f"figure.{block['name']}" in words
                assert set(keys_in(block)) <= set(words)
            elif block["kind"] == "sentence":
                cells.append(block)
    assert cells
    for cell in cells:
        assert i18n.placeholders(words[cell["code"]]) <= set(cell["facts"]), cell["code"]


def keys_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [key for item in value.values() for key in keys_in(item)]
    if isinstance(value, list):
        return [key for item in value for key in keys_in(item)]
    return [value[1:]] if isinstance(value, str) and value.startswith("@") else []


def test_every_place_and_option_has_its_texts() -> None:
    words = i18n.words("en")
    for place in PLACES:
        assert {f"view.{place.name}", f"view.{place.name}.why"} <= set(words)
        if place.kind:
            assert {f"button.measure-{place.kind}", f"measuring.{place.kind}"} <= set(words)
        for option in place.options:
            option.texts(lambda key: words[key])  # a KeyError names what is missing


def test_the_lab_offers_every_rule_of_the_engine_and_starts_with_the_right_one() -> None:
    from engine.instruments.rules import RULES

    rule = next(option for option in LAB_OPTIONS if option.name == "rule")
    assert set(rule.choices) == set(RULES)
    assert rule.choices[0] == "exact"


# --- costs ---


def test_the_curve_is_each_pass_over_the_one_token_pass() -> None:
    block = figure(costs.view(shown(measured("cost_curve"))), "verify_cost")
    line = block["traces"][-1]
    assert line["x"] == list(range(1, 17))
    assert line["y"] == pytest.approx([(20 + k) / 20 for k in range(16)])
    assert block["layout"]["yaxis"]["range"][0] == 0


def test_the_table_gives_c_of_every_method() -> None:
    blocks = costs.view(shown(measured("cost_curve")))
    rows = {row[0]["code"]: row[1] for row in tables(blocks)[0]["rows"]}
    assert rows == pytest.approx({"method.mtp": 0.06, "method.draft": 0.1, "method.lookup": 0.0})


def test_break_even_is_a_rounds_time_in_plain_tokens() -> None:
    blocks = costs.view(shown(measured("cost_curve")))
    need, _ = figure(blocks, "break_even")["traces"]
    # gamma 3 by hand: 0.5 + 3 * 1.2 ms drafting, 23 ms verify, 1 ms overhead; plain takes 20.5 ms
    assert need["y"][2] == pytest.approx((0.5 + 3.6 + 23 + 1) / 20.5)
    one = costs_of(measured("cost_curve"), "mtp")
    assert one is not None
    assert need["y"] == pytest.approx(
        [one.round_seconds(g) / one.round_seconds(0) for g in range(1, 9)]
    )


def test_what_a_round_gives_follows_the_runs_conditional_acceptance() -> None:
    run = shown(measured("cost_curve"))
    rates = run.metrics.conditional_acceptance
    assert len(rates) == 4
    tokens = costs.given(run)
    assert tokens[0] == pytest.approx(1 + rates[0])
    assert tokens[1] == pytest.approx(1 + rates[0] + rates[0] * rates[1])
    assert tokens[4:] == [None] * 4  # nobody drafted that far
    assert fact(costs.view(run), "costs.known_to") == {"longest": 4}


def test_a_curve_that_makes_drafts_dear_says_that_none_pays() -> None:
    dear = {"mtp": {"start": 1.0, "step": 1.0, "overhead": 0.0}}
    blocks = costs.view(shown(measured("cost_curve", drafts=dear)))
    assert fact(blocks, "costs.pays_not")["speed_up"] < 1
    assert "costs.pays" not in codes(blocks)


def test_predicted_and_measured_speed_up_stand_side_by_side() -> None:
    run = shown(measured("cost_curve"))
    one = costs_of(measured("cost_curve"), "mtp")
    assert one is not None
    seconds = sum(one.round_seconds(len(done.proposal.tokens)) for done in run.rounds)
    decoded = run.metrics.num_emitted - 1
    facts = fact(costs.view(run), "costs.predicted_measured")
    assert facts["predicted"] == pytest.approx(decoded / seconds * one.round_seconds(0))
    assert run.plain is not None
    assert facts["measured"] == pytest.approx(
        run.metrics.tokens_per_second / run.plain.tokens_per_second
    )


def test_the_prediction_is_right_where_rounds_cost_what_the_curve_says() -> None:
    run = shown(measured("cost_curve"), gamma=3)
    plain = run.baseline[2].round.seconds.total
    passes = [plain] * 16
    drafts = {"mtp": {"start": 0.0, "step": 0.001, "overhead": 0.0}}  # the fake's: 40 + g ms
    exact = measured("cost_curve", passes=passes, drafts=drafts, plain_overhead=0.0)
    facts = fact(costs.view(replace(run, measured=(exact,))), "costs.predicted_measured")
    assert facts["predicted"] == pytest.approx(facts["measured"])


def test_without_a_baseline_only_the_prediction_is_given() -> None:
    run = replace(shown(measured("cost_curve")), baseline=())
    assert "costs.predicted" in codes(costs.view(run))


def test_a_method_whose_drafts_were_not_measured_gets_no_break_even() -> None:
    blocks = costs.view(shown(measured("cost_curve", drafts={})))
    assert codes(blocks)[-1] == "costs.not_measured"
    assert [block["name"] for block in blocks if block["kind"] == "figure"] == ["verify_cost"]


def test_costs_say_when_and_on_what_they_were_measured() -> None:
    facts = fact(costs.view(shown(measured("cost_curve"))), "costs.provenance")
    assert facts["date"] == "2026-01-01 00:00"
    assert facts["device"] == "cpu (Toy)"
    assert (facts["context"], facts["repeats"]) == (96, 5)


def test_costs_of_another_place_say_so_and_what_differs() -> None:
    here = {"device": "cpu", "threads": "2", "dtype": "float32"}
    assert "costs.foreign" not in codes(costs.view(shown(measured("cost_curve", where=here))))
    there = {**here, "threads": "8", "processor": "not known of the run"}
    blocks = costs.view(shown(measured("cost_curve", where=there)))
    assert "costs.foreign" in codes(blocks)
    ((what, at_measurement, at_run),) = tables(blocks)[0]["rows"]
    assert (what["code"], at_measurement, at_run) == ("where.threads", "8", "2")


# --- run lengths ---


def test_the_strip_holds_every_place_and_its_tokens() -> None:
    blocks = run_lengths.view(shown(measured("run_lengths")))
    offered, matched = figure(blocks, "run_lengths")["traces"]
    assert matched["y"] == MEASURED["run_lengths"]["lengths"]
    assert offered["y"] == MEASURED["run_lengths"]["proposed"]
    assert matched["customdata"][1] == ["␣w2", "␣w3␣w4", 8]


def test_a_token_that_looks_like_markup_or_a_key_stays_text() -> None:
    labels = ["<b>", "@axis.gamma", "$accepted", *MEASURED["run_lengths"]["labels"][3:]]
    block = figure(run_lengths.view(shown(measured("run_lengths", labels=labels))), "run_lengths")
    hover = block["traces"][-1]["customdata"]
    assert hover[0][0] == "&lt;b&gt;"
    assert not any(str(part).startswith(("@", "$")) for row in hover for part in row)


def test_bars_count_tokens_per_pass_for_each_length_auto_and_the_oracle() -> None:
    blocks = run_lengths.view(shown(measured("run_lengths")))
    (bars,) = figure(blocks, "replayed_passes")["traces"]
    names = [*map(str, range(1, 9)), "@run_lengths.auto", "@run_lengths.oracle"]
    assert bars["x"] == names
    # gamma 1 by hand: lengths 0 2 1 0 5 4 3 2 1 0 0 -> accepted 0 1 0 1 1 1 0, seven rounds
    assert bars["y"][0] == pytest.approx(11 / 7)


def test_rounds_that_the_instrument_drove_go_before_the_replay() -> None:
    driven = {
        **MEASURED["run_lengths"]["driven"],
        "2": [[2, 2, 2], [2, 2, 2], [2, 2, 2], [1, 1, 1]],
    }
    data = measured("run_lengths", driven=driven).data
    ways = {way.said: way.sums.num_rounds for way in ways_of(data, RunLengths.of(data), None)}
    assert ways["2"] == 4
    assert ways["1"] == 7
    older = {name: value for name, value in data.items() if name != "driven"}
    replayed = {way.said: way.sums.num_rounds for way in ways_of(older, RunLengths.of(older), None)}
    assert replayed["2"] == 5


def test_without_costs_nothing_is_said_about_seconds() -> None:
    blocks = run_lengths.view(shown(measured("run_lengths")))
    assert {"run_lengths.no_costs", "run_lengths.best_passes"} <= set(codes(blocks))
    (own,) = tables(blocks)
    assert all(row[-1] is None and row[-2] is None for row in own["rows"])
    assert not [b for b in blocks if b["kind"] == "figure" and b["name"] == "replayed_speed"]


def test_with_costs_the_fastest_length_is_the_best_in_hindsight() -> None:
    run = shown(measured("run_lengths"), measured("cost_curve"))
    blocks = run_lengths.view(run)
    bars, plain = figure(blocks, "replayed_speed")["traces"]
    assert bars["x"][0] == "@run_lengths.plain"
    assert plain["y"] == pytest.approx([1 / 0.0205] * 2)
    fixed = bars["y"][:9]
    won = fact(blocks, "run_lengths.best_speed")
    assert won["gamma"] == fixed.index(max(fixed))
    assert won["gain"] == pytest.approx(max(fixed) * 0.0205)


def test_where_no_length_pays_plain_is_the_best_in_hindsight() -> None:
    dear = {"mtp": {"start": 1.0, "step": 0.0, "overhead": 0.0}}
    run = shown(measured("run_lengths"), measured("cost_curve", drafts=dear))
    assert "run_lengths.best_plain" in codes(run_lengths.view(run))


def test_fewest_passes_win_and_the_shorter_length_on_a_tie() -> None:
    data = measured("run_lengths").data
    assert best(ways_of(data, RunLengths.of(data), None)).gamma == 5


def test_a_map_that_is_not_exact_is_called_approximate() -> None:
    exact = run_lengths.view(shown(measured("run_lengths")))[0]
    assert (exact["code"], exact["facts"]["checked"]) == ("run_lengths.exact", 6)
    other = run_lengths.view(shown(measured("run_lengths", exact=False)))[0]
    assert (other["code"], other["tone"]) == ("run_lengths.approximate", "warn")


def test_a_map_of_another_method_is_not_shown_as_this_runs() -> None:
    blocks = run_lengths.view(shown(measured("run_lengths", method="draft")))
    assert codes(blocks) == ["view.run_lengths.empty"]


def test_the_map_is_held_against_the_run_only_where_both_have_the_same_text() -> None:
    assert "run_lengths.run_differs" not in codes(run_lengths.view(shown(measured("run_lengths"))))
    run = shown()
    ids = list(run.metrics.token_ids or ())
    n = len(ids)
    whole = measured(
        "run_lengths", token_ids=ids, labels=["x"] * n, driven={}, stop=False,
        lengths=[min(8, n - 1 - i) for i in range(n - 1)], proposed=[8] * (n - 1),
    )  # fmt: skip
    facts = fact(run_lengths.view(run.with_measured(whole)), "run_lengths.run_differs")
    assert facts["real"] == run.metrics.num_rounds  # it lost drafts that this map calls matching


def test_seconds_from_another_place_warn() -> None:
    run = shown(measured("run_lengths"), measured("cost_curve", where={"dtype": "bfloat16"}))
    assert "run_lengths.costs_foreign" in codes(run_lengths.view(run))


# --- lab ---


def test_the_lab_draws_three_bars_per_token_and_names_the_rest() -> None:
    block = figure(lab.view(shown(measured("lab"))), "lab_law")
    law, with_draft, without = block["traces"]
    assert law["y"] == pytest.approx([50, 25, 15, 10])
    assert with_draft["y"] == pytest.approx([49, 26, 15, 10])
    assert without["y"] == pytest.approx([50.5, 24.5, 15, 10])
    assert block["layout"]["xaxis"]["ticktext"] == ["␣of", "␣light", "&lt;b&gt;", "@lab.rest"]


def test_the_distance_lies_over_its_band() -> None:
    block = figure(lab.view(shown(measured("lab"))), "lab_distance")
    (marks,) = block["traces"]
    assert marks["x"] == [0.011, 0.012]
    (band,) = block["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == (0.004, 0.03)


@pytest.mark.parametrize(
    ("rule", "lossless", "code"),
    [
        ("exact", True, "lab.lossless"),
        ("exact", False, "lab.exact_outside"),
        ("no_residual", False, "lab.wrong_seen"),
        ("greedy_accept", True, "lab.wrong_unseen"),
    ],
)
def test_the_verdict_says_what_the_draws_can_tell(rule: str, lossless: bool, code: str) -> None:
    blocks = lab.view(shown(measured("lab", rule=rule, lossless=lossless)))
    assert codes(blocks)[0] == f"lab.rule.{rule}"
    verdict = next(b for b in blocks if b.get("code") == code)
    assert (verdict["tone"] == "good") == (code == "lab.lossless")


def test_the_lab_says_at_which_temperature_it_drew() -> None:
    greedy = lab.view(shown(measured("lab", temperature=1.0)))
    assert fact(greedy, "lab.drawn_greedy")["temperature"] == 1.0
    drawn = lab.view(shown(measured("lab"), temperature=0.7))
    assert fact(drawn, "lab.drawn")["temperature"] == 0.7


# --- examiner ---


def test_the_same_ids_are_called_identical_with_their_number() -> None:
    run = shown()
    assert fact(examiner.view(run), "examiner.identical")["tokens"] == run.metrics.num_emitted


def parted(*measurements: Measured) -> Shown:
    """A run whose eighth token differs from plain's."""
    events: list[Any] = list(ran("plain", gamma=0))
    place = next(i for i, e in enumerate(events) if isinstance(e, Verified) and e.round.index == 6)
    done = replace(events[place].round, output=(Token(1, "else"),))
    events[place] = Verified(done)
    return Shown(ran(), tuple(events), measurements)


def test_texts_that_part_are_told_from_where() -> None:
    blocks = examiner.view(parted())
    assert fact(blocks, "examiner.parts")["position"] == 8
    assert codes(blocks)[-1] == "examiner.not_examined"


def test_a_tie_shows_both_goings_on_and_both_readings() -> None:
    blocks = examiner.view(parted(measured("divergence")))
    facts = fact(blocks, "examiner.tie")
    assert (facts["gap"], facts["difference"]) == (significant(0.00001), significant(0.00004))
    texts = [block["parts"] for block in blocks if block["kind"] == "pieces"]
    assert [parts[0][0] + parts[1][0] for parts in texts] == [
        "The sky is blue because",
        "The sky is bright because",
    ]
    one, wide = tables(blocks)[0]["rows"]
    assert one[1:3] == ["␣blue", 17.25001]
    assert (wide[0]["code"], wide[0]["facts"], wide[1]) == (
        "examiner.wide",
        {"width": 3},
        "␣bright",
    )


def test_a_gap_beyond_the_difference_is_not_called_smaller() -> None:
    blocks = examiner.view(parted(measured("divergence", gap=0.00007)))
    assert "examiner.tie_twice" in codes(blocks)


def test_a_fault_is_called_one() -> None:
    blocks = examiner.view(parted(measured("divergence", verdict="fault")))
    block = next(b for b in blocks if b.get("code") == "examiner.fault")
    assert block["tone"] == "warn"


def test_the_examination_of_another_method_is_not_used() -> None:
    blocks = examiner.view(parted(measured("divergence", methods=["plain", "draft"])))
    assert codes(blocks)[-1] == "examiner.not_examined"


def test_drawn_texts_may_differ_and_the_lab_is_named() -> None:
    assert codes(examiner.view(shown(temperature=0.8))) == ["examiner.sampled"]


def test_a_run_that_was_stopped_is_compared_as_far_as_it_went() -> None:
    run = shown()
    stopped = replace(run, events=run.events[:6])
    assert codes(examiner.view(stopped)) == ["examiner.prefix"]


def test_without_a_baseline_nothing_is_called_identical() -> None:
    run = replace(shown(), baseline=())
    assert codes(examiner.view(run)) == ["examiner.no_baseline"]
    assert codes(examiner.view(shown(method="plain"))) == ["examiner.plain"]
