"""How many bytes a model keeps in memory: its tensors, each storage once, whatever holds them.

Contract: `held_bytes` walks attributes, containers, closures of `partial` and modules. A weight in
a layout of its own (packed fp32, int8) counts as rows x columns x bytes per value, because its real
padding is not told by the library; code, tokenizer and the allocator's reserve do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.linear import Int8Linear

_PLAIN = (str, bytes, int, float, bool, type(None), torch.device, torch.dtype)


def held_bytes(*roots: object) -> int:
    """Return the bytes of everything that `roots` hold, shared parts once."""
    seen: set[int] = set()
    storages: dict[tuple[str, int], int] = {}
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            key, size = _storage(thing)
            storages[key] = max(storages.get(key, 0), size)
        elif isinstance(thing, Int8Linear):
            rows, columns = thing.out_features, thing.in_features
            storages["int8", id(thing)] = rows * columns + 12 * rows  # a scale and a zero per row
        else:
            waiting.extend(_parts(thing))
    return sum(storages.values())


def _storage(tensor: Tensor) -> tuple[tuple[str, int], int]:
    if tensor.layout is not torch.strided:  # oneDNN's own layout shows no storage
        return ("packed", id(tensor)), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return ("plain", storage.data_ptr()), storage.nbytes()


def _parts(thing: object) -> Iterator[Any]:
    """Yield what an object holds."""
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, partial):
        yield from (*thing.args, *thing.keywords.values())
    elif isinstance(thing, nn.Module):
        yield from thing.__dict__.values()
    elif type(thing).__module__.startswith("engine."):
        for name in getattr(type(thing), "__slots__", ()):
            yield getattr(thing, name, None)
        yield from getattr(thing, "__dict__", {}).values()
