import dataclasses
import itertools
import threading
from collections import Counter
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import Drafted, Finished, Prefilled, Settings, Started, Verified
from engine.models.hf import HFModel
from engine.models.toy import ToyCodec, ToyModel
from engine.proposers.draft_model import DraftModel
from engine.runtime import LoadedPair
from engine.sampling import Sampler, Streams
from engine.text import Codec
from engine.verify import Decision, verify
from tests.engine.tiny import (
    CPU,
    METHODS,
    Replay,
    argmax_decode,
    emitted,
    finished,
    llama,
    nothing,
    rounds,
    run,
    tiny_pair,
    toy_pair,
)

PROMPT = "abcabdabc"
PROMPT_IDS = ToyCodec(97).encode(PROMPT)


@pytest.fixture(scope="module")
def greedy():
    """The greedy continuation of PROMPT, from passes without a cache."""
    return argmax_decode(tiny_pair().target.model, PROMPT_IDS, 60)


def timeless(events):
    """Events without their times."""
    out = []
    for event in events:
        match event:
            case Prefilled():
                event = dataclasses.replace(event, seconds=0.0, proposer_seconds=0.0)
            case Drafted():
                event = dataclasses.replace(event, seconds=0.0)
            case Verified():
                event = dataclasses.replace(event.round, seconds=None)
        out.append(event)
    return out


# --- greedy equality ---


def test_the_reference_is_what_transformers_generate_gives(greedy):
    model = tiny_pair().target.model
    out = model.generate(torch.tensor([PROMPT_IDS]), max_new_tokens=60, do_sample=False)
    assert out[0, len(PROMPT_IDS) :].tolist() == greedy
    assert len(set(greedy)) > 10  # a text that repeats one token would prove little


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_every_proposer_gives_the_plain_greedy_text(method, gamma, greedy):
    events = list(tiny_pair().run(method, PROMPT, Settings(gamma=gamma, max_new_tokens=60)))
    assert list(finished(events).token_ids) == greedy
    assert emitted(events) == greedy
    assert finished(events).reason == "length"


def test_the_tiny_draft_agrees_sometimes():
    events = tiny_pair().run("draft", PROMPT, Settings(gamma=4, max_new_tokens=60))
    accepted = Counter(done.verdict.num_accepted for done in rounds(list(events)))
    assert len(accepted) >= 3


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_of_one_token_is_enough(method):
    events = list(tiny_pair().run(method, "a", Settings(gamma=3, max_new_tokens=20)))
    expected = argmax_decode(tiny_pair().target.model, [0], 20)
    assert list(finished(events).token_ids) == expected


@pytest.mark.parametrize("vocab", [90, 105])
def test_a_draft_model_with_another_vocabulary_size_changes_no_text(vocab, greedy):
    pair = dataclasses.replace(tiny_pair(), draft=HFModel(llama(vocab=vocab, seed=3)))
    events = list(pair.run("draft", PROMPT, Settings(gamma=3, max_new_tokens=60)))
    assert list(finished(events).token_ids) == greedy


@given(wrong=st.sets(st.integers(0, 310), max_size=150), gamma=st.integers(1, 8))
@settings(deadline=None, max_examples=6)
def test_hundreds_of_tokens_survive_any_accept_pattern(wrong, gamma):
    target = tiny_pair().target
    whole = long_text()
    start = len(PROMPT_IDS)
    proposer = Replay(whole, frozenset(start + i for i in wrong))
    events = run(target, proposer, PROMPT_IDS, Settings(gamma=gamma, max_new_tokens=300))
    assert list(finished(events).token_ids) == whole[start : start + 300]
    for done in rounds(events):
        assert done.num_cut == 0
        assert done.num_forwarded == len(done.proposal.tokens) + 1


@cache
def long_text():
    """PROMPT and 310 greedy tokens, by cached plain decoding."""
    events = run(tiny_pair().target, nothing(), PROMPT_IDS, Settings(gamma=0, max_new_tokens=310))
    return [*PROMPT_IDS, *finished(events).token_ids]


# --- what a run looks like ---


