"""The one file that knows how a library version keeps and crops its cache.

Contract: `CropCache` holds keys and values of a model with pure attention. `crop(length)` drops
what lies behind `length`, exactly. Models with recurrent state cannot be cropped (transformers'
`crop` would silently leave the state as it is); `crop_cache_for` refuses them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from engine.errors import PlaygroundError

_FIRST_CAPACITY = 256


class CropCache:
    """A growing key-value cache that can be cut back exactly."""

    def __init__(self, config: Any) -> None:
        cache = DynamicCache(config=config)
        # Sliding layers forget what a rollback needs. Full ones hold it all, and the model's own
        # mask still hides what lies outside the window.
        self.library_cache = DynamicCache() if any(cache.is_sliding) else cache
        self.library_cache.layers = [
            _BufferedLayer() if type(layer) is DynamicLayer else layer
            for layer in self.library_cache.layers
        ]

    def __len__(self) -> int:
        return int(self.library_cache.get_seq_length())

    def crop(self, length: int) -> int:
        """Drop everything behind `length`; return how many entries that were."""
        surplus = len(self) - length
        if surplus > 0:
            # transformers >= 5.23 wants the number to remove, negative.
            self.library_cache.crop(-surplus)
        return max(surplus, 0)


class _BufferedLayer(DynamicLayer):
    """A dynamic layer that writes into a buffer with room to grow.

    The library's own layer copies the whole cache for every new token. `keys` and `values` are
    views of the buffers here, so the library's `crop` (a slice) and its length stay right, and
    what lies behind the view is overwritten by the next update.
    """

    is_initialized: bool
    keys: Tensor
    values: Tensor
    _keys: Tensor
    _values: Tensor

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append states [B, H, n, D]; return all of them [B, H, length + n, D]."""
        held = self.get_seq_length()
        length = held + key_states.shape[-2]
        if not self.is_initialized or length > self._keys.shape[-2]:
            self._grow(key_states, value_states, held, max(length, 2 * held, _FIRST_CAPACITY))
        self._keys[..., held:length, :] = key_states
        self._values[..., held:length, :] = value_states
        self.keys = self._keys[..., :length, :]
        self.values = self._values[..., :length, :]
        return self.keys, self.values

    def _grow(self, keys: Tensor, values: Tensor, held: int, capacity: int) -> None:
        new_keys = keys.new_empty(*keys.shape[:-2], capacity, keys.shape[-1])
        new_values = values.new_empty(*values.shape[:-2], capacity, values.shape[-1])
        if self.is_initialized:
            new_keys[..., :held, :] = self.keys
            new_values[..., :held, :] = self.values
        else:
            self.device, self.is_initialized = torch.device(keys.device), True
        self._keys, self._values = new_keys, new_values


def crop_cache_for(model: PreTrainedModel) -> CropCache:
    """Return an empty cache for `model`.  Raises PlaygroundError("cannot_roll_back")."""
    croppable = DynamicCache(config=model.config).is_croppable
    if getattr(model, "_is_stateful", False) or not croppable:
        raise PlaygroundError(
            "cannot_roll_back",
            f"{type(model).__name__} keeps a state that cannot be rolled back.",
            "Choose a model with attention in every layer.",
            model=type(model).__name__,
        )
    return CropCache(model.config)
