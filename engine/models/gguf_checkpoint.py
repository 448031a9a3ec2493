"""Turn a GGUF file of a Llama-family model into a standard checkpoint folder.

Contract: `convert(gguf_path, folder)` leaves `config.json`, fp32 safetensors in shards,
`tokenizer.json` and `tokenizer_config.json` in `folder`, so that `from_pretrained(folder)` works
and needs neither the GGUF file nor the `gguf` package again. Weights are bit-identical to
transformers' own GGUF path and token ids are equal to its tokenizer's (both are tests); this way
takes a tenth of its time.

What a GGUF does differently from a checkpoint, and what is undone here:
* rows of q and k are interleaved for llama.cpp's rotary layout;
* a tied output head is simply absent (`tie_word_embeddings` says so again);
* the tokenizer is a list of tokens and merges in the metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import PlaygroundError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TOKEN = 3  # llama.cpp's token type for special tokens


def convert(gguf_path: Path, folder: Path) -> None:
    """Write the standard checkpoint of `gguf_path` into `folder` (created if needed).

    Raises PlaygroundError("unsupported_gguf") when the file is not a Llama-family model with a
    byte-level BPE tokenizer.
    """
    import torch
    from gguf import GGUFReader
    from huggingface_hub import save_torch_state_dict

    reader = GGUFReader(gguf_path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama" or meta.get("tokenizer.ggml.model") != "gpt2":
        raise PlaygroundError(
            "unsupported_gguf",
            f"{gguf_path.name} is not a Llama-family GGUF with a byte-level BPE tokenizer.",
            "Use a safetensors checkpoint of this model instead.",
            file=gguf_path.name,
        )
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(reader, meta)
    config = _config(meta, tied="lm_head.weight" not in tensors)
    _write_json(folder / "config.json", config)
    _write_tokenizer(meta, folder)
    # Loading maps the files into memory; a shard is let go once all of it has been packed.
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    save_torch_state_dict(state, folder, max_shard_size="60MB")


def _tensors(reader: Any, meta: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return every tensor by its checkpoint name, dequantised to fp32."""
    from gguf import dequantize

    heads = {
        "attn_q": int(meta["llama.attention.head_count"]),
        "attn_k": int(meta["llama.attention.head_count_kv"]),
    }
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        name = tensor.name
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if match:
            layer, part = match.groups()
            if part in heads:
                weight = _unpermute(weight, heads[part])
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
        else:
            name = _TOP_NAMES[name]
        # A tensor stored as fp32 is a read-only view of the file: torch wants its own copy.
        tensors[name] = np.require(weight, requirements=["C", "W"])
    return tensors


def _unpermute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's interleaving of the two rotary halves.  [H * D, in] -> [H * D, in]"""
    rows, width = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def _config(meta: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = int(meta["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
        "head_dim": int(meta["llama.embedding_length"]) // heads,
        "hidden_act": "silu",
        "hidden_size": int(meta["llama.embedding_length"]),
        "initializer_range": 0.02,
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "max_position_embeddings": int(meta["llama.context_length"]),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "pretraining_tp": 1,
        "rms_norm_eps": float(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(meta["llama.rope.freq_base"]),
        },
        "tie_word_embeddings": tied,
        "dtype": "float32",
        "use_cache": True,
        "vocab_size": int(meta["llama.vocab_size"]),
    }


def _write_tokenizer(meta: Mapping[str, Any], folder: Path) -> None:
    """Write a fast tokenizer built from the token and merge lists."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    # As transformers reads such a file. SmolLM2 was trained with every digit apart, but its merges
    # join no digits, so the plain byte-level rule gives the same ids (only rare numerals differ).
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
        if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
            "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
            "chat_template": meta["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(meta["llama.context_length"]),
        },
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
