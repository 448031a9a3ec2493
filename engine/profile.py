"""What this machine does with weights of a shape: measured once, kept, and used to predict.

Contract: `measured` times passes of 1 to 8 tokens over a random block of a target's shape, in the
layers that loading would use; `stored` returns what was measured before on this processor with
these threads, or None. The file lies in the cache and may be deleted at any time. A pass stands for
the weights alone: attention over a long context costs more.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.device import processor_name, synchronise
from engine.inspecting import Facts
from engine.models import linear
from engine.models.checkpoint import dtype_for
from engine.models.source import cache_folder

LONGEST = 8
_REPEATS = 7
_WEIGHT_BYTES = 256_000_000
"""What is read per pass, at least, where the target is that large: more than caches hold."""

_MOST_BYTES = 2_000_000_000

Profile = dict[str, Any]
"""passes, bytes_per_second, date, provenance: those of `engine.outlook.Machine`."""


def stored(target: Facts, device: torch.device) -> Profile | None:
    """Return what was measured for a target's shape here; None without it."""
    return _kept().get(_key(target, device))


def can_measure(target: Facts) -> bool:
    """Return whether the facts tell the shape of a block, and one block fits in reason."""
    if not (target.hidden_size and target.intermediate_size) or target.experts:
        return False
    return 4 * _weights_of_block(target) <= _MOST_BYTES


@torch.inference_mode()
def measured(target: Facts, device: torch.device) -> Profile:
    """Measure and keep it.  Raises ValueError where `can_measure` is False."""
    if not can_measure(target):
        raise ValueError(f"{target.name} does not tell the shape of a block")
    blocks, num_bytes = _blocks(target, device)
    hidden = target.hidden_size or 0
    texts = {n: torch.randn(n, hidden, device=device, dtype=dtype_for(device)) for n in _lengths()}
    seconds: dict[int, list[float]] = {n: [] for n in texts}
    for repeat in range(_REPEATS + 1):  # interleaved: a machine that slows down slows them all
        for num_tokens, x in texts.items():
            synchronise(device)
            begun = time.perf_counter()
            for block in blocks:
                block(x)
            synchronise(device)
            if repeat:  # the first round warms up
                seconds[num_tokens].append(time.perf_counter() - begun)
    passes = {n: min(each) for n, each in seconds.items()}  # whatever disturbs only adds
    profile: Profile = {
        "passes": [passes[n] / passes[1] for n in _lengths()],
        "bytes_per_second": num_bytes / passes[1],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "provenance": f"{processor_name(device)}, {torch.get_num_threads()} threads",
    }
    _keep(_key(target, device), profile)
    return profile


def _lengths() -> range:
    return range(1, LONGEST + 1)


def _blocks(target: Facts, device: torch.device) -> tuple[list[nn.Module], int]:
    """Return random blocks and how many bytes of weights they hold together."""
    size = _weights_of_block(target) * dtype_for(device).itemsize
    wanted = -(-_WEIGHT_BYTES // size)
    number = min(wanted, target.num_layers or wanted)
    return [_Block(target, device) for _ in range(number)], number * size


class _Block(nn.Module):
    """The weights of a transformer layer, multiplied in their order; what lies between is free."""

    def __init__(self, target: Facts, device: torch.device) -> None:
        super().__init__()
        self.layers = [
            _layer(rows, columns, device) for rows, columns in _matrices(target)
        ]  # query, key and value in one; output; gate and up in one; down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, D] -> [n, D]"""
        into, out, up, down = self.layers
        hidden = x.shape[-1]
        x = out(into(x)[:, :hidden])
        gates = up(x)
        result: torch.Tensor = down(gates[:, : gates.shape[-1] // 2])
        return result


def _layer(rows: int, columns: int, device: torch.device) -> Any:
    weight = torch.randn(rows, columns, device=device, dtype=dtype_for(device)) / columns**0.5
    if device.type == "cpu":
        return linear.packed(weight)
    return lambda x: nn.functional.linear(x, weight)


def _matrices(target: Facts) -> Iterator[tuple[int, int]]:
    """Yield rows and columns; keys and values as the cache holds them."""
    hidden, inner = target.hidden_size or 0, target.intermediate_size or 0
    held = (target.num_kv_values or 0) // max(target.num_layers or 1, 1)
    yield hidden + (held or 2 * hidden), hidden
    yield hidden, hidden
    yield 2 * inner, hidden
    yield hidden, inner


def _weights_of_block(target: Facts) -> int:
    return sum(rows * columns for rows, columns in _matrices(target))


def _key(target: Facts, device: torch.device) -> str:
    shape = ",".join(f"{rows}x{columns}" for rows, columns in _matrices(target))
    return f"{processor_name(device)} | {torch.get_num_threads()} threads | {shape}"


def _path() -> Path:
    return cache_folder() / "machine.json"


def _kept() -> dict[str, Profile]:
    """Return what the file holds; a broken one holds nothing, so that it is written anew."""
    try:
        kept = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep(key: str, profile: Profile) -> None:
    """Add a profile to the file; without room on the disk it is measured again next time."""
    kept = _kept()
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
        fresh = _path().with_suffix(".partial")
        fresh.write_text(json.dumps({**kept, key: profile}, indent=1) + "\n", encoding="utf-8")
        fresh.replace(_path())
    except OSError:
        return
