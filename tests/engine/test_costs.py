import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.costs import RECENT, TRUST, WIDEST, Costs, Pace, pass_seconds
from engine.events import Proposal, Round, Settings, Timings, Token, Verdict
from engine.models.toy import ToyModel
from engine.policy import CostAware, Fixed
from tests.engine.tiny import finished, rounds, tiny_pair


def timed(num_drafted, draft, overhead):
    """A round that drafted that much, with a pass of one second."""
    tokens = tuple(Token(1, "a") for _ in range(num_drafted))
    seconds = Timings(
        draft=draft,
        verify=1.0,
        sampling=0.0,
        rule=0.0,
        text=0.0,
        bookkeeping=0.0,
        total=1.0 + (draft or 0.0) + overhead,
    )
    verdict = Verdict(0, Token(1, "a"), "target")
    return Round(0, num_drafted, Proposal(tokens), verdict, (), (), "", seconds, 0, 0)


def test_costs_are_the_line_through_the_shortest_and_longest_drafts():
    recorded = [timed(1, 5.0, 0.5), timed(1, 7.0, 0.6), timed(1, 90.0, 0.7)]
    recorded += [timed(4, 13.0, 0.6), timed(0, 0.2, 0.1), timed(0, 0.4, 0.3)]
    costs = Costs.of([1.0, 1.5, 2.0, 2.5, 3.0], recorded)
    assert costs.passes == (1.0, 1.5, 2.0, 2.5, 3.0)
    assert costs.draft_step == pytest.approx(2.0)  # (13 - median 7) / 3
    assert costs.draft_start == pytest.approx(5.0)
    assert costs.overhead == pytest.approx(0.6)
    assert costs.plain_overhead == pytest.approx(0.2)
    assert costs.round_seconds(0) == pytest.approx(1.2)
    assert costs.round_seconds(4) == pytest.approx(5.0 + 8.0 + 3.0 + 0.6)


def test_rounds_of_one_length_give_a_line_through_nothing():
    costs = Costs.of([1.0, 1.0, 1.0], [timed(2, 6.0, 0.5)])
    assert (costs.draft_start, costs.draft_step) == (0.0, 3.0)
    assert costs.overhead == costs.plain_overhead == pytest.approx(0.5)


def test_a_longer_draft_that_seemed_cheaper_is_not_below_zero():
    costs = Costs.of([1.0] * 5, [timed(1, 4.0, 0.5), timed(4, 3.0, 0.5)])
    assert costs.draft_step > 0
    assert costs.draft_start >= 0


def test_a_method_that_never_drafted_costs_nothing_to_draft():
    costs = Costs.of([1.0, 1.0], [timed(0, None, 0.2)])
    assert (costs.draft_start, costs.draft_step) == (0.0, 0.0)
    assert costs.overhead == costs.plain_overhead == pytest.approx(0.2)
    assert Costs.of([1.0], []).round_seconds(0) == 1.0


@pytest.mark.parametrize(
    ("max_length", "widths"), [(4096, WIDEST), (WIDEST, WIDEST - 1), (4, 3), (2, 1)]
)
def test_passes_are_measured_up_to_what_the_model_can_read(max_length, widths):
    model = ToyModel(8, max_length=max_length)
    seen = []
    read = model.read

    def watched(ids, *, want=1):
        reading = read(ids, want=want)
        assert len(ids) <= max_length
        seen.append((want, reading.num_forwarded))
        return reading

    model.read = watched
    seconds = pass_seconds(model)
    assert len(seconds) == widths
    assert all(value > 0 for value in seconds)
    timed_passes = seen[1::2]  # the others go back to the same context
    assert {want for want, _ in timed_passes} == set(range(1, widths + 1))
    assert all(want == forwarded for want, forwarded in timed_passes)


