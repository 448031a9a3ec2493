import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Settings
from engine.policy import Adaptive, Fixed, policy_for
from tests.engine.tiny import finished, rounds, tiny_pair


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
