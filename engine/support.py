"""Which engines run a method on a family of checkpoints: a dated, sourced table, read from a file.

Contract: `support_for` returns rows of `assets/support.toml` alone. What nobody has looked up has
no row, and so no answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from engine.catalog import ASSETS

OURS = "ours"
ENGINES = (OURS, "transformers", "vLLM", "SGLang", "llama.cpp", "LM Studio")


@dataclass(frozen=True, slots=True)
class Support:
    """One answer; `note` is the key of a sentence, "" for none."""

    method: str
    family: str
    engine: str
    answer: Literal["yes", "no", "partly"]
    note: str
    source: str
    date: str


def support_for(families: Mapping[str, str]) -> list[Support]:
    """Return what is known of each method (key) on its family (value), by method and engine."""
    rows = [row for row in _rows() if families.get(row.method) == row.family]
    order = list(families)
    return sorted(rows, key=lambda row: (order.index(row.method), ENGINES.index(row.engine)))


@cache
def _rows(path: Path = ASSETS / "support.toml") -> tuple[Support, ...]:
    return tuple(Support(**row) for row in tomllib.loads(path.read_text("utf-8"))["support"])
