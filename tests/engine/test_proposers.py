"""One contract for every proposer, and what is particular to each.

A new proposer joins `PROPOSERS`; everything in the first half then runs over it.
"""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.toy import ToyCodec, ToyModel
from engine.proposers.base import Context
from engine.proposers.draft_model import DraftModel
from engine.proposers.eagle3 import Eagle3
from engine.proposers.early_exit import first_layers
from engine.proposers.mtp import MTP, Depth
from engine.proposers.mtp_depths import MTPDepths
from engine.proposers.nothing import Nothing
from engine.proposers.prompt_lookup import PromptLookup, find_latest
from engine.proposers.synthetic import Synthetic
from engine.sampling import Sampler
from tests.engine.tiny import (
    CPU,
    VOCAB,
    argmax_decode,
    finished,
    llama,
    mtp_parts,
    rounds,
    run,
    tiny_eagle3_parts,
    tiny_pair,
    toy_pair,
)

PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]

PROPOSERS = {
    "nothing": lambda s, g: Nothing(vocab_size=VOCAB, device=CPU),
    "draft model": lambda s, g: DraftModel(tiny_pair().draft, s, g, vocab_size=VOCAB),
    "small draft model": lambda s, g: DraftModel(HFModel(llama(vocab=90)), s, g, vocab_size=VOCAB),
    "mtp": lambda s, g: MTP(tiny_pair().mtp, s, g),
    "mtp of three modules": lambda s, g: MTPDepths(three_modules(), s, g),
    "eagle3": lambda s, g: Eagle3(tiny_eagle3_parts(tiny_pair().target.model), s, g),
    "early exit": lambda s, g: DraftModel(
        first_layers(tiny_pair().target, 1), s, g, vocab_size=VOCAB
    ),
    "prompt lookup": lambda s, g: PromptLookup(vocab_size=VOCAB, device=CPU),
    "synthetic": lambda s, g: Synthetic(tiny_pair().target, s, g, alpha=0.7),
}


def three_modules():
    target = tiny_pair().target.model
    first, *others = (mtp_parts(target, seed=seed) for seed in range(3))
    deeper = tuple(Depth(each.module, each.head) for each in others)
    return dataclasses.replace(first, deeper=deeper)


class Driver:
    """Gives a proposer the contexts and features that the loop would."""

    def __init__(self, name, *, seed=0, **chosen):
        self.model = tiny_pair().target
        self.model.forget()
        generator = torch.Generator().manual_seed(seed)
        self.proposer = PROPOSERS[name](Sampler(Settings(**chosen)), generator)
        self._seen = 0

    def propose(self, ids, gamma):
        taps = self.proposer.taps
        self.model.tap(taps)
        new = len(ids) - 1 - self._seen
        features = torch.empty(0, 0)
        if taps and new:
            features = self.model.read(ids[:-1], features=new).features
        context = Context(ids, features, self._seen if taps else 0)
        self._seen = len(ids) - 1
        return self.proposer.propose(context, gamma)


@pytest.mark.parametrize(
    "chosen", [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 3}], ids=str
)
@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("name", PROPOSERS)
def test_a_proposal_is_short_enough_and_could_have_been_drawn(name, gamma, chosen):
    driver = Driver(name, **chosen)
    for ids in (PROMPT, [*PROMPT, 5], [*PROMPT, 5, 96, 1]):
        draft = driver.propose(ids, gamma)
        assert len(draft) <= gamma
        assert draft.probs.shape == (len(draft), VOCAB)
        assert torch.allclose(draft.probs.sum(-1), torch.ones(len(draft)), atol=1e-5)
        q = draft.probs[torch.arange(len(draft)), draft.token_ids]
        assert (q > 0).all()
        if not chosen and name != "synthetic":  # greedy: nothing is left to chance
            assert (q == 1).all()


