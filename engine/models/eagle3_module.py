"""An EAGLE-3 head: one Llama-like layer that reads three hidden states of the target at once.

Design of arXiv 2503.01840. At position i it eats the embedding of token i + 1 and a hidden state,
and predicts token i + 2 over a vocabulary of its own. For positions the target has read, that state
is `fuse` of the target's states after a low, a middle and a high layer; further on it is the
module's own output *before* its final norm, which only the output head sees normed.

Contract: parameters are named as in the authors' checkpoints, so a state dict of this module is one
(without the maps `d2t` and `t2d`). `Variant` holds what later heads do differently.
Checkpoints are read by `eagle3_checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from engine.models.cache import CropCache
from engine.models.mtp_module import causal_mask


@dataclass(frozen=True, slots=True)
class Variant:
    """Where norms stand that not every head has in the same place.

    norm_before_residual: the layer adds its result to the normed hidden state.
    norm_output: what is chained is normed (EAGLE 3.1).
    fc_norm, norm_before_fc: each of the target's states is normed alone, or all of them as one.
    """

    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False


class Eagle3Layer(nn.Module):
    """A Llama layer whose attention reads two vectors per position: embedding and hidden state."""

    def __init__(self, config: LlamaConfig, *, norm_before_residual: bool) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self._norm_before_residual = norm_before_residual
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            wide = nn.Linear(2 * width, rows, bias=config.attention_bias)
            setattr(self.self_attn, name, wide)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(width, eps)
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)

    def forward(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """[B, n, D] x 2 -> [B, n, D]"""
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.input_layernorm(embeddings), normed], -1)  # [B, n, 2 D]
        x = normed if self._norm_before_residual else hidden
        x = x + self.self_attn(both, **attention)[0]
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Module(nn.Module):
    """The head without its vocabulary map: logits are over its own `num_tokens`.

    num_states: how many states of the target are fused; target_width: the size of each.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        target_width: int,
        num_states: int = 3,
        num_tokens: int,
        variant: Variant | None = None,
    ) -> None:
        super().__init__()
        variant = variant or Variant()
        width, eps = config.hidden_size, config.rms_norm_eps
        self._num_states = num_states
        self._variant = variant
        self.fc = nn.Linear(num_states * target_width, width, bias=False)
        if variant.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(target_width, eps) for _ in range(num_states))
        if variant.norm_before_fc:
            self.input_norm = LlamaRMSNorm(num_states * target_width, eps)
        self.midlayer = Eagle3Layer(config, norm_before_residual=variant.norm_before_residual)
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head = nn.Linear(width, num_tokens, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def fuse(self, features: Tensor) -> Tensor:
        """Make one hidden state of the target's.  [n, num_states * target_width] -> [n, D]"""
        if self._variant.fc_norm:
            chunks = features.chunk(self._num_states, -1)
            normed = [norm(x) for norm, x in zip(self.fc_norm, chunks, strict=True)]
            features = torch.cat(normed, -1)
        if self._variant.norm_before_fc:
            features = self.input_norm(features)
        fused: Tensor = self.fc(features)
        return fused

    def new_cache(self) -> CropCache:
        """Return an empty cache for `run`."""
        return CropCache(None)

    def run(self, embeddings: Tensor, hidden: Tensor, first: int, cache: CropCache) -> Tensor:
        """Run positions from `first` on behind what `cache` holds; return what is chained.

        [n, D] x 2 -> [n, D]
        """
        x = hidden[None]
        positions = torch.arange(first, first + x.shape[1], device=x.device)[None]
        out = self.midlayer(
            embeddings[None],
            x,
            attention_mask=causal_mask(x, len(cache)),
            cache=cache.library_cache,
            position_embeddings=self.rotary(x, positions),
        )
        chained: Tensor = self.norm(out[0]) if self._variant.norm_output else out[0]
        return chained

    @property
    def head(self) -> nn.Module:
        """What turns an output of `run` into logits.  [n, D] -> [n, num_tokens]"""
        return self.lm_head if self._variant.norm_output else nn.Sequential(self.norm, self.lm_head)
