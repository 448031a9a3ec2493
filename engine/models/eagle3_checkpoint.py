"""Read an EAGLE-3 head from a folder: config.json and safetensors, in either layout.

Contract: `load_eagle3` refuses a head that is not complete, that holds anything without a place, or
that was made for another target; it runs no code of the checkpoint's. The one layer is called
`midlayer` by the authors and `layers.0` by `speculators`; everything else has one name: `fc`,
`norm`, `lm_head`, and two maps between the vocabularies: `d2t` [R], the *distance* from a token's
id in the head to its id in the target, and `t2d` [V], which tokens the head knows. An embedding of
its own is optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.errors import PlaygroundError
from engine.models import linear
from engine.models.eagle3_config import bad_head, read_config
from engine.models.eagle3_module import Eagle3Module
from engine.models.mtp_module import placed_like
from engine.models.native_mtp import keys_by_shard
from engine.proposers.eagle3 import Eagle3Parts, eagle3_parts

_COPIES = ("verifier_lm_head.", "verifier_norm.")  # of what the target has
_EMBEDDING = "embed_tokens.weight"


def load_eagle3(folder: Path, target: PreTrainedModel, head_weight: Tensor) -> Eagle3Parts:
    """Load the head in `folder` for `target`; `head_weight` [V, D] is the target's output matrix.

    Raises PlaygroundError: eagle3_tensor_missing (which names it), bad_eagle3.
    """
    text_config: Any = target.config.get_text_config()
    config = read_config(folder, int(text_config.num_hidden_layers))
    vocab_size = int(config.layer.vocab_size)
    if (config.target_width, vocab_size) != (text_config.hidden_size, text_config.vocab_size):
        raise bad_head(folder, "it was made for a target of another size")
    state, prefix = _read(folder)
    d2t, t2d, embedding = (state.pop(name, None) for name in ("d2t", "t2d", _EMBEDDING))
    vocab = _vocab(folder, d2t, t2d, config.num_tokens, vocab_size)
    with torch.device("meta"):
        module = Eagle3Module(
            config.layer,
            target_width=config.target_width,
            num_states=len(config.taps),
            num_tokens=config.num_tokens,
            variant=config.variant,
        )
    _load(module, state, folder, prefix)
    module.rotary = LlamaRotaryEmbedding(config.layer)
    placed_like(module, head_weight)
    if head_weight.device.type == "cpu":
        linear.pack(module)
    embedding = None if embedding is None else embedding.to(head_weight)
    return eagle3_parts(
        module,
        config.taps,
        _embedding(folder, embedding, target, config.layer),
        vocab_size,
        None if vocab is None else vocab.to(head_weight.device),
    )


def _read(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Return every tensor by its name in the authors' layout, and how the layer is called here."""
    shards = keys_by_shard(folder)
    if not shards:
        raise bad_head(folder, "there is no file with safetensors")
    state: dict[str, Tensor] = {}
    layer = "midlayer."
    for shard in sorted(set(shards.values())):
        with safe_open(folder / shard, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (not a dict)
                name = key.removeprefix("model.")
                if name.startswith("layers.0."):
                    layer = "layers.0."
                    name = "midlayer." + name.removeprefix(layer)
                if not name.startswith(_COPIES) and "inv_freq" not in name:
                    state[name] = file.get_tensor(key)
    return state, layer


def _load(module: nn.Module, state: Mapping[str, Tensor], folder: Path, layer: str) -> None:
    """Fill a module without weights; an error calls tensors as the file does."""
    wanted = module.state_dict()
    for name, weight in wanted.items():
        if name not in state:
            raise _missing(folder, name.replace("midlayer.", layer))
        if state[name].shape != weight.shape:
            shapes = f"{list(state[name].shape)} instead of {list(weight.shape)}"
            raise bad_head(folder, f"{name} has the shape {shapes}")
    strange = sorted(set(state) - set(wanted))
    if strange:
        raise bad_head(folder, f"{strange[0]} has no place in it")
    module.load_state_dict(state, assign=True)


def _vocab(
    folder: Path, d2t: Tensor | None, t2d: Tensor | None, size: int, whole: int
) -> Tensor | None:
    """Return the target's id of every token the head scores.  [R]; None: all, in order."""
    if d2t is None:
        if size == whole:
            return None
        raise _missing(folder, "d2t")
    if d2t.shape == (size,):
        ids = torch.arange(size) + d2t.long()
        known = torch.zeros(whole, dtype=torch.bool)
        if int(ids.min()) >= 0 and int(ids.max()) < whole:
            known[ids] = True
        if int(known.sum()) == size and (t2d is None or torch.equal(known, t2d.bool())):
            return ids
    raise bad_head(folder, "its maps d2t and t2d do not describe a part of the target's vocabulary")


def _embedding(
    folder: Path, own: Tensor | None, target: PreTrainedModel, layer: LlamaConfig
) -> nn.Module:
    """Return the head's own embedding; the target's where it has none or the same."""
    theirs: nn.Embedding = target.get_input_embeddings()
    if own is None or torch.equal(own, theirs.weight):
        if layer.hidden_size != theirs.weight.shape[1]:
            raise _missing(folder, _EMBEDDING)
        return theirs
    if own.shape != (layer.vocab_size, layer.hidden_size):
        raise bad_head(folder, f"{_EMBEDDING} has the shape {list(own.shape)}")
    return nn.Embedding.from_pretrained(own)  # type: ignore[no-any-return]


def _missing(folder: Path, tensor: str) -> PlaygroundError:
    return PlaygroundError(
        "eagle3_tensor_missing",
        f"The EAGLE-3 head in {folder.name} lacks the tensor {tensor}.",
        "Use the original checkpoint.",
        folder=folder.name,
        tensor=tensor,
    )
