import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.costs import Costs
from engine.events import Settings
from engine.policy import (
    GUESS,
    MEMORY,
    PROBE_EVERY,
    Adaptive,
    CostAware,
    Fixed,
    policy_for,
)
from tests.engine.tiny import finished, rounds, tiny_pair

# Seconds of a pass over 1 .. 9 tokens: rows are cheap, as with packed linears.
PASSES = tuple(0.020 + 0.0015 * rows for rows in range(9))
CHEAP = Costs(PASSES, draft_start=0.001, draft_step=0.002, overhead=0.001, plain_overhead=0.0005)
HALF = dataclasses.replace(CHEAP, draft_start=0.002, draft_step=0.008)  # pays when most is accepted
DEAR = dataclasses.replace(CHEAP, draft_start=0.010, draft_step=0.030)
FREE = Costs((1.0,) * 9, 0.0, 0.0, 0.0, 0.0)


def test_fixed_never_changes():
    policy = Fixed(3)
    policy.observe(3, 0)
    assert policy.next_gamma() == 3


def test_adaptive_follows_the_run_length():
    policy = Adaptive(4)
    asked = []
    for accepted in (2, 3, 4, 0, 1):
        asked.append(policy.next_gamma())
        policy.observe(asked[-1], min(accepted, asked[-1]))
    assert asked == [2, 3, 4, 4, 1]
    assert policy.next_gamma() == 2


def test_adaptive_learns_nothing_from_a_round_without_a_draft():
    policy = Adaptive(4)
    policy.observe(0, 0)
    assert policy.next_gamma() == 2


@given(largest=st.integers(1, 8), history=st.lists(st.integers(0, 8), max_size=20))
def test_adaptive_stays_within_1_and_its_largest(largest, history):
    policy = Adaptive(largest)
    for accepted in history:
        gamma = policy.next_gamma()
        assert 1 <= gamma <= largest
        policy.observe(gamma, min(accepted, gamma))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Settings(gamma=5), Fixed(5)),
        (Settings(gamma=0), Fixed(0)),
        (Settings(gamma=5, adaptive=True), Adaptive(5)),
    ],
)
def test_the_settings_choose_the_policy(chosen, expected):
    assert policy_for(chosen) == expected


def test_a_policy_that_may_not_draft_never_does():
    assert policy_for(Settings(gamma=0, adaptive=True)).next_gamma() == 0


def test_an_adaptive_run_has_the_text_of_a_fixed_one_and_other_lengths():
    def run(*, adaptive):
        chosen = Settings(gamma=6, adaptive=adaptive, max_new_tokens=60)
        return list(tiny_pair().run("draft", "abcabd", chosen))

    fixed, adaptive = run(adaptive=False), run(adaptive=True)
    assert finished(adaptive).token_ids == finished(fixed).token_ids
    assert len({done.gamma for done in rounds(adaptive)}) > 2


# --- cost-aware ---


def taught(costs, history, largest=8) -> CostAware:
    policy = CostAware(largest, costs)
    for drafted, accepted in history:
        policy.observe(drafted, accepted)
    return policy


def best_by_hand(costs, rates):
    """The draft length with the most tokens per second, by enumerating how far a draft may get."""
    speeds = []
    for gamma in range(len(rates) + 1):
        tokens = 0.0
        for accepted in range(gamma + 1):
            chance = 1.0
            for rate in rates[:accepted]:
                chance *= rate
            if accepted < gamma:
                chance *= 1 - rates[accepted]
            tokens += chance * (accepted + 1)
        drafting = costs.draft_start + gamma * costs.draft_step + costs.overhead
        extra = drafting if gamma else costs.plain_overhead
        speeds.append(tokens / (costs.passes[gamma] + extra))
    return speeds


@pytest.mark.parametrize("costs", [CHEAP, HALF, FREE], ids=["cheap", "half", "free"])
@pytest.mark.parametrize("accepted", [0, 1, 2, 5, 8])
def test_the_choice_has_the_most_tokens_per_second(costs, accepted):
    policy = taught(costs, [(8, accepted)] * 60 + [(8, 0), (8, 8), (3, 1)])
    by_hand = best_by_hand(costs, policy.acceptance())
    assert policy.speeds() == pytest.approx(by_hand)
    assert policy.next_gamma() == by_hand.index(max(by_hand))


