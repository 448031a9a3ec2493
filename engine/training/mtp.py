"""Train the MTP module on the target's hidden states and distributions.

Depth d of a draft is trained on what the module sees there when it drafts: its own output of depth
d - 1 as the hidden state, true entries of the cache before it, its own entries of this draft behind
them ("training-time test", EAGLE-3, arXiv 2503.01840). The loss is the cross-entropy against the
target's distribution over the `vocab` rows of the head, on reply tokens, plus a little regression
onto the target's next hidden state, which keeps the chained input in range.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from engine.models.mtp_module import MTPModule
from engine.training.data import Batch
from engine.training.loop import soft_cross_entropy

DEPTH_WEIGHTS = (1.0, 0.7, 0.5)
DEPTH_SHARES = (1.0, 0.5, 0.5)  # of the positions whose cross-entropy is computed, per depth
REGRESSION = 0.05


class DepthAttention:
    """The block's attention over depth 1 entries (causal) and this draft's own deeper ones."""

    def __init__(self, module: MTPModule) -> None:
        self._module = module
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Attend from depth len(self._keys) + 1.  [B, T, D] -> [B, T, D]"""
        attention = self._module.block.self_attn
        batch, rows, _ = x.shape
        depth = len(self._keys)  # 0 for the first
        shape = (batch, rows, -1, attention.head_dim)
        q = attention.q_proj(x).view(shape).transpose(1, 2)
        k = attention.k_proj(x).view(shape).transpose(1, 2)
        v = attention.v_proj(x).view(shape).transpose(1, 2)
        positions = torch.arange(depth, depth + rows, device=x.device)[None]
        cos, sin = self._module.rotary(x, positions)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        groups = q.shape[1] // k.shape[1]
        self._keys.append(k.repeat_interleave(groups, 1))
        self._values.append(v.repeat_interleave(groups, 1))
        if depth == 0:
            out = nn.functional.scaled_dot_product_attention(
                q, self._keys[0], self._values[0], is_causal=True
            )
        else:
            out = self._deep(q, rows)
        mixed: Tensor = attention.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))
        return mixed

    def _deep(self, q: Tensor, rows: int) -> Tensor:
        """Row i sees true entries up to i, and entry i of every deeper level so far."""
        scale = q.shape[-1] ** -0.5
        # Deeper levels are one row shorter each: cut the older ones to the rows still alive.
        keys = [k[:, :, :rows] for k in self._keys]
        values = [v[:, :, :rows] for v in self._values]
        seen = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril()
        first = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
        own = [(q * k).sum(-1, keepdim=True) * scale for k in keys[1:]]
        weights = torch.softmax(torch.cat([first, *own], -1).float(), -1).to(q.dtype)
        out = weights[..., :rows] @ values[0]
        for level, v in enumerate(values[1:]):
            out = out + weights[..., rows + level, None] * v
        return out


def depth_outputs(
    module: MTPModule, embeddings: Tensor, hidden: Tensor, num_depths: int
) -> list[Tensor]:
    """Return the module's normed outputs per depth, no cache involved.

    embeddings, hidden [B, T, D]. Depth d (from 1) has T - d rows: row i saw tokens up to i + d and
    predicts token i + d + 1. This is also the reference that a cached drafter is tested against.
    """
    attend = DepthAttention(module)
    outputs: list[Tensor] = []
    previous = hidden
    for depth in range(1, num_depths + 1):
        rows = embeddings.shape[1] - depth
        x = module.mix(embeddings[:, depth:], previous[:, :rows])
        x = x + attend(module.block.input_layernorm(x))
        x = x + module.block.mlp(module.block.post_attention_layernorm(x))
        previous = module.norm(x)
        outputs.append(previous)
    return outputs


def loss_of(module: MTPModule, embedding: Tensor, vocab: Tensor, batch: Batch) -> Tensor:
    """Return the loss of a batch.  embedding [V, D] (tied head), vocab [R]"""
    head = embedding[vocab]
    outputs = depth_outputs(module, embedding[batch.tokens], batch.hidden, len(DEPTH_WEIGHTS))
    total = torch.zeros((), device=embedding.device)
    levels = zip(outputs, DEPTH_WEIGHTS, DEPTH_SHARES, strict=True)
    for depth, (out, weight, share) in enumerate(levels, start=1):
        truth = batch.hidden[:, depth:]
        alive = batch.mask[:, depth:]
        # Row i predicts the token after position i + depth; only replies count.
        wanted = alive & torch.nn.functional.pad(batch.answer[:, depth + 1 :], (0, 1))
        if share < 1:  # the head is most of the cost, and more steps teach more than more rows
            wanted = wanted & (torch.rand(wanted.shape, device=wanted.device) < share)
        gap = nn.functional.smooth_l1_loss(out[alive].float(), truth[alive], beta=0.5)
        cross = soft_cross_entropy(out[wanted] @ head.T, truth[wanted] @ head.T)
        total = total + weight * (cross + REGRESSION * gap)
    return total


@torch.no_grad()
def run_lengths(
    module: MTPModule, embedding: Tensor, vocab: Tensor, batch: Batch, num_depths: int = 4
) -> Tensor:
    """Return how many greedy drafts match the target's greedy choice, per reply position.  [n]"""
    outputs = depth_outputs(module, embedding[batch.tokens], batch.hidden, num_depths)
    choice = (batch.hidden @ embedding.T).argmax(-1)  # [B, T], the target's next token
    rows = outputs[-1].shape[1]
    alive = batch.answer[:, 1 : rows + 1] & batch.mask[:, num_depths : num_depths + rows]
    matched = torch.ones_like(alive)
    lengths = torch.zeros(alive.shape, dtype=torch.long, device=alive.device)
    for depth, out in enumerate(outputs, start=1):
        guess = vocab[(out[:, :rows] @ embedding[vocab].T).argmax(-1)]
        matched = matched & (guess == choice[:, depth : depth + rows])
        # Beyond the first the true text must be the draft itself, as it is in a greedy text.
        lengths += matched
    return lengths[alive]
