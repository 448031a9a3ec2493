"""The table at the start of a safetensors file: every tensor's type, shape and place. Pure.

Contract: reads the head and nothing else, so a file of any size costs a few kilobytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LARGEST = 100_000_000


def read_head(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a file says of its tensors, by name.  Raises ValueError for another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(path.stat().st_size, _LARGEST):
            raise ValueError(f"{path.name} is no safetensors file")
        head = json.loads(file.read(length))
    if not isinstance(head, dict):
        raise ValueError(f"{path.name} has no table of tensors")
    return {name: entry for name, entry in head.items() if name != "__metadata__"}
