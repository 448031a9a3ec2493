"""Load the MTP modules that a checkpoint ships inside itself.

Contract: `load_native` reads the modules' tensors, and no others, from the target's folder (or from
another one that holds only the modules), builds them of the target's own kinds of layers and
refuses one that is not complete. Nothing of the checkpoint's code is run. The target must not have
been prepared yet.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.errors import PlaygroundError
from engine.models.mtp_families import Family, detect, num_claimed
from engine.models.mtp_module import Kinds, MTPModule, bad_module, placed_like

_INDEX = "model.safetensors.index.json"


def load_native(folder: Path, target: PreTrainedModel) -> tuple[MTPModule, ...]:
    """Return the modules in `folder` in order, in the target's dtype and on its device.

    Raises PlaygroundError: no_mtp, mtp_weights_missing, bad_module (which names the tensor).
    """
    shards = keys_by_shard(folder)
    config = target.config.get_text_config()
    found = detect(shards, int(config.num_hidden_layers))
    if found is None:
        raise missing(folder.name, num_claimed(_config_of(folder)))
    like = target.get_output_embeddings().weight
    modules = []
    for number, keys in enumerate(found.modules):
        kinds, module_config = kinds_of(target, found.family, number)
        module = MTPModule(
            module_config,
            kinds=kinds,
            family=found.family,
            bias="projection.bias" in keys,
            own_head="head.weight" in keys,
        )
        state = _read(folder, shards, keys)
        if found.family.norm == "target":
            state |= _under("norm", target.get_decoder().norm.state_dict())
        _load(module, _fused_experts(state, module), found.family, keys, folder.name)
        modules.append(placed_like(module, like))
    return tuple(modules)


def keys_by_shard(folder: Path) -> dict[str, str]:
    """Return which file of a checkpoint holds which tensor.  Raises PlaygroundError."""
    index = folder / _INDEX
    if index.is_file():
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return found
    keys: dict[str, str] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            keys.update(dict.fromkeys(file.keys(), shard.name))
    return keys


def kinds_of(target: PreTrainedModel, family: Family, number: int = 0) -> tuple[Kinds, Any]:
    """Return the kinds of layers of a module, and a configuration of one layer of them."""
    decoder: Any = target.get_decoder()
    config = copy.deepcopy(target.config.get_text_config())
    at = family.layer % int(config.num_hidden_layers)
    layer_class = type(decoder.layers[at])
    _set_kind(config, "mlp", at, number, family.mlp)
    attention = _set_kind(config, "", at, number, family.attention)
    window = config.sliding_window if attention == "sliding_attention" else None

    def block(config: Any) -> nn.Module:
        made: nn.Module = layer_class(config, at)
        module: Any
        for module in made.modules():
            if getattr(module, "layer_idx", None) == at:
                module.layer_idx = 0  # its place in a cache of its own
        return made

    def rotary(_: Any) -> nn.Module:
        shared: nn.Module = copy.deepcopy(decoder.rotary_emb)
        return RotaryOf(shared, attention) if hasattr(shared, "layer_types") else shared

    return Kinds(block, type(decoder.norm), rotary, window), config


class RotaryOf(nn.Module):
    """The rotary embedding of one kind of layer, where every kind has its own."""

    def __init__(self, shared: nn.Module, layer_type: str) -> None:
        super().__init__()
        self.shared = shared
        self.layer_type = layer_type

    def forward(self, x: Tensor, positions: Tensor) -> Any:
        """Return the cosines and sines of positions [1, n] in the dtype of x."""
        return self.shared(x, positions, layer_type=self.layer_type)


def _set_kind(config: Any, part: str, at: int, number: int, fallback: str) -> str:
    """Write the kind of a module's block into a configuration at layer `at`; return it.

    The configuration's own word for its modules counts most, then the family's `fallback`.
    """
    name = f"{part}_layer_types" if part else "layer_types"
    kinds = getattr(config, name, None)
    if not kinds:
        return ""
    told = getattr(config, f"mtp_{name}", None) or ()
    known = fallback if part or fallback in kinds else ""
    kind = told[number] if number < len(told) else known or kinds[at]
    setattr(config, name, [*kinds[:at], kind, *kinds[at + 1 :]])
    return str(kind)


def missing(name: str, claimed: int) -> PlaygroundError:
    """Return the error for a checkpoint without a module."""
    if claimed:
        return PlaygroundError(
            "mtp_weights_missing",
            f"The configuration of {name} speaks of {claimed} MTP module(s), but no file holds "
            "their weights: many re-saved checkpoints lost them.",
            "Name a folder that holds the module, such as the original checkpoint, with --mtp.",
            model=name,
            claimed=claimed,
        )
    return PlaygroundError(
        "no_mtp",
        f"{name} has no MTP module.",
        "Choose another method, or a model that ships one.",
        model=name,
    )


def _config_of(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def _read(folder: Path, shards: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors by their place; every shard is opened once."""
    state = {}
    for shard in sorted({shards[key] for key in keys.values()}):
        with safe_open(folder / shard, framework="pt") as file:
            for place, key in keys.items():
                if shards[key] == shard:
                    state[place] = file.get_tensor(key)
    return state


def _fused_experts(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Stack single experts where the module keeps them as one tensor."""
    fused = "block.mlp.experts.gate_up_proj"
    if fused in state or fused not in module.state_dict():
        return state
    number = 0
    gates, downs = [], []
    while (start := f"block.mlp.experts.{number}.") + "gate_proj.weight" in state:
        parts = [state.pop(start + f"{name}_proj.weight") for name in ("gate", "up", "down")]
        gates.append(torch.cat(parts[:2]))  # [2 I, D]
        downs.append(parts[2])
        number += 1
    if gates:
        state[fused], state["block.mlp.experts.down_proj"] = torch.stack(gates), torch.stack(downs)
    return state


def _under(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": weight for key, weight in state.items()}


def _load(
    module: nn.Module,
    state: dict[str, Tensor],
    family: Family,
    keys: Mapping[str, str],
    name: str,
) -> None:
    """Load a state that must be complete and hold nothing that has no place."""
    wanted = module.state_dict()
    for place, weight in wanted.items():
        if place not in state:
            raise _bad(name, f"lacks the tensor for {place} ({family.id} layout)")
        if state[place].shape != weight.shape:
            shapes = f"{list(state[place].shape)} instead of {list(weight.shape)}"
            raise _bad(name, f"holds {keys.get(place, place)} of the shape {shapes}")
    strange = sorted(place for place in state if place not in wanted and "inv_freq" not in place)
    if strange:
        raise _bad(name, f"holds {keys.get(strange[0], strange[0])}, which has no place in it")
    module.load_state_dict({place: state[place] for place in wanted})


def _bad(name: str, what: str) -> PlaygroundError:
    remedy = "Use the original checkpoint, or another folder that holds the whole module."
    return bad_module(name, what, remedy=remedy)