@pytest.mark.parametrize("method", METHODS)
def test_events_come_in_the_promised_order(method):
    events = list(tiny_pair().run(method, PROMPT, Settings(gamma=2, max_new_tokens=20)))
    assert isinstance(events[0], Started)
    assert isinstance(events[1], Prefilled)
    assert isinstance(events[-1], Finished)
    for index, done in enumerate(rounds(events)):
        assert done.index == index
        before = events[events.index(Verified(done)) - 1]
        assert isinstance(before, Drafted) == bool(done.proposal.tokens)
        if isinstance(before, Drafted):
            assert (before.index, before.proposal) == (index, done.proposal)
        assert len(done.verdict.p) == len(done.proposal.tokens) <= done.gamma <= 2
        assert len(done.verdict.entropy) == len(done.proposal.tokens) + 1
        assert done.seconds.total > 0


def test_text_pieces_and_ids_tell_the_same_story():
    events = list(tiny_pair().run("draft", PROMPT, Settings(gamma=3, max_new_tokens=30)))
    released = events[1].text + "".join(done.text for done in rounds(events))
    pieces = [*events[1].pieces, *(p for done in rounds(events) for p in done.pieces)]
    assert released + finished(events).tail == finished(events).text == "".join(pieces)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_events(method, temperature):
    chosen = Settings(gamma=3, max_new_tokens=25, temperature=temperature, seed=5, top_k=20)
    first = timeless(tiny_pair().run(method, PROMPT, chosen))
    list(tiny_pair().run("draft", "zzz", Settings(temperature=1.0, max_new_tokens=5)))
    assert timeless(tiny_pair().run(method, PROMPT, chosen)) == first


def test_another_seed_gives_another_sample_and_the_same_greedy_text():
    def ids(**chosen):
        events = list(tiny_pair().run("draft", PROMPT, Settings(max_new_tokens=25, **chosen)))
        return finished(events).token_ids

    assert ids(temperature=1.0, seed=1) != ids(temperature=1.0, seed=2)
    assert ids(seed=1) == ids(seed=2)


def test_top_1_is_greedy_for_every_method(greedy):
    for method in METHODS:
        chosen = Settings(gamma=3, max_new_tokens=20, temperature=1.0, top_k=1)
        assert (
            list(finished(list(tiny_pair().run(method, PROMPT, chosen))).token_ids) == (greedy[:20])
        )


def test_a_repetition_penalty_gives_the_text_of_transformers_generate():
    model = tiny_pair().target.model
    out = model.generate(
        torch.tensor([PROMPT_IDS]), max_new_tokens=30, do_sample=False, repetition_penalty=1.5
    )
    for method in METHODS:
        chosen = Settings(gamma=3, max_new_tokens=30, repetition_penalty=1.5)
        events = list(tiny_pair().run(method, PROMPT, chosen))
        assert list(finished(events).token_ids) == out[0, len(PROMPT_IDS) :].tolist()


# --- where a run ends ---


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("method", METHODS)
def test_no_run_goes_past_its_cap(method, cap, greedy):
    events = list(tiny_pair().run(method, PROMPT, Settings(gamma=4, max_new_tokens=cap)))
    assert list(finished(events).token_ids) == greedy[:cap]
    assert finished(events).reason == "length"
    assert all(len(done.proposal.tokens) <= cap - 2 for done in rounds(events))


def with_eos(pair: LoadedPair, *eos: int) -> Codec:
    codec = ToyCodec(pair.target.vocab_size)
    codec.eos_ids = frozenset(eos)
    return codec


@pytest.mark.parametrize("place", range(1, 7))
def test_eos_ends_the_text_wherever_it_lies_in_an_accepted_block(place, greedy):
    eos = greedy[place]
    end = greedy.index(eos) + 1
    unused = next(i for i in range(97) if i not in greedy)
    pair = tiny_pair()
    events = run(
        pair.target,
        Replay([*PROMPT_IDS, *greedy]),
        PROMPT_IDS,
        Settings(gamma=5, max_new_tokens=50),
        codec=with_eos(pair, eos, unused),
    )
    assert list(finished(events).token_ids) == emitted(events) == greedy[:end]
    assert (finished(events).reason, finished(events).num_hidden) == ("eos", 1)
    produced = 1 + sum(done.verdict.num_accepted + 1 for done in rounds(events))
    assert sum(done.num_cut for done in rounds(events)) == produced - end


