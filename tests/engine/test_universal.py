"""Drafts travel as text between two tokenizers: exact whatever the draft model says."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.toy import ToyModel
from engine.proposers.base import Context
from engine.proposers.universal import Universal
from engine.sampling import Sampler
from engine.text import HFCodec
from engine.verify import verify
from tests.engine.tiny import CPU, argmax_decode, finished, llama, rounds, run

LETTERS = sorted(ByteLevel.alphabet())
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "t"), ("c", "at")]


def codec(merges, *, reverse=False):
    """Return a tokenizer of every byte with merges of its own; `reverse` numbers it otherwise."""
    words = [*(reversed(LETTERS) if reverse else LETTERS), *("".join(pair) for pair in merges)]
    words.append("<end>")
    backend = Tokenizer(BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    return HFCodec(tokenizer, frozenset({len(words) - 1}))


OURS, THEIRS = codec(MERGES[:3]), codec(MERGES[3:], reverse=True)
VOCAB = len(OURS.vocabulary())
NO_FEATURES = torch.empty(0, 0)


class Says:
    """A draft model that knows a text by heart, in its own tokens."""

    max_length = 400
    device = CPU

    def __init__(self, text, spelled_by=THEIRS):
        self.ids = [*spelled_by.spell(text), min(spelled_by.eos_ids)]
        self.vocab_size = len(spelled_by.vocabulary())
        self.longest = 0

    def forget(self):
        pass

    def read(self, token_ids, *, want=1, features=0, committed=None):
        self.longest = max(self.longest, len(token_ids))
        logits = torch.zeros(1, self.vocab_size)
        logits[0, self.ids[min(len(token_ids), len(self.ids) - 1)]] = 1.0
        return type("Reading", (), {"logits": logits})()


def proposer(model):
    return Universal(model, THEIRS, OURS, vocab_size=VOCAB, device=CPU)


def proposed(model, text, gamma):
    context = Context(OURS.spell(text), NO_FEATURES, 0)
    draft = proposer(model).propose(context, gamma)
    return draft, OURS.decode(draft.token_ids.tolist())


def test_what_the_draft_model_says_is_proposed_in_the_targets_tokens():
    draft, text = proposed(Says("a cat and the hat"), "a cat", 6)
    assert text == " and the "
    assert draft.token_ids.tolist() == OURS.spell(" and the hat")[:6]
    assert torch.equal(draft.probs.argmax(1), draft.token_ids)
    assert torch.equal(draft.probs.sum(1), torch.ones(len(draft)))
    assert draft.probs.max() == 1


def test_an_end_of_the_draft_model_ends_the_proposal_and_nothing_special_is_proposed():
    assert proposed(Says("a cat."), "a cat", 8)[1] == "."
    assert proposed(Says("a cat<end>"), "a cat", 8)[0].token_ids.tolist() == []


def test_half_a_character_is_not_proposed():
    ids = THEIRS.spell("é")
    assert len(ids) == 2
    model = Says("xé")
    model.ids = [*THEIRS.spell("x"), ids[0], min(THEIRS.eos_ids)]
    assert proposed(model, "x", 4)[0].token_ids.tolist() == []
    assert proposed(Says("xé"), "x", 4)[1] == "é"


def test_letters_that_would_join_across_the_border_are_spelled_by_themselves():
    # "t" + "he" would be one token of ours, which the context does not end with.
    draft, text = proposed(Says("the"), "t", 4)
    assert text == "he"
    assert draft.token_ids.tolist() == OURS.spell("he")


@pytest.mark.parametrize("length", [380, 398, 600])
def test_a_long_context_is_cut_to_what_the_draft_model_reads(length):
    model = Says("x")
    draft, _ = proposed(model, "ab" * (length // 2), 3)
    assert len(draft) <= 3
    assert model.longest <= model.max_length


@pytest.mark.parametrize("gamma", [1, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_targets_whatever_another_tokenizer_drafts(gamma, temperature):
    target = llama(vocab=VOCAB, noise=0.1)
    draft = HFModel(llama(vocab=len(THEIRS.vocabulary()), seed=4))
    prompt = OURS.spell("the cat sat on the mat")
    chosen = Settings(gamma=gamma, max_new_tokens=20, temperature=temperature)
    events = run(HFModel(target), proposer(draft), prompt, chosen, codec=OURS)
    assert sum(len(done.proposal.tokens) for done in rounds(events)) > 0
    if temperature == 0:
        ids = list(finished(events).token_ids)
        assert ids == argmax_decode(target, prompt, 20)[: len(ids)]
    assert all(q == 1.0 for done in rounds(events) for q in done.proposal.q)


def test_a_draft_model_that_says_what_the_target_says_is_accepted():
    target = llama(vocab=VOCAB, noise=0.1)
    prompt = OURS.spell("the cat sat")
    ids = argmax_decode(target, prompt, 24)
    text = OURS.decode([*prompt, *ids])
    if "\ufffd" in text:
        text = text[: text.index("\ufffd")]
    chosen = Settings(gamma=3, max_new_tokens=24)
    events = run(HFModel(target), proposer(Says(text)), prompt, chosen, codec=OURS)
    assert list(finished(events).token_ids) == ids[: len(finished(events).token_ids)]
    if len(text) > len("the cat sat") + 6:
        assert sum(done.verdict.num_accepted for done in rounds(events)) > 0


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_the_joint_law_is_the_targets(gamma):
    """Every way the coins may fall, over a vocabulary of four, from every prompt of two letters."""
    words = "abc"
    ours, theirs = small_codec([("a", "b")]), small_codec([("b", "c")])
    size = len(ours.vocabulary())
    target, chosen = ToyModel(size, seed=1, sharpness=1.2), Sampler(Settings(temperature=1.0))
    draft = ToyModel(len(theirs.vocabulary()), seed=2)

    def law(ids, count=1):
        probs = chosen.probs(target.read(ids, want=count).logits, ids).double()
        return probs / probs.sum(-1, keepdim=True)

    def own(ids, length):
        if not length:
            return {(): 1.0}
        return {
            (token, *rest): float(p) * mass
            for token, p in enumerate(law(ids)[0])
            for rest, mass in own([*ids, token], length - 1).items()
        }

    lengths = set()
    for prompt in itertools.product(range(len(words)), repeat=2):
        guesser = Universal(draft, theirs, ours, vocab_size=size, device=CPU)
        proposal = guesser.propose(Context(list(prompt), NO_FEATURES, 0), gamma)
        drafted, g = proposal.token_ids.tolist(), len(proposal)
        lengths.add(g)
        p = law([*prompt, *drafted], g + 1)
        got = dict.fromkeys(itertools.product(range(size), repeat=gamma + 1), 0.0)
        for coins in itertools.product((True, False), repeat=g):
            chances = [float(p[i, token]) for i, token in enumerate(drafted)]
            pairs = list(zip(coins, chances, strict=True))
            u = torch.tensor([c / 2 if yes else (1 + c) / 2 for yes, c in pairs])
            decision = verify(proposal.token_ids, proposal.probs.double(), p, u.double())
            weight = math.prod(chance if yes else 1 - chance for yes, chance in pairs)
            n = decision.num_accepted
            for token in range(size):
                begun = (*drafted[:n], token)
                mass = weight * float(decision.next_probs[token])
                for rest, more in own([*prompt, *begun], gamma - n).items():
                    got[(*begun, *rest)] += mass * more
        expected = own(list(prompt), gamma + 1)
        assert sum(got.values()) == pytest.approx(1, abs=1e-9)
        assert all(got[text] == pytest.approx(expected[text], abs=1e-9) for text in expected)
    assert max(lengths) > 0


def small_codec(merges):
    """Return a tokenizer of three letters, one merge and an end."""
    words = [*"abc", *("".join(pair) for pair in merges), "<end>"]
    backend = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.backend_tokenizer.decoder = Fuse()
    return HFCodec(tokenizer, frozenset({len(words) - 1}))
