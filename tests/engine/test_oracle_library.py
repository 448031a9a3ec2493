"""Our loop beside transformers' own `generate`: the same text, the same drafts, round by round."""

import copy
from functools import cache

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MellumConfig,
    MellumForCausalLM,
)
from transformers.cache_utils import Cache
from transformers.generation import candidate_generator as library

from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.mtp_families import QWEN
from engine.models.mtp_module import MTPModule
from engine.models.native_mtp import kinds_of, load_native
from engine.proposers.draft_model import DraftModel
from engine.sampling import Sampler
from tests.engine import families
from tests.engine.families import Reference, write
from tests.engine.folders import VOCAB as LETTERS
from tests.engine.folders import random, tokenizer_into
from tests.engine.test_loading_drafters import PROMPT as TEXT
from tests.engine.test_loading_drafters import events_of, loaded, other_tokenizer_into
from tests.engine.test_native_mtp import Watched, parts_of
from tests.engine.test_oracle_acceptance import taught
from tests.engine.tiny import argmax_decode, finished, llama, rounds, run

PROMPT = [5, 9, 1, 5, 9, 7, 3, 5, 9]
NEW_TOKENS = 40
GAMMAS = (1, 3, 5)
INSTALLED = Version(transformers.__version__)
SINCE_25 = pytest.mark.skipif(Version("5.25") > INSTALLED, reason="new in transformers 5.25")


@pytest.fixture
def watched(monkeypatch):
    """Every round of the library: drafts, their logits (where it has them) and how many it kept."""
    seen = []
    for name in (
        "AssistedCandidateGenerator",
        "AssistedCandidateGeneratorDifferentTokenizers",
        "MTPCandidateGenerator",
    ):
        kind = getattr(library, name)

        def drafted(self, input_ids, *args, _draft=kind.get_candidates, **options):
            ids, logits = _draft(self, input_ids, *args, **options)
            seen.append([ids[0, input_ids.shape[1] :].tolist(), logits, 0])
            return ids, logits

        def judged(self, ids, scores, count, _learn=kind.update_candidate_strategy):
            seen[-1][2] = int(count)
            return _learn(self, ids, scores, count)

        monkeypatch.setattr(kind, "get_candidates", drafted)
        monkeypatch.setattr(kind, "update_candidate_strategy", judged)
    return seen


def books(events):
    return [
        ([token.id for token in done.proposal.tokens], done.verdict.num_accepted)
        for done in rounds(events)
    ]


# --- MTP modules ---


def checkpoint_of(folder, reference, **config):
    """Write a checkpoint that transformers opens as one of its own, with its module."""
    model = reference.model
    kind = type(model)
    values = {"num_nextn_predict_layers": 1, "architectures": [kind.__name__], **config}
    return write(folder, model, reference.tensors(), **values)


def librarys_own(kind, folder, prompt=PROMPT, count=NEW_TOKENS):
    model = kind.from_pretrained(folder).eval()
    ids = torch.tensor([prompt])
    out = model.generate(ids, use_mtp=True, max_new_tokens=count, do_sample=False)
    return out[0, len(prompt) :].tolist()


@pytest.fixture
def any_depth(monkeypatch):
    """The library knows the module of these kinds at the depth of the original models only."""

    def allow(kind):
        layer = [r"model\.layers\.2\."]
        monkeypatch.setattr(kind, "_keys_to_ignore_on_load_unexpected", layer)

    return allow


@pytest.mark.parametrize("family", ["deepseek", "glm"])
def test_a_module_drafts_and_is_judged_as_by_the_library(family, tmp_path, any_depth, watched):
    reference = taught(family)
    model = reference.model
    folder = checkpoint_of(tmp_path / "checkpoint", reference)
    any_depth(type(model))
    text = librarys_own(type(model), folder)
    settings = Settings(gamma=1, max_new_tokens=NEW_TOKENS)
    proposer = Watched(parts_of(model, load_native(folder, model)[0]), settings)
    events = run(HFModel(model), proposer, PROMPT, settings)
    assert list(finished(events).token_ids) == text
    first, *theirs = watched  # the library's first round is the prompt's: it drafts nothing
    assert (first[0], first[2]) == ([], 0)
    # Its last round may draft a token for which there is no room.
    ours = books(events)
    assert [n for _, n in ours] == [n for *_, n in theirs]
    assert len(proposer.seen) >= len(ours) - 1
    for (_, draft), (tokens, logits, _) in zip(proposer.seen, theirs, strict=False):
        assert draft.token_ids.tolist() == tokens
        assert torch.allclose(draft.logits, logits[0], atol=2e-4)
    assert {n for _, n in ours} == {0, 1}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("family", ["deepseek", "glm"])