def test_an_eos_that_the_target_does_not_choose_does_not_end_the_text(greedy):
    place = next(i for i in range(1, 9) if (greedy[i] + 1) % 97 not in greedy[:10])
    proposer = Replay([*PROMPT_IDS, *greedy], frozenset({len(PROMPT_IDS) + place}))
    events = run(
        tiny_pair().target,
        proposer,
        PROMPT_IDS,
        Settings(gamma=5, max_new_tokens=10),
        codec=with_eos(tiny_pair(), (greedy[place] + 1) % 97),
    )
    assert list(finished(events).token_ids) == greedy[:10]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_every_stop_string_ends_the_text_in_the_middle_of_a_block(size, gamma, greedy):
    letters = ToyCodec(97)
    text = "".join(map(letters.label, greedy))
    for start in range(12):
        stop = text[start : start + size]
        begin = text.find(stop)
        proposer = Replay([*PROMPT_IDS, *greedy])
        chosen = Settings(gamma=gamma, max_new_tokens=40, stop=(stop,))
        events = run(tiny_pair().target, proposer, PROMPT_IDS, chosen)
        end = finished(events)
        assert (end.reason, end.text) == ("stop", text[:begin])
        assert list(end.token_ids) == emitted(events) == greedy[: begin + size]
        assert end.num_hidden == size
        released = events[1].text + "".join(done.text for done in rounds(events)) + end.tail
        assert released == end.text


@pytest.mark.parametrize("method", METHODS)
def test_a_full_context_ends_the_run(method):
    pair = tiny_pair(max_length=20)
    events = list(pair.run(method, PROMPT, Settings(gamma=4, max_new_tokens=100)))
    assert finished(events).reason == "context"
    length = len(PROMPT_IDS) + 1
    for done in rounds(events):
        length += len(done.proposal.tokens)
        assert length <= 20  # the target never reads more
        length += len(done.output) - len(done.proposal.tokens)
    assert length in (20, 21)
    expected = argmax_decode(pair.target.model, PROMPT_IDS, len(finished(events).token_ids))
    assert list(finished(events).token_ids) == expected


def test_a_draft_model_with_a_shorter_context_stops_proposing_and_the_run_goes_on(greedy):
    pair = dataclasses.replace(tiny_pair(), draft=HFModel(llama(noise=0.03, max_length=15)))
    events = list(pair.run("draft", PROMPT, Settings(gamma=4, max_new_tokens=30)))
    assert list(finished(events).token_ids) == greedy[:30]
    assert rounds(events)[0].proposal.tokens
    assert not rounds(events)[-1].proposal.tokens


