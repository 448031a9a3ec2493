"""EAGLE-3 heads on disk: both layouts give the head back, and what is wrong is named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models.eagle3_checkpoint import load_eagle3
from engine.models.eagle3_config import feature_taps
from engine.models.hf import HFModel
from engine.models.linear import is_supported
from engine.proposers.base import Context
from engine.proposers.eagle3 import Eagle3, eagle3_parts
from engine.sampling import Sampler
from tests.engine.tiny import EAGLE3_VOCAB, VOCAB, eagle3_module, llama

TARGET = llama(noise=0.1, num_hidden_layers=8, initializer_range=0.1)
IDS = [5, 9, 1, 5, 9, 7, 3]
LAYER = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}
AUTHORS = {
    **LAYER,
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "draft_vocab_size": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.51.0",
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
    "draft_vocab_size": 40,
    "norm_before_residual": True,
    "speculators_config": {"algorithm": "eagle3"},
    "speculators_model_type": "eagle3",
    "target_hidden_size": None,
    "transformer_layer_config": LAYER,
}


def tensors(module):
    """A head's tensors in the authors' layout."""
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[EAGLE3_VOCAB] = True
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return {**state, "d2t": EAGLE3_VOCAB - torch.arange(40), "t2d": t2d}


def write(folder: Path, state, config=AUTHORS, **changes) -> Path:
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def speculators(state):
    """The same tensors under `speculators`' names, with copies that it keeps of the target's."""
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
    return {**renamed, "embed_tokens.weight": TARGET.get_input_embeddings().weight.clone()}


def load(folder):
    return load_eagle3(folder, TARGET, TARGET.lm_head.weight)


def drafted(given):
    """The logits of a draft of four."""
    target = HFModel(TARGET)
    target.tap(given.taps)
    features = target.read(IDS[:-1], features=len(IDS) - 1).features
    proposer = Eagle3(given, Sampler(Settings()), torch.Generator())
    return proposer.propose(Context(IDS, features, 0), 4).logits


def expected(module, taps=(2, 4, 5), embedding=None):
    embedding = embedding or TARGET.get_input_embeddings()
    return drafted(eagle3_parts(module, taps, embedding, VOCAB, EAGLE3_VOCAB))


def test_the_authors_layout_gives_the_head_back(tmp_path):
    module = eagle3_module(TARGET)
    state = tensors(module)
    assert "midlayer.self_attn.q_proj.weight" in state
    assert state["midlayer.self_attn.k_proj.weight"].shape == (16, 64)
    assert state["fc.weight"].shape == (32, 96)
    given = load(write(tmp_path, state))
    assert given.taps == (2, 4, 5)
    assert given.chained.embedding is TARGET.get_input_embeddings()
    assert torch.allclose(drafted(given), expected(module), atol=1e-5)
    if is_supported():
        assert type(given.module.lm_head).__name__ == "PackedLinear"


def test_the_speculators_layout_gives_the_head_back(tmp_path):
    module = eagle3_module(TARGET, norm_before_residual=True)
    state = speculators(tensors(module))
    assert "layers.0.hidden_norm.weight" in state
    given = load(write(tmp_path, state, SPECULATORS))
    assert given.chained.embedding is TARGET.get_input_embeddings()  # its copy is dropped
    assert torch.allclose(drafted(given), expected(module), atol=1e-5)
    other = eagle3_module(TARGET)
    given = load(write(tmp_path, state, SPECULATORS, norm_before_residual=False))
    assert torch.allclose(drafted(given), expected(other), atol=1e-5)


@pytest.mark.parametrize("name", ["norm_output", "fc_norm", "norm_before_fc"])
def test_a_variant_is_told_by_the_config(tmp_path, name):
    module = eagle3_module(TARGET, **{name: True})
    given = load(write(tmp_path, tensors(module), **{name: True}))
    assert torch.allclose(drafted(given), expected(module), atol=1e-5)


def test_an_embedding_of_its_own_is_used(tmp_path):
    module = eagle3_module(TARGET)
    weight = torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(1))
    given = load(write(tmp_path, {**tensors(module), "embed_tokens.weight": weight}))
    own = torch.nn.Embedding.from_pretrained(weight)
    assert torch.allclose(drafted(given), expected(module, embedding=own), atol=1e-5)
    assert not torch.allclose(drafted(given), expected(module), atol=1e-2)


def test_a_head_for_the_whole_vocabulary_needs_no_map(tmp_path):
    module = eagle3_module(TARGET, num_tokens=VOCAB)
    given = load(write(tmp_path, dict(module.state_dict()), draft_vocab_size=VOCAB))
    assert torch.isfinite(drafted(given)).all()


def test_a_head_in_half_precision_and_pieces_loads(tmp_path):
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in tensors(eagle3_module(TARGET)).items()
    }
    names = sorted(state)
    pieces = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in pieces.items():
        save_file({name: state[name] for name in part}, tmp_path / file)
    index = {name: file for file, part in pieces.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps(AUTHORS))
    given = load(tmp_path)
    assert drafted(given).dtype == torch.float32
    assert torch.allclose(drafted(given), expected(eagle3_module(TARGET)), atol=0.05)


def test_the_rope_of_the_config_is_used(tmp_path):
    state = tensors(eagle3_module(TARGET))
    usual = drafted(load(write(tmp_path, state)))
    assert torch.equal(usual, drafted(load(write(tmp_path, state))))
    other = drafted(load(write(tmp_path, state, rope_theta=100.0)))
    assert not torch.allclose(usual, other, atol=1e-3)


@pytest.mark.parametrize("name", [n for n in tensors(eagle3_module(TARGET)) if n != "t2d"])
def test_a_missing_tensor_is_named(tmp_path, name):
    for config, rename in ((AUTHORS, dict), (SPECULATORS, speculators)):
        state = rename(tensors(eagle3_module(TARGET)))
        theirs = name if name in state else name.replace("midlayer.", "layers.0.")
        del state[theirs]
        with pytest.raises(PlaygroundError, match=theirs) as caught:
            load(write(tmp_path, state, config))
        assert caught.value.code == "eagle3_tensor_missing"
        assert caught.value.facts["tensor"] == theirs


def test_a_wider_head_without_an_embedding_names_it(tmp_path):
    wider = llama(hidden_size=64, num_hidden_layers=1)
    module = eagle3_module(wider)
    state = tensors(module)
    state["fc.weight"] = torch.zeros(64, 96)
    with pytest.raises(PlaygroundError, match=r"embed_tokens\.weight") as caught:
        load(write(tmp_path, state, hidden_size=64, target_hidden_size=32))
    assert caught.value.code == "eagle3_tensor_missing"


def broken(**changes):
    return {**tensors(eagle3_module(TARGET)), **changes}


WRONG = {
    "another size": (broken(), {"target_hidden_size": 64}),
    "another vocabulary": (broken(), {"vocab_size": 98}),
    "has the shape": (broken(**{"fc.weight": torch.zeros(32, 64)}), {}),
    "no place": (broken(**{"midlayer.self_attn.q_norm.weight": torch.ones(8)}), {}),
    "d2t points outside": (broken(d2t=torch.full((40,), 90)), {}),
    "d2t meets itself": (broken(d2t=-torch.arange(40)), {}),
    "d2t and t2d differ": (broken(t2d=torch.ones(VOCAB, dtype=torch.bool)), {}),
    "d2t is short": (broken(d2t=torch.zeros(39, dtype=torch.long)), {}),
    "reads layers": (broken(), {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_head_that_does_not_fit_is_refused(tmp_path, name):
    state, changes = WRONG[name]
    with pytest.raises(PlaygroundError) as caught:
        load(write(tmp_path, state, **changes))
    assert caught.value.code == "bad_eagle3"
    assert tmp_path.name in caught.value.message


def test_a_folder_without_safetensors_or_config_says_so(tmp_path):
    with pytest.raises(PlaygroundError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(AUTHORS))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(PlaygroundError, match="no file with safetensors") as caught:
        load(tmp_path)
    assert caught.value.code == "bad_eagle3"


@pytest.mark.parametrize(
    ("values", "num_layers", "taps"),
    [
        ({}, 36, (2, 18, 33)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, 36, (2, 18, 33)),
        ({"aux_hidden_state_layer_ids": [1, 2]}, 36, (1, 2)),
        ({"eagle_aux_hidden_state_layer_ids": None, "eagle_config": None}, 61, (2, 30, 58)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}, 61, (2, 30, 58)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, 8, (2, 4, 5)),
    ],
)
def test_which_states_a_head_reads(values, num_layers, taps):
    assert feature_taps(Path("head"), values, num_layers) == taps


def test_a_target_with_too_few_layers_is_refused():
    with pytest.raises(PlaygroundError, match="target with 2"):
        feature_taps(Path("head"), {}, 2)