def test_the_choices_differ_with_acceptance_and_costs():
    choices = {
        (costs, accepted): taught(costs, [(8, accepted)] * 60).next_gamma()
        for costs, accepted in itertools.product((CHEAP, HALF), (0, 2, 8))
    }
    assert [choices[CHEAP, accepted] for accepted in (0, 2, 8)] == [0, 2, 8]
    assert [choices[HALF, accepted] for accepted in (0, 2, 8)] == [0, 2, 8]


@given(
    history=st.lists(st.integers(0, 4), max_size=30),
    passes=st.lists(st.floats(0.1, 3), min_size=5, max_size=5),
    others=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_the_choice_is_the_best_for_any_costs(history, passes, others):
    costs = Costs(tuple(passes), *others)
    policy = taught(costs, [(4, accepted) for accepted in history], largest=4)
    by_hand = best_by_hand(costs, policy.acceptance())
    assert by_hand[policy.next_gamma()] == pytest.approx(max(by_hand))


@given(
    largest=st.integers(0, 8),
    num_passes=st.integers(1, 9),
    history=st.lists(st.integers(0, 8), max_size=60),
)
@settings(deadline=None)
def test_no_choice_is_above_the_largest_or_above_what_was_measured(largest, num_passes, history):
    costs = dataclasses.replace(FREE, passes=(1.0,) * num_passes)
    policy = CostAware(largest, costs)
    most = min(largest, num_passes - 1)
    for accepted in history:
        gamma = policy.next_gamma()
        assert 0 <= gamma <= most
        policy.observe(gamma, min(accepted, gamma))
    if all(accepted == 8 for accepted in history):
        assert policy.next_gamma() == most  # it may go that far


def test_only_what_was_judged_is_learned():
    policy = taught(FREE, [(5, 2)])
    # Positions 1 and 2 passed, 3 was lost, 4 and 5 nobody looked at.
    assert policy._judged == [1, 1, 1, 0, 0, 0, 0, 0]
    assert policy._accepted == [1, 1, 0, 0, 0, 0, 0, 0]
    policy.observe(2, 2)
    assert policy._judged == pytest.approx([1 + MEMORY] * 2 + [MEMORY] + [0] * 5)
    assert policy._accepted == pytest.approx([1 + MEMORY] * 2 + [0] * 6)
    before = policy.acceptance()
    policy.observe(0, 0)
    assert policy.acceptance() == before


def test_a_position_that_nobody_saw_is_taken_for_the_one_before():
    rates = taught(FREE, [(2, 2)] * 200).acceptance()
    assert rates[0] > 0.95
    assert rates[1] > rates[0]
    assert rates[2:] == pytest.approx([rates[1]] * 6)
    assert CostAware(3, FREE).acceptance() == pytest.approx([GUESS] * 3)


def test_what_was_seen_long_ago_counts_little():
    once_good = taught(FREE, [(1, 1)] * 300 + [(1, 0)] * 60)
    always_bad = taught(FREE, [(1, 0)] * 360)
    assert once_good.acceptance()[0] == pytest.approx(always_bad.acceptance()[0], abs=0.2)
    assert taught(FREE, [(1, 1)] * 300).acceptance()[0] > 0.9


def test_when_nothing_pays_it_rests_and_looks_again_now_and_then():
    policy = taught(CHEAP, [(8, 0)] * 60)
    asked = []
    for _ in range(4 * PROBE_EVERY):
        asked.append(policy.next_gamma())
        policy.observe(asked[-1], 0)
    probes = [i for i, gamma in enumerate(asked) if gamma]
    assert probes == [(n + 1) * PROBE_EVERY - 1 for n in range(4)]
    assert {asked[i] for i in probes} == {1}  # the cheapest look


def test_it_comes_back_when_acceptance_rises():
    policy = taught(CHEAP, [(8, 0)] * 60)
    gammas = []
    for _ in range(40 * PROBE_EVERY):
        gammas.append(policy.next_gamma())
        policy.observe(gammas[-1], gammas[-1])
    assert gammas[0] == 0
    assert gammas[-PROBE_EVERY:] == [8] * PROBE_EVERY


def test_where_it_may_not_draft_it_never_looks():
    policy = CostAware(0, CHEAP)
    assert {policy.next_gamma() for _ in range(3 * PROBE_EVERY)} == {0}


def test_where_not_even_full_acceptance_would_pay_it_never_looks():
    policy = CostAware(8, DEAR)
    for _ in range(3 * PROBE_EVERY):
        assert policy.next_gamma() == 0
        policy.observe(0, 0)
    # A little less dear, and it looks: the answer depends on the text.
    looking = taught(HALF, [(8, 0)] * 60)
    assert any(looking.next_gamma() for _ in range(PROBE_EVERY))


def process(rates, num_rounds, seed):
    """How many of eight drafts the target would accept, round by round."""
    rng = random.Random(seed)
    return [
        next((i for i, rate in enumerate(rates) if rng.random() >= rate), len(rates))
        for _ in range(num_rounds)
    ]


def speed_of(policy, costs, luck):
    """Tokens per second, by the costs, of a policy against a given process."""
    tokens, seconds = 0, 0.0
    for possible in luck:
        gamma = policy.next_gamma()
        accepted = min(possible, gamma)
        policy.observe(gamma, accepted)
        tokens += accepted + 1
        seconds += costs.round_seconds(gamma)
    return tokens / seconds


@pytest.mark.parametrize("costs", [CHEAP, HALF, DEAR], ids=["cheap", "half", "dear"])
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.7, 0.9])
def test_it_is_nearly_as_fast_as_the_best_fixed_length_in_hindsight(alpha, costs):
    ratios = []
    for seed in range(3):
        luck = process([alpha] * 8, 2000, seed)
        ours = speed_of(CostAware(8, costs), costs, luck)
        fixed = [speed_of(Fixed(gamma), costs, luck) for gamma in range(9)]
        ratios.append(ours / max(fixed))
        assert ours >= 0.95 * fixed[0]
    assert sum(ratios) / len(ratios) >= 0.97


