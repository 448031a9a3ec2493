"""A multi-token-prediction module: one block of the target's kind that reads its hidden states.

DeepSeek-V3 layout (arXiv 2412.19437, section 2.2): at position i it eats the embedding of token i
+ 1 and the target's hidden state of position i (after the final norm), and its output, through the
target's own head, predicts token i + 2. Longer drafts chain the module on its own normed output.

Contract: the module owns only what the target does not have; embedding and head are the target's.
`draft_vocab` lists the rows of the head it was trained on; scoring only those is cheaper and still
lossless, because q is what the tokens are drawn from. What other families do differently is in
`mtp_families`; `native_mtp` loads their modules from the target's own checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from engine.errors import PlaygroundError
from engine.models.cache import CropCache
from engine.models.mtp_families import DEEPSEEK, Family
from engine.models.stored import read_folder

# Our attribute -> the name in a DeepSeek-layout checkpoint, behind "model.layers.N.".
_DEEPSEEK_NAMES = {
    "enorm": "enorm",
    "hnorm": "hnorm",
    "projection": "eh_proj",
    "norm": "shared_head.norm",
}


Placed = TypeVar("Placed", bound=nn.Module)


class Kinds(NamedTuple):
    """The kinds of layers a module is built of, each made from a configuration.

    window: how many positions the block sees, itself among them; None: all before it.
    """

    block: Callable[[Any], nn.Module]
    norm: Callable[[int, float], nn.Module]
    rotary: Callable[[Any], nn.Module]
    window: int | None = None


LLAMA = Kinds(
    lambda config: LlamaDecoderLayer(config, layer_idx=0), LlamaRMSNorm, LlamaRotaryEmbedding
)


class MTPModule(nn.Module):
    """The trainable part: two norms, a projection, one block, a final norm; rarely a head."""

    # Of whatever class the target's are.
    enorm: Any
    hnorm: Any
    norm: Any
    block: Any
    rotary: Any
    head: nn.Linear | None

    def __init__(
        self,
        config: Any,
        *,
        kinds: Kinds = LLAMA,
        family: Family = DEEPSEEK,
        bias: bool = False,
        own_head: bool = False,
    ) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.window = kinds.window
        self.config = config
        self.family = family
        self.enorm = kinds.norm(width, eps)
        self.hnorm = kinds.norm(width, eps)
        self.projection = nn.Linear(2 * width, width, bias=bias)
        self.block = kinds.block(config)
        self.norm = kinds.norm(width, eps)
        self.rotary = kinds.rotary(config)
        self.head = nn.Linear(width, config.vocab_size, bias=False) if own_head else None

    def mix(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Combine token embeddings and hidden states.  [B, T, D] x 2 -> [B, T, D]"""
        both = [self.enorm(embeddings), self.hnorm(hidden)]
        if self.family.hidden_first:
            both.reverse()
        mixed: Tensor = self.projection(torch.cat(both, -1))
        return mixed

    def new_cache(self) -> CropCache:
        """Return an empty cache for `run`."""
        return CropCache(None)

    def run(self, embeddings: Tensor, hidden: Tensor, first: int, cache: CropCache) -> Tensor:
        """Run positions from `first` on behind what `cache` holds.  [n, D] x 2 -> [n, D]"""
        out: Tensor = self(embeddings[None], hidden[None], first=first, cache=cache.library_cache)
        return out[0]

    def forward(
        self, embeddings: Tensor, hidden: Tensor, *, first: int = 0, cache: Any = None
    ) -> Tensor:
        """Run positions first .. first + T - 1 behind what `cache` holds.

        -> [B, T, D], what is chained: behind the last norm, or before it (`Family.raw`).
        """
        embeddings = self.masked(embeddings, first)
        num_rows = embeddings.shape[1]
        positions = torch.arange(first, first + num_rows, device=embeddings.device)[None]
        held = int(cache.get_seq_length()) if cache is not None else 0
        mask = causal_mask(embeddings, held, self.window)
        return self.at(embeddings, hidden, positions, mask, cache)

    def masked(self, embeddings: Tensor, first: int) -> Tensor:
        """Return what the module sees of embeddings [B, T, D]: some families hide position 0's."""
        if first or not self.family.masks_first:
            return embeddings
        return torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], 1)

    def at(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: Any
    ) -> Tensor:
        """Run rows at `positions` [1, T] that see what `mask` says.  -> [B, T, D]"""
        x = self.mix(embeddings, hidden)
        x = self.block(
            x,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            position_embeddings=self.rotary(x, positions),
        )
        chained: Tensor = x if self.family.raw else self.norm(x)
        return chained


def causal_mask(x: Tensor, held: int, window: int | None = None) -> Tensor | None:
    """Return what is added to the scores of rows x [B, n, D] behind `held` entries.

    None where a single row sees them all. Every kind of attention understands it. Without a mask,
    sdpa would align a causal one to the wrong corner.
    """
    num_rows = x.shape[1]
    if num_rows == 1 and (window is None or held < window):
        return None
    whole = torch.ones(num_rows, held + num_rows, dtype=torch.bool, device=x.device)
    seen = whole.tril(held)
    if window is not None:
        seen &= whole.triu(held - window + 1)
    hidden_places = ~seen
    mask = torch.zeros_like(hidden_places, dtype=x.dtype)
    return mask.masked_fill_(hidden_places, torch.finfo(x.dtype).min)[None, None]


def placed_like(module: Placed, weight: Tensor) -> Placed:
    """Move a module to where a weight of the target is, in its dtype.

    Buffers keep theirs: rounded rotary frequencies would turn far positions wrong.
    """
    module.to(device=weight.device)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(weight.dtype)
    return module.eval().requires_grad_(False)


def module_config(target_config: LlamaConfig) -> LlamaConfig:
    """Return the config of a one-block module for this target."""
    values = target_config.to_dict()
    values["num_hidden_layers"] = 1
    config = LlamaConfig(**values)
    config._attn_implementation = "sdpa"
    return config


def checkpoint_name(name: str, layer: int) -> str:
    """Return a parameter's name in the DeepSeek layout."""
    head, _, rest = name.partition(".")
    inner = rest if head == "block" else f"{_DEEPSEEK_NAMES[head]}.{rest}"
    return f"model.layers.{layer}.{inner}"


def load_module(folder: Path, target_config: LlamaConfig) -> tuple[MTPModule, Tensor | None]:
    """Load a module and its `draft_vocab` [R] (None: the whole vocabulary).

    Raises PlaygroundError("bad_module") that names a missing tensor or a target that does not fit.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layer = int(config["num_hidden_layers"])
    fits = (
        config["hidden_size"] == target_config.hidden_size
        and config["vocab_size"] == target_config.vocab_size
    )
    if not fits:
        raise bad_module(folder.name, "was made for a target of another size")
    stored, vocab = read_folder(folder)
    module = MTPModule(module_config(target_config))
    state = {}
    for name in module.state_dict():
        key = checkpoint_name(name, layer)
        if key not in stored:
            raise bad_module(folder.name, f"lacks the tensor {key}")
        state[name] = stored[key]
    module.load_state_dict(state)
    return module.eval().requires_grad_(False), vocab


def bad_module(
    name: str,
    what: str,
    *,
    part: str = "MTP module",
    remedy: str = "Restore the folder from the repository, or train the module again.",
) -> PlaygroundError:
    """Return the error for a module that is not whole, or not for this target."""
    return PlaygroundError(
        "bad_module", f"The {part} in {name} {what}.", remedy, folder=name, what=what
    )
