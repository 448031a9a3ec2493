"""Heads, assistants and tokenizers from checkpoints of their own, through `load_pair`."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from engine.catalog import pair_of
from engine.events import Settings
from engine.models.hf import HFModel
from engine.proposers.draft_model import DraftModel
from engine.proposers.eagle3 import Eagle3
from engine.proposers.gemma_assistant import GemmaAssistant
from engine.proposers.universal import Universal
from engine.runtime import load_pair
from engine.sampling import Sampler, Streams
from tests.engine import test_eagle3_checkpoint as eagle3
from tests.engine.folders import VOCAB, llama_folder, tokenizer_into
from tests.engine.gemma import gemma, library_assistant
from tests.engine.tiny import CPU, eagle3_module, finished, llama, rounds

PROMPT = "the cat sat on the mat"


def loaded(**parts):
    pair = pair_of(**{part: str(folder) for part, folder in parts.items()})
    return load_pair(pair.id, device="cpu", int8=False)


def events_of(pair, method, gamma=3):
    settings = Settings(gamma=gamma, max_new_tokens=24, raw=True)
    return list(pair.run(method, PROMPT, settings))


def proposer_of(pair, method):
    settings = Settings(gamma=3)
    return pair.proposer(method, Sampler(settings), Streams.seeded(0, CPU).draft)


def assert_same_text(pair, method):
    expected = finished(events_of(pair, "plain")).token_ids
    for gamma in (1, 3, 5):
        events = events_of(pair, method, gamma)
        assert finished(events).token_ids == expected
        assert any(done.proposal.tokens for done in rounds(events))


def test_an_eagle3_head_is_a_method_of_its_own(tmp_path):
    target = llama(vocab=VOCAB, noise=0.1, num_hidden_layers=8, initializer_range=0.1)
    target.save_pretrained(tmp_path / "target")
    tokenizer_into(tmp_path / "target")
    (tmp_path / "head").mkdir()
    config = {**eagle3.AUTHORS, "vocab_size": VOCAB}
    state = eagle3.tensors(eagle3_module(target))
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[: len(state["t2d"])] = state["t2d"]
    eagle3.write(tmp_path / "head", {**state, "t2d": t2d}, config)
    pair = loaded(target=tmp_path / "target", eagle3=tmp_path / "head")
    assert "eagle3" in pair.methods
    assert isinstance(proposer_of(pair, "eagle3"), Eagle3)
    assert_same_text(pair, "eagle3")
    assert pair.memory("eagle3") > pair.memory("plain")


def test_an_assistant_stands_in_for_a_module(tmp_path):
    target = gemma(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB)
    target.save_pretrained(tmp_path / "target")
    tokenizer_into(tmp_path / "target")
    library_assistant(masked=False, vocab_size=VOCAB).save_pretrained(tmp_path / "assistant")
    pair = loaded(target=tmp_path / "target", mtp=tmp_path / "assistant")
    assert isinstance(pair.target, HFModel)
    assert isinstance(proposer_of(pair, "mtp"), GemmaAssistant)
    assert "mtp_wiring" not in pair.where  # it has no pass of its own that could be compared
    assert_same_text(pair, "mtp")


def other_tokenizer_into(folder):
    """Write a tokenizer with words of its own, numbered otherwise."""
    merges = [("t", "h"), ("th", "e"), ("c", "a"), ("ca", "t")]
    words = [*sorted(ByteLevel.alphabet(), reverse=True), *("".join(pair) for pair in merges)]
    words.append("<end>")
    backend = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>").save_pretrained(folder)
    return len(words)


@pytest.mark.parametrize("rows", [VOCAB - 2, VOCAB, VOCAB + 13])
def test_padding_decides_nothing(tmp_path, rows):
    target = llama_folder(tmp_path / "target")
    draft = llama(vocab=rows, noise=0.03)
    draft.save_pretrained(tmp_path / "draft")
    tokenizer_into(tmp_path / "draft")
    pair = loaded(target=target, draft=tmp_path / "draft")
    assert isinstance(proposer_of(pair, "draft"), DraftModel)
    assert_same_text(pair, "draft")


def test_another_tokenizer_drafts_through_text(tmp_path):
    target = llama_folder(tmp_path / "target", noise=0.1)
    rows = other_tokenizer_into(tmp_path / "draft")
    llama(vocab=rows, seed=3).save_pretrained(tmp_path / "draft")
    pair = loaded(target=target, draft=tmp_path / "draft")
    assert isinstance(proposer_of(pair, "draft"), Universal)
    assert_same_text(pair, "draft")