@pytest.mark.parametrize("name", PROPOSERS)
def test_gamma_0_reads_the_context_and_proposes_nothing(name):
    driver, direct = Driver(name, temperature=1.0), Driver(name, temperature=1.0)
    assert len(driver.propose(PROMPT, 0)) == 0
    assert len(driver.propose([*PROMPT, 5, 1, 2], 0)) == 0
    after, at_once = driver.propose([*PROMPT, 5, 1, 2], 3), direct.propose([*PROMPT, 5, 1, 2], 3)
    assert after.token_ids.tolist() == at_once.token_ids.tolist()
    assert torch.allclose(after.probs, at_once.probs, atol=1e-5)


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_one_token_prompt_can_be_continued(name):
    driver = Driver(name)
    # The target's first token is there before anybody proposes.
    assert len(driver.propose([4, 5], 2)) <= 2
    assert len(driver.propose([4, 5, 4], 2)) <= 2


@pytest.mark.parametrize("name", PROPOSERS)
def test_what_was_rejected_leaves_no_trace(name):
    driver, direct = Driver(name), Driver(name)
    context = list(PROMPT)
    for token in (7, 8, 1, 2):
        driver.propose(context, 4)
        context.append(token)
    after, at_once = driver.propose(context, 4), direct.propose(context, 4)
    assert torch.allclose(after.probs[:1], at_once.probs[:1], atol=1e-5)
    if name != "synthetic":  # it draws even in greedy runs, and has drawn more by now
        assert after.token_ids.tolist() == at_once.token_ids.tolist()
    if after.logits is not None:
        assert torch.allclose(after.logits, at_once.logits, atol=1e-4)


@pytest.mark.parametrize("name", PROPOSERS)
def test_the_first_drafted_token_is_drawn_from_the_q_that_is_returned(name):
    chosen = {"temperature": 1.3, "top_k": 4, "repetition_penalty": 1.2}
    driver = Driver(name, seed=3, **chosen)
    counts = torch.zeros(VOCAB)
    drafts = [driver.propose(PROMPT, 1) for _ in range(400)]
    for draft in drafts:
        assert torch.allclose(draft.probs, drafts[0].probs, atol=1e-5)
        counts[draft.token_ids] += 1
    if name == "nothing":
        assert counts.sum() == 0
    else:
        assert float((counts / 400 - drafts[0].probs[0]).abs().sum() / 2) < 0.08


@pytest.mark.parametrize("name", PROPOSERS)
def test_numbers_come_only_from_the_generator_it_was_built_with(name):
    def tokens(seed):
        return Driver(name, seed=seed, temperature=1.5).propose(PROMPT, 4).token_ids.tolist()

    before = torch.random.get_rng_state()
    assert tokens(1) == tokens(1)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- stopping when unsure ---

MODEL_PROPOSERS = ("draft model", "small draft model", "mtp", "eagle3", "early exit")


def confidences(draft):
    """What the model itself gave every token that it drafted."""
    probs = torch.softmax(draft.logits, -1)
    return probs[torch.arange(len(draft)), draft.token_ids].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", MODEL_PROPOSERS)
def test_a_draft_ends_with_the_first_unsure_token(name, temperature):
    lengths = set()
    for seed in range(4):
        prompt = [*PROMPT, seed]
        whole = Driver(name, seed=seed, temperature=temperature).propose(prompt, 8)
        sure = confidences(whole)
        for cut in (0.0, *sure, *(min(value + 1e-4, 1.0) for value in sure), 0.5, 1.0):
            first = next((i for i, value in enumerate(sure) if value < cut), 7)
            driver = Driver(name, seed=seed, temperature=temperature, confidence=cut)
            draft = driver.propose(prompt, 8)
            assert draft.token_ids.tolist() == whole.token_ids.tolist()[: first + 1]
            assert torch.allclose(draft.probs, whole.probs[: first + 1], atol=1e-5)
            lengths.add(len(draft))
    assert {1, 8} < lengths


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("name", MODEL_PROPOSERS)
def test_a_model_that_is_never_sure_enough_proposes_one_token(name, gamma):
    for temperature in (0.0, 1.0):
        draft = Driver(name, temperature=temperature, confidence=1.0).propose(PROMPT, gamma)
        assert len(draft) == 1


@pytest.mark.parametrize("name", MODEL_PROPOSERS)
def test_a_short_draft_leaves_no_trace(name):
    stopped, direct = Driver(name, confidence=0.6), Driver(name, confidence=0.6)
    context = list(PROMPT)
    for token in (7, 8, 1, 2):
        stopped.propose(context, 6)
        context.append(token)
    after, at_once = stopped.propose(context, 6), direct.propose(context, 6)
    assert after.token_ids.tolist() == at_once.token_ids.tolist()
    assert torch.allclose(after.logits, at_once.logits, atol=1e-4)