@pytest.mark.parametrize("rates", [[0.9, 0.1] + [0.1] * 6, [0.6] + [0.8] * 7], ids=str)
def test_acceptance_that_changes_with_the_position_is_met_too(rates):
    luck = process(rates, 2000, 0)
    ours = speed_of(CostAware(8, CHEAP), CHEAP, luck)
    fixed = [speed_of(Fixed(gamma), CHEAP, luck) for gamma in range(9)]
    assert ours >= 0.97 * max(fixed)


def test_it_follows_a_text_that_turns_where_no_fixed_length_can():
    easy, hard = process([0.95] * 8, 500, 1), process([0.1] * 8, 500, 2)
    luck = [*easy, *hard, *easy, *hard]
    ours = speed_of(CostAware(8, CHEAP), CHEAP, luck)
    assert ours > max(speed_of(Fixed(gamma), CHEAP, luck) for gamma in range(9))


@pytest.mark.parametrize(
    ("chosen", "costs", "expected"),
    [
        (Settings(gamma=5), CHEAP, Fixed(5)),
        (Settings(gamma=5, adaptive=True), None, Adaptive(5)),
        (Settings(gamma=5, adaptive=True), CHEAP, CostAware(5, CHEAP)),
        (Settings(gamma=8, adaptive=True), FREE, CostAware(8, FREE)),
    ],
)
def test_measured_costs_make_an_adaptive_run_cost_aware(chosen, costs, expected):
    policy = policy_for(chosen, costs)
    assert type(policy) is type(expected)
    assert policy == expected


def test_a_run_of_a_measured_pair_follows_its_costs():
    def lengths(costs):
        pair = dataclasses.replace(tiny_pair(), costs={"draft": costs})
        chosen = Settings(gamma=6, adaptive=True, max_new_tokens=60)
        events = list(pair.run("draft", "abcabd", chosen))
        texts.append(finished(events).token_ids)
        return [done.gamma for done in rounds(events)]

    texts = []
    assert set(lengths(DEAR)) == {0}
    assert max(lengths(FREE)[:-6]) == 6
    assert texts[0] == texts[1]