@pytest.mark.parametrize("length", [1, 2, 4, 7])
def test_the_rest_of_a_round_grows_along_a_line_down_to_none(length):
    costs = Costs.of([1.0] * 9, [timed(1, 1.0, 0.5), timed(4, 1.0, 0.8)])
    assert costs.overhead_seconds(length) == pytest.approx(0.4 + 0.1 * length)
    assert costs.plain_overhead == costs.overhead_seconds(0) == pytest.approx(0.4)


# --- pace ---

KNOWN = Costs((0.020, 0.021, 0.022, 0.024, 0.026), 0.001, 0.002, 0.001, 0.0005, 0.0002)


def played(costs, length, *, passes=1.0, drafting=1.0, overhead=1.0):
    """A round that took the given multiples of what it costs."""
    draft = drafting * costs.draft_seconds(length)
    verify = passes * costs.passes[length]
    rest = overhead * costs.overhead_seconds(length)
    seconds = Timings(draft, verify, 0.0, 0.0, 0.0, 0.0, draft + verify + rest)
    tokens = tuple(Token(1, "a") for _ in range(length))
    verdict = Verdict(0, Token(1, "a"), "target")
    return Round(0, length, Proposal(tokens), verdict, (), (), "", seconds, 0, 0)


def test_where_nothing_was_seen_the_costs_are_those_of_the_load():
    assert Pace().now("mtp", KNOWN) == KNOWN


@given(
    multiples=st.tuples(*3 * [st.floats(0.2, 5.0)]),
    length=st.integers(1, 4),
    asked=st.integers(1, 4),
)
def test_it_takes_every_part_at_its_own_multiple(multiples, length, asked):
    passes, drafting, overhead = multiples
    pace = Pace()
    for _ in range(RECENT):
        pace.see(
            "mtp", KNOWN, played(KNOWN, length, passes=passes, drafting=drafting, overhead=overhead)
        )
    now = pace.now("mtp", KNOWN)
    assert now.passes == pytest.approx([passes * seconds for seconds in KNOWN.passes])
    assert now.draft_seconds(asked) == pytest.approx(drafting * KNOWN.draft_seconds(asked))
    assert now.overhead_seconds(asked) == pytest.approx(overhead * KNOWN.overhead_seconds(asked))
    assert now.plain_overhead == pytest.approx(overhead * KNOWN.plain_overhead)


def test_a_plain_run_tells_the_pace_of_passes_for_every_method_and_no_more():
    pace = Pace()
    for _ in range(RECENT):
        pace.see_pass(KNOWN.passes, played(KNOWN, 0, passes=2.0))
    for method in ("mtp", "draft"):
        now = pace.now(method, KNOWN)
        assert now.passes[3] == pytest.approx(2 * KNOWN.passes[3])
        assert now.draft_seconds(2) == KNOWN.draft_seconds(2)
    pace.see("draft", KNOWN, played(KNOWN, 1, drafting=9.0))
    assert pace.now("mtp", KNOWN).draft_seconds(2) == KNOWN.draft_seconds(2)


def test_rounds_that_were_held_up_move_nothing():
    pace = Pace()
    for index in range(3 * RECENT):
        pace.see("mtp", KNOWN, played(KNOWN, 2, passes=50.0 if index % 3 == 0 else 1.0))
    assert pace.now("mtp", KNOWN).passes == pytest.approx(KNOWN.passes)


def test_the_first_rounds_do_not_outweigh_the_measurement_and_later_ones_do():
    pace = Pace()
    for _ in range(TRUST - 1):
        pace.see_pass(KNOWN.passes, played(KNOWN, 0, passes=3.0))
    assert pace.now("mtp", KNOWN).passes == KNOWN.passes
    for _ in range(2):
        pace.see_pass(KNOWN.passes, played(KNOWN, 0, passes=3.0))
    assert pace.now("mtp", KNOWN).passes[0] == pytest.approx(3 * KNOWN.passes[0])
    pace.forget()
    assert pace.now("mtp", KNOWN) == KNOWN


