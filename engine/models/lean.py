"""A Llama forward with nothing but the arithmetic: the CPU decode path of the bundled models.

transformers' modules are general; on a small model their Python and small ops cost as much as a
third of the pass. This one shares the loaded weights, fuses q/k/v and gate/up into one matrix each,
keeps keys and values in buffers that grow, and builds no mask for a few rows. `supports` says which
models it knows; everything else runs in `models/hf`. Tests hold its logits equal to the library's.

Two ways to attend. *Together*: the rows of a pass in one call, with a mask. *Row by row*: each row
sees exactly the keys that a pass over it alone would see. With linears whose rows do not depend on
each other (`linear.packed`) a pass over k tokens then equals k passes over one token bit for bit,
so greedy text cannot depend on the drafter at all. `models/identity` tests whether that holds here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import LlamaForCausalLM, PreTrainedModel

from engine.models.base import Reading, Tap, num_kept
from engine.models.linear import Apply, packed
from engine.models.mtp_module import MTPModule

MakeLinear = Callable[[Tensor, Tensor | None], Apply]
"""weight [out, in], bias [out] -> a linear."""
Attend = Callable[[Tensor, Tensor, Tensor, int, bool], Tensor]
"""See `attention`."""

MOST_ROWS = 16  # beyond, a pass is a prefill: it attends together
_FIRST_CAPACITY = 256
_STATIC_ROPES = {"default", "linear", "llama3", "yarn"}  # the others change with the length


def supports(model: PreTrainedModel) -> bool:
    """Return whether this forward computes what `model` computes."""
    config = model.config
    return (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and getattr(model.model.rotary_emb, "rope_type", "") in _STATIC_ROPES
        and model.dtype == torch.float32
        and model.device.type == "cpu"
    )


class KeyValues:
    """Keys and values of every layer, [KV, capacity, head_dim] each, in buffers with room."""

    def __init__(self, num_layers: int, num_heads: int, head_dim: int) -> None:
        self.length = 0
        self._shape = (num_heads, _FIRST_CAPACITY, head_dim)
        self.keys = [torch.empty(self._shape) for _ in range(num_layers)]
        self.values = [torch.empty(self._shape) for _ in range(num_layers)]

    def empty_like(self, num_layers: int) -> KeyValues:
        """Return an empty cache for another number of such layers."""
        heads, _, head_dim = self._shape
        return KeyValues(num_layers, heads, head_dim)

    def crop(self, length: int) -> int:
        """Drop everything behind `length`; return how many entries that were."""
        surplus = max(self.length - length, 0)
        self.length -= surplus
        return surplus

    def make_room(self, length: int) -> None:
        """Grow the buffers to hold `length` entries."""
        heads, capacity, width = self._shape
        if length <= capacity:
            return
        shape = (heads, max(length, 2 * capacity), width)
        for buffers in (self.keys, self.values):
            for i, old in enumerate(buffers):
                new = torch.empty(shape)
                new[:, : self.length] = old[:, : self.length]
                buffers[i] = new
        self._shape = shape  # last: should memory end halfway, the next call starts over


class Rope:
    """The model's own rotary table; the sign of its rotated half is folded into the sine."""

    def __init__(self, rotary: nn.Module, half: int) -> None:
        self._rotary = rotary
        self._half = half
        self._cos = self._sin = torch.empty(0, 1, 1)

    def rows(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions first .. first + count - 1.  [n, 1, head_dim] x 2"""
        last = first + count
        if last > self._cos.shape[0]:
            positions = torch.arange(max(2 * last, _FIRST_CAPACITY))[None]
            cos, sin = self._rotary(torch.empty(0), positions)
            sin = torch.cat([-sin[..., : self._half], sin[..., self._half :]], -1)
            self._cos, self._sin = cos[0, :, None], sin[0, :, None]
        return self._cos[first:last], self._sin[first:last]


class LeanBlock:
    """One decoder layer."""

    def __init__(self, layer: Any, make: MakeLinear, attend: Attend) -> None:
        self._attend = attend
        heads, mlp = layer.self_attn, layer.mlp
        self._qkv = make(*_fused(heads.q_proj, heads.k_proj, heads.v_proj))
        self._out = make(*_fused(heads.o_proj))
        self._gate_up = make(*_fused(mlp.gate_proj, mlp.up_proj))
        self._down = make(*_fused(mlp.down_proj))
        self._norms = [
            layer.input_layernorm.weight.detach().clone(),
            layer.post_attention_layernorm.weight.detach().clone(),
        ]
        self._eps = layer.input_layernorm.variance_epsilon
        config = heads.config
        self._head_dim = heads.head_dim
        self._kv_heads = config.num_key_value_heads
        self._heads = config.num_attention_heads
        self._inner = config.intermediate_size

    def __call__(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        cache: KeyValues,
        index: int,
        *,
        row_wise: bool,
    ) -> Tensor:
        """Run rows x [n, D] behind the `cache.length` entries of layer `index`.  -> [n, D]"""
        n, width = x.shape
        first = cache.length
        shape = (width,)
        mixed = self._qkv(rms_norm(x, shape, self._norms[0], self._eps))
        mixed = mixed.view(n, self._heads + 2 * self._kv_heads, self._head_dim)
        rotated = mixed[:, : self._heads + self._kv_heads]
        cos, sin = rope
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        keys, values = cache.keys[index], cache.values[index]
        keys[:, first : first + n] = rotated[:, self._heads :].transpose(0, 1)
        values[:, first : first + n] = mixed[:, self._heads + self._kv_heads :].transpose(0, 1)
        q = rotated[:, : self._heads]
        x = x + self._out(self._attend(q, keys, values, first, row_wise and n <= MOST_ROWS))
        gate_up = self._gate_up(rms_norm(x, shape, self._norms[1], self._eps))
        return x + self._down(silu(gate_up[:, : self._inner]) * gate_up[:, self._inner :])


def attention(q: Tensor, keys: Tensor, values: Tensor, first: int, row_wise: bool) -> Tensor:
    """Attend causally.  q [n, H, d], keys and values [KV, capacity, d] -> [n, H d]

    Row i of q stands at position first + i.
    """
    if row_wise or q.shape[0] == 1:
        return _row_by_row(q, keys, values, first)
    return _together(q, keys, values, first)


def _row_by_row(q: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """Attend from each row on its own.

    The heads that share keys stand as rows of one small product: no key is repeated.
    """
    n, heads, head_dim = q.shape
    grouped = q.reshape(n, keys.shape[0], -1, head_dim)
    rows = [
        scaled_dot_product_attention(
            grouped[j : j + 1], keys[None, :, : first + j + 1], values[None, :, : first + j + 1]
        ).view(1, heads * head_dim)
        for j in range(n)
    ]
    return rows[0] if n == 1 else torch.cat(rows)


def _together(q: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """Attend from all rows in one call, later keys masked."""
    n = q.shape[0]
    end = first + n
    mask = None if first == 0 else torch.ones(n, end, dtype=torch.bool).tril(first)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None, :, :end],
        values[None, :, :end],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(n, -1)


class LeanLlama:
    """A `LanguageModel` around the weights of a `LlamaForCausalLM` (fp32, on a CPU)."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        *,
        make: MakeLinear = packed,
        head: Apply | None = None,
        attend: Attend = attention,
        drop: bool = False,
    ) -> None:
        """Take over the weights; `head` replaces the model's own.

        `make` and `attend` are the linears and the attention to use.
        `drop` empties `model` layer by layer, so that the weights are never held twice.
        """
        if not supports(model):
            raise ValueError(f"{type(model).__name__} needs the library's own modules")
        config = model.config
        self.vocab_size = int(config.vocab_size)
        self.max_length = int(config.max_position_embeddings)
        self.device = model.device
        self.row_wise = False
        self._embedding = model.get_input_embeddings()
        self._norm = model.model.norm.weight.detach().clone()
        self._eps = model.model.norm.variance_epsilon
        self._head = head or make(*_fused(model.get_output_embeddings()))
        head_dim = model.model.layers[0].self_attn.head_dim
        self._rope = Rope(model.model.rotary_emb, head_dim // 2)
        self._cache = KeyValues(config.num_hidden_layers, config.num_key_value_heads, head_dim)
        self._blocks: list[LeanBlock] = []
        for i, layer in enumerate(model.model.layers):
            self._blocks.append(LeanBlock(layer, make, attend))
            if drop:
                model.model.layers[i] = nn.Identity()
        self._taps: tuple[Tap, ...] = ()
        self._held: list[int] = []

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._blocks)

    def first_layers(self, count: int) -> LeanLlama:
        """Return a model of the first `count` layers, norm and head, with a cache of its own."""
        short = copy.copy(self)
        short._blocks = self._blocks[:count]
        short._cache = self._cache.empty_like(count)
        short._taps, short._held = (), []
        return short

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Choose the hidden states that `read` returns: after the final norm, or after layer n."""
        self._taps = taps

    def forget(self) -> None:
        """Drop what was read: the next read starts cold."""
        self._cache.crop(0)
        self._held = []

    @torch.inference_mode()
    def read(
        self,
        token_ids: Sequence[int],
        *,
        want: int = 1,
        features: int = 0,
        committed: int | None = None,
    ) -> Reading:
        """Have read `token_ids`; return logits and features of the last positions."""
        ids = list(token_ids)
        kept = num_kept(self._held, ids, want=want, features=features)
        num_rolled_back = self._cache.crop(kept)
        self._held = ids[:kept]  # holds should the pass fail: what it wrote lies behind
        self._cache.make_room(len(ids))
        states = self._forward(ids[kept:])
        self._cache.length = len(ids)
        self._held = ids
        rows = [states[tap][-features:] for tap in self._taps] if features else []
        return Reading(
            logits=self._head(states["final"][-want:]),
            features=torch.cat(rows, dim=-1) if rows else _NOTHING,
            num_rolled_back=num_rolled_back,
            num_forwarded=len(ids) - kept,
        )

    def _forward(self, ids: list[int]) -> dict[Tap, Tensor]:
        """Run new tokens through every layer; return the final states and the tapped ones."""
        x = self._embedding(torch.tensor(ids))  # [n, D]
        rope = self._rope.rows(self._cache.length, len(ids))
        states: dict[Tap, Tensor] = {0: x}
        for i, block in enumerate(self._blocks):
            x = block(x, rope, self._cache, i, row_wise=self.row_wise)
            if i + 1 in self._taps:
                states[i + 1] = x
        states["final"] = rms_norm(x, x.shape[-1:], self._norm, self._eps)
        states[len(self._blocks)] = states["final"]  # transformers' name for the same place
        return states


class LeanMTP:
    """An `MTPModule` without the library's modules, to draft with; fp32 or int8, on a CPU."""

    def __init__(self, module: MTPModule, make: MakeLinear) -> None:
        self._norms = [
            norm.weight.detach().clone() for norm in (module.enorm, module.hnorm, module.norm)
        ]
        self._eps = module.norm.variance_epsilon
        self._projection = make(*_fused(module.projection))
        self._block = LeanBlock(module.block, make, attention)
        head_dim = module.block.self_attn.head_dim
        self._rope = Rope(module.rotary, head_dim // 2)
        self._sizes = (1, module.config.num_key_value_heads, head_dim)

    def new_cache(self) -> KeyValues:
        """Return an empty cache for `run`."""
        return KeyValues(*self._sizes)

    def run(self, embeddings: Tensor, hidden: Tensor, first: int, cache: KeyValues) -> Tensor:
        """Run positions from `first` on behind what `cache` holds.  [n, D] x 2 -> [n, D], normed"""
        n, width = embeddings.shape
        parts = zip((embeddings, hidden), self._norms, strict=False)
        both = torch.cat([rms_norm(x, (width,), norm, self._eps) for x, norm in parts], -1)
        cache.make_room(cache.length + n)
        rope = self._rope.rows(first, n)
        x = self._block(self._projection(both), rope, cache, 0, row_wise=False)
        cache.length += n
        return rms_norm(x, (width,), self._norms[2], self._eps)


_NOTHING = torch.empty(0, 0)


def _fused(*layers: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return the weights and biases of layers with one input, stacked."""
    weights = [layer.weight.detach() for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):
        raise ValueError("either all of these layers have a bias or none has")
    if len(layers) == 1:
        return weights[0], biases[0] if biases else None
    return torch.cat(weights), torch.cat(biases) if biases else None