def test_a_cancelled_run_ends_within_one_round():
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > 3

    events = list(tiny_pair().run("draft", PROMPT, Settings(gamma=2), cancelled=cancelled))
    assert finished(events).reason == "cancelled"
    assert len(rounds(events)) == 3
    assert emitted(events) == list(finished(events).token_ids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_events", [1, 2, 3, 4, 5])
def test_a_run_closed_early_leaves_the_models_as_good_as_new(method, num_events, greedy):
    pair = tiny_pair()
    unfinished = pair.run(method, PROMPT, Settings(gamma=3, max_new_tokens=30))
    for _ in range(num_events):
        next(unfinished)
    unfinished.close()
    events = list(pair.run(method, PROMPT, Settings(gamma=3, max_new_tokens=30)))
    assert list(finished(events).token_ids) == greedy[:30]
    # Synthetic reads with the target itself.
    assert rounds(events)[0].num_rolled_back == (3 if method == "synthetic" else 0)


def test_the_prompt_of_a_second_run_is_read_again():
    pair = toy_pair()
    read = []
    pair.target.read = lambda *a, _read=pair.target.read, **k: (
        read.append(_read(*a, **k)) or (read[-1])
    )
    for _ in range(2):
        read.clear()
        list(pair.run("plain", "abcd", Settings(max_new_tokens=2)))
        assert read[0].num_forwarded == 4


# --- the policy, and features that wait ---


class Script:
    """Asks for the draft lengths of a list, then for the last one."""

    def __init__(self, *gammas):
        self.gammas = list(gammas)
        self.seen = []

    def next_gamma(self):
        return self.gammas.pop(0) if len(self.gammas) > 1 else self.gammas[0]

    def observe(self, num_drafted, num_accepted):
        self.seen.append((num_drafted, num_accepted))


def test_the_loop_asks_the_policy_and_tells_it_what_happened(greedy):
    policy = Script(0, 0, 2, 3)
    proposer = Replay([*PROMPT_IDS, *greedy], frozenset({len(PROMPT_IDS) + 4}))
    chosen = Settings(gamma=3, max_new_tokens=9)
    events = run(tiny_pair().target, proposer, PROMPT_IDS, chosen, policy=policy)
    assert [done.gamma for done in rounds(events)] == [0, 0, 2, 3]
    assert policy.seen == [(0, 0), (0, 0), (2, 1), (3, 3)]
    assert proposer.gammas == [0, 2, 3]  # prefill, then only rounds that draft


@pytest.mark.parametrize("method", ["mtp", "draft"])
def test_rounds_without_a_draft_cost_no_acceptance_later(method):
    pair = tiny_pair()
    chosen = Settings(gamma=4, max_new_tokens=40)
    after_pause = list(pair.run(method, PROMPT, chosen, policy=Script(0, 0, 0, 0, 0, 4)))
    ids = list(finished(after_pause).token_ids)
    proposal = rounds(after_pause)[5].proposal
    # The same context reached in one go must be continued by the same proposal.
    context = [*PROMPT_IDS, *ids[:6]]
    streams = Streams.seeded(0, CPU)
    proposer = pair.proposer(method, Sampler(chosen), streams.draft)
    fresh = run(pair.target, proposer, context[:-1], chosen, streams=streams)
    assert emitted(fresh)[0] == context[-1]
    assert rounds(fresh)[0].proposal.tokens == proposal.tokens
    for ours, theirs in zip(rounds(fresh)[0].proposal.top, proposal.top, strict=True):
        probs = [choice.prob for choice in theirs]
        assert [choice.prob for choice in ours] == pytest.approx(probs, abs=1e-4)


# --- threads and modes ---


@pytest.mark.parametrize("method", METHODS)
def test_the_run_may_be_resumed_from_any_thread_and_leaves_torch_modes_alone(method, greedy):
    events = []
    source = tiny_pair().run(method, PROMPT, Settings(gamma=2, max_new_tokens=12))

    def one_more():
        events.extend(event for event in [next(source, None)] if event)

    while not events or not isinstance(events[-1], Finished):
        thread = threading.Thread(target=one_more)
        thread.start()
        thread.join()
        one_more()
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert list(finished(events).token_ids) == greedy[:12]


# --- the law of a run ---


def pair_distance(rule):
    """Total variation between the second and third token of many runs and their exact law."""
    target, draft = ToyModel(3, seed=3), ToyModel(3, seed=3, noise=3.0)
    streams = Streams.seeded(11, CPU)
    chosen = Settings(gamma=2, max_new_tokens=4, temperature=1.0)
    counts, law = torch.zeros(3, 3), torch.zeros(3, 3)
    for _ in range(1200):
        proposer = DraftModel(draft, Sampler(chosen), streams.draft, vocab_size=3)
        events = run(target, proposer, [0, 1], chosen, streams=streams, rule=rule)
        # The first token comes from prefill; the others from rounds.
        _, second, third, _ = finished(events).token_ids
        counts[second, third] += 1
    for first, second in itertools.product(range(3), repeat=2):
        context, mass = [0, 1], 1.0
        for token in (first, second):
            mass *= float(torch.softmax(target.read(context).logits[0], -1)[token])
            context.append(token)
        law[second] += mass * torch.softmax(target.read(context).logits[0], -1)
    return float((counts / counts.sum() - law).abs().sum() / 2)


def test_sampled_pairs_of_tokens_have_the_targets_law():
    assert pair_distance(verify) < 0.05


def test_the_same_count_finds_a_wrong_residual():
    def wrong(token_ids, q, p, u):
        right = verify(token_ids, q, p, u)
        return Decision(*right[:2], p[right.num_accepted], right.next_source)

    assert pair_distance(wrong) > 0.08
