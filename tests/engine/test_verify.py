"""The rule is exact: proved by enumeration, and the proof notices wrong rules.

`joint_law` walks through every draft, every outcome of the coins and every next token with their
exact probabilities; no random number is drawn. The rule is a black box: between the points 0, p/q,
q/p and 1 its decision cannot change, so one probe per interval of u tells it all.
"""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import Settings
from engine.models.toy import ToyModel
from engine.sampling import Sampler
from engine.verify import Decision, verify

TARGET = ToyModel(3, seed=1, sharpness=1.2)
NOISY = ToyModel(3, seed=1, sharpness=1.2, noise=1.3)
PROMPTS = ((0, 1), (2, 2, 0))

PROCESSORS = {
    "temperature 1": Settings(temperature=1.0),
    "temperature": Settings(temperature=0.6),
    "top-k": Settings(temperature=1.0, top_k=2),
    "top-p": Settings(temperature=1.0, top_p=0.7),
    "min-p": Settings(temperature=1.3, min_p=0.3),
    "repetition penalty": Settings(temperature=1.0, repetition_penalty=1.7),
    "all": Settings(temperature=0.9, top_k=2, top_p=0.95, min_p=0.05, repetition_penalty=1.3),
    "greedy": Settings(temperature=0.0),
    "greedy with penalty": Settings(temperature=0.0, repetition_penalty=2.5),
}


def law(model, chosen, context, count=1):
    """The laws of the last `count` positions in float64.  [count, V]"""
    logits = model.read(context, want=count).logits
    probs = Sampler(chosen).probs(logits, context).double()
    return probs / probs.sum(-1, keepdim=True)


def whole(draft):
    return draft


def joint_law(
    rule,
    chosen,
    prompt,
    gamma,
    *,
    draft_row=None,
    rows=law,
    keep=whole,
    draft_shares_coin=False,
    next_shares_coin=False,
):
    """The joint law of the next gamma + 1 tokens, extended by the target's own.  [V] * (gamma + 1)

    draft_row: the proposer's law at a context; NOISY's by default.  rows: the target's laws as the
    rule sees them.  keep: what the proposer does with a draft that it drew.
    """
    size = TARGET.vocab_size
    draft_row = draft_row or (lambda context: law(NOISY, chosen, context)[0])
    out = torch.zeros([size] * (gamma + 1), dtype=torch.float64)
    for drawn in itertools.product(range(size), repeat=gamma):
        q = torch.stack([draft_row([*prompt, *drawn[:i]]) for i in range(gamma)])  # [g, V]
        p = rows(TARGET, chosen, [*prompt, *drawn], gamma + 1)  # [g + 1, V]
        kept = list(keep(drawn))
        cells = [
            list(_cells(q[i], p[i], token, draft_shares_coin)) for i, token in enumerate(drawn)
        ]
        for cell in itertools.product(*cells):
            weight = math.prod(mass for _, _, mass in cell)
            if weight == 0:
                continue
            g = len(kept)
            u = torch.tensor([(low + high) / 2 for low, high, _ in cell[:g]], dtype=torch.float64)
            decision = rule(torch.tensor(kept, dtype=torch.long), q[:g], p[: g + 1], u)
            n = decision.num_accepted
            last = decision.next_probs
            if next_shares_coin and n < g:
                last = _inverted(last, *cell[n][:2])
            for token in range(size):
                mass = weight * float(last[token])
                if mass > 0:
                    _extend(out, chosen, prompt, [*kept[:n], token], mass)
    return out


def _cells(q, p, token, shared):
    """Yield (low, high, probability) of u together with drawing `token`."""
    if q[token] <= 0:
        return
    ratio = float(p[token] / q[token])
    marks = {0.0, 1.0, min(ratio, 1.0), min(1 / ratio, 1.0) if ratio else 1.0}
    start = float(q[:token].sum()) if shared else 0.0
    end = min(start + float(q[token]), 1.0) if shared else 1.0
    marks = sorted({mark for mark in marks if start < mark < end} | {start, end})
    for low, high in itertools.pairwise(marks):
        yield low, high, (high - low) * (1.0 if shared else float(q[token]))


