"""Keys and values in buffers that stay where they are, so that a recorded pass can be replayed.

Contract: a `Bucket` holds one sequence for some layers. Where the next entries go is one number on
the device (`place`), so rolling back is one write and no pass looks at it on the host. `make_room`
moves to larger buffers when a length does not fit; whatever was recorded before writes into the old
ones and must be recorded again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

FIRST = 512
"""Places of the first buckets; each further one has twice as many."""

STEP = 64
"""Fused attention kernels want aligned rows of a mask: a bucket has a multiple of this."""


class Shape(NamedTuple):
    """What one layer keeps of a token: heads x width, keys and values alike."""

    num_layers: int
    heads: int
    width: int

    @classmethod
    def of(cls, config: Any, num_layers: int) -> Shape:
        """Read it from a text configuration of transformers."""
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(num_layers, int(config.num_key_value_heads), int(width))


class Bucket:
    """Buffers for up to `longest` positions, in the dtype and on the device of `like`."""

    def __init__(self, shape: Shape, like: Tensor, longest: int) -> None:
        self.capacity = 0
        self.cache = Cache(layers=[])
        self._shape = shape
        self._like = like
        self._longest = _up(longest)
        self._place = torch.zeros(1, dtype=torch.long, device=like.device)

    def stand_at(self, length: int) -> None:
        """Keep the first `length` entries: the next ones go behind them."""
        self._place.fill_(length)

    def places(self, num_rows: int) -> Tensor:
        """Return where the next rows go.  -> [n]"""
        return self._place + torch.arange(num_rows, device=self._place.device)

    def seen(self, num_rows: int, length: int, window: int | None = None) -> Tensor:
        """Return which of the first `length` entries the next rows see.  -> [1, 1, n, length]"""
        columns = torch.arange(length, device=self._place.device)[None]
        places = self.places(num_rows)[:, None]
        mask = columns <= places
        if window is not None:
            mask &= columns > places - window
        return mask[None, None]

    def make_room(self, length: int, held: int) -> bool:
        """Move where `length` entries do not fit, with the first `held`; return whether it did.

        Raises torch.OutOfMemoryError when not even a bucket without room to spare can be had; then
        everything is as before.
        """
        if length <= self.capacity:
            return False
        roomy = max(FIRST, self.capacity)
        while roomy < length:
            roomy *= 2
        roomy, tight = min(roomy, max(self._longest, _up(length))), _up(length)
        try:
            self._move(roomy, held)
        except torch.OutOfMemoryError:
            if roomy == tight:
                raise
            self._move(tight, held)
        return True

    def _move(self, capacity: int, held: int) -> None:
        num_layers, heads, width = self._shape
        # Zeros: a masked place has weight 0, and 0 times whatever memory held may be NaN.
        layers = [
            _Layer(self._place, self._like.new_zeros((2, 1, heads, capacity, width)))
            for _ in range(num_layers)
        ]
        if self.capacity:
            for layer, old in zip(layers, self.cache.layers, strict=True):
                layer.keys[:, :, :held] = old.keys[:, :, :held]
                layer.values[:, :, :held] = old.values[:, :, :held]
        self.cache = Cache(layers=layers)
        self.capacity = capacity


class _Layer(StaticLayer):
    """One layer's keys and values; they go where the bucket says, not by a count of its own."""

    def __init__(self, place: Tensor, buffers: Tensor) -> None:
        super().__init__(max_cache_len=buffers.shape[3])
        self.cumulative_length = place
        self.keys, self.values = buffers[0], buffers[1]
        self.device, self.is_initialized = buffers.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [1, KV, n, D] at the place; return the buffers."""
        rows = torch.arange(key_states.shape[2], device=key_states.device)
        self.keys.index_copy_(2, self.cumulative_length + rows, key_states)
        self.values.index_copy_(2, self.cumulative_length + rows, value_states)
        return self.keys, self.values


def _up(length: int) -> int:
    return -(-length // STEP) * STEP
