"""How each family of checkpoints lays its MTP module out, and how it is wired. Data, no torch.

Contract: a `Family` says where every tensor of a module belongs (`place`) and what differs in the
forward pass; `detect` finds the family from the names of a checkpoint's tensors alone. To add a
family, add a row. Modules share the target's embedding and (but for Step's) its head; a copy in the
file is skipped.

Sources: the model cards and the loaders of transformers, vLLM and SGLang; where engines disagree,
the engine or training code of the family's own authors decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_PREFIX = r"(?:model\.|language_model\.)*"
_CLAIMS = (
    *("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    *("num_mtp_layers", "num_mtp_modules"),
)
DISGUISES = {"mimo": "qwen2"}
"""Types whose repositories bring code of their own for what the library knows by another name."""

SKIP = "skip"
"""Where a tensor goes that the module does not need: a copy of what the target has."""


@dataclass(frozen=True, slots=True)
class Family:
    """One layout.

    rules: (pattern behind the prefix, our place); group `n` counts modules (or layers, where
    `appended` to the target's), group `rest` is kept. marker: the tensor that tells the family.
    hidden_first: the projection reads [hidden, embedding].  masks_first: the embedding of position
    0 counts as zero.  norm: whose norm stands between the block and the head.  raw: the module
    reads the target's state before its final norm, and chains its own before that.
    layer: which of the target's layers its block is like.  attention, mlp: the kinds of its block
    where the target mixes kinds and its configuration does not tell.

    Most checkpoints hold one module, which is chained; one that holds several has trained each for
    its own position, and drafts no further than that.
    """

    id: str
    marker: str
    rules: tuple[tuple[str, str], ...]
    appended: bool = False
    hidden_first: bool = False
    masks_first: bool = False
    norm: Literal["own", "target"] = "own"
    raw: bool = False
    layer: int = -1
    attention: str = "full_attention"
    mlp: str = ""

    def place(self, key: str, num_layers: int) -> tuple[int, str] | None:
        """Return which module a tensor belongs to and its place there; None if to none."""
        for pattern, ours in self.rules:
            found = re.fullmatch(_PREFIX + pattern, key)
            if found:
                groups = found.groupdict()
                number = int(groups.get("n") or 0) - (num_layers if self.appended else 0)
                return (number, ours + groups.get("rest", "")) if number >= 0 else None
        return None


_REST = r"(?P<rest>.+)"

QWEN = Family(
    "qwen",
    r"mtp\.fc\.weight",
    (
        (r"mtp\.fc\." + _REST, "projection."),
        (r"mtp\.pre_fc_norm_embedding\." + _REST, "enorm."),
        (r"mtp\.pre_fc_norm_hidden\." + _REST, "hnorm."),
        (r"mtp\.norm\." + _REST, "norm."),
        (r"mtp\.layers\.(?P<n>\d+)\." + _REST, "block."),
    ),
)
"""Qwen3-Next, Qwen3.5 and 3.6, dense and mixed; Mellum and Exaone by the same names."""

DEEPSEEK = Family(
    "deepseek",
    r"layers\.(?P<n>\d+)\.eh_proj\.weight",
    (
        (r"layers\.(?P<n>\d+)\.(?:embed_tokens|shared_head\.(?:head|output))\..+", SKIP),
        (r"layers\.(?P<n>\d+)\.eh_proj\." + _REST, "projection."),
        (r"layers\.(?P<n>\d+)\.enorm\." + _REST, "enorm."),
        (r"layers\.(?P<n>\d+)\.hnorm\." + _REST, "hnorm."),
        (r"layers\.(?P<n>\d+)\.(?:shared_head\.norm|final_layernorm)\." + _REST, "norm."),
        (r"layers\.(?P<n>\d+)\.(?:transformer\.)?" + _REST, "block."),
    ),
    appended=True,
)
"""DeepSeek-V3, GLM-4.5 to 4.7, GigaChat, Hunyuan and others, at any depth; our own modules."""

MIMO = Family(
    "mimo",
    r"mtp_layers\.(?P<n>\d+)\.input_proj\.weight",
    (
        (r"mtp_layers\.(?P<n>\d+)\.input_proj\." + _REST, "projection."),
        (r"mtp_layers\.(?P<n>\d+)\.token_layernorm\." + _REST, "enorm."),
        (r"mtp_layers\.(?P<n>\d+)\.hidden_layernorm\." + _REST, "hnorm."),
        (r"mtp_layers\.(?P<n>\d+)\.final_layernorm\." + _REST, "norm."),
        (r"mtp_layers\.(?P<n>\d+)\." + _REST, "block."),
    ),
    hidden_first=True,
    masks_first=True,
)
"""MiMo-7B and FastMTP, which is the same module trained to be chained."""

ERNIE = Family(
    "ernie",
    r"mtp_linear_proj\.(?P<n>\d+)\.weight",
    (
        (r"mtp_linear_proj\.(?P<n>\d+)\." + _REST, "projection."),
        (r"mtp_emb_norm\.(?P<n>\d+)\." + _REST, "enorm."),
        (r"mtp_hidden_norm\.(?P<n>\d+)\." + _REST, "hnorm."),
        (r"mtp_block\.(?P<n>\d+)\." + _REST, "block."),
    ),
    norm="target",
    layer=0,
)
"""ERNIE 4.5 from 21B on. Its authors' engine (FastDeploy, `ernie4_5_mtp`) ends the module with the
target's norm and masks nothing, as transformers does; its block is the dense one of layer 0."""

STEP = Family(
    "step",
    r"layers\.(?P<n>\d+)\.(?:transformer\.)?shared_head\.output\.weight",
    (
        (r"layers\.(?P<n>\d+)\.embed_tokens\..+", SKIP),
        (r"layers\.(?P<n>\d+)\.eh_proj\." + _REST, "projection."),
        (r"layers\.(?P<n>\d+)\.enorm\." + _REST, "enorm."),
        (r"layers\.(?P<n>\d+)\.hnorm\." + _REST, "hnorm."),
        (r"layers\.(?P<n>\d+)\.(?:transformer\.)?shared_head\.norm\." + _REST, "norm."),
        (r"layers\.(?P<n>\d+)\.(?:transformer\.)?shared_head\.output\." + _REST, "head."),
        (r"layers\.(?P<n>\d+)\." + _REST, "block."),
    ),
    appended=True,
    raw=True,
    mlp="dense",
)
"""Step 3.5 and 3.7: three modules, each with a head of its own."""

MIMO_V2 = Family(
    "mimo_v2",
    r"mtp\.layers\.(?P<n>\d+)\.pre_mlp_layernorm\.weight",
    (
        (r"mtp\.layers\.(?P<n>\d+)\.eh_proj\." + _REST, "projection."),
        (r"mtp\.layers\.(?P<n>\d+)\.enorm\." + _REST, "enorm."),
        (r"mtp\.layers\.(?P<n>\d+)\.hnorm\." + _REST, "hnorm."),
        (r"mtp\.layers\.(?P<n>\d+)\.final_layernorm\." + _REST, "norm."),
        (
            r"mtp\.layers\.(?P<n>\d+)\.pre_mlp_layernorm\." + _REST,
            "block.post_attention_layernorm.",
        ),
        (r"mtp\.layers\.(?P<n>\d+)\." + _REST, "block."),
    ),
    raw=True,
    attention="sliding_attention",
    mlp="dense",
)
"""MiMo-V2: three modules with a window and a dense block. Engines disagree on the state they read
and chain; the self-test of `wiring` says which fits."""

FAMILIES = (QWEN, MIMO, ERNIE, STEP, MIMO_V2, DEEPSEEK)


@dataclass(frozen=True, slots=True)
class Found:
    """What a checkpoint holds: its family, and the keys of each module by their place there."""

    family: Family
    modules: tuple[Mapping[str, str], ...]


def detect(keys: Iterable[str], num_layers: int) -> Found | None:
    """Return the module layout among the names of a checkpoint's tensors; None without one."""
    names = list(keys)
    for family in FAMILIES:
        if any(_marks(family, key, num_layers) for key in names):
            return Found(family, _sorted(family, names, num_layers))
    return None


def num_claimed(config: Mapping[str, Any]) -> int:
    """Return how many modules a configuration speaks of, whether or not the weights are there."""
    parts = [config, config.get("text_config") or {}]
    values = [part.get(name) for part in parts for name in _CLAIMS]
    return max((value for value in values if isinstance(value, int)), default=0)


def _marks(family: Family, key: str, num_layers: int) -> bool:
    found = re.fullmatch(_PREFIX + family.marker, key)
    if found is None:
        return False
    return not family.appended or int(found["n"]) >= num_layers


def _sorted(family: Family, names: list[str], num_layers: int) -> tuple[dict[str, str], ...]:
    modules: dict[int, dict[str, str]] = {}
    for key in names:
        at = family.place(key, num_layers)
        if at is not None and at[1] != SKIP:
            modules.setdefault(at[0], {})[at[1]] = key
    return tuple(modules[number] for number in sorted(modules))