@pytest.mark.parametrize("method", ["mtp", "draft"])
def test_the_greedy_text_is_the_same_at_any_cut_and_the_drafts_are_not(method):
    def run_with(cut):
        chosen = Settings(gamma=5, max_new_tokens=40, confidence=cut)
        return list(tiny_pair().run(method, "abcabd", chosen))

    plain = finished(list(tiny_pair().run("plain", "abcabd", Settings(max_new_tokens=40))))
    drafted = []
    for cut in (0.0, 0.05, 0.3, 0.6, 0.9, 1.0):
        events = run_with(cut)
        assert finished(events).token_ids == plain.token_ids
        done = rounds(events)
        drafted.append(max(len(r.proposal.tokens) for r in done))
    assert drafted[0] == 5
    assert drafted[-1] == 1


def test_confidence_is_the_models_own_before_the_users_processors():
    logits = torch.tensor([[2.0, 1.0, 0.0, -torch.inf]])
    own = torch.softmax(logits[0], -1)[1].item()
    hot = Sampler(Settings(temperature=9.0, top_k=1, confidence=own + 1e-4))
    assert hot.is_unsure(logits, 1)
    assert not Sampler(Settings(temperature=0.1, confidence=own - 1e-4)).is_unsure(logits, 1)
    assert Sampler(Settings(confidence=1e-6)).is_unsure(logits, 3)
    assert not Sampler(Settings()).is_unsure(logits, 3)


# --- draft model ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 8])
def test_a_target_that_drafts_for_itself_is_always_accepted(gamma, temperature):
    pair = dataclasses.replace(tiny_pair(), draft=HFModel(llama()))
    chosen = Settings(gamma=gamma, max_new_tokens=40, temperature=temperature)
    done = rounds(list(pair.run("draft", "abcabd", chosen)))
    # Sampling accepts when u < p / q, and p / q is 1 up to the rounding of one row against many.
    assert all(r.verdict.num_accepted == len(r.proposal.tokens) for r in done)
    assert {r.verdict.next_source for r in done} <= {"bonus", "target"}


def test_a_context_behind_by_one_token_is_not_accepted_always():
    """The check above would notice a draft model that missed its own last token."""

    class Behind(DraftModel):
        def _read(self, ids, committed):
            return super()._read(ids[:-1] if len(ids) > 8 else ids, committed)

    target = tiny_pair().target
    proposer = Behind(HFModel(llama()), Sampler(Settings()), torch.Generator(), vocab_size=VOCAB)
    done = rounds(run(target, proposer, PROMPT, Settings(gamma=3, max_new_tokens=30)))
    assert any(r.verdict.num_accepted < len(r.proposal.tokens) for r in done)


def test_the_draft_model_keeps_pace_without_reading_anything_twice():
    pair = dataclasses.replace(tiny_pair(), draft=HFModel(llama()))
    forwarded = []
    read = pair.draft.read

    def counting(*args, **options):
        reading = read(*args, **options)
        forwarded.append(reading.num_forwarded)
        return reading

    pair.draft.read = counting
    list(pair.run("draft", "abcabd", Settings(gamma=3, max_new_tokens=41)))
    assert forwarded[:4] == [6, 1, 1, 1]  # the prompt, then token by token
    assert max(forwarded[1:]) == 2  # after a clean sweep: its own last token and the bonus


# --- prompt lookup ---


@given(
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=14),
    longest=st.integers(1, 4),
)
@settings(deadline=None)
def test_lookup_finds_the_longest_and_then_latest_match(ids, longest):
    start, size = find_latest(ids, longest)
    candidates = [
        (n, at + n)
        for n in range(1, min(longest, len(ids) - 1) + 1)
        for at in range(len(ids) - n)
        if ids[at : at + n] == ids[-n:]
    ]
    assert (size, start) == max(candidates, default=(0, 0))


