"""What a checkpoint folder says about itself, from its small files and its headers.

Contract: `inspect` reads configurations, tokenizer.json, the index and safetensors headers, and
sizes of files: never a weight, never torch, never code of the checkpoint. What no file tells is
None, not guessed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.errors import PlaygroundError
from engine.models.mtp_families import Found, detect, num_claimed
from engine.safetensors_head import read_head

Rollback = Literal["crop", "snapshot", "unknown"]
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "F32": 4, "F16": 2, "BF16": 2}
_STATEFUL = {
    *("bailing_hybrid", "bamba", "deepseek_v4", "falcon_h1", "falcon_mamba", "glm5_next", "jamba"),
    *("granitemoehybrid", "kimi_linear", "mamba", "mamba2", "nemotron_h", "olmo_hybrid", "lfm2"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp"),
    *("recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2", "zaya"),
}
"""Types with a recurrent or convolutional state, by transformers 5.24."""

_LINEAR = {"linear_attention", "mamba", "recurrent", "conv", "kda"}
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_BLOCK = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What one folder holds.

    num_bytes: of all weights.  vocabulary: id by string.  formats: safetensors, gguf, pickle.
    found, claimed: the MTP module there, and how many the configuration speaks of.
    block: the places of a trunk layer with attention, which a module's block repeats.
    """

    name: str
    model_type: str = ""
    architecture: str = ""
    hidden_size: int | None = None
    num_layers: int | None = None
    num_kv_values: int | None = None
    rows: int | None = None
    dtype: str = ""
    parameters: int | None = None
    num_bytes: int = 0
    context: int | None = None
    special: Mapping[str, object] = field(default_factory=dict)
    template: str = ""
    vocabulary: Mapping[str, int] | None = None
    formats: frozenset[str] = frozenset()
    quantised: str = ""
    found: Found | None = None
    claimed: int = 0
    mtp_bytes: int | None = None
    block: frozenset[str] = frozenset()
    rollback: Rollback = "unknown"
    remote_code: bool = False


