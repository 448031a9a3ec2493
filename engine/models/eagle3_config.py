"""What the config.json of an EAGLE-3 head says, in either layout.

Contract: `read_config` gives one description. The authors' layout (SafeAILab, AngelSlim, SpecForge)
has its values at the top; `speculators` has the layer's in `transformer_layer_config`.

Which states: the target's state after layer n is number n here, and what *enters* layer n (from 0)
in the engines' words. Unnamed, they are 2, half and all but 3 of the layers, as the authors fixed
it. A list at the top of the config counts states, as vLLM and speculators do; one inside
`eagle_config` counts layers whose *output* is meant, as SGLang and SpecForge train it: one further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from engine.errors import PlaygroundError
from engine.models.eagle3_module import Variant

_LAYER_VALUES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "vocab_size"),
    *("attention_bias", "mlp_bias", "rope_theta", "rope_scaling", "rope_parameters"),
)
_NAMES_OF_STATES = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """A head: its layer, the width of the target's states, its vocabulary, what it reads."""

    layer: LlamaConfig
    target_width: int
    num_tokens: int
    taps: tuple[int, ...]
    variant: Variant


def read_config(folder: Path, num_layers: int) -> Eagle3Config:
    """Read the configuration of a head for a target with `num_layers`.

    Raises PlaygroundError("bad_eagle3").
    """
    path = folder / "config.json"
    if not path.is_file():
        raise bad_head(folder, "there is no config.json")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    layer = _layer_config(values)
    return Eagle3Config(
        layer=layer,
        target_width=int(values.get("target_hidden_size") or layer.hidden_size),
        num_tokens=int(values.get("draft_vocab_size") or layer.vocab_size),
        taps=feature_taps(folder, values, num_layers),
        variant=_variant(values),
    )


def feature_taps(folder: Path, values: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the numbers of the target's states that a head reads."""
    inner = values.get("eagle_config") or {}
    here, there = ([part[n] for n in _NAMES_OF_STATES if part.get(n)] for part in (values, inner))
    if here:
        taps = tuple(here[0])
    elif there:
        taps = tuple(number + 1 for number in there[0])
    else:
        taps = (2, num_layers // 2, num_layers - 3)
    # The state after the last layer is normed where we can read it, and no head expects that.
    if not all(0 <= tap < num_layers for tap in taps):
        raise bad_head(folder, f"it reads layers {list(taps)} of a target with {num_layers}")
    return taps


def _layer_config(values: Mapping[str, Any]) -> LlamaConfig:
    layer = values.get("transformer_layer_config") or values
    kept = {name: layer[name] for name in _LAYER_VALUES if layer.get(name) is not None}
    config = LlamaConfig(num_hidden_layers=1, **kept)
    config._attn_implementation = "sdpa"
    return config


def _variant(values: Mapping[str, Any]) -> Variant:
    """Return where the norms stand; `speculators` norms before the residual unless told not to."""
    return Variant(
        norm_before_residual=bool(
            values.get("norm_before_residual", "speculators_model_type" in values)
        ),
        norm_output=bool(values.get("norm_output")),
        fc_norm=bool(values.get("fc_norm")),
        norm_before_fc=bool(values.get("norm_before_fc")),
    )


def bad_head(folder: Path, what: str) -> PlaygroundError:
    """Return the error for a head that does not fit."""
    return PlaygroundError(
        "bad_eagle3",
        f"The EAGLE-3 head in {folder.name} cannot be used: {what}.",
        "Choose a head that was trained for this target and is stored as safetensors.",
        folder=folder.name,
        what=what,
    )