def test_lookup_copies_what_followed_and_says_where_it_found_it():
    proposer = PromptLookup(vocab_size=10, device=CPU)
    draft = proposer.propose(Context([1, 2, 3, 4, 9, 1, 2, 3], torch.empty(0, 0), 0), 3)
    assert draft.token_ids.tolist() == [4, 9, 1]
    assert draft.note == "3 tokens matched at 0"
    assert torch.equal(draft.probs, torch.eye(10)[[4, 9, 1]])


def test_lookup_proposes_nothing_for_a_token_that_is_new():
    proposer = PromptLookup(vocab_size=10, device=CPU)
    assert len(proposer.propose(Context([1, 2, 3], torch.empty(0, 0), 0), 3)) == 0


# --- synthetic ---


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_synthetic_overlaps_with_the_target_by_alpha(alpha):
    target = ToyModel(8, sharpness=1.0)
    chosen = Sampler(Settings(temperature=1.0))
    proposer = Synthetic(target, chosen, torch.Generator().manual_seed(0), alpha=alpha)
    for ids in itertools.product(range(3), repeat=2):
        draft = proposer.propose(Context(list(ids), torch.empty(0, 0), 0), 1)
        p = chosen.probs(target.read(list(ids)).logits, ids)[0]
        least = float(p.min())
        overlap = float(torch.minimum(draft.probs[0], p).sum())
        # q = alpha p everywhere but at the least likely token, where q >= p.
        assert overlap == pytest.approx(alpha * (1 - least) + least, abs=1e-5)


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_synthetic_falls_on_the_closed_form(gamma):
    # 60 tokens, so that the least likely one adds nothing to alpha.
    target, alpha = ToyModel(60, order=1), 0.7
    chosen = Settings(gamma=gamma, temperature=1.0, max_new_tokens=900, alpha=alpha)
    pair = dataclasses.replace(toy_pair(), target=target, codec=ToyCodec(60))
    done = rounds(list(pair.run("synthetic", "abc", chosen)))[:-3]  # the last may be shorter
    length = sum(r.verdict.num_accepted + 1 for r in done) / len(done)
    assert length == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha), rel=0.08)
    assert done[0].verdict.overlap[0] == pytest.approx(alpha, abs=0.01)


def test_synthetic_refuses_an_alpha_outside_0_and_1():
    with pytest.raises(ValueError, match="alpha"):
        Synthetic(ToyModel(), Sampler(Settings()), torch.Generator(), alpha=1.1)


# --- mtp (its numbers are in test_mtp.py) ---


def test_mtp_refuses_features_that_do_not_continue_where_it_stopped():
    proposer = MTP(mtp_parts(llama()), Sampler(Settings()), torch.Generator())
    proposer.propose(Context([1, 2, 3], torch.zeros(2, 32), 0), 1)
    for features, start in (
        (torch.zeros(2, 32), 0),
        (torch.zeros(2, 32), 2),
        (torch.zeros(0, 32), 2),
    ):
        with pytest.raises(ValueError, match="features"):
            proposer.propose(Context([1, 2, 3, 4], features, start), 1)


def test_runs_do_not_share_a_proposer():
    pair, chosen = tiny_pair(), Settings(gamma=2, max_new_tokens=15, temperature=1.0)
    first = finished(list(pair.run("mtp", "abc", chosen))).token_ids
    list(pair.run("mtp", "xyz", chosen))
    assert finished(list(pair.run("mtp", "abc", chosen))).token_ids == first


def test_masked_ids_are_never_drafted_and_the_text_stays_the_targets():
    network = llama()
    masked = torch.arange(0, VOCAB, 2)
    for temperature in (0.0, 1.0):
        chosen = Settings(gamma=3, max_new_tokens=30, temperature=temperature)
        proposer = DraftModel(
            HFModel(llama(vocab=VOCAB + 8)), Sampler(chosen), torch.Generator(),
            vocab_size=VOCAB, masked=masked,
        )  # fmt: skip
        events = run(HFModel(network), proposer, PROMPT, chosen)
        drafted = [token.id for done in rounds(events) for token in done.proposal.tokens]
        assert drafted
        assert all(token % 2 == 1 and token < VOCAB for token in drafted)
        if not temperature:
            assert list(finished(events).token_ids) == argmax_decode(network, PROMPT, 30)
