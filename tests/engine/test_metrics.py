import itertools
import json

import pytest

from engine.books import LAWS
from engine.events import (
    Finished,
    Prefilled,
    Proposal,
    Round,
    Settings,
    Timings,
    Token,
    Verdict,
    Verified,
)
from engine.metrics import Metrics, fold
from tests.engine.tiny import METHODS, started, tiny_pair, toy_pair

KEYS = {
    "method",
    "gamma",
    "token_ids",
    "num_new_tokens",
    "num_target_passes",
    "num_drafted",
    "num_accepted",
    "acceptance_rate",
    "acceptance_by_position",
    "mean_acceptance_length",
    "prefill_seconds",
    "decode_seconds",
    "draft_seconds",
    "verify_seconds",
    "overhead_seconds",
    "unaccounted_seconds",
    "tokens_per_second",
    "finish_reason",
}
CLOCK = "little time is unaccounted"  # depends on the machine; hand-made rounds test it


def token(number):
    return Token(number, str(number))


def a_round(index, drafted, accepted, *, kept=None, draft_seconds=0.1, total=0.5):
    """A round that took 0.1 s to draft, 0.2 s to verify, 0.5 s in all, 0.01 s of it unaccounted."""
    kept = accepted + 1 if kept is None else kept
    return Verified(
        Round(
            index=index,
            gamma=3,
            proposal=Proposal(tuple(map(token, range(drafted)))),
            verdict=Verdict(accepted, token(9), "recovered" if accepted < drafted else "bonus"),
            output=tuple(map(token, range(kept))),
            pieces=("",) * kept,
            text="",
            seconds=Timings(draft_seconds, 0.2, 0.05, 0.05, 0.05, 0.04, total),
            num_rolled_back=0,
            num_forwarded=drafted + 1,
        )
    )


def prefill():
    return Prefilled(4, (token(1),), ("1",), "1", seconds=0.3, proposer_seconds=0.1)


def test_three_rounds_by_hand():
    metrics = fold(
        [
            started([1, 2, 3, 4], Settings(gamma=3)),
            prefill(),
            a_round(0, 3, 3),  # a clean sweep: 4 tokens
            a_round(1, 3, 1),  # one accepted, one rejected, one unjudged: 2 tokens
            a_round(2, 2, 2, kept=2),  # the cap cuts the third: 2 tokens
            Finished(tuple(range(9)), "", "", 0, "length"),
        ]
    )
    assert metrics.num_new_tokens == 1 + 4 + 2 + 2
    assert metrics.num_target_passes == 4
    assert (metrics.num_drafted, metrics.num_accepted) == (8, 6)
    assert (metrics.num_rejected, metrics.num_unjudged, metrics.num_cut) == (1, 1, 1)
    assert metrics.acceptance_rate == 6 / 8
    assert metrics.mean_acceptance_length == 1 + 6 / 3
    assert metrics.acceptance_by_position == [3 / 3, 2 / 3, 1 / 3]
    assert metrics.conditional_acceptance == [3 / 3, 2 / 3, 1 / 1]
    assert metrics.histogram == {3: 1, 1: 1, 2: 1}
    assert metrics.num_passes_saved == 9 - 4
    assert metrics.decode_seconds == pytest.approx(1.5)
    assert metrics.draft_seconds == pytest.approx(0.3)
    assert metrics.verify_seconds == pytest.approx(0.6)
    assert metrics.overhead_seconds == pytest.approx(0.6)
    assert metrics.unaccounted_seconds == pytest.approx(0.03)
    assert metrics.tokens_per_second == pytest.approx(8 / 1.5)
    assert metrics.stats()["prefill_seconds"] == pytest.approx(0.4)
    assert all(metrics.invariants().values())


def test_without_a_draft_there_is_no_rate():
    metrics = fold([prefill(), a_round(0, 0, 0), a_round(1, 0, 0)])
    assert metrics.acceptance_rate is None
    assert metrics.acceptance_by_position == []
    assert metrics.mean_acceptance_length == 1
    assert metrics.histogram == {}
    assert all(metrics.invariants().values())


def test_when_all_is_rejected_the_rate_is_0_and_the_length_is_1():
    metrics = fold([prefill(), a_round(0, 3, 0), a_round(1, 3, 0)])
    assert metrics.acceptance_rate == 0
    assert metrics.mean_acceptance_length == 1
    assert metrics.conditional_acceptance == [0, None, None]


def test_before_the_first_round_nothing_is_claimed():
    metrics = Metrics()
    assert metrics.acceptance_rate is None
    assert metrics.mean_acceptance_length is None
    assert metrics.tokens_per_second is None
    assert all(metrics.invariants().values())


def test_the_stats_have_the_keys_that_the_command_line_promises():
    events = list(tiny_pair().run("mtp", "abc", Settings(gamma=2, max_new_tokens=9)))
    stats = fold(events).stats()
    assert set(stats) == KEYS
    assert stats["token_ids"] == list(events[-1].token_ids)
    assert (stats["method"], stats["gamma"], stats["finish_reason"]) == ("mtp", 2, "length")
    assert json.loads(json.dumps(stats)) == stats
    assert set(fold([]).stats()) == KEYS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cap", [0, 1, 2, 40])
