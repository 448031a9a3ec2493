import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from engine.models import loader
from tests.engine.tiny import CPU, VOCAB, llama

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