def test_longer_drafts_give_the_librarys_text(family, gamma, tmp_path, any_depth):
    reference = taught(family)
    model = reference.model
    folder = checkpoint_of(tmp_path / "checkpoint", reference)
    any_depth(type(model))
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    proposer = Watched(parts_of(model, load_native(folder, model)[0]), settings)
    events = run(HFModel(model), proposer, PROMPT, settings)
    assert list(finished(events).token_ids) == librarys_own(type(model), folder)
    assert max(n for _, n in books(events)) == gamma


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next", "mimo"])
def test_the_library_knows_no_module_of_these(family, tmp_path):
    """Should this fail, compare us with it as above."""
    reference = Reference(family, families.FAMILIES[family][0]())
    folder = checkpoint_of(tmp_path / "checkpoint", reference, mtp_num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"num_mtp_layers|stateful"):
        librarys_own(type(reference.model), folder)


@SINCE_25
def test_an_ernie_module_is_wired_as_by_the_library(tmp_path, watched):
    assert_wired_as_by_the_library(taught("ernie"), tmp_path, watched)


def assert_wired_as_by_the_library(reference, folder, watched):
    """Compare the logits of one draft per round; the library has no more for one module."""
    model = reference.model
    checkpoint = checkpoint_of(folder / "checkpoint", reference)
    text = librarys_own(type(model), checkpoint)
    settings = Settings(gamma=1, max_new_tokens=NEW_TOKENS)
    (module,) = load_native(checkpoint, model)
    proposer = Watched(parts_of(model, module), settings)
    assert list(finished(run(HFModel(model), proposer, PROMPT, settings)).token_ids) == text
    assert len(proposer.seen) > 5
    for (_, draft), (_, logits, _) in zip(proposer.seen, watched[1:], strict=False):
        assert torch.allclose(draft.logits, logits[0], atol=2e-4)


def test_a_mellum_module_is_wired_as_by_the_library(tmp_path, watched):
    """It has the Qwen layout, a window in its block, and a rotary embedding per kind of layer."""
    assert_wired_as_by_the_library(Mellum(window=6), tmp_path, watched)


class Mellum:
    """A Mellum target and a random module of its layout, with a window shorter than the text."""

    def __init__(self, window):
        self.model = families._made(
            *(MellumForCausalLM, MellumConfig),
            num_hidden_layers=2,
            head_dim=8,
            num_experts=4,
            moe_intermediate_size=16,
            num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=window,
            num_mtp_layers=1,
        )
        kinds, config = kinds_of(self.model, QWEN)
        self.module = random(MTPModule(config, kinds=kinds, family=QWEN))

    def tensors(self):
        names = ("projection", "enorm", "hnorm", "norm", "block")
        theirs = dict(zip(names, families.NAMES["qwen"], strict=True))
        tensors = {}
        for name, weight in self.module.state_dict().items():
            part, _, rest = name.partition(".")
            tensors |= families._single_experts(theirs[part] + rest, weight)
        return {name: weight.clone() for name, weight in tensors.items()}


# --- draft models ---


@cache
def target_of(name):
    return llama() if name == "llama" else getattr(families, name)()


@cache
def noisy(name):
    """A draft model that often says what the target says."""
    model = copy.deepcopy(target_of(name))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for weight in model.parameters():
            weight += torch.randn_like(weight) * 0.02
    return model