def inspect(folder: Path) -> Facts:
    """Return what `folder` says about itself.  Raises PlaygroundError: no_checkpoint, bad_json."""
    suffixes = {path.suffix for path in folder.glob("*")} if folder.is_dir() else set()
    if not (folder / "config.json").is_file() and not suffixes & {".safetensors", ".gguf"}:
        raise PlaygroundError(
            "no_checkpoint",
            f"{folder} holds no checkpoint: no config.json and no weights.",
            "Name the folder that holds config.json and the weights.",
            folder=str(folder),
        )
    whole = _json(folder / "config.json")
    config = {**whole, **(whole.get("text_config") or {})}
    generation = _json(folder / "generation_config.json")
    tokenizer = _json(folder / "tokenizer_config.json")
    headers = _headers(folder)
    index = _json(folder / "model.safetensors.index.json")
    keys = {*index.get("weight_map", {}), *headers}
    layers = config.get("num_hidden_layers")
    found = detect(keys, layers or 0)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    num_bytes = _num_bytes(folder, index)
    kinds = config.get("layer_types") or []
    quantised = (whole.get("quantization_config") or {}).get("quant_method", "")
    return Facts(
        name=folder.name,
        model_type=str(config.get("model_type", "")),
        architecture=next(iter(whole.get("architectures") or ()), ""),
        hidden_size=config.get("hidden_size"),
        num_layers=layers,
        num_kv_values=_kv_values(config, kinds),
        rows=config.get("vocab_size"),
        dtype=dtype,
        parameters=_parameters(headers, keys, num_bytes, dtype, quantised),
        num_bytes=num_bytes,
        context=config.get("max_position_embeddings"),
        special={
            name: generation.get(name, config.get(name))
            for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        },
        template=_template(folder, tokenizer),
        vocabulary=_vocabulary(folder),
        formats=_formats(suffixes, bool(keys)),
        quantised=str(quantised),
        found=found,
        claimed=num_claimed(whole),
        mtp_bytes=_mtp_bytes(headers, found),
        block=_block(keys, layers or 0),
        rollback=_rollback(str(config.get("model_type", "")), kinds),
        remote_code="auto_map" in whole,
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _bad_json(path) from error
    if not isinstance(read, dict):
        raise _bad_json(path)
    return read


def _bad_json(path: Path) -> PlaygroundError:
    return PlaygroundError(
        "bad_json",
        f"{path.name} in {path.parent.name} cannot be read.",
        "Fetch the file again: a download may have stopped early.",
        file=path.name,
        folder=path.parent.name,
    )


def _headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the shape, dtype and place of every tensor, from the heads of the files."""
    tensors: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            tensors.update(read_head(path))
        except ValueError as error:
            raise _bad_json(path) from error
    return tensors


def _num_bytes(folder: Path, index: Mapping[str, Any]) -> int:
    for pattern in ("*.safetensors", "*.gguf", "*.bin"):
        size = sum(path.stat().st_size for path in folder.glob(pattern))
        if size:
            return size
    return int((index.get("metadata") or {}).get("total_size", 0))


def _parameters(
    headers: Mapping[str, Any], keys: set[str], num_bytes: int, dtype: str, quantised: str
) -> int | None:
    if quantised:
        return None  # packed values: a shape does not count weights
    if headers and len(headers) == len(keys):
        return sum(int(math.prod(tensor["shape"])) for tensor in headers.values())
    return num_bytes // BYTES[dtype] if num_bytes and dtype in BYTES else None


def _mtp_bytes(headers: Mapping[str, Any], found: Found | None) -> int | None:
    keys = [key for module in found.modules for key in module.values()] if found else []
    if not keys or any(key not in headers for key in keys):
        return None
    return sum(int(end - start) for start, end in (headers[key]["data_offsets"] for key in keys))


def _kv_values(config: Mapping[str, Any], kinds: list[str]) -> int | None:
    """Return how many values a token leaves in the caches of all layers with attention."""
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    size, attention = config.get("hidden_size"), config.get("num_attention_heads")
    layers = sum(kind not in _LINEAR for kind in kinds) or config.get("num_hidden_layers")
    if not (heads and size and attention and layers):
        return None
    return int(2 * layers * heads * (config.get("head_dim") or size // attention))


def _template(folder: Path, tokenizer: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    text = path.read_text("utf-8") if path.is_file() else str(tokenizer.get("chat_template") or "")
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


def _vocabulary(folder: Path) -> dict[str, int] | None:
    tokenizer = _json(folder / "tokenizer.json")
    vocab = (tokenizer.get("model") or {}).get("vocab")
    if not tokenizer or vocab is None:
        return None
    if isinstance(vocab, list):  # Unigram: pairs of string and score
        vocab = {pair[0]: number for number, pair in enumerate(vocab)}
    added = {row["content"]: row["id"] for row in tokenizer.get("added_tokens") or ()}
    return {**vocab, **added}


def _formats(suffixes: set[str], indexed: bool) -> frozenset[str]:
    named = {".gguf": "gguf", ".bin": "pickle", ".pt": "pickle", ".pth": "pickle"}
    formats = {named[suffix] for suffix in suffixes & set(named)}
    return frozenset(formats | ({"safetensors"} if indexed else set()))


def _block(keys: set[str], num_layers: int) -> frozenset[str]:
    layers: dict[int, set[str]] = {}
    for key in keys:
        at = _BLOCK.fullmatch(key)
        plain = key.endswith((".weight", ".bias"))  # a module may be less quantised than the trunk
        if at and plain and int(at[1]) < num_layers and ".experts." not in key:
            layers.setdefault(int(at[1]), set()).add(at[2])
    own = [n for n, places in layers.items() if any(p.startswith("self_attn.") for p in places)]
    return frozenset(layers[max(own)]) if own else frozenset()


def _rollback(model_type: str, kinds: list[str]) -> Rollback:
    if model_type in _STATEFUL or set(kinds) & _LINEAR:
        return "snapshot"
    return "crop" if model_type and set(kinds) <= _ATTENTION else "unknown"
