"""A tiny GGUF written here, converted, and compared with what it was made from."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.errors import PlaygroundError
from engine.models.gguf_checkpoint import convert

HEADS, KV_HEADS, WIDTH = 4, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2")]
TEMPLATE = "<|im_start|>{{ messages[0]['content'] }}<|im_end|>"
TEXTS = [
    "the the cat",
    "12 and 1234",
    "  é 漢字 👩‍🚀\n\t!",
    "<|im_start|>the<|im_end|>",
    "it's 3.5%",
]
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@cache
def vocabulary():
    merged = ["".join(pair) for pair in MERGES]
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]


@cache
def original(*, tied):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(vocabulary()),
            hidden_size=WIDTH,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
        return LlamaForCausalLM(config).eval()


def permuted(weight, num_heads):
    """What llama.cpp's converter does to the rows of q and k."""
    rows, width = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def write_gguf(path, *, tied=True, quantised=False, arch="llama", tokenizer="gpt2"):
    model = original(tied=tied)
    writer = GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        write_tensor(writer, name, tensor.numpy(), quantised=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tensor(writer, name, weight, *, quantised):
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        gguf_name = top[name]
    else:
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        gguf_name = f"blk.{layer}.{NAMES[part]}.weight"
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
        weight = permuted(weight, heads) if heads else weight
    if quantised and weight.ndim == 2:
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(gguf_name, quants.quantize(weight, kind), raw_dtype=kind)
    else:
        writer.add_tensor(gguf_name, weight)


@pytest.fixture
def converted(tmp_path):
    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_come_back_bit_by_bit(tmp_path, tied):
    convert(write_gguf(tmp_path / "tiny.gguf", tied=tied), tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.config.tie_word_embeddings is tied
    expected = original(tied=tied).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_converted_model_computes_what_the_original_does(converted):
    ids = torch.tensor([[5, 9, 1, 200, 7]])
    loaded = AutoModelForCausalLM.from_pretrained(converted).eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, original(tied=True)(ids).logits)


def test_quantised_weights_equal_those_of_transformers_own_gguf_loading(tmp_path):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate")
    convert(write_gguf(tmp_path / "tiny.gguf", quantised=True), tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    ).state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_quantised_weights_are_near_the_originals(tmp_path):
    convert(write_gguf(tmp_path / "tiny.gguf", quantised=True), tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for name, tensor in original(tied=True).state_dict().items():
        step = float(tensor.abs().max()) / 127
        assert np.allclose(loaded[name], tensor, atol=step), name


def test_the_tokenizer_gives_the_ids_of_the_one_it_was_made_from(converted):
    reference = Tokenizer(BPE(vocab={t: i for i, t in enumerate(vocabulary())}, merges=MERGES))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(SPECIAL)
    ours = AutoTokenizer.from_pretrained(converted)
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == reference.encode(text).ids
        assert ours.decode(ids) == text
    assert ours("<|im_start|>")["input_ids"] == [1]


def test_special_tokens_and_template_come_along(converted):
    ours = AutoTokenizer.from_pretrained(converted)
    named = (ours.bos_token_id, ours.eos_token_id, ours.unk_token_id, ours.pad_token_id)
    assert named == (1, 2, 0, 2)
    prompt = ours.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert prompt == "<|im_start|>the<|im_end|>"
    assert ours(prompt)["input_ids"] == [1, vocabulary().index("the"), 2]


def test_the_config_says_what_the_file_said(converted):
    config = json.loads((converted / "config.json").read_text(encoding="utf-8"))
    expected = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 5000.0
    assert config["rms_norm_eps"] == pytest.approx(1e-5)


@pytest.mark.parametrize("wrong", [{"tokenizer": "llama"}, {"arch": "qwen2"}])
def test_another_kind_of_gguf_is_refused(tmp_path, wrong):
    path = write_gguf(tmp_path / "other.gguf", **wrong)
    with pytest.raises(PlaygroundError, match=r"other\.gguf") as caught:
        convert(path, tmp_path / "out")
    assert caught.value.code == "unsupported_gguf"
    assert not (tmp_path / "out").exists()
