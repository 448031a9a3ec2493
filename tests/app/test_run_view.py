"""RunView: hand-made events become the right fates, texts and numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.run_view import RunView
from engine.events import (
    Choice,
    Drafted,
    Event,
    Finished,
    Prefilled,
    Proposal,
    Round,
    Settings,
    Started,
    Token,
    Verified,
)
from engine.metrics import fold
from tests.app.fakes import FakePair, timings, verdict

A, B, C, D, E = (Token(i, label) for i, label in enumerate("abcde", start=1))


def begin(method: str = "mtp") -> list[Event]:
    return [
        Started(method, "smollm2", "T", "P", Settings(), "prompt", (1, 2)),
        Prefilled(2, (A,), ("a",), "a", 0.1, 0.0, p=0.9),
    ]


def verified(
    proposed: tuple[Token, ...],
    n: int,
    token: Token,
    source: str,
    *,
    index: int = 0,
    keep: int | None = None,
) -> Verified:
    output = (*proposed[:n], token)[:keep]
    return Verified(
        Round(
            index, 3, Proposal(proposed, tuple(0.5 for _ in proposed)),
            verdict(len(proposed), n, token, source), output, tuple(t.text for t in output),
            "".join(t.text for t in output), timings(0.1, 0.01), 0, len(proposed) + 1,
        )
    )  # fmt: skip


def view_of(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.add(event)
    return view


def fates(view: RunView) -> list[list[tuple[str, str, bool]]]:
    rows = view.snapshot()["rows"]
    return [[(c["text"], c["fate"], c["ghost"]) for c in row["cells"]] for row in rows]


def test_a_loss_shows_accepted_rejected_unjudged_then_recovered() -> None:
    view = view_of(*begin(), verified((B, C, D), 1, E, "recovered"))
    assert fates(view) == [
        [("a", "target", False)],
        [
            ("b", "accepted", False),
            ("c", "rejected", True),
            ("d", "unjudged", True),
            ("e", "recovered", False),
        ],
    ]


def test_a_clean_sweep_ends_in_a_bonus() -> None:
    view = view_of(*begin(), verified((B, C), 2, D, "bonus"))
    assert [fate for _, fate, _ in fates(view)[1]] == ["accepted", "accepted", "bonus"]


def test_without_a_proposal_the_token_is_the_targets() -> None:
    assert fates(view_of(*begin(), verified((), 0, B, "target")))[1] == [("b", "target", False)]


def test_a_proposal_is_pending_until_its_verdict_replaces_it() -> None:
    view = view_of(*begin(), Drafted(0, 3, Proposal((B, C)), 0.01))
    assert fates(view)[1] == [("b", "pending", True), ("c", "pending", True)]
    view.add(verified((B, C), 0, D, "recovered"))
    assert [fate for _, fate, _ in fates(view)[1]] == ["rejected", "unjudged", "recovered"]


def test_tokens_past_the_end_are_cut_wherever_they_came_from() -> None:
    view = view_of(*begin(), verified((B, C), 2, D, "bonus", keep=1))
    assert fates(view)[1] == [("b", "accepted", False), ("c", "cut", True), ("d", "cut", True)]


def test_hidden_tokens_are_recoloured_also_in_earlier_rounds() -> None:
    view = view_of(
        *begin(),
        verified((B,), 1, C, "bonus"),
        verified((), 0, D, "target", index=1),
        Finished((1, 2, 3, 4), "ab", "", 2, "stop"),
    )
    assert fates(view)[1:] == [
        [("b", "accepted", False), ("c", "cut", True)],
        [("d", "cut", True)],
    ]
    assert view.text == "ab"


def test_the_kept_part_of_a_half_hidden_token_stays_text() -> None:
    wide = Token(9, "x.END")
    view = view_of(
        *begin(), verified((), 0, wide, "target"), Finished((1, 9), "ax.", "", 1, "stop")
    )
    assert fates(view)[1] == [("x.", "target", False), ("x.END", "cut", True)]


def test_a_proposal_that_was_never_judged_vanishes_at_the_end() -> None:
    view = view_of(
        *begin(), Drafted(0, 3, Proposal((B,)), 0.01), Finished((1,), "a", "", 0, "cancelled")
    )
    assert fates(view) == [[("a", "target", False)], []]


def test_a_delta_holds_only_the_rows_that_changed() -> None:
    view = view_of(*begin())
    assert [row["i"] for row in view.delta()["rows"]] == [-1]
    view.add(verified((B,), 1, C, "bonus"))
    assert [row["i"] for row in view.delta()["rows"]] == [0]
    assert view.delta()["rows"] == []
    assert [row["i"] for row in view.snapshot()["rows"]] == [-1, 0]


def test_the_card_gets_its_numbers_and_no_u_where_none_was_used() -> None:
    cells = view_of(*begin(), verified((B, C, D), 1, E, "recovered")).snapshot()["rows"][1]["cells"]
    accepted, rejected, unjudged, recovered = cells
    assert (accepted["p"], accepted["q"], accepted["u"], accepted["position"]) == (0.9, 0.5, 0.3, 1)
    assert "u" in rejected
    assert "u" not in unjudged
    assert recovered["residual"]
    assert (accepted["at"], recovered["at"]) == (2, 3)
    assert "at" not in rejected


def test_what_a_source_does_not_know_is_left_out() -> None:
    done = verified((B,), 1, C, "bonus").round
    bare: Any = Round(
        0, 1, Proposal((B,)), type(done.verdict)(1, C, "bonus"), done.output, done.pieces, "",
        done.seconds, 0, 2,
    )  # fmt: skip
    cell = view_of(*begin(), Verified(bare)).snapshot()["rows"][1]["cells"][0]
    assert not {"p", "q", "u", "accept", "top"} & set(cell)


def test_numbers_of_a_run_without_proposals_have_no_rate() -> None:
    numbers = view_of(*begin("plain"), verified((), 0, B, "target")).numbers()
    assert numbers["rate"] is None
    assert numbers["length"] == 1
    assert numbers["is_baseline"]
    assert numbers["speed_up"] is None


def test_all_rejected_is_a_rate_of_zero_and_a_length_of_one() -> None:
    numbers = view_of(*begin(), verified((B, C), 0, D, "recovered")).numbers()
    assert (numbers["rate"], numbers["length"]) == (0, 1)


def test_the_speed_up_is_the_ratio_of_measured_speeds_or_nothing() -> None:
    assert view_of(*begin(), verified((B, C), 2, D, "bonus")).speed_up is None
    plain = fold([*begin("plain"), verified((), 0, B, "target")])
    view = RunView(plain)
    for event in (*begin(), verified((B, C), 2, D, "bonus")):
        view.add(event)
    assert view.speed_up == pytest.approx(3)


def test_a_whole_toy_run_keeps_its_books_and_its_text() -> None:
    pair = FakePair(pause=0)
    view = view_of(*pair.run("mtp", "x", Settings(), cancelled=lambda: False))
    shown = "".join(
        cell["text"]
        for row in view.snapshot()["rows"]
        for cell in row["cells"]
        if not cell["ghost"]
    )
    assert shown == view.text == pair.text
    assert view.numbers()["broken_books"] == []


def test_the_text_while_running_is_all_that_was_released() -> None:
    view = view_of(*begin(), verified((B,), 1, C, "bonus"), verified((), 0, D, "target", index=1))
    assert view.text == "abcd"


def test_a_stop_text_is_held_back_then_cut_and_the_text_ends_before_it() -> None:
    settings = Settings(stop=("long way", " longer way"))
    view, released = RunView(), []
    for event in FakePair(pause=0).run("mtp", "x", settings, cancelled=lambda: False):
        view.add(event)
        released.append(view.text)
    assert view.text == FakePair().text.split(" longer way")[0]
    assert all(view.text.startswith(text) for text in released)  # nothing shown is taken back
    cells = [cell for row in view.snapshot()["rows"] for cell in row["cells"]]
    assert "".join(cell["text"] for cell in cells if not cell["ghost"]) == view.text
    cut = [cell["text"] for cell in cells if cell["fate"] == "cut"]
    assert cut[:2] == [" longer", " way"]
    assert view.numbers()["broken_books"] == []


def test_the_first_token_and_the_saved_passes_come_with_their_counters() -> None:
    numbers = view_of(*begin(), verified((B, C), 2, D, "bonus")).numbers()
    assert numbers["ttft"] == numbers["prefill_seconds"] + numbers["proposer_seconds"] == 0.1
    assert (numbers["saved"], numbers["emitted"], numbers["passes"]) == (2, 4, 2)
    assert RunView().numbers()["ttft"] is None


def auto_run(gammas: list[int], *, adaptive: bool = True, longest: int = 128) -> RunView:
    settings = Settings(adaptive=adaptive, max_new_tokens=longest)
    events: list[Event] = [
        dataclasses.replace(event, settings=settings) if isinstance(event, Started) else event
        for event in begin()
    ]
    for index, gamma in enumerate(gammas):
        event = verified((B,) if gamma else (), 0, C, "recovered" if gamma else "target")
        done = dataclasses.replace(event.round, index=index, gamma=gamma)
        events.append(Verified(done))
    return view_of(*events)


def test_rounds_in_which_auto_did_not_draft_are_counted() -> None:
    assert auto_run([2, 0, 0, 1]).snapshot()["rested"] == 2
    assert auto_run([2, 0, 0, 1], adaptive=False).snapshot()["rested"] == 0


def test_a_last_round_that_had_no_room_to_draft_is_not_counted_as_rest() -> None:
    assert auto_run([2, 0, 0], longest=4).snapshot()["rested"] == 1


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([1, 0, None, None], 0.5),  # only rounds in which something was drafted count
        ([0, None], 0.0),
        ([None, None], None),
    ],
)
def test_why_auto_rested_comes_with_the_counted_acceptance_of_first_drafts(
    taken: list[int | None], expected: float | None
) -> None:
    rounds = [
        verified((B, C), n, D, "recovered", index=i)
        if n is not None
        else verified((), 0, D, "target", index=i)
        for i, n in enumerate(taken)
    ]
    assert view_of(*begin(), *rounds).snapshot()["first_acceptance"] == expected


def test_before_the_first_round_no_acceptance_is_claimed() -> None:
    assert view_of(*begin()).snapshot()["first_acceptance"] is None


@pytest.mark.parametrize(
    ("where", "temperature", "over", "claimed"),
    [
        ({"identity": "bit-identical"}, 0.0, True, True),
        ({"identity": "bit-identical"}, 0.0, False, False),
        ({"identity": "bit-identical"}, 0.7, True, False),
        ({"identity": "up to rounding"}, 0.0, True, False),
        ({}, 0.0, True, False),  # a trace recorded before the self-test existed
    ],
)
def test_only_a_finished_greedy_run_on_tested_bits_is_called_bit_identical(
    where: dict[str, str], temperature: float, over: bool, claimed: bool
) -> None:
    settings = Settings(temperature=temperature)
    started = Started("mtp", "smollm2", "T", "P", settings, "prompt", (1, 2), where)
    end = [Finished((1,), "a", "", 0, "eos")] if over else []
    view = view_of(started, *begin()[1:], *end)
    assert view.snapshot()["bit_identical"] is claimed


# --- what the step player and the microscope need ---


def cells_of(*events: Event) -> list[dict[str, Any]]:
    return list(view_of(*begin(), *events).snapshot()["rows"][1]["cells"])


def test_a_judged_token_has_the_acceptance_to_expect_there() -> None:
    accepted, rejected, unjudged, recovered = cells_of(verified((B, C, D), 1, E, "recovered"))
    assert [cell["overlap"] for cell in (accepted, rejected, unjudged)] == [0.9, 0.1, 0.7]
    assert recovered["overlap"] == rejected["overlap"]  # both stand at the same place


def test_a_recovered_token_brings_both_laws_of_its_place_and_a_bonus_only_the_targets() -> None:
    done = verified((B, C), 1, E, "recovered").round
    laws = ((Choice(2, "b", 0.5),), (Choice(3, "c", 0.5), Choice(5, "e", 0.2)))
    both = dataclasses.replace(done, proposal=dataclasses.replace(done.proposal, top=laws))
    recovered = cells_of(Verified(both))[-1]
    assert recovered["proposed"] == [["c", 0.5, 3], ["e", 0.2, 5]]
    assert (recovered["p"], recovered["q"]) == (0.6, 0.2)
    bonus = cells_of(verified((B, C), 2, E, "bonus"))[-1]
    assert bonus["top"]
    assert not {"proposed", "q", "overlap", "u"} & set(bonus)


def test_at_most_six_choices_are_sent_told_apart_by_id_and_none_is_rounded_to_nothing() -> None:
    done = verified((), 0, B, "target").round
    top = tuple(Choice(i, "same", 0.5 if i == 0 else 1e-9) for i in range(8))
    known = dataclasses.replace(done.verdict, top=(top,))
    (cell,) = cells_of(Verified(dataclasses.replace(done, verdict=known)))
    assert [choice[2] for choice in cell["top"]] == [0, 1, 2, 3, 4, 5]
    assert all(choice[1] > 0 for choice in cell["top"])


def test_a_cut_token_keeps_the_fate_it_had_otherwise() -> None:
    past_the_end = cells_of(verified((B, C), 2, D, "bonus", keep=1))
    assert [cell.get("was") for cell in past_the_end] == [None, "accepted", "bonus"]
    hidden = cells_of(verified((B,), 0, C, "recovered"), Finished((1, 3), "a", "", 1, "stop"))
    assert [(cell["fate"], cell.get("was")) for cell in hidden] == [
        ("rejected", None),
        ("cut", "recovered"),
    ]


def test_a_round_comes_with_its_phases_and_they_add_up_to_its_recorded_time() -> None:
    first, row = view_of(*begin(), verified((B, C), 1, E, "recovered")).snapshot()["rows"]
    assert (first["read"], first["ms"]) == (2, {"prefill": 100, "proposer": 0})
    assert (row["read"], row["dropped"]) == (3, 0)
    assert row["ms"]["draft"] == 10
    assert sum(row["ms"].values()) == pytest.approx(100)


def test_a_draft_time_that_was_not_told_apart_stays_unknown() -> None:
    done = verified((B,), 1, C, "bonus").round
    fused = dataclasses.replace(done, seconds=dataclasses.replace(done.seconds, draft=None))
    row = view_of(*begin(), Verified(fused)).snapshot()["rows"][1]
    assert row["ms"]["draft"] is None


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (0.8, False)])
def test_whether_a_run_is_greedy_is_said_and_not_guessed(temperature: float, greedy: bool) -> None:
    started = Started("mtp", "smollm2", "T", "P", Settings(temperature=temperature), "x", (1,))
    assert view_of(started).snapshot()["greedy"] is greedy
    assert RunView().snapshot()["greedy"] is None