def assisted(target, assistant, prompt, gamma, **options):
    """Return what `generate` says behind a prompt with an assistant of fixed eagerness."""
    config = assistant.generation_config
    config.num_assistant_tokens = gamma
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    ids = torch.tensor([prompt])
    out = target.generate(ids, assistant_model=assistant, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


def assert_same_rounds(name, gamma, watched):
    target, assistant = target_of(name), noisy(name)
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    rows = target.config.get_text_config().vocab_size
    proposer = DraftModel(HFModel(assistant), Sampler(settings), torch.Generator(), vocab_size=rows)
    events = run(HFModel(target), proposer, PROMPT, settings)
    # Our first token comes from the prompt's own pass; the library's first round drafts at once.
    first, *rest = finished(events).token_ids
    theirs = assisted(target, assistant, [*PROMPT, first], gamma, max_new_tokens=NEW_TOKENS - 1)
    assert theirs == rest
    ours = books(events)
    assert ours == [(tokens, n) for tokens, _, n in watched]
    counts = [n for _, n in ours]
    assert (min(counts[:-1]), max(counts) >= min(gamma, 3)) == (0, True)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", ["llama", "mimo", "lfm2"])
def test_a_draft_model_drafts_and_is_judged_as_by_the_library(name, gamma, watched):
    assert_same_rounds(name, gamma, watched)


HYBRIDS = ("qwen3_5", "qwen3_next")


@SINCE_25
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_drafts_and_is_judged_as_by_the_library(name, gamma, watched, monkeypatch):
    """It must keep one state more than drafts; 5.25.0 forgets the one for "none accepted"."""
    record = Cache.activate_past_recording

    def one_more(self, recurrent_states_to_keep=0):
        record(self, recurrent_states_to_keep=recurrent_states_to_keep + 1)

    monkeypatch.setattr(Cache, "activate_past_recording", one_more)
    assert_same_rounds(name, gamma, watched)


@pytest.mark.skipif(Version("5.25.0") < INSTALLED, reason="a later version may have mended it")
@pytest.mark.parametrize("name", HYBRIDS)
def test_the_library_alone_would_not_do_for_hybrids(name):
    """5.24 refuses them; 5.25.0 loses a token from the state where every draft is rejected."""
    target, assistant = target_of(name), noisy(name)
    plain = argmax_decode(target, PROMPT, NEW_TOKENS)
    if Version("5.25") > INSTALLED:
        with pytest.raises(ValueError, match="stateful"):
            assisted(target, assistant, PROMPT, 3, max_new_tokens=NEW_TOKENS)
    else:
        assert assisted(target, assistant, PROMPT, 3, max_new_tokens=NEW_TOKENS) != plain
        options = {"prompt_lookup_num_tokens": 3, "max_new_tokens": NEW_TOKENS, "do_sample": False}
        assert (
            target.generate(torch.tensor([PROMPT]), **options)[0, len(PROMPT) :].tolist() != plain
        )


# --- two tokenizers ---


def that_writes_ascii(model, letters):
    """Let a model say nothing but ASCII: half characters would be no text to hand over."""
    for number, letter in letters.items():
        if not (len(letter) == 1 and "!" <= letter <= "~"):
            model.lm_head.weight[number] = 0
    return model


def two_folders(folder, noise):
    """A target, and a draft model that nearly is it, but numbers the letters otherwise."""
    target = llama(vocab=LETTERS, noise=0.1)
    tokenizer_into(folder / "target")
    ours = AutoTokenizer.from_pretrained(folder / "target").get_vocab()
    that_writes_ascii(target, {number: word for word, number in ours.items()})
    target.save_pretrained(folder / "target")
    rows = other_tokenizer_into(folder / "draft")
    theirs = AutoTokenizer.from_pretrained(folder / "draft").get_vocab()
    draft = llama(vocab=rows, noise=0.1)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        state = {name: weight.clone() for name, weight in target.state_dict().items()}
        for name, weight in state.items():
            weight += torch.randn_like(weight) * noise
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                mine = torch.zeros(rows, weight.shape[1])
                for word, number in theirs.items():
                    if word in ours:
                        mine[number] = weight[ours[word]]
                state[name] = mine
    draft.load_state_dict(state)
    draft.save_pretrained(folder / "draft")
    return folder / "target", folder / "draft"


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_text_through_two_tokenizers_is_the_librarys(gamma, noise, tmp_path, watched):
    first, second = two_folders(tmp_path, noise)
    pair = loaded(target=first, draft=second)
    events = events_of(pair, "draft", gamma)
    target = AutoModelForCausalLM.from_pretrained(first).eval()
    codec = AutoTokenizer.from_pretrained(first)
    prompt = codec(TEXT)["input_ids"]
    theirs = assisted(
        target,
        AutoModelForCausalLM.from_pretrained(second).eval(),
        prompt,
        gamma,
        max_new_tokens=24,
        tokenizer=codec,
        assistant_tokenizer=AutoTokenizer.from_pretrained(second),
        eos_token_id=codec.eos_token_id,
    )
    assert list(finished(events).token_ids) == theirs == argmax_decode(target, prompt, 24)
    assert sum(n for _, n in books(events)) > 0
    assert sum(n for *_, n in watched) > 0
