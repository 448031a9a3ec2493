import math

import pytest
import torch

from engine.describe import (
    BLOCK,
    choices,
    describe_proposal,
    describe_verdict,
    entropies,
    shown_law,
    top,
)
from engine.models.toy import ToyCodec
from engine.proposers.base import Draft, certain_draft, no_draft
from engine.verify import verify
from tests.engine.tiny import CPU

CODEC = ToyCodec(4)
Q = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.9, 0.1]])
P = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.4, 0.3, 0.3], [0.0, 0.0, 0.0, 1.0]])
LOGITS = torch.tensor([[3.0, 2.5, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])


def verdict(*, greedy=False):
    drawn, u = torch.tensor([0, 2]), torch.tensor([0.9, 0.9])
    draft = Draft(drawn, Q)
    decision = verify(drawn, Q, P, u)
    return describe_verdict(draft, P, LOGITS, u, decision, 1, CODEC, greedy=greedy)


def test_choices_come_best_first_and_never_with_probability_0():
    (row,) = choices(torch.tensor([[0.0, 0.2, 0.8, 0.0]]), CODEC)
    assert [(choice.id, choice.text) for choice in row] == [(2, "c"), (1, "b")]
    assert [choice.prob for choice in row] == pytest.approx([0.8, 0.2])


def test_a_proposal_tells_with_what_probability_each_token_was_drawn():
    proposal = describe_proposal(Draft(torch.tensor([0, 2]), Q), CODEC, greedy=False)
    assert [token.text for token in proposal.tokens] == ["a", "c"]
    assert proposal.q == pytest.approx((0.5, 0.9))
    assert [len(row) for row in proposal.top] == [2, 2]


def test_an_empty_proposal_keeps_its_note():
    draft = no_draft(4, CPU)
    proposal = describe_proposal(
        Draft(draft.token_ids, draft.probs, note="why"), CODEC, greedy=True
    )
    assert (proposal.tokens, proposal.q, proposal.note) == ((), (), "why")


def test_a_verdict_tells_what_decided():
    told = verdict()
    assert told.num_accepted == 1
    assert told.next_source == "recovered"
    assert told.p == pytest.approx((0.5, 0.3))
    assert told.accept_prob == pytest.approx((1.0, 1 / 3))
    assert told.u == pytest.approx((0.9, 0.9))
    assert told.overlap == pytest.approx((0.75, 0.4))
    assert told.top2_gap == pytest.approx((0.5, 0.0, 9.0))
    assert told.entropy[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert told.entropy[2] == 0
    # The residual of the lost position: (p - q)+ = (0, 0.4, 0, 0.2), normalised.
    assert [(c.text, round(c.prob, 3)) for c in told.residual_top] == [("b", 0.667), ("d", 0.333)]


def test_greedy_runs_show_the_softmax_behind_the_choice():
    told = verdict(greedy=True)
    expected = torch.softmax(LOGITS[0], -1)
    assert [c.prob for c in told.top[0]] == pytest.approx(expected.tolist())
    assert told.p == pytest.approx((0.5, 0.3))  # what decided stays what it was


def test_a_certain_draft_has_no_softmax_to_show():
    draft = certain_draft([2], 4, CPU)
    assert torch.equal(shown_law(draft.probs, draft.logits, greedy=True), draft.probs)


@pytest.mark.parametrize("width", [7, 4 * BLOCK, 8 * BLOCK, 96 * BLOCK, 96 * BLOCK + 5])
def test_the_largest_values_are_those_of_a_full_sort(width):
    rows = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    values, ids = top(rows, 5)
    expected = rows.sort(-1, descending=True)
    assert torch.equal(values, expected.values[:, :5])
    assert torch.equal(ids, expected.indices[:, :5])


def test_the_largest_values_may_share_a_block_or_be_minus_infinity():
    rows = torch.full((2, 8 * BLOCK), -torch.inf)
    rows[0, 3 * BLOCK : 3 * BLOCK + 6] = torch.arange(6.0)
    rows[1, 5] = 1.0
    values, ids = top(rows, 5)
    assert values[0].tolist() == [5, 4, 3, 2, 1]
    assert ids[0].tolist() == [3 * BLOCK + i for i in (5, 4, 3, 2, 1)]
    assert ids[1, 0] == 5
    assert values[1, 1:].tolist() == [-math.inf] * 4


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_the_quick_entropy_is_the_entropy(scale):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) * scale + 40
    law = torch.softmax(logits, -1)
    expected = torch.special.entr(law.double()).sum(-1).float()
    assert torch.allclose(entropies(law, logits, greedy=True), expected, atol=2e-4)
    assert torch.allclose(entropies(law, logits, greedy=False), expected, atol=2e-4)


def test_forbidden_tokens_do_not_spoil_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    law = torch.softmax(logits, -1)
    assert entropies(law, logits, greedy=True).tolist() == pytest.approx([math.log(2)])
