"""Assistant checkpoints load as they are published, and what does not fit is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
)

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models.gemma_assistant import is_assistant, load_assistant
from engine.models.hf import HFModel
from engine.models.loader import load_model
from engine.proposers.gemma_assistant import GemmaAssistant
from tests.engine.gemma import (
    VOCAB,
    WIDTH,
    assistant_config,
    gemma,
    library_assistant,
    text_config,
)
from tests.engine.tiny import CPU, argmax_decode, finished, llama, run, sampler

PROMPT = [3, 5, 7, 9, 1, 2, 3, 5]
TARGET = gemma()


def drafted(assistant, target=TARGET, count=12):
    """Ids and first logits of a greedy run."""
    proposer, seen = GemmaAssistant(assistant, sampler(), torch.Generator()), []
    propose = proposer.propose
    proposer.propose = lambda context, gamma: seen.append(propose(context, gamma)) or seen[-1]
    events = run(
        HFModel(target),
        proposer,
        PROMPT,
        Settings(gamma=3, max_new_tokens=count),
    )
    return list(finished(events).token_ids), next(d.logits for d in seen if len(d))


@pytest.mark.parametrize("masked", [False, True])
def test_a_published_layout_gives_the_assistant_back(tmp_path, masked):
    model = library_assistant(masked=masked, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    keys = set(load_file(tmp_path / "model.safetensors"))
    assert {"pre_projection.weight", "post_projection.weight", "model.norm.weight"} <= keys
    assert "model.layers.0.self_attn.q_proj.weight" in keys
    assert "lm_head.weight" not in keys  # it is the embedding
    assert not any("k_proj" in key or "v_proj" in key for key in keys)
    assert ("masked_embedding.token_ordering" in keys) == masked
    assert is_assistant(tmp_path)
    assistant = load_assistant(tmp_path, TARGET)
    assert assistant.vocab_size == VOCAB
    for name, tensor in model.state_dict().items():
        if name != "masked_embedding.token_ordering":
            assert torch.equal(assistant.model.state_dict()[name], tensor), name
    if masked:
        clusters = assistant.model.masked_embedding.clusters
        assert torch.equal(clusters.flatten(), model.masked_embedding.token_ordering)
    ids, logits = drafted(assistant)
    assert ids == argmax_decode(TARGET, PROMPT, 12)
    assert bool(logits.isneginf().any()) == masked


def test_an_assistant_takes_the_targets_dtype(tmp_path):
    library_assistant(masked=True).save_pretrained(tmp_path)
    target = gemma().to(torch.bfloat16)
    assistant = load_assistant(tmp_path, target)
    assert assistant.model.lm_head.weight.dtype == torch.bfloat16
    _, logits = drafted(assistant, target)
    assert logits.dtype == torch.float32
    assert logits.isneginf().sum(-1).tolist() == [VOCAB - 10] * 3


def test_the_unified_kind_of_assistant_loads_too(tmp_path):
    config = assistant_config()
    text = config.text_config.to_dict()
    config = Gemma4UnifiedAssistantConfig(
        text_config={**text, "model_type": "gemma4_unified_text"}, backbone_hidden_size=WIDTH
    )
    Gemma4UnifiedAssistantForCausalLM(config).save_pretrained(tmp_path)
    ids, _ = drafted(load_assistant(tmp_path, TARGET))
    assert ids == argmax_decode(TARGET, PROMPT, 12)


def test_a_target_that_also_reads_pictures_shares_its_text_layers(tmp_path):
    """The published targets are of this class; our loader must take them and their assistants."""
    config = Gemma4Config(
        text_config=text_config(pad_token_id=0).to_dict(),
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "position_embedding_size": 16,
        },
        audio_config=None,
        tie_word_embeddings=False,
    )
    whole = Gemma4ForConditionalGeneration(config)
    whole.model.language_model.load_state_dict(TARGET.model.state_dict())
    whole.lm_head.load_state_dict(TARGET.lm_head.state_dict())
    whole.save_pretrained(tmp_path / "target")
    library_assistant().save_pretrained(tmp_path / "assistant")
    target = load_model(tmp_path / "target", CPU)
    assert type(target) is Gemma4ForConditionalGeneration
    ids, logits = drafted(load_assistant(tmp_path / "assistant", target), target)
    assert ids == argmax_decode(TARGET, PROMPT, 12)
    expected_ids, expected = drafted(load_assistant(tmp_path / "assistant", TARGET))
    assert ids == expected_ids
    assert torch.allclose(logits, expected, atol=1e-5)


MISFITS = {
    "backbone_hidden_size": ({"width": 48}, 48, WIDTH),
    "vocab_size": ({"vocab_size": 48}, 48, VOCAB),
    "head_dim (sliding_attention)": ({"head_dim": 4}, 4, 8),
    "head_dim (full_attention)": ({"global_head_dim": 8}, 8, 16),
    "num_key_value_heads (full_attention)": (
        {"num_key_value_heads": 1, "attention_k_eq_v": False},
        1,
        2,
    ),
}


@pytest.mark.parametrize("field", MISFITS)
def test_an_assistant_of_another_target_is_refused_with_both_numbers(tmp_path, field):
    changes, value, wanted = MISFITS[field]
    folder = tmp_path / "small-assistant"
    library_assistant(**changes).save_pretrained(folder)
    with pytest.raises(PlaygroundError, match=f"{value}, not {wanted}") as caught:
        load_assistant(folder, TARGET)
    assert caught.value.code == "assistant_misfit"
    assert caught.value.facts == {
        "name": "small-assistant",
        "field": field,
        "value": value,
        "wanted": wanted,
    }


def test_a_target_of_other_layers_is_refused(tmp_path):
    library_assistant().save_pretrained(tmp_path)
    full = gemma(layer_types=["full_attention"] * 6)
    with pytest.raises(PlaygroundError, match="layer_types is full_attention, sliding") as caught:
        load_assistant(tmp_path, full)
    assert caught.value.code == "assistant_misfit"
    with pytest.raises(PlaygroundError, match="gemma4_assistant, not llama") as caught:
        load_assistant(tmp_path, llama(hidden_size=WIDTH, vocab=VOCAB))
    assert caught.value.code == "assistant_misfit"


def test_another_kind_of_checkpoint_is_refused(tmp_path):
    llama().save_pretrained(tmp_path / "llama")
    (tmp_path / "empty").mkdir()
    for name, kind in (("llama", "llama"), ("empty", "none")):
        assert not is_assistant(tmp_path / name)
        with pytest.raises(PlaygroundError, match=kind) as caught:
            load_assistant(tmp_path / name, TARGET)
        assert caught.value.code == "not_an_assistant"


@pytest.mark.parametrize(
    "name",
    [
        "pre_projection.weight",
        "model.layers.1.mlp.up_proj.weight",
        "masked_embedding.centroids.weight",
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name):
    library_assistant(masked=True).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    for changed, what in (({}, "lacks"), ({name: torch.zeros(3, 3)}, "another shape")):
        others = {key: tensor for key, tensor in state.items() if key != name}
        save_file({**others, **changed}, file, metadata={"format": "pt"})
        with pytest.raises(PlaygroundError, match=f"{what}.*{name}") as caught:
            load_assistant(tmp_path, TARGET)
        assert caught.value.code == "bad_module"


def test_weights_that_are_no_safetensors_are_refused(tmp_path):
    model = library_assistant()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(PlaygroundError, match="safetensors") as caught:
        load_assistant(tmp_path, TARGET)
    assert caught.value.code == "bad_module"


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    library_assistant().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise RuntimeError('was run')")
    assert load_assistant(tmp_path, TARGET).vocab_size == VOCAB
