"""Checkpoint folders of random models of a few thousand weights, laid out as real ones are."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from engine.models.mtp_families import MIMO, QWEN
from engine.models.mtp_module import MTPModule
from engine.models.native_mtp import kinds_of
from tests.engine.tiny import llama

VOCAB = 259  # every byte and three special tokens
_NAMES = {
    "qwen": {
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "projection": "mtp.fc",
        "norm": "mtp.norm",
        "block": "mtp.layers.0",
    },
    "mimo": {
        "enorm": "model.mtp_layers.0.token_layernorm",
        "hnorm": "model.mtp_layers.0.hidden_layernorm",
        "projection": "model.mtp_layers.0.input_proj",
        "norm": "model.mtp_layers.0.final_layernorm",
        "block": "model.mtp_layers.0",
    },
}


def tokenizer_into(folder: Path) -> None:
    """Write a tokenizer that knows every byte."""
    letters = sorted(ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(letters)}
    words |= {f"<s{i}>": len(letters) + i for i in range(3)}
    backend = Tokenizer(BPE(vocab=words, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s2>").save_pretrained(folder)


def save(model: PreTrainedModel, folder: Path, **options) -> Path:
    """Write a whole checkpoint."""
    model.save_pretrained(folder, **options)
    tokenizer_into(folder)
    return folder


def llama_folder(folder: Path, **options) -> Path:
    return save(llama(vocab=VOCAB, **options), folder)


def random(model: PreTrainedModel, spread: float = 0.3) -> PreTrainedModel:
    """Give a model weights that make it say something."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, spread, generator=generator)
    return model.eval().requires_grad_(False)


def mimo_folder(folder: Path) -> Path:
    """Write what a MiMo-7B repository looks like: Qwen2 by another name, with code of its own."""
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = random(Qwen2ForCausalLM(config))
    save(model, folder)
    add_module(folder, model, MIMO)
    code = {"AutoConfig": "configuration_mimo.MiMoConfig", "AutoModelForCausalLM": "m.MiMo"}
    edit(folder, model_type="mimo", auto_map=code, num_nextn_predict_layers=1,
         architectures=["MiMoForCausalLM"])  # fmt: skip
    (folder / "configuration_mimo.py").write_text("raise SystemExit('code was run')")
    (folder / "m.py").write_text("raise SystemExit('code was run')")
    return folder


def qwen35_folder(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a hybrid of the Qwen3.5 kind with its module."""
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = random(Qwen3_5ForCausalLM(config)).to(dtype)
    save(model, folder)
    add_module(folder, model, QWEN)
    edit(folder, mtp_num_hidden_layers=1)
    return folder


def add_module(folder: Path, target: PreTrainedModel, family, *, alone: bool = False) -> None:
    """Write a random module into a checkpoint, under its family's names."""
    kinds, config = kinds_of(target, family)
    module = random(MTPModule(config, kinds=kinds, family=family), 0.2)
    names = _NAMES[family.id]
    path = folder / "model.safetensors"
    tensors = {} if alone else load_file(path)
    for name, tensor in module.state_dict().items():
        head, _, rest = name.partition(".")
        tensors[f"{names[head]}.{rest}"] = tensor.to(target.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def edit(folder: Path, **changes) -> None:
    """Change a checkpoint's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
