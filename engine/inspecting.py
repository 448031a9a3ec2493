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
from engine.models.mtp_families import DISGUISES, Found, detect, num_claimed
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
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_BLOCK = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What one folder holds.

    num_bytes: of all weights.  experts: of a mixture, 0 without one.  vocabulary: id by string.
    formats: safetensors, gguf, pickle.  known: the library has the type under its own name.
    found, claimed: the MTP module there, and how many the configuration speaks of.  draft_rows: of
    the head, where the module was trained for some of them only.
    block: the places of a trunk layer with attention, which a module's block repeats.
    """

    name: str
    model_type: str = ""
    architecture: str = ""
    hidden_size: int | None = None
    num_layers: int | None = None
    num_kv_values: int | None = None
    intermediate_size: int | None = None
    experts: int = 0
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
    mtp_parameters: int | None = None
    draft_rows: int | None = None
    block: frozenset[str] = frozenset()
    rollback: Rollback = "unknown"
    remote_code: bool = False
    known: bool = True


def inspect(
    folder: Path,
    listing: Mapping[str, int] | None = None,
    headers: Mapping[str, dict[str, Any]] | None = None,
) -> Facts:
    """Return what `folder` says about itself.

    listing, headers: sizes of files, and heads of tensors, where the folder holds only the small
    files of a repository.  Raises PlaygroundError: no_checkpoint, bad_json.
    """
    sizes = _sizes(folder) if listing is None else dict(listing)
    suffixes = {Path(name).suffix for name in sizes}
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
    headers = _headers(folder) if headers is None else headers
    index = _json(folder / "model.safetensors.index.json")
    keys = {*index.get("weight_map", {}), *headers}
    layers = config.get("num_hidden_layers")
    found = detect(keys, layers or 0)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    num_bytes = _num_bytes(sizes, index)
    kinds = config.get("layer_types") or []
    quantised = (whole.get("quantization_config") or {}).get("quant_method", "")
    return Facts(
        name=folder.name,
        model_type=str(config.get("model_type", "")),
        architecture=next(iter(whole.get("architectures") or ()), ""),
        hidden_size=config.get("hidden_size"),
        num_layers=layers,
        num_kv_values=_kv_values(config, kinds),
        intermediate_size=config.get("intermediate_size"),
        experts=max((config.get(name) or 0 for name in _EXPERTS), default=0),
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
        mtp_parameters=_mtp_parameters(headers, found),
        draft_rows=next(iter(headers.get("draft_vocab", {}).get("shape", ())), None),
        block=_block(keys, layers or 0),
        rollback=_rollback(str(config.get("model_type", "")), kinds),
        remote_code="auto_map" in whole,
        known=_is_known(str(whole.get("model_type", ""))),
    )


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


def _is_known(model_type: str) -> bool:
    """Return whether the library can make this type without code of the checkpoint's own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return not model_type or DISGUISES.get(model_type, model_type) in CONFIG_MAPPING_NAMES


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


def _num_bytes(sizes: Mapping[str, int], index: Mapping[str, Any]) -> int:
    for suffix in (".safetensors", ".gguf", ".bin"):
        size = sum(size for name, size in sizes.items() if name.endswith(suffix))
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
    tensors = _of_modules(headers, found)
    ends = [tensor["data_offsets"] for tensor in tensors]
    return sum(int(end - start) for start, end in ends) if ends else None


def _mtp_parameters(headers: Mapping[str, Any], found: Found | None) -> int | None:
    """Return the weights of the first module, which is what a step of any draft length uses."""
    tensors = _of_modules(headers, found, most=1)
    return sum(math.prod(tensor["shape"]) for tensor in tensors) if tensors else None


def _of_modules(
    headers: Mapping[str, Any], found: Found | None, most: int | None = None
) -> list[Any]:
    """Return the headers of the modules' tensors; none where one of them is unknown."""
    modules = found.modules[:most] if found else ()
    keys = [key for module in modules for key in module.values()]
    return [headers[key] for key in keys] if all(key in headers for key in keys) else []


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
        if at and plain and int(at[1]) < num_layers:
            layers.setdefault(int(at[1]), set()).add(at[2])
    own = [n for n, places in layers.items() if any(p.startswith("self_attn.") for p in places)]
    return frozenset(layers[max(own)]) if own else frozenset()


def _rollback(model_type: str, kinds: list[str]) -> Rollback:
    if model_type in _STATEFUL or set(kinds) & _LINEAR:
        return "snapshot"
    return "crop" if model_type and set(kinds) <= _ATTENTION else "unknown"