def test_what_costs_nothing_or_was_not_measured_is_not_compared():
    free = dataclasses.replace(KNOWN, draft_start=0.0, draft_step=0.0)
    pace = Pace()
    for _ in range(RECENT):
        pace.see("lookup", free, played(KNOWN, 2))
        pace.see_pass(KNOWN.passes[:2], played(KNOWN, 4, passes=9.0))  # wider than was measured
    now = pace.now("lookup", free)
    assert now.passes == pytest.approx(free.passes)
    assert now.draft_seconds(2) == 0.0


def speed_here(policy, true, pace, rates, seed=0, num_rounds=3000):
    """Tokens per second in a world where things take what `true` says; `pace` watches."""
    rng = random.Random(seed)
    tokens, seconds = 0, 0.0
    for _ in range(num_rounds):
        gamma = policy.next_gamma()
        reached = next((i for i in range(gamma) if rng.random() >= rates[i]), gamma)
        policy.observe(gamma, reached)
        done = played(true, gamma)
        pace.see("draft", KNOWN, done)
        tokens += reached + 1
        seconds += done.seconds.total
    return tokens / seconds


@pytest.mark.parametrize(
    ("passes", "drafting"), [(0.3, 1.0), (0.5, 1.5), (1.0, 6.0), (2.5, 1.0), (1.0, 0.2), (1.0, 1.0)]
)
def test_auto_is_nearly_the_best_fixed_length_on_a_machine_that_changed(passes, drafting):
    true = dataclasses.replace(
        KNOWN,
        passes=tuple(passes * seconds for seconds in KNOWN.passes),
        draft_start=drafting * KNOWN.draft_start,
        draft_step=drafting * KNOWN.draft_step,
    )
    rates = [0.45, 0.45, 0.45, 0.45]
    pace = Pace()
    following = CostAware(4, KNOWN, lambda: pace.now("draft", KNOWN))
    ours = speed_here(following, true, pace, rates)
    fixed = [speed_here(Fixed(gamma), true, Pace(), rates) for gamma in range(5)]
    assert ours >= 0.97 * max(fixed)
    assert ours >= 0.95 * fixed[0]


def test_costs_of_the_load_alone_would_lose_there():
    """Drafting paid at load and does not any more: the reason why the pace is followed."""
    true = dataclasses.replace(KNOWN, passes=tuple(0.3 * seconds for seconds in KNOWN.passes))
    rates = [0.45, 0.45, 0.45, 0.45]
    stale = speed_here(CostAware(4, KNOWN), true, Pace(), rates)
    assert stale < 0.95 * speed_here(Fixed(0), true, Pace(), rates)


class Congested(Pace):
    """A pace by which drafting never pays, whatever rounds say."""

    def now(self, method, costs):
        return dataclasses.replace(costs, draft_start=1000.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_follows_the_pace_only_where_its_text_cannot_depend_on_it(temperature):
    pair = dataclasses.replace(tiny_pair(), costs={"draft": KNOWN}, pace=Congested())
    chosen = Settings(gamma=4, adaptive=True, max_new_tokens=40, temperature=temperature)
    asked = {done.gamma for done in rounds(list(pair.run("draft", "abcabd", chosen)))}
    assert (asked == {0}) == (temperature == 0.0)
    again = [list(pair.run("draft", "abcabd", chosen)) for _ in range(2)]
    assert finished(again[0]).token_ids == finished(again[1]).token_ids


def test_every_run_tells_the_pair_how_fast_the_machine_is():
    pair = dataclasses.replace(tiny_pair(), costs={"draft": KNOWN})
    for method in ("plain", "draft"):
        before = pair.pace.now("draft", KNOWN).passes
        list(pair.run(method, "abcabd", Settings(gamma=2, max_new_tokens=40)))
        assert pair.pace.now("draft", KNOWN).passes != before
    assert pair.pace.now("draft", KNOWN).draft_step != KNOWN.draft_step
    pair.recost({"draft": KNOWN})
    assert pair.pace.now("draft", KNOWN) == KNOWN
