"""The one file that knows how a library version keeps and crops its cache.

Contract: `CropCache` holds keys and values of a model with pure attention. `crop(length)` drops
what lies behind `length`, exactly. Models with recurrent state cannot be cropped (transformers'
`crop` would silently leave the state as it is); `crop_cache_for` refuses them.
"""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache, PreTrainedModel

from engine.errors import PlaygroundError


class CropCache:
    """A growing key-value cache that can be cut back exactly."""

    def __init__(self, config: Any) -> None:
        self.library_cache = DynamicCache(config=config)

    def __len__(self) -> int:
        return int(self.library_cache.get_seq_length())

    def crop(self, length: int) -> int:
        """Drop everything behind `length`; return how many entries that were."""
        surplus = len(self) - length
        if surplus > 0:
            # transformers >= 5.23 wants the number to remove, negative.
            self.library_cache.crop(-surplus)
        return max(surplus, 0)


def crop_cache_for(model: PreTrainedModel) -> CropCache:
    """Return an empty cache for `model`.  Raises PlaygroundError("cannot_roll_back")."""
    cache = CropCache(model.config)
    if getattr(model, "_is_stateful", False) or not cache.library_cache.is_croppable:
        raise PlaygroundError(
            "cannot_roll_back",
            f"{type(model).__name__} keeps a state that cannot be rolled back.",
            "Choose a model with attention in every layer.",
            model=type(model).__name__,
        )
    return cache
