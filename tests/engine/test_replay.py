"""The run-length map and its replays: against a plain simulation, and against real runs."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.costs import Costs
from engine.decode import never
from engine.events import Settings
from engine.models.toy import ToyModel
from engine.policy import Adaptive, CostAware, Fixed
from engine.proposers.prompt_lookup import find_latest
from engine.replay import (
    Played,
    RunLengths,
    rounds_adaptive,
    rounds_fixed,
    rounds_oracle,
    totals,
)
from tests.engine.tiny import finished, rounds, tiny_pair, toy_pair

COSTS = Costs(
    passes=tuple(0.010 + 0.001 * k for k in range(9)),
    draft_start=0.001,
    draft_step=0.002,
    overhead=0.003,
    plain_overhead=0.0005,
)


@st.composite
def maps(draw):
    """A map from a text and, for every place, how many drafts there are and where the first lies.

    Kept as booleans (does draft j from place i match?), which the simulation reads directly.
    """
    n = draw(st.integers(1, 24))
    longest = draw(st.integers(1, 8))
    matches = [draw(st.lists(st.booleans(), min_size=0, max_size=longest)) for _ in range(n - 1)]
    for i, row in enumerate(matches):
        rest = n - 1 - i  # behind the text nothing matches
        row[rest:] = [False] * len(row[rest:])
    spare = draw(st.none() | st.integers(0, 9))  # None: the text was cut at its length
    return matches, longest, spare


def as_map(matches, longest, spare):
    lengths = [[*row, False].index(False) for row in matches]
    data = {
        "lengths": lengths,
        "proposed": [len(row) for row in matches],
        "longest": longest,
        "stop": spare is not None,
    }
    return RunLengths.of(data, None if spare is None else len(matches) + 1 + spare)


def simulate(matches, spare, next_gamma, observe=lambda drafted, accepted: None):
    """The loop of `engine.decode` on a text whose drafts are known to match or not."""
    n = len(matches) + 1
    text, played = ["first"], []
    while len(text) < n:
        num_left = n + (spare or 0) - len(text)
        gamma = max(0, min(next_gamma(len(text)), num_left - 1))
        proposal = matches[len(text) - 1][:gamma]
        accepted = 0
        for good in proposal:
            if not good:
                break
            accepted += 1
        observe(len(proposal), accepted)
        text += ["draft"] * accepted + ["target"]
        text = text[:n]
        played.append((gamma, len(proposal), accepted))
    return played


@given(maps(), st.data())
def test_a_fixed_length_replays_as_the_loop_would_go(drawn, data):
    matches, longest, spare = drawn
    gamma = data.draw(st.integers(0, longest))
    assert rounds_fixed(as_map(*drawn), gamma) == simulate(matches, spare, lambda _: gamma)


@given(maps())
def test_a_policy_replays_as_the_loop_would_go(drawn):
    matches, longest, spare = drawn
    for make in (lambda: Adaptive(longest), lambda: CostAware(longest, COSTS)):
        policy = make()
        expected = simulate(matches, spare, lambda _, p=policy: p.next_gamma(), policy.observe)
        assert rounds_adaptive(as_map(*drawn), make()) == expected


@given(maps(), st.data())
def test_a_policy_that_never_changes_its_mind_is_a_fixed_length(drawn, data):
    gamma = data.draw(st.integers(0, drawn[1]))
    run_map = as_map(*drawn)
    assert rounds_adaptive(run_map, Fixed(gamma)) == rounds_fixed(run_map, gamma)


@given(maps())
def test_every_replay_tells_the_whole_text_and_the_oracle_drafts_nothing_in_vain(drawn):
    run_map = as_map(*drawn)
    for gamma in range(drawn[1] + 1):
        played = rounds_fixed(run_map, gamma)
        told = sum(done.accepted + 1 for done in played)
        # Only a run that ends by itself may draft to the very end, where no own token follows.
        assert told - run_map.num_decoded in ({0} if drawn[2] is None else {0, 1})
        assert len(played) <= run_map.num_decoded
    oracle = rounds_oracle(run_map)
    assert all(done.drafted == done.accepted for done in oracle)


def test_plain_is_one_round_per_token():
    run_map = RunLengths((3, 2, 1, 0), (8, 8, 8, 8), 8)
    assert rounds_fixed(run_map, 0) == [Played(0, 0, 0)] * 4


def test_a_length_that_the_map_does_not_know_is_refused():
    with pytest.raises(ValueError, match="0 to 4"):
        rounds_fixed(RunLengths((1, 0), (4, 4), 4), 5)


def test_totals_count_and_cost_what_the_rounds_hold():
    played = [Played(2, 2, 1), Played(2, 0, 0), Played(0, 0, 0)]
    sums = totals(4, played, COSTS)
    assert (sums.num_rounds, sums.num_drafted, sums.num_accepted) == (3, 2, 1)
    drafted = 0.001 + 2 * 0.002 + 0.012 + 0.003
    asked_in_vain = 0.001 + 0.010 + 0.0005
    assert sums.seconds == pytest.approx(drafted + asked_in_vain + 0.0105)
    assert sums.tokens_per_pass == pytest.approx(4 / 3)
    assert sums.tokens_per_second == pytest.approx(4 / sums.seconds)
    assert totals(4, played).seconds is None
    assert totals(0, []).tokens_per_pass is None


# --- against the engine ---


def greedy(pair, method, gamma, limit, **more):
    return list(pair.run(method, "abcab", Settings(gamma=gamma, max_new_tokens=limit, **more)))


def ending_pair():
    """Table models whose greedy text from "abcab" ends by itself after a while."""
    models = {"target": ToyModel(20, seed=32), "draft": ToyModel(20, seed=32, noise=0.4)}
    return dataclasses.replace(toy_pair(20, with_eos=True), **models)


def brute_force(pair, method, longest, limit):
    """Build the map by asking a fresh drafter at every place of the plain text."""
    plain = greedy(pair, "plain", 0, limit)
    text, start = list(finished(plain).token_ids), pair.codec.encode("abcab")
    lengths, proposed = [], []
    for known in range(1, len(text)):
        drafts = proposals(pair, method, [*start, *text[:known]], longest)
        rest = text[known:]
        matched = 0
        while matched < min(len(drafts), len(rest)) and drafts[matched] == rest[matched]:
            matched += 1
        lengths.append(matched)
        proposed.append(len(drafts))
    stop = finished(plain).reason != "length"
    data = {"lengths": lengths, "proposed": proposed, "longest": longest, "stop": stop}
    return RunLengths.of(data, limit)


def proposals(pair, method, ids, longest):
    """Return what a drafter that starts cold proposes to follow `ids`."""
    if method == "draft":
        out = list(ids)
        for _ in range(longest):
            pair.draft.forget()
            out.append(int(pair.draft.read(out).logits[-1].argmax()))
        return out[len(ids) :]
    begin, size = find_latest(ids, 3)
    return ids[begin : begin + longest] if size else []


def of_run(events, num_decoded):
    """Return the rounds of a real run; the last may draft past the end of the text."""
    played, left = [], num_decoded
    for done in rounds(events):
        accepted = min(done.verdict.num_accepted, left)
        played.append((done.gamma, len(done.proposal.tokens), accepted))
        left -= accepted + 1
    return played


CASES = [
    pytest.param(toy_pair(30, noise=0.4), "draft", 40, id="table draft"),
    pytest.param(toy_pair(30, noise=0.4), "lookup", 40, id="table lookup"),
    pytest.param(tiny_pair(), "draft", 40, id="tiny draft"),
    pytest.param(tiny_pair(), "lookup", 40, id="tiny lookup"),
    pytest.param(ending_pair(), "draft", 64, id="a text that ends by itself"),
    pytest.param(ending_pair(), "draft", None, id="a text that ends just before its limit"),
]


@pytest.mark.parametrize(("pair", "method", "limit"), CASES)
def test_replays_equal_real_greedy_runs_round_by_round(pair, method, limit):
    if limit is None:
        limit = len(finished(greedy(pair, "plain", 0, 64)).token_ids) + 1
    run_map = brute_force(pair, method, 8, limit)
    assert len(set(run_map.lengths)) > 1  # a map without ups and downs would prove little
    for gamma in range(1, 7):
        real = of_run(greedy(pair, method, gamma, limit), run_map.num_decoded)
        assert rounds_fixed(run_map, gamma) == real
    real = of_run(greedy(pair, method, 6, limit, adaptive=True), run_map.num_decoded)
    assert rounds_adaptive(run_map, Adaptive(6)) == real


@pytest.mark.parametrize("method", ["draft", "lookup", "mtp"])
def test_the_replayed_map_equals_what_the_instrument_drove(method):
    chosen = Settings(gamma=3, max_new_tokens=40)
    data = tiny_pair().measure("run_lengths", method, "abcab", chosen, cancelled=never).data
    run_map = RunLengths.of(data, chosen.max_new_tokens)
    assert data["exact"]
    for gamma in range(1, 9):
        assert rounds_fixed(run_map, gamma) == [tuple(r) for r in data["driven"][str(gamma)]]
    assert rounds_adaptive(run_map, Adaptive(8)) == [tuple(r) for r in data["driven"]["auto"]]
