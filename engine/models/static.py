"""A transformers model over a cache of fixed places: what a GPU can record once and replay.

Contract: see `models/base`. Keys and values lie in a `Bucket`. A pass over few tokens (at most
`MOST_ROWS`) reads its tokens from a fixed buffer, and a `Recorder` may record it (`models/graphs`);
longer ones, the prompt's, run as they come. Nothing in a short pass looks at the host.

Attention takes the heads that share keys as rows of one product, so that no key is copied for a
short pass, and fused kernels take 2 to 16 tokens as they take one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from engine.models.base import Reading, Tap, num_kept
from engine.models.bucket import Bucket, Shape
from engine.models.hf import final_norm

MOST_ROWS = 16
"""Tokens of the longest pass with a fixed shape."""

NAME = "draftlight_grouped"

_STATIC_ROPES = {"default", "linear", "llama3", "yarn"}  # the others look at the position
_ATTENTION = {"full_attention"}

MOST_CONTINUATIONS = 24
"""How many are kept: a few laws at a few draft lengths."""

Pass = Callable[[], tuple[Tensor, ...]]
"""A pass over fixed buffers: logits [want, V], the tapped states [n, D], what a `Then` gives."""

Then = Callable[[Tensor], tuple[Tensor, ...]]
"""What goes on with the wanted logits [want, V] as part of the same pass."""

Made = TypeVar("Made")


class Recorder(Protocol):
    """Makes a pass fast that is run again and again over the same buffers."""

    def __call__(self, run: Pass) -> Pass:
        """Return what gives the same as `run`; its results are overwritten by the next call."""
        ...

    def describe(self) -> str:
        """Say how passes run."""
        ...


class Unrecorded:
    """Records nothing."""

    def __call__(self, run: Pass) -> Pass:
        """Return the pass as it is."""
        return run

    def describe(self) -> str:
        """Say how passes run."""
        return "as they come"


def supports(model: PreTrainedModel) -> bool:
    """Return whether this model's passes have fixed shapes: full attention, positions known.

    `_can_compile_fullgraph` is the library's own word for a forward without a look at the host.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or _ATTENTION)
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    return (
        bool(getattr(model, "_can_compile_fullgraph", False))
        and kinds == _ATTENTION
        and getattr(rotary, "rope_type", "") in _STATIC_ROPES
        and not hasattr(config, "kv_lora_rank")
        and not getattr(config, "sliding_window", None)
        and not getattr(config, "attn_logit_softcapping", None)
        and len({p.device for p in model.parameters()}) == 1
    )