def _inverted(probs, low, high):
    """The law of a token that is drawn by inverting the law with a u from low..high."""
    ends = probs.cumsum(0)
    overlap = torch.minimum(ends, torch.tensor(high)) - torch.maximum(
        ends - probs, torch.tensor(low)
    )
    return overlap.clamp(min=0) / (high - low)


def _extend(out, chosen, prompt, tokens, mass):
    """Add `mass` to every continuation of `tokens`, by the target's own law."""
    if len(tokens) == out.dim():
        out[tuple(tokens)] += mass
        return
    for token, prob in enumerate(law(TARGET, chosen, [*prompt, *tokens])[0].tolist()):
        if prob > 0:
            _extend(out, chosen, prompt, [*tokens, token], mass * prob)


def own_law(chosen, prompt, length):
    out = torch.zeros([TARGET.vocab_size] * length, dtype=torch.float64)
    _extend(out, chosen, prompt, [], 1.0)
    return out


def error_of(rule, chosen, prompt, gamma, **options):
    """The largest difference from the target's law in any probability."""
    got = joint_law(rule, chosen, prompt, gamma, **options)
    return float((got - own_law(chosen, prompt, gamma + 1)).abs().max())


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("name", PROCESSORS)
def test_the_joint_law_is_the_targets_with_every_processor(name, gamma, prompt):
    assert error_of(verify, PROCESSORS[name], prompt, gamma) < 1e-12


@pytest.mark.parametrize("name", ["temperature 1", "all"])
def test_the_joint_law_is_the_targets_for_three_proposed_tokens(name):
    assert error_of(verify, PROCESSORS[name], PROMPTS[0], 3) < 1e-12


@pytest.mark.parametrize("token", range(3))
@pytest.mark.parametrize("name", ["temperature 1", "top-k", "repetition penalty", "greedy"])
def test_the_joint_law_is_the_targets_for_certain_drafts(name, token):
    certain = torch.eye(3, dtype=torch.float64)[token]
    got = error_of(verify, PROCESSORS[name], PROMPTS[0], 2, draft_row=lambda _: certain)
    assert got < 1e-12


def test_the_joint_law_is_the_targets_when_the_proposer_leaves_tokens_out():
    q = torch.tensor([0.0, 0.3, 0.7], dtype=torch.float64)
    chosen = PROCESSORS["temperature 1"]
    assert error_of(verify, chosen, PROMPTS[0], 2, draft_row=lambda _: q) < 1e-12


def until_unsure(chosen, prompt, *, dropping=False):
    """What a proposer with a confidence cut keeps of a draft from NOISY."""

    def keep(drawn):
        for i, token in enumerate(drawn):
            logits = NOISY.read([*prompt, *drawn[:i]]).logits
            if Sampler(chosen).is_unsure(logits, token):
                return drawn[: i + (not dropping)]
        return drawn

    return keep


