"""The formulas agree with their closed forms and with each other."""

import pytest

from engine.theory import expected_tokens, needed_tokens, speed_up, speed_up_measured


@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8])
def test_expected_tokens_is_the_geometric_sum(alpha: float, gamma: int) -> None:
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert expected_tokens(alpha, gamma) == pytest.approx(closed, abs=1e-12)


def test_certain_acceptance_gives_the_whole_round() -> None:
    assert expected_tokens(1.0, 5) == 6


def test_plain_decoding_is_the_unit_of_speed() -> None:
    assert speed_up(0.7, 0, c=0.1) == 1.0


def test_equal_conditionals_give_the_same_speed_up_as_one_alpha() -> None:
    assert speed_up_measured([0.6] * 3, c=0.2, v=1.1) == pytest.approx(
        speed_up(0.6, 3, c=0.2, v=1.1)
    )


def test_the_break_even_is_a_speed_up_of_one() -> None:
    tokens = needed_tokens(3, c=0.2, v=1.3, overhead=0.1)
    conditional = [0.5, 0.5, 0.5]
    reached = 1 + 0.5 + 0.25 + 0.125
    predicted = speed_up_measured(conditional, c=0.2, v=1.3, overhead=0.1)
    assert predicted == pytest.approx(reached / tokens)


@pytest.mark.parametrize(("alpha", "gamma"), [(-0.1, 2), (1.1, 2), (0.5, -1)])
def test_impossible_arguments_are_refused(alpha: float, gamma: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        expected_tokens(alpha, gamma)
