"""The judgement inside the recorded pass is the one outside of it: same tokens, same records."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decode import decode
from engine.describe import describe_verdict
from engine.events import Settings, Verified
from engine.fused import Found, FusedStep, Judgement, step_for
from engine.instruments.rules import RULES
from engine.models.hf import HFModel
from engine.models.static import MOST_CONTINUATIONS, StaticModel
from engine.models.toy import ToyCodec
from engine.proposers.base import Draft
from engine.proposers.draft_model import DraftModel
from engine.proposers.mtp import MTP
from engine.proposers.nothing import Nothing
from engine.proposers.prompt_lookup import PromptLookup
from engine.sampling import Sampler, Streams, draw
from engine.step import EagerStep
from engine.verify import verify
from tests.engine.replaying import Replaying
from tests.engine.tiny import CPU, VOCAB, llama, mtp_parts, started

NETWORK = llama(max_length=2048)
DRAFT = HFModel(llama(noise=0.03, max_length=2048))
LAWS = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 1.0},
    "hot, cut": {"temperature": 1.6, "top_k": 7, "top_p": 0.9, "min_p": 0.02},
    "one token left": {"temperature": 1.0, "top_k": 1},
    "nearly greedy": {"temperature": 0.05},
}


class Place:
    """What a judgement wants to know of a target."""

    device = CPU
    vocab_size = 11


def judged(judgement, ids, q, logits, seed):
    judgement.load(ids, q, Streams.seeded(seed, CPU))
    return Found.of(judgement(logits)[0].tolist(), len(ids))


@given(
    law=st.sampled_from(list(LAWS)),
    g=st.integers(0, 4),
    seed=st.integers(0, 10_000),
    closeness=st.sampled_from([0.0, 0.3, 3.0]),
)
@settings(deadline=None, max_examples=300)
def test_it_decides_draws_and_describes_as_the_separate_parts_do(law, g, seed, closeness):
    chosen = Settings(**LAWS[law])
    sampler, codec = Sampler(chosen), ToyCodec(Place.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(g + 1, Place.vocab_size, generator=generator)
    # Drafts from the very law (closeness 0: all pass), from near it, from far away.
    noise = closeness * torch.randn(g, Place.vocab_size, generator=generator)
    q = sampler.probs(logits[:g] + noise, [1] * (g + 1)) if g else torch.empty(0, 11)
    ids = torch.tensor([draw(row, generator) for row in q], dtype=torch.long)

    found = judged(Judgement(g, sampler, Place()), ids, q, logits, seed)

    streams = Streams.seeded(seed, CPU)
    p = sampler.probs(logits, [1] * (g + 1))
    u = torch.rand(g, generator=streams.accept)
    decision = verify(ids, q, p, u)
    before = streams.next.get_state()
    next_token = draw(decision.next_probs, streams.next)
    greedy = chosen.temperature == 0
    expected = describe_verdict(
        Draft(ids, q), p, logits, u, decision, next_token, codec, greedy=greedy
    )
    got = found.verdict(codec)
    assert (got.num_accepted, got.next_token) == (expected.num_accepted, expected.next_token)
    assert got.next_source == expected.next_source
    for name in ("p", "accept_prob", "u", "overlap", "entropy", "top2_gap"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), abs=1e-5), name
    for ours, theirs in zip(
        (*got.top, got.residual_top), (*expected.top, expected.residual_top), strict=True
    ):
        assert [c.prob for c in ours] == pytest.approx([c.prob for c in theirs], abs=1e-6)
    # It took a random number exactly when the separate draw did.
    assert found.certain == torch.equal(streams.next.get_state(), before)


def test_rows_that_agree_up_to_rounding_fall_back_on_the_targets_law():
    """p = q everywhere, and still a loss: the residual has no mass then."""
    sampler = Sampler(Settings(temperature=1.0))
    judgement = Judgement(1, sampler, Place())
    logits = torch.randn(2, 11, generator=torch.Generator().manual_seed(0))
    p = sampler.probs(logits, [1, 1])
    judgement.load(p[0].argmax()[None], p[:1] * 1.5, Streams.seeded(0, CPU))  # q too large: lost
    judgement._u.fill_(0.99)
    found = Found.of(judgement(logits)[0].tolist(), 1)
    assert found.num_accepted == 0
    assert found.residual_top[0][1] == pytest.approx(float(p[0].max()))


def proposer_of(method, sampler, generator):
    match method:
        case "draft":
            return DraftModel(DRAFT, sampler, generator, vocab_size=VOCAB)
        case "mtp":
            return MTP(PARTS, sampler, generator)
        case "lookup":
            return PromptLookup(vocab_size=VOCAB, device=CPU)
    return Nothing(vocab_size=VOCAB, device=CPU)


PARTS = mtp_parts(NETWORK)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("method", ["plain", "draft", "mtp", "lookup"])
def test_a_run_has_the_events_of_the_eager_step(method, law):
    def events(kind):
        chosen = Settings(gamma=0 if method == "plain" else 3, max_new_tokens=40, **LAWS[law])
        target = StaticModel(copy.deepcopy(NETWORK), Replaying())
        streams, sampler = Streams.seeded(5, CPU), Sampler(chosen)
        proposer = proposer_of(method, sampler, streams.draft)
        codec = ToyCodec(VOCAB)
        step = kind(target, proposer, codec, sampler, streams)
        first = started([1, 2, 3, 1, 2, 3, 1], chosen)
        return list(decode(target, proposer, codec, first, streams=streams, step=step))

    ours, theirs = events(FusedStep), events(EagerStep)
    assert ours[-1] == theirs[-1]
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Verified):
            assert alike(one.round, other.round)


def alike(one, other):
    """Compare rounds; numbers that are only looked at may differ by rounding."""
    looks = ("p", "accept_prob", "overlap", "entropy", "top2_gap", "top", "residual_top")
    blank = dict.fromkeys(looks, ())
    for name in looks[:5]:
        assert getattr(one.verdict, name) == pytest.approx(getattr(other.verdict, name), abs=1e-4)
    same_seconds = dataclasses.replace(one, seconds=other.seconds)
    without = [
        dataclasses.replace(done, verdict=dataclasses.replace(done.verdict, **blank))
        for done in (same_seconds, other)
    ]
    return without[0] == without[1]


def test_a_judgement_is_recorded_once_for_all_runs_under_one_law():
    record = Replaying()
    target = StaticModel(copy.deepcopy(NETWORK), record)

    def run(**law):
        chosen = Settings(gamma=2, max_new_tokens=30, **law)
        streams, sampler = Streams.seeded(5, CPU), Sampler(chosen)
        proposer = proposer_of("draft", sampler, streams.draft)
        codec = ToyCodec(VOCAB)
        first = started([1, 2, 3, 1], chosen)
        list(decode(target, proposer, codec, first, streams=streams))
        return record.recorded

    once = run(temperature=1.0)
    assert run(temperature=1.0) == once
    assert run(temperature=0.5) > once
    for number in range(2 * MOST_CONTINUATIONS):
        run(temperature=0.5 + 0.01 * number)
    assert len(target._continuations) == MOST_CONTINUATIONS


@pytest.mark.parametrize(
    ("target", "chosen", "rule", "expected"),
    [
        (StaticModel(copy.deepcopy(NETWORK)), Settings(), verify, FusedStep),
        (StaticModel(copy.deepcopy(NETWORK)), Settings(repetition_penalty=1.2), verify, EagerStep),
        (
            StaticModel(copy.deepcopy(NETWORK)),
            Settings(),
            next(rule for name, rule in RULES.items() if name != "exact"),
            EagerStep,
        ),
        (HFModel(NETWORK), Settings(), verify, EagerStep),
    ],
    ids=["fixed", "penalty", "wrong rule", "growing cache"],
)
def test_the_step_follows_what_is_asked(target, chosen, rule, expected):
    streams = Streams.seeded(0, CPU)
    nothing = Nothing(vocab_size=VOCAB, device=CPU)
    step = step_for(target, nothing, ToyCodec(VOCAB), Sampler(chosen), streams, rule)
    assert type(step) is expected
