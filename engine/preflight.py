"""What can be said about a pair before anything is loaded.

Contract: `preflight` only looks (file sizes, metadata, free memory) and returns one `Check` per
question; a check that failed says what to do. Codes are translated on the page.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.catalog import ASSETS, Catalog, Model, Pair

_FP32_BYTES = 4
_LIBRARIES_GB = 0.6  # interpreter, torch, transformers, gradio: measured, see README


State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer; a check that only warns has passed."""

    code: str
    passed: bool
    text: str
    facts: dict[str, object] = field(default_factory=dict)
    state: State = "ok"
    remedy: str = ""

    def __post_init__(self) -> None:
        if not self.passed:
            object.__setattr__(self, "state", "fail")


def preflight(catalog: Catalog, pair: Pair) -> list[Check]:
    """Return the checks for a pair: weights of every part, then memory."""
    models = list(catalog.models_of(pair))
    return [*(_weights(model) for model in models), _memory(models)]


def _weights(model: Model) -> Check:
    facts: dict[str, object] = {"model": model.name, "megabytes": model.download_mb}
    if model.source == "hub":
        here = Path(model.repo).expanduser().is_dir()
        text = f"{model.name} is on this machine" if here else f"{model.name} comes from the hub"
        return Check("weights_here" if here else "weights_of_hub", True, text, facts)
    if model.source == "bundled":
        there = any((ASSETS / model.folder).glob("*.safetensors"))
        text = f"{model.name} lies in the repository" if there else f"{model.folder} is missing"
        return Check("weights_bundled" if there else "weights_lost", there, text, facts)
    from engine.models.source import cached_checkpoint

    if cached_checkpoint(model).is_dir() or importlib.util.find_spec(model.package):
        return Check("weights_here", True, f"{model.name} is on this machine", facts)
    text = f"{model.name} will be downloaded once by pip ({model.download_mb} MB)"
    return Check("weights_to_fetch", True, text, facts)


def _memory(models: list[Model]) -> Check:
    weights = sum(model.parameters_m for model in models) * 1e6 * _FP32_BYTES / 1e9
    needed, free = weights + _LIBRARIES_GB, free_memory_gb()
    facts: dict[str, object] = {"needed": round(needed, 1), "free": free and round(free, 1)}
    if free is None:
        return Check("memory_unknown", True, f"needs about {needed:.1f} GB", facts)
    text = f"needs about {needed:.1f} GB, {free:.1f} GB are free"
    return Check("memory", free > needed, text, facts)


def free_memory_gb() -> float | None:
    """Return the memory that new processes may take, in GB; None where the system hides it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) / 1e6
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, OSError, ValueError):
        return None
