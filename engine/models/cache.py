"""The one file that knows how a library version keeps and takes back what a model has read.

Contract: `cache_for(model)` gives a cache with `rewind(length)`, which goes back to at most
`length` positions and returns where it stands. A `CropCache` (attention only) stands exactly there.
A `SnapshotCache` (recurrent state: Qwen3.5, Qwen3-Next, LFM2 and the like) cannot drop what its
state has absorbed; it goes back to the last place that was `remember`ed and the caller reads the
rest again. transformers' own `crop` would leave such a state as it is and say nothing.

Words: the *state* of a recurrent layer is what it keeps of everything it has read, of fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from engine.errors import PlaygroundError

_FIRST_CAPACITY = 256
_STATES = ("conv_states", "recurrent_states")
_COUNT = "cumulative_length_linear"  # transformers >= 5.25 counts in the recurrent layer as well


class CropCache:
    """A growing key-value cache that can be cut back exactly."""

    def __init__(self, config: Any | None) -> None:
        """Make an empty one for a model's config; None: for one layer of attention."""
        self.library_cache = _empty(config)

    def __len__(self) -> int:
        return int(self.library_cache.get_seq_length())

    def crop(self, length: int) -> int:
        """Drop everything behind `length`; return how many entries that were."""
        surplus = len(self) - length
        if surplus > 0:
            # transformers >= 5.23 wants the number to remove, negative.
            self.library_cache.crop(-surplus)
        return max(surplus, 0)

    def rewind(self, length: int) -> int:
        """Go back to `length`; return where the cache stands."""
        self.crop(length)
        return len(self)

    def grew(self, num_tokens: int) -> None:
        """Learn that the model has read more; the entries themselves say it here."""


class SnapshotCache:
    """A cache with recurrent states, which can go back to one remembered place or to the start."""

    library_cache: DynamicCache
    _length: int
    _snapshot: _Snapshot | None

    def __init__(self, config: Any) -> None:
        self._config = config
        self._start_over()

    def __len__(self) -> int:
        return self._length

    def rewind(self, length: int) -> int:
        """Go back to at most `length`; return where the cache stands."""
        if length >= self._length:
            return self._length
        if self._snapshot is None or self._snapshot.length > length:
            self._start_over()
            return 0
        surplus = self._length - self._snapshot.length
        for layer, states in zip(self.library_cache.layers, self._snapshot.states, strict=True):
            for name, number, saved in states:
                held = getattr(layer, name)
                (held if number is None else held[number]).copy_(saved)
            if isinstance(layer, DynamicLayer):
                DynamicLayer.crop(layer, -surplus)
        self._length = self._snapshot.length
        return self._length

    def grew(self, num_tokens: int) -> None:
        """Learn that the model has read so many more tokens."""
        self._length += num_tokens

    def remember(self) -> None:
        """Make this the place to go back to; it replaces the one before."""
        if self._length and (self._snapshot is None or self._snapshot.length != self._length):
            states = [_copied(layer) for layer in self.library_cache.layers]
            self._snapshot = _Snapshot(self._length, states)

    def _start_over(self) -> None:
        self.library_cache = _empty(self._config)
        self._length = 0
        self._snapshot = None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The states of every layer at one place: (attribute, number if it has several, copy)."""

    length: int
    states: list[list[tuple[str, int | None, Tensor]]]


def _copied(layer: Any) -> list[tuple[str, int | None, Tensor]]:
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return []
    states: list[tuple[str, int | None, Tensor]] = [
        (name, number, state.clone())
        for name in _STATES
        for number, state in getattr(layer, name).items()
        if state is not None
    ]
    if isinstance(count := getattr(layer, _COUNT, None), Tensor):
        # Without it the model would take the next token for one that stands further on.
        states.append((_COUNT, None, count.clone()))
    return states


def _empty(config: Any) -> DynamicCache:
    """Return an empty cache that forgets nothing by itself.

    Sliding layers drop what a rollback needs. Full ones hold it all, and the model's own mask still
    hides what lies outside the window.
    """
    cache = DynamicCache(config=config)
    if config is None:
        cache.layers = [DynamicLayer()]
    cache.layers = [
        _BufferedLayer() if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) else layer
        for layer in cache.layers
    ]
    return cache


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


def cache_for(model: PreTrainedModel) -> CropCache | SnapshotCache:
    """Return an empty cache for `model`.  Raises PlaygroundError("cannot_roll_back")."""
    layers = _empty(model.config).layers
    known = (DynamicLayer, LinearAttentionCacheLayerMixin, DummyLayer)
    exotic = [layer for layer in layers if not isinstance(layer, known) or _slides(layer)]
    if exotic:
        raise PlaygroundError(
            "cannot_roll_back",
            f"{type(model).__name__} keeps a cache ({type(exotic[0]).__name__}) that cannot be "
            "rolled back.",
            "Choose a model with ordinary or linear attention.",
            model=type(model).__name__,
        )
    if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers):
        return SnapshotCache(model.config)
    return CropCache(model.config)


def attends(model: PreTrainedModel) -> list[bool]:
    """Return for every layer of `model` whether it keeps keys and values."""
    return [isinstance(layer, DynamicLayer) for layer in _empty(model.config).layers]


def _slides(layer: Any) -> bool:
    return isinstance(layer, DynamicSlidingWindowLayer)
