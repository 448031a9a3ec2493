"""An MTP module over a `Bucket`: a chain whose short passes a GPU can record once and replay.

Contract: a `Chain` (see `proposers/mtp`) that gives what the module itself gives. The buffers are
the chain's own, because recorded passes write into them: a new cache takes them over, and the one
before it can no longer be used. A pair runs one request at a time, so there is never a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.models.bucket import Bucket, Shape
from engine.models.mtp_module import MTPModule
from engine.models.static import MOST_ROWS, NAME, Pass, Recorder, Unrecorded


def supports_chain(module: MTPModule) -> bool:
    """Return whether a module's passes have fixed shapes: plain attention, no experts to choose."""
    config: Any = module.config
    experts = ("num_experts", "n_routed_experts", "num_local_experts")
    rotary = getattr(module.rotary, "rope_type", "")
    return (
        hasattr(module.block, "self_attn")
        and rotary in ("default", "linear", "llama3", "yarn")
        and not hasattr(config, "kv_lora_rank")
        and not any(hasattr(module.block.mlp, name) for name in ("experts", *experts))
    )


@dataclass(slots=True)
class Places:
    """What one run holds of the chain's buffers."""

    length: int = 0

    def crop(self, length: int) -> int:
        """Drop everything behind `length`; return how many entries that were."""
        surplus = max(self.length - length, 0)
        self.length -= surplus
        return surplus


class StaticChain:
    """A `Chain` around a module that `supports_chain` names."""

    def __init__(self, module: MTPModule, record: Recorder | None = None) -> None:
        self.module = module
        self._record = record or Unrecorded()
        attention: Any = module.block.self_attn
        attention.config._attn_implementation = NAME
        like = module.projection.weight
        longest = int(module.config.max_position_embeddings)
        self._bucket = Bucket(Shape.of(module.config, 1), like, longest)
        shape = (2, 1, MOST_ROWS, like.shape[0])
        self._inputs = like.new_zeros(shape)  # embeddings and hidden states
        self._first = torch.zeros(1, dtype=torch.long, device=like.device)
        self._passes: dict[int, Pass] = {}
        self._current = Places()

    def new_cache(self) -> Places:
        """Return an empty cache for `run`; the one before it is no longer good."""
        self._current = Places()
        return self._current

    @torch.inference_mode()
    def run(self, embeddings: Tensor, hidden: Tensor, first: int, cache: Places) -> Tensor:
        """Run positions from `first` on behind what `cache` holds.  [n, D] x 2 -> [n, D]

        Raises ValueError for a cache that another one has replaced.
        """
        if cache is not self._current:
            raise ValueError("another run has taken this cache's place")
        n = embeddings.shape[0]
        end = cache.length + n
        if self._bucket.make_room(end, cache.length):
            self._passes.clear()
        self._bucket.stand_at(cache.length)
        self._first.fill_(first)
        embeddings = self.module.masked(embeddings[None], first)
        if n > MOST_ROWS:
            out = self._run(embeddings, hidden[None], end)[0]
        else:
            self._inputs[0, :, :n] = embeddings
            self._inputs[1, :, :n] = hidden
            if n not in self._passes:
                self._passes[n] = self._recorded(n)
            out = self._passes[n]()[0].clone()  # the next pass writes into the same place
        cache.length = end
        return out

    def _recorded(self, n: int) -> Pass:
        capacity = self._bucket.capacity
        embeddings, hidden = self._inputs[0, :, :n], self._inputs[1, :, :n]
        return self._record(lambda: self._run(embeddings, hidden, capacity))

    def _run(self, embeddings: Tensor, hidden: Tensor, length: int) -> tuple[Tensor]:
        """Run rows [1, n, D] x 2 where the bucket stands.  -> [n, D]"""
        n = embeddings.shape[1]
        positions = self._first + torch.arange(n, device=self._first.device)
        seen = self._bucket.seen(n, length, self.module.window)
        out = self.module.at(embeddings, hidden, positions[None], seen, self._bucket.cache)
        return (out[0],)
