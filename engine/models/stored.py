"""How the repository carries the bundled drafters' weights: matrices as int8 rows, or fp16.

Contract: `read_folder` gives fp32 tensors by name, whichever way they are stored. A matrix `name`
in int8 comes with `name.scale`, one number per row: value = int8 x scale. That is the rounding
that an int8 drafter has at run time anyway, and half the bytes of fp16.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

DRAFT_VOCAB = "draft_vocab"
_SCALE = ".scale"
_LARGEST = 127


def read_folder(folder: Path) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the fp32 weights of a folder, and its `draft_vocab` [R] where it has one."""
    stored: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored.update(load_file(shard))
    vocab = stored.pop(DRAFT_VOCAB, None)
    weights = {
        name: tensor.float() * stored[name + _SCALE][:, None]
        if tensor.dtype == torch.int8
        else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith(_SCALE)
    }
    return weights, None if vocab is None else vocab.long()


def compact(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what to store: matrices [rows, columns] as int8 with scales, the rest in fp16."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim != 2:
            found[name] = tensor.half()
            continue
        scale = tensor.float().abs().amax(1).clamp(min=1e-12) / _LARGEST  # [rows]
        found[name] = (tensor.float() / scale[:, None]).round().to(torch.int8)
        found[name + _SCALE] = scale
    return found
