"""The ledger: parts that sum to the wall, whatever the clocks say."""

from __future__ import annotations

import dataclasses

import pytest

from engine.events import Proposal, Round, Timings, Token, Verdict
from engine.ledger import Ledger, ledger

WORD = Token(1, "a")
PLAIN = Timings(0.0, 0.08, 0.01, 0.0, 0.005, 0.004, 0.1)
OURS = Timings(0.03, 0.12, 0.02, 0.004, 0.01, 0.004, 0.2)


def a_round(drafted: int, accepted: int, seconds: Timings, *, kept: int | None = None) -> Round:
    kept = accepted + 1 if kept is None else kept
    return Round(
        0, 3, Proposal((WORD,) * drafted), Verdict(accepted, WORD, "bonus"), (WORD,) * kept,
        ("a",) * kept, "a" * kept, seconds, 0, drafted + 1,
    )  # fmt: skip


def split(*rounds: Round) -> Ledger:
    found = ledger(rounds, [a_round(0, 0, PLAIN)] * 4)
    assert found is not None
    return found


def test_by_hand_two_rounds_of_three_and_one_token() -> None:
    found = split(a_round(3, 2, OURS), a_round(3, 0, OURS))
    assert (found.ideal, found.got, found.wall) == (2, 2, 0.4)
    assert found.plain_step == pytest.approx(0.1)
    assert found.speed_up == pytest.approx(4 * 0.1 / 0.4)
    assert found.need == pytest.approx(2)
    beyond = {part.name: part.seconds for part in found.parts}
    assert beyond == pytest.approx(
        {
            "draft": 0.06,
            "verify": 0.08,
            "sampling": 0.02,
            "rule": 0.008,
            "text": 0.01,
            "bookkeeping": 0.0,
            "unaccounted": 0.4 - 2 * 0.188 - 2 * 0.001,
        }
    )
    assert found.worst is not None
    assert found.worst.name == "verify"
    assert found.num_read / found.num_rounds == 4


@pytest.mark.parametrize("total", [0.05, 0.2, 3.0])
def test_the_parts_sum_to_the_wall_and_to_the_speed_up_even_with_a_broken_clock(
    total: float,
) -> None:
    found = split(
        a_round(3, 3, OURS), a_round(2, 0, dataclasses.replace(OURS, total=total), kept=1)
    )
    assert found.plain_share + sum(part.seconds for part in found.parts) == pytest.approx(
        found.wall
    )
    taken = sum(part.cost for part in found.parts)
    assert found.ideal - found.cut_cost - taken == pytest.approx(found.speed_up)
    assert found.got / found.need == pytest.approx(found.speed_up)


def test_tokens_past_the_end_are_a_cost_of_their_own() -> None:
    found = split(a_round(3, 3, OURS, kept=2))
    assert (found.ideal, found.cut_cost, found.got) == (4, 2, 2)


def test_an_unknown_split_stays_one_part() -> None:
    fused = dataclasses.replace(OURS, draft=None, verify=0.15)
    found = split(a_round(3, 2, fused), a_round(3, 0, OURS))
    assert not found.is_split
    names = [part.name for part in found.parts]
    assert names[0] == "draft_verify"
    assert not {"draft", "verify"} & set(names)
    assert found.parts[0].total == pytest.approx(0.3)
    assert found.plain_share + sum(part.seconds for part in found.parts) == pytest.approx(
        found.wall
    )


def test_a_cheaper_phase_is_negative_and_never_the_worst() -> None:
    cheap = Timings(0.0, 0.04, 0.005, 0.0, 0.002, 0.001, 0.0485)
    found = split(a_round(3, 2, cheap))
    assert found.worst is None
    assert found.speed_up > found.ideal


@pytest.mark.parametrize("plain", [[], [a_round(0, 0, dataclasses.replace(PLAIN, total=0.0))]])
def test_without_a_measured_baseline_there_is_no_ledger(plain: list[Round]) -> None:
    assert ledger([a_round(3, 2, OURS)], plain) is None
    assert ledger([], [a_round(0, 0, PLAIN)]) is None