@pytest.mark.parametrize("cut", [0.05, 0.2, 0.4, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("name", ["temperature 1", "temperature", "top-k", "all"])
def test_the_joint_law_is_the_targets_when_a_draft_ends_with_an_unsure_token(name, cut):
    for prompt in PROMPTS:
        chosen = dataclasses.replace(PROCESSORS[name], confidence=cut)
        keep = until_unsure(chosen, prompt)
        assert error_of(verify, chosen, prompt, 2, keep=keep) < 1e-12


def test_dropping_the_unsure_token_itself_would_not_be_exact():
    chosen = dataclasses.replace(PROCESSORS["temperature 1"], confidence=0.4)
    keep = until_unsure(chosen, PROMPTS[0], dropping=True)
    assert error_of(verify, chosen, PROMPTS[0], 2, keep=keep) > 1e-2


def test_without_a_proposal_the_next_law_is_the_targets():
    p = law(TARGET, PROCESSORS["temperature 1"], [0, 1])
    none = torch.empty(0, 3, dtype=torch.float64)
    decision = verify(torch.empty(0, dtype=torch.long), none, p, torch.empty(0))
    assert decision.num_accepted == 0
    assert decision.next_source == "target"
    assert torch.equal(decision.next_probs, p[0])


# --- mutants: each must be found out by the same checker ---


def _judge(token_ids, q, p, u, *, passed, residual):
    n = int(passed.long().cumprod(0).sum()) if len(passed) else 0
    if n == len(token_ids):
        return Decision(n, passed.double(), p[-1], "bonus")
    left = residual(p[n], q[n])
    law_left = left / left.sum() if left.sum() > 0 else p[n]
    return Decision(n, passed.double(), law_left, "recovered")


def _at(token_ids, probs):
    return probs[torch.arange(len(token_ids)), token_ids]


def plain_residual(token_ids, q, p, u):
    passed = u * _at(token_ids, q) < _at(token_ids, p)
    return _judge(token_ids, q, p, u, passed=passed, residual=lambda p, q: p)


def swapped_acceptance(token_ids, q, p, u):
    passed = u * _at(token_ids, p) < _at(token_ids, q)
    return _judge(token_ids, q, p, u, passed=passed, residual=lambda p, q: (p - q).clamp(min=0))


def swapped_residual(token_ids, q, p, u):
    passed = u * _at(token_ids, q) < _at(token_ids, p)
    return _judge(token_ids, q, p, u, passed=passed, residual=lambda p, q: (q - p).clamp(min=0))


def no_coin(token_ids, q, p, u):
    passed = _at(token_ids, p) >= _at(token_ids, q)
    return _judge(token_ids, q, p, u, passed=passed, residual=lambda p, q: p)


def no_coin_with_residual(token_ids, q, p, u):
    passed = _at(token_ids, p) >= _at(token_ids, q)
    return _judge(token_ids, q, p, u, passed=passed, residual=lambda p, q: (p - q).clamp(min=0))


def late_residual(token_ids, q, p, u):
    """Indexes the residual one row too far."""
    right = verify(token_ids, q, p, u)
    if right.num_accepted == len(token_ids):
        return right
    return right._replace(next_probs=p[right.num_accepted + 1])


def without_last_b(drawn):
    """Drops a sampled token because of its value."""
    return drawn[:-1] if drawn[-1] == 1 else drawn


def rows_without_their_prefix(model, chosen, context, count=1):
    """Applies the processors to every row with the whole context."""
    logits = model.read(context, want=count).logits
    rows = [Sampler(chosen).probs(logits[i : i + 1], context)[0] for i in range(count)]
    probs = torch.stack(rows).double()
    return probs / probs.sum(-1, keepdim=True)


MUTANTS = {
    "plain residual": {"rule": plain_residual},
    "p and q swapped in the coin": {"rule": swapped_acceptance},
    "p and q swapped in the residual": {"rule": swapped_residual},
    "no coin, no residual": {"rule": no_coin},
    "no coin": {"rule": no_coin_with_residual},
    "residual of the wrong row": {"rule": late_residual},
    "a drawn token is dropped": {"keep": without_last_b},
    "draft and coin share numbers": {"draft_shares_coin": True},
    "coin and next token share numbers": {"next_shares_coin": True},
    "processors ignore the row": {"rows": rows_without_their_prefix},
    "q is not what was drawn from": {"draft_row": "sharpened"},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checker_finds_the_mutant(name):
    options = dict(MUTANTS[name])
    rule = options.pop("rule", verify)
    chosen = PROCESSORS["repetition penalty"]
    if options.get("draft_row") == "sharpened":
        del options["draft_row"]
        rule = _told_another_q
    assert error_of(rule, chosen, PROMPTS[0], 2, **options) > 1e-3


def _told_another_q(token_ids, q, p, u):
    """The rule hears of a softer q than the one the tokens were drawn from."""
    soft = q.sqrt()
    return verify(token_ids, soft / soft.sum(-1, keepdim=True), p, u)


# --- single decisions ---


def _rows(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_a_target_that_never_accepts_recovers_from_the_residual():
    q, p = _rows([1, 0, 0], [1, 0, 0]), _rows([0, 0.5, 0.5], [0, 0, 1], [0, 0, 1])
    decision = verify(torch.tensor([0, 0]), q, p, torch.zeros(2))
    assert decision.num_accepted == 0
    assert decision.next_source == "recovered"
    assert torch.equal(decision.next_probs, p[0])


def test_a_target_that_always_accepts_gives_a_bonus_token():
    q, p = _rows([0.5, 0.5], [1, 0]), _rows([0.5, 0.5], [1, 0], [0.25, 0.75])
    decision = verify(torch.tensor([1, 0]), q, p, torch.full((2,), 1 - 1e-12))
    assert decision.num_accepted == 2
    assert decision.next_source == "bonus"
    assert torch.equal(decision.next_probs, p[2])


def test_a_target_that_sometimes_accepts_follows_the_coin():
    q, p = _rows([1, 0]), _rows([0.25, 0.75], [1, 0])
    verdicts = [verify(torch.tensor([0]), q, p, _rows([u])[0]) for u in (0.24, 0.26)]
    assert [v.num_accepted for v in verdicts] == [1, 0]
    assert verdicts[0].accept_prob.tolist() == [0.25]
    assert verdicts[1].next_probs.tolist() == [0, 1]


def test_tokens_behind_the_first_loss_do_not_count():
    q, p = _rows([1, 0], [1, 0]), _rows([0, 1], [1, 0], [1, 0])
    assert verify(torch.tensor([0, 0]), q, p, torch.zeros(2)).num_accepted == 0


def test_a_token_the_target_never_says_does_not_pass_even_at_u_0():
    q, p = _rows([0.5, 0.5]), _rows([0, 1], [0, 1])
    assert verify(torch.tensor([0]), q, p, torch.zeros(1)).num_accepted == 0


def test_a_token_that_the_proposer_cannot_have_drawn_is_an_error():
    with pytest.raises(ValueError, match="q = 0"):
        verify(torch.tensor([0]), _rows([0, 1]), _rows([1, 0], [1, 0]), torch.zeros(1))


def test_equal_laws_always_accept():
    p = law(TARGET, PROCESSORS["temperature 1"], [0, 1, 2], 3)
    for drawn in itertools.product(range(3), repeat=2):
        decision = verify(torch.tensor(drawn), p[:2], p, torch.full((2,), 1 - 1e-12))
        assert decision.num_accepted == 2


def test_a_residual_without_mass_falls_back_to_the_target():
    # p <= q everywhere although both sum to 1 in exact arithmetic: what rounding can do.
    q, p = _rows([0.6, 0.4]), _rows([0.5, 0.4], [1, 0])
    decision = verify(torch.tensor([0]), q, p, _rows([0.99])[0])
    assert decision.num_accepted == 0
    assert torch.equal(decision.next_probs, p[0])


def _distribution(size=4):
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@given(p=_distribution(), q=_distribution())
@settings(deadline=None, max_examples=60)
def test_what_passes_and_what_is_recovered_add_up_to_p(p, q):
    both = torch.stack([p, p])
    passed_mass = 0.0
    total = torch.zeros(4, dtype=torch.float64)
    for token in range(4):
        if q[token] == 0:
            continue
        accept = float(p[token] / q[token])
        edge = min(accept, 1.0)
        drawn = torch.tensor([token])
        if edge > 0:
            won = verify(drawn, q[None], both, _rows([edge * (1 - 1e-9)])[0])
            assert won.num_accepted == 1
            total[token] += q[token] * edge
            passed_mass += float(q[token]) * edge
        if edge < 1:
            lost = verify(drawn, q[None], both, _rows([edge + (1 - edge) * 1e-9])[0])
            assert lost.num_accepted == 0
            total += q[token] * (1 - edge) * lost.next_probs
    assert torch.allclose(total, p, atol=1e-12, rtol=0)
    assert passed_mass == pytest.approx(float(torch.minimum(p, q).sum()))