@pytest.mark.parametrize("method", METHODS)
def test_the_books_balance_after_every_event_of_a_run(method, cap, temperature):
    chosen = Settings(gamma=4, max_new_tokens=cap, temperature=temperature)
    metrics = Metrics()
    for event in tiny_pair().run(method, "abcabd", chosen):
        metrics.add(event)
        broken = [k for k, good in metrics.invariants().items() if not good and k != CLOCK]
        assert not broken
    assert metrics.num_new_tokens == cap
    assert metrics.num_emitted == (
        metrics.num_prefill_tokens + metrics.num_accepted + metrics.num_rounds - metrics.num_cut
    )
    assert sum(metrics.acceptance_by_position) == pytest.approx(
        metrics.num_accepted / max(metrics.num_rounds_with_draft, 1)
    )


def test_the_books_balance_when_eos_cuts_a_block():
    for seed in range(8):
        chosen = Settings(gamma=4, max_new_tokens=60, temperature=1.0, seed=seed)
        metrics = fold(toy_pair(noise=0.3, with_eos=True).run("draft", "abc", chosen))
        broken = [k for k, good in metrics.invariants().items() if not good and k != CLOCK]
        assert not broken


BROKEN = {
    "histogram counts rounds": {"num_rounds_with_draft": 3},
    "histogram counts accepted": {"num_accepted": 3},
    "drafted tokens add up": {"num_unjudged": 5},
    "emitted tokens add up": {"num_cut": 1},
    "rate within 0 and 1": {"num_accepted": 7},
    "positions never rise": {"accepted_at": [1, 2, 1]},
    "positions sum to accepted": {"accepted_at": [9, 2, 1]},
    "accepted within drafted": {"num_accepted": 7},
    "one run, rounds in order": {"num_starts": 2},
    "time parts sum to the wall": {"draft_seconds": 0.9},
    CLOCK: {"unaccounted_seconds": 0.9},
    "final ids are the emitted tokens": {"token_ids": (1, 2)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_counter_is_named(name):
    metrics = fold([prefill(), a_round(0, 3, 3), a_round(1, 3, 1)])
    for counter, value in BROKEN[name].items():
        setattr(metrics, counter, value)
    assert metrics.invariants()[name] is False


def broken_in(*events):
    return {name for name, holds in fold(events).invariants().items() if not holds}


def test_a_round_that_accepts_more_than_was_proposed_breaks_the_books_not_the_page():
    assert "accepted within drafted" in broken_in(prefill(), a_round(0, 2, 3), a_round(1, 3, 0))


def test_a_text_that_takes_more_than_a_round_made_breaks_the_books():
    assert "accepted within drafted" in broken_in(prefill(), a_round(0, 3, 1, kept=4))


@pytest.mark.parametrize(
    "events",
    [
        [started([1], Settings()), prefill(), started([1], Settings()), prefill()],
        [prefill(), a_round(0, 3, 1), a_round(0, 3, 1)],
        [prefill(), a_round(1, 3, 1), a_round(0, 3, 1)],
    ],
)
def test_counters_of_two_runs_or_of_rounds_out_of_order_are_named(events):
    assert "one run, rounds in order" in broken_in(*events)


@pytest.mark.parametrize("formula", ["mean_acceptance_length", "acceptance_rate"])
def test_a_formula_that_is_biased_when_all_is_rejected_is_named(monkeypatch, formula):
    assert not broken_in(prefill(), a_round(0, 3, 0))
    monkeypatch.setattr(Metrics, formula, property(lambda self: 0.2))
    assert "none accepted, length 1" in broken_in(prefill(), a_round(0, 3, 0))


def test_nine_laws_hold_every_check_and_nothing_else():
    metrics = fold([prefill(), a_round(0, 3, 3), Finished((1, 2, 3, 4, 5), "", "", 0, "length")])
    assert len(LAWS) == 9
    assert sorted(name for names in LAWS.values() for name in names) == sorted(metrics.invariants())


def test_an_unknown_draft_time_counts_as_none():
    metrics = fold([prefill(), a_round(0, 3, 3, draft_seconds=None, total=0.4)])
    assert metrics.draft_seconds == 0
    assert metrics.overhead_seconds == pytest.approx(0.2)


def test_a_round_knows_its_sources_and_what_was_cut():
    events = [a_round(0, 3, 2), a_round(1, 3, 3, kept=2), a_round(2, 3, 3)]
    full, cut, sweep = (event.round for event in events)
    assert (full.source, full.num_cut) == (("draft", "draft", "recovered"), 0)
    assert (cut.source, cut.num_cut) == (("draft", "draft"), 2)
    assert sweep.source == ("draft", "draft", "draft", "bonus")


def test_the_phases_of_a_round_are_disjoint_in_a_real_run():
    for event in tiny_pair().run("draft", "abc", Settings(gamma=2, max_new_tokens=12)):
        if isinstance(event, Verified):
            seconds = event.round.seconds
            parts = (seconds.draft, seconds.verify, seconds.sampling, seconds.rule, seconds.text)
            assert all(part >= 0 for part in (*parts, seconds.bookkeeping))
            assert sum(parts) + seconds.bookkeeping <= seconds.total + 1e-9


def test_positions_of_real_runs_never_rise():
    metrics = fold(tiny_pair().run("draft", "abc", Settings(gamma=6, max_new_tokens=80)))
    assert len(metrics.acceptance_by_position) == 6
    assert all(a >= b for a, b in itertools.pairwise(metrics.acceptance_by_position))
