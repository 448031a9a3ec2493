import dataclasses
import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from engine.events import Settings
from engine.models import linear, loader
from engine.models.hf import HFModel
from engine.models.lean import LeanLlama, LeanMTP
from engine.models.linear import Int8Linear
from engine.models.mtp_module import checkpoint_name
from engine.proposers.mtp import MTP
from engine.sampling import Sampler
from tests.engine.test_cache import sliding_model
from tests.engine.tiny import CPU, VOCAB, argmax_decode, finished, llama, mtp_parts, rounds, run

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def target_folder(tmp_path):
    """A whole checkpoint: tied weights, tokenizer, two EOS ids."""
    model = llama()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.generation_config.eos_token_id = [3, 4]
    folder = tmp_path / "target"
    model.save_pretrained(folder)
    backend = Tokenizer(WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="t5").save_pretrained(folder)
    return folder


@pytest.fixture
def bundled(tmp_path, target_folder):
    """What the repository would hold of a draft model: its layers and the ids it may propose."""
    draft = load_file(target_folder / "model.safetensors")
    draft = {name: (t * 1.5).half() for name, t in draft.items() if name != EMBEDDING}
    draft["draft_vocab"] = torch.tensor([1, 5, 9], dtype=torch.int32)
    folder = tmp_path / "draft"
    folder.mkdir()
    names = sorted(draft)
    save_file({n: draft[n] for n in names[:4]}, folder / "model-00001-of-00002.safetensors")
    save_file({n: draft[n] for n in names[4:]}, folder / "model-00002-of-00002.safetensors")
    config = json.loads((target_folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_eos_id_that_anything_names_ends_a_text(target_folder):
    model = loader.load_model(target_folder, CPU)
    assert loader.load_codec(target_folder, model).eos_ids == {3, 4, 5}


def test_a_model_is_loaded_in_fp32_and_never_trained(target_folder):
    model = loader.load_model(target_folder, CPU)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training


def test_a_bundled_draft_model_becomes_a_standard_checkpoint(target_folder, bundled, cache):
    folder = loader.assemble_draft(bundled, target_folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    embedding = load_file(target_folder / "model.safetensors")[EMBEDDING]
    assert torch.equal(model.get_input_embeddings().weight, embedding)
    assert (folder / "tokenizer.json").is_file()
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_an_assembled_draft_model_is_made_once_and_anew_for_other_weights(
    target_folder, bundled, cache
):
    first = loader.assemble_draft(bundled, target_folder)
    (first / "marker").touch()
    assert loader.assemble_draft(bundled, target_folder) == first
    assert (first / "marker").exists()
    shard = bundled / "model-00001-of-00002.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(shard).items()}, shard)
    second = loader.assemble_draft(bundled, target_folder)
    assert second != first
    assert [path.name for path in cache.iterdir()] == [second.name]


def test_the_draft_vocabulary_is_found_in_whichever_file_it_lies(bundled, target_folder):
    assert loader.draft_vocab(bundled).tolist() == [1, 5, 9]
    assert loader.draft_vocab(target_folder) is None


def test_equal_embeddings_are_held_once_and_others_are_left_alone():
    target, same, other = llama(), llama(), llama(seed=4)
    loader.share_embedding(same, target)
    loader.share_embedding(other, target)
    assert same.get_input_embeddings().weight is target.get_input_embeddings().weight
    assert other.get_input_embeddings().weight is not target.get_input_embeddings().weight


# --- ready to run ---


def test_a_llama_runs_in_the_lean_form_and_its_weights_move_out():
    source = llama(noise=0.2)
    model = loader.prepare(source)
    assert isinstance(model, LeanLlama)
    assert not [module for module in source.model.layers.modules() if type(module) is nn.Linear]
    expected = HFModel(llama(noise=0.2)).read([1, 2, 3], want=2).logits
    assert torch.allclose(model.read([1, 2, 3], want=2).logits, expected, atol=1e-4)


def test_another_model_keeps_the_librarys_modules_with_packed_linears():
    source = sliding_model()
    model = loader.prepare(source)
    assert isinstance(model, HFModel)
    stock = [module for module in source.modules() if type(module) is nn.Linear]
    assert bool(stock) is not linear.is_supported()
    expected = HFModel(sliding_model()).read([1, 2, 3, 1], want=2).logits
    assert torch.allclose(model.read([1, 2, 3, 1], want=2).logits, expected, atol=1e-4)


@pytest.mark.parametrize("int8", [False, True])
def test_a_bundled_draft_model_scores_its_vocabulary_like_the_checkpoint(
    target_folder, bundled, int8
):
    target = loader.load_model(target_folder, CPU)
    head = target.get_output_embeddings().weight
    loader.prepare(target)  # what the target gave away, the draft does not need
    model = loader.load_draft(bundled, target_folder, target, head, int8=int8)
    assert isinstance(model, LeanLlama)
    checkpoint = loader.load_model(loader.assemble_draft(bundled, target_folder), CPU)
    expected = HFModel(checkpoint).read([7, 8, 9, 7], want=3).logits
    got = model.read([7, 8, 9, 7], want=3).logits
    scored = [1, 5, 9]
    assert torch.isfinite(got).nonzero()[:, 1].tolist() == scored * 3
    error = (got - expected)[:, scored].norm() / expected[:, scored].norm()
    assert (1e-4 < error < 0.2) if int8 else (error < 1e-5)


def test_a_draft_model_the_lean_form_does_not_know_runs_in_the_librarys(
    target_folder, bundled, monkeypatch
):
    target = loader.load_model(target_folder, CPU)
    head = target.get_output_embeddings().weight
    lean_one = loader.load_draft(bundled, target_folder, target, head, int8=False)
    monkeypatch.setattr(loader.lean, "supports", lambda model: False)
    model = loader.load_draft(bundled, target_folder, target, head, int8=False)
    assert isinstance(model, HFModel)
    got, expected = (m.read([7, 8, 9, 7], want=3).logits for m in (model, lean_one))
    assert torch.allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("int8", [False, True])
def test_a_module_is_loaded_in_the_lean_form_with_the_targets_embedding(
    target_folder, tmp_path, int8
):
    target = loader.load_model(target_folder, CPU)
    module = mtp_parts(target).module
    folder = tmp_path / "mtp"
    folder.mkdir()
    state = {checkpoint_name(n, 2): t.clone() for n, t in module.state_dict().items()}
    state["draft_vocab"] = torch.tensor([2, 6], dtype=torch.int32)
    save_file(state, folder / "model.safetensors")
    values = {"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": VOCAB}
    (folder / "config.json").write_text(json.dumps(values))
    head = target.get_output_embeddings().weight
    parts = loader.load_mtp(folder, target, head, int8=int8)
    assert isinstance(parts.module, LeanMTP)
    assert parts.embedding is target.get_input_embeddings()
    assert isinstance(parts.head.rows, Int8Linear) is int8
    embeddings, hidden = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = module.run(embeddings, hidden, 0, module.new_cache())
        got = parts.module.run(embeddings, hidden, 0, parts.module.new_cache())
        scores = parts.head(expected)
    error = (got - expected).norm() / expected.norm()
    assert (1e-4 < error < 0.2) if int8 else (error < 1e-5)
    assert torch.isfinite(scores).nonzero()[:, 1].tolist() == [2, 6] * 6


def cut_parts(vocab=None):
    target = llama(vocab=61)
    parts = mtp_parts(target)
    weight = target.get_output_embeddings().weight
    cut = partial(loader.cut_head, weight, vocab, False)
    return target, dataclasses.replace(parts, cut=cut, vocab_size=61), weight


@pytest.mark.parametrize("vocab", [None, torch.tensor([40, 3, 17, 60, 9])])
def test_a_cut_head_scores_the_tokens_with_the_lowest_ids(vocab):
    _, parts, weight = cut_parts(vocab)
    hidden = torch.randn(2, weight.shape[1])
    kept = [0, 1, 2] if vocab is None else [3, 9, 17]
    with torch.inference_mode():
        logits = parts.with_rows(3).head(hidden)
        whole = hidden @ weight.T
    assert torch.allclose(logits[:, kept], whole[:, kept], atol=1e-5)
    others = [i for i in range(61) if i not in kept]
    assert torch.isneginf(logits[:, others]).all()
    assert parts.with_rows(0) is parts
    assert torch.isfinite(parts.with_rows(1000).head(hidden)).sum() == 2 * (
        61 if vocab is None else 5
    )


def test_a_head_without_a_way_to_cut_it_says_so():
    with pytest.raises(ValueError, match="cannot be cut"):
        mtp_parts(llama()).with_rows(5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_with_a_cut_head_proposes_those_only_and_its_greedy_text_is_plain(temperature):
    target, parts, _ = cut_parts()
    settings = Settings(gamma=3, head_rows=20, temperature=temperature, max_new_tokens=24)
    proposer = MTP(parts.with_rows(20), Sampler(settings), torch.Generator().manual_seed(1))
    events = run(HFModel(target), proposer, [5, 9, 1, 5, 9], settings)
    drafted = [token.id for each in rounds(events) for token in each.proposal.tokens]
    assert drafted
    assert max(drafted) < 20
    if not temperature:
        assert list(finished(events).token_ids) == argmax_decode(target, [5, 9, 1, 5, 9], 24)
