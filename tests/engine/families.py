"""Tiny random checkpoints on disk, in the key layouts of real families with an MTP module."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCAB = 61
WIDTH = 32
_SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_ROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}


def qwen3_5(**changes):
    values = {**_LINEAR, "rope_parameters": _ROPE, **changes}
    return _made(Qwen3_5ForCausalLM, Qwen3_5TextConfig, **values)


def qwen3_next(**changes):
    return _made(
        *(Qwen3NextForCausalLM, Qwen3NextConfig),
        **_LINEAR,
        **_EXPERTS,
        num_experts=4,
        shared_expert_intermediate_size=16,
        **changes,
    )


def lfm2(**changes):
    return _made(
        *(Lfm2ForCausalLM, Lfm2Config),
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3,
        **changes,
    )


def deepseek():
    return _made(
        *(DeepseekV3ForCausalLM, DeepseekV3Config),
        **_EXPERTS,
        num_key_value_heads=4,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    )


def glm():
    return _made(
        *(Glm4MoeForCausalLM, Glm4MoeConfig),
        **_EXPERTS,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        head_dim=8,
    )


def mimo():
    return _made(Qwen2ForCausalLM, Qwen2Config, num_hidden_layers=2)


def ernie():
    return _made(
        *(Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig),
        moe_intermediate_size=16,
        moe_num_experts=4,
        moe_k=2,
        num_hidden_layers=2,
        moe_layer_start_index=1,
    )


def _made(model_class, config_class, **values):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config_class(**{**_SHARED, **values})).eval().requires_grad_(False)
        # Norm weights of one (or zero) would hide a norm that is missing or of the wrong kind.
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += torch.randn_like(weight) * 0.3
    return model


NAMES = {
    "qwen": ("mtp.fc.", "mtp.pre_fc_norm_embedding.", "mtp.pre_fc_norm_hidden.", "mtp.norm.",
             "mtp.layers.0."),
    "deepseek": ("model.layers.2.eh_proj.", "model.layers.2.enorm.", "model.layers.2.hnorm.",
                 "model.layers.2.shared_head.norm.", "model.layers.2."),
    "mimo": ("model.mtp_layers.0.input_proj.", "model.mtp_layers.0.token_layernorm.",
             "model.mtp_layers.0.hidden_layernorm.", "model.mtp_layers.0.final_layernorm.",
             "model.mtp_layers.0."),
    "ernie": ("model.mtp_linear_proj.0.", "model.mtp_emb_norm.0.", "model.mtp_hidden_norm.0.", None,
              "model.mtp_block.0."),
    "step": ("model.layers.{}.eh_proj.", "model.layers.{}.enorm.", "model.layers.{}.hnorm.",
             "model.layers.{}.transformer.shared_head.norm.", "model.layers.{}."),
    "mimo_v2": ("model.mtp.layers.{}.eh_proj.", "model.mtp.layers.{}.enorm.",
                "model.mtp.layers.{}.hnorm.", "model.mtp.layers.{}.final_layernorm.",
                "model.mtp.layers.{}."),
}  # fmt: skip
"""By layout: the names of projection, embedding norm, hidden norm, last norm and block."""

FAMILIES = {
    "qwen3.5": (qwen3_5, "qwen"),
    "qwen3-next": (qwen3_next, "qwen"),
    "deepseek": (deepseek, "deepseek"),
    "glm": (glm, "deepseek"),
    "mimo": (mimo, "mimo"),
    "ernie": (ernie, "ernie"),
}


class Reference:
    """The module as its family defines it, written again without any cache.

    It holds a block of the library, raw tensors for the rest, and computes every row at every step.
    """

    number = 0
    raw = False

    def __init__(self, family, model, *, seed=5):
        self.layout = FAMILIES[family][1]
        self.model = model
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.block = self.made_block(copy.deepcopy(model.config)).eval().requires_grad_(False)
            for weight in self.block.parameters():
                weight.copy_(torch.randn_like(weight) * 0.3)
            for weight in self.block.buffers():
                weight.copy_(torch.rand_like(weight))
            self.projection = torch.randn(WIDTH, 2 * WIDTH) * 0.3
            self.enorm, self.hnorm, self.norm = torch.randn(3, WIDTH) * 0.4
        self.zero_centred = "Qwen3" in type(model).__name__
        if not self.zero_centred:
            self.enorm, self.hnorm, self.norm = self.enorm + 1, self.hnorm + 1, self.norm + 1
        if self.layout == "ernie":
            self.norm = model.model.norm.weight

    def made_block(self, config):
        last = 0 if self.layout == "ernie" else config.num_hidden_layers - 1
        if getattr(config, "layer_types", None):
            config.layer_types = [*config.layer_types[:last], "full_attention"]
        return type(self.model.model.layers[last])(config, last)

    def tensors(self):
        """Return what a checkpoint holds of it, by the family's names."""
        projection, enorm, hnorm, norm, block = (
            name and name.format(self.number) for name in NAMES[self.layout]
        )
        found = {
            projection + "weight": self.projection,
            enorm + "weight": self.enorm,
            hnorm + "weight": self.hnorm,
        }
        if norm:
            found[norm + "weight"] = self.norm
        for name, weight in self.block.state_dict().items():
            found.update(_single_experts(block + name, weight))
        return {name: weight.clone() for name, weight in found.items()}

    def normed(self, x, weight):
        eps = self.model.config.rms_norm_eps
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return scaled * (1 + weight if self.zero_centred else weight)

    @torch.no_grad()
    def draft(self, ids, num_steps):
        """Return the greedy logits of a chain behind `ids`.  -> [num_steps, V]"""
        seen = self.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        hidden = list(seen.hidden_states[-1][0, :-1])
        tokens = list(ids[1:])
        all_logits = []
        for _ in range(num_steps):
            out = self._run(torch.tensor(tokens), torch.stack(hidden))[-1]
            all_logits.append(self.model.lm_head(out))
            tokens.append(int(all_logits[-1].argmax()))
            hidden.append(out)
        return torch.stack(all_logits)

    def _run(self, tokens, hidden):
        embeddings = self.model.get_input_embeddings()(tokens)
        if self.layout == "mimo":
            embeddings[0] = 0
        parts = [self.normed(embeddings, self.enorm), self.normed(hidden, self.hnorm)]
        if self.layout == "mimo":
            parts.reverse()
        x = (torch.cat(parts, -1) @ self.projection.T)[None]
        places = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
        rope = self.model.model.rotary_emb(x, places)
        y = self.block(x, attention_mask=mask, position_ids=places, position_embeddings=rope)[0]
        return y if self.raw else self.normed(y, self.norm)


def _single_experts(name, weight):
    """Return fused experts one by one, as most checkpoints store them."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: weight}
    start, _, kind = name.rpartition(".")
    found = {}
    for number, one in enumerate(weight):
        if kind == "down_proj":
            found[f"{start}.{number}.down_proj.weight"] = one
        else:
            gate, up = one.chunk(2)
            found[f"{start}.{number}.gate_proj.weight"] = gate
            found[f"{start}.{number}.up_proj.weight"] = up
    return found


def write(folder: Path, model: nn.Module, tensors, **config) -> Path:
    """Write a checkpoint: the model in one shard, `tensors` in another, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    trunk = {name: weight.clone() for name, weight in model.state_dict().items()}
    parts = {"model-1.safetensors": trunk, "model-2.safetensors": dict(tensors)}
    index = {}
    for file, content in parts.items():
        if content:
            save_file(content, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(content, file))
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    values = {**model.config.to_dict(), **config}
    (folder / "config.json").write_text(json.dumps(values))
    return folder