class StaticModel:
    """A `LanguageModel` around a `PreTrainedModel` that `supports` names."""

    def __init__(self, model: PreTrainedModel, record: Recorder | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.model.set_attn_implementation(NAME)
        config = model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.max_length = int(config.max_position_embeddings)
        self.device = model.device
        self._record = record or Unrecorded()
        shape = Shape.of(config, int(config.num_hidden_layers))
        self._bucket = Bucket(shape, next(model.parameters()), self.max_length)
        self._before_norm: Tensor | None = None
        if (norm := final_norm(model)) is not None:
            norm.register_forward_pre_hook(self._keep)
        self._taps: tuple[Tap, ...] = ()
        self._held: list[int] = []
        self._ids = torch.zeros(1, MOST_ROWS, dtype=torch.long, device=self.device)
        self._passes: dict[tuple[object, ...], Pass] = {}
        self._continuations: dict[Hashable, Any] = {}

    @property
    def knows_pre_norm(self) -> bool:
        """Whether the state before the final norm can be tapped."""
        return final_norm(self.model) is not None

    @property
    def capacity(self) -> int:
        """Places of the bucket in use; 0 before the first read."""
        return self._bucket.capacity

    def describe(self) -> str:
        """Say how short passes run."""
        return self._record.describe()

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Choose the hidden states that `read` returns."""
        if "pre_norm" in taps and not self.knows_pre_norm:
            raise ValueError(f"{type(self.model).__name__} has no state at 'pre_norm'")
        self._taps = taps

    def forget(self) -> None:
        """Drop what was read: the next read starts cold, in the same bucket."""
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
        return self.read_then(token_ids, None, want=want, features=features)[0]

    def continuation(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made under this key before, or make it: `read_then` records it once.

        The latest few are kept.
        """
        made: Made = self._continuations.pop(key, None) or make()
        while len(self._continuations) >= MOST_CONTINUATIONS:
            gone = self._continuations.pop(next(iter(self._continuations)))
            self._passes = {k: run for k, run in self._passes.items() if gone not in k}
        self._continuations[key] = made
        return made

    @torch.inference_mode()
    def read_then(
        self,
        token_ids: Sequence[int],
        then: Then | None,
        *,
        want: int = 1,
        features: int = 0,
    ) -> tuple[Reading, tuple[Tensor, ...]]:
        """Read, and let `then` go on with the wanted logits as part of the same recorded pass.

        What `then` gives is overwritten by the next read.
        """
        ids = list(token_ids)
        kept = num_kept(self._held, ids, want=want, features=features)
        num_rolled_back = len(self._held) - kept
        self._held = ids[:kept]  # holds should the pass fail: what it wrote lies behind
        if self._bucket.make_room(len(ids), kept):
            self._passes.clear()  # what was recorded writes into the old buffers
        self._bucket.stand_at(kept)
        taps = self._taps if features else ()
        results = self._forward(ids[kept:], want, taps, then)
        self._held = ids
        logits, states, more = results[0], results[1 : 1 + len(taps)], results[1 + len(taps) :]
        rows = [state[-features:] for state in states]
        reading = Reading(
            logits=logits[-want:].clone(),  # a recorded pass writes into the same place next time
            features=torch.cat(rows, dim=-1) if rows else _NOTHING,
            num_rolled_back=num_rolled_back,
            num_forwarded=len(ids) - kept,
        )
        return reading, more

    def _forward(
        self, fresh: list[int], want: int, taps: tuple[Tap, ...], then: Then | None
    ) -> tuple[Tensor, ...]:
        n = len(fresh)
        ids = torch.tensor([fresh])
        if n > MOST_ROWS:
            return self._run(ids.to(self.device), want, taps, len(self._held) + n, then)
        self._ids[:, :n].copy_(ids, non_blocking=True)
        key = (n, want, taps, then)
        known = self._passes.get(key)
        if known is None:
            capacity = self._bucket.capacity
            known = self._record(lambda: self._run(self._ids[:, :n], want, taps, capacity, then))
            self._passes[key] = known
        return known()

    def _run(
        self, ids: Tensor, want: int, taps: tuple[Tap, ...], length: int, then: Then | None
    ) -> tuple[Tensor, ...]:
        """Run the library's forward where the bucket stands, and what goes on from there.

        ids [1, n]; of the bucket the first `length` places are looked at.
        """
        n = ids.shape[1]
        out = self.model(
            input_ids=ids,
            attention_mask=self._bucket.seen(n, length),
            position_ids=self._bucket.places(n)[None],
            cache=self._bucket.cache,
            use_cache=True,
            logits_to_keep=want,
            output_hidden_states=bool(taps),
        )
        known: dict[Tap, Any] = {"final": -1}
        states = [
            self._before_norm if tap == "pre_norm" else out.hidden_states[known.get(tap, tap)]
            for tap in taps
        ]
        logits = out.logits[0]  # [want, V]
        more = then(logits) if then else ()
        return (logits, *(state[0] for state in states if state is not None), *more)

    def _keep(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Remember what the final norm is given."""
        self._before_norm = args[0]


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend to the keys that the mask has columns for; without a mask to all, causally.

    query [1, H, n, D], key and value [1, KV, L, D], mask [1, 1, n, at most L] -> [1, n, H, D], None
    (the signature is transformers' own).
    """
    _, heads, n, width = query.shape
    groups = heads // key.shape[1]
    mask = attention_mask
    if mask is None and n > 1:
        length = key.shape[2]
        mask = query.new_ones(n, length, dtype=torch.bool).tril(length - n)[None, None]
    if mask is not None:
        key, value = key[:, :, : mask.shape[-1]], value[:, :, : mask.shape[-1]]
    if n <= MOST_ROWS:
        query = query.reshape(1, key.shape[1], groups * n, width)
        mask = mask if mask is None else mask.repeat(1, 1, groups, 1)  # row g * n + i
    else:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(1, heads, n, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


_NOTHING = torch.empty(0, 0)
