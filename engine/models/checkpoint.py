"""Any causal model from a checkpoint folder: how large it is, in which numbers, and loading it.

Contract: `stored_in` reads only the heads of files. `plan_for` decides before anything is loaded
and refuses what cannot fit. `load_model` builds the library's own class, never code of the
checkpoint's, and refuses a checkpoint whose weights are not all there: the library would fill in
random ones.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from engine.device import free_memory_gb
from engine.errors import PlaygroundError
from engine.models.hub import gguf_file, incomplete
from engine.models.mtp_families import DISGUISES
from engine.safetensors_head import read_head

_ROOM = 1.1  # weights need company: caches, buffers, the copy of a layer while it is packed
_OTHER_SENSES = ("visual.", "vision_", "audio_", "image_")


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies in a folder: how many weights, and the type that most of them have ("BF16")."""

    num_weights: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How models are to be loaded.  spread: over all GPUs, because one is not enough."""

    device: torch.device
    dtype: torch.dtype
    spread: bool = False


def stored_in(folder: Path, name: str) -> Stored:
    """Return what a checkpoint holds of a language model.  Raises PlaygroundError."""
    counts: dict[str, int] = {}
    for kind, count in _tensors(folder, name):
        counts[kind] = counts.get(kind, 0) + count
    if not counts:
        raise incomplete(name, "its files hold no tensors")
    return Stored(sum(counts.values()), max(counts, key=lambda kind: counts[kind]))


def plan_for(stored: Sequence[Stored], device: torch.device, name: str) -> Plan:
    """Decide on numbers and places for a target (first) and its drafters.

    Raises PlaygroundError: out_of_memory, needs_accelerate.
    """
    num_weights = sum(part.num_weights for part in stored)
    if device.type == "cuda":
        return _on_gpus(num_weights, device, name)
    free = free_memory_gb()
    dtype = dtype_for(device)
    if free is None:
        return Plan(device, dtype)
    native = device.type == "cpu" and stored[0].dtype == "BF16" and bf16_is_native()
    if native and _needed_gb(num_weights, dtype) > free:
        dtype = torch.bfloat16
    if _needed_gb(num_weights, dtype) > free:
        raise out_of_memory(name, _needed_gb(num_weights, dtype), free)
    return Plan(device, dtype)


def dtype_for(device: torch.device) -> torch.dtype:
    """Return the numbers that weights are loaded in on a device, where there is room."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def bf16_is_native() -> bool:
    """Return whether this processor multiplies bf16 itself instead of converting it each time."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test, lambda: False)() for test in tests)


def out_of_memory(name: str, needed: float | None, free: float | None) -> PlaygroundError:
    """Return the error for what does not fit; None for an amount that nobody knows."""
    amounts = {"needed": needed and round(needed, 1), "free": free and round(free, 1)}
    shown = {key: "?" if value is None else value for key, value in amounts.items()}
    return PlaygroundError(
        "out_of_memory",
        f"{name} needs about {shown['needed']} GB of memory; {shown['free']} GB are free.",
        "Close what else uses memory, or choose a smaller pair.",
        model=name,
        **shown,
    )


def ran_out(error: BaseException) -> bool:
    """Return whether an error says that there was no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def load_model(folder: Path, plan: Plan, name: str = "") -> PreTrainedModel:
    """Load a causal model.

    Raises PlaygroundError: unknown_architecture, incomplete_checkpoint, cannot_load.
    """
    name = name or folder.name
    file = gguf_file(folder, name)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if file is not None:
        options["gguf_file"] = file
    if plan.spread:
        options["device_map"] = "auto"
    with _explained(name), _quiet():
        config = AutoConfig.from_pretrained(folder, **options) if file else config_of(folder, name)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=plan.dtype, output_loading_info=True, **options
        )
    if found["missing_keys"]:
        raise incomplete(name, f"{min(found['missing_keys'])} has no weights")
    model.eval().requires_grad_(False)
    ready: PreTrainedModel = model if plan.spread else model.to(plan.device)
    return ready


def config_of(folder: Path, name: str) -> Any:
    """Return the library's own configuration of a checkpoint.

    Raises PlaygroundError("unknown_architecture").
    """
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")
    kind = DISGUISES.get(kind, kind)
    if kind not in CONFIG_MAPPING:
        raise PlaygroundError(
            "unknown_architecture",
            f"{name} is of the type {kind!r}, which this version of transformers does not know; "
            "code that comes with a checkpoint is never run.",
            "Choose another model, or update transformers.",
            model=name,
            type=kind,
        )
    with _quiet():
        return CONFIG_MAPPING[kind].from_pretrained(folder)


def _on_gpus(num_weights: int, device: torch.device, name: str) -> Plan:
    needed = _needed_gb(num_weights, torch.bfloat16)
    free = torch.cuda.mem_get_info(device)[0] / 1e9
    if needed <= free:
        return Plan(device, torch.bfloat16)
    everywhere = sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())) / 1e9
    if needed > everywhere:
        raise out_of_memory(name, needed, everywhere)
    if importlib.util.find_spec("accelerate") is None:
        raise PlaygroundError(
            "needs_accelerate",
            f"{name} does not fit on one GPU, and spreading it over several needs accelerate.",
            "Run: pip install accelerate",
            model=name,
        )
    return Plan(device, torch.bfloat16, spread=True)


def _needed_gb(num_weights: int, dtype: torch.dtype) -> float:
    return num_weights * dtype.itemsize * _ROOM / 1e9


def _tensors(folder: Path, name: str) -> Iterator[tuple[str, int]]:
    """Yield the type and the number of weights of every tensor that a language model loads."""
    file = gguf_file(folder, name)
    if file is not None:
        from gguf import GGUFReader

        for tensor in GGUFReader(folder / file).tensors:
            yield "F32", int(tensor.n_elements)
        return
    for path in sorted(folder.glob("*.safetensors")):
        for key, entry in _head(path, name).items():
            if not any(part in key for part in _OTHER_SENSES):
                count = 1
                for size in entry["shape"]:
                    count *= size
                yield entry["dtype"], count


def _head(path: Path, name: str) -> dict[str, Any]:
    """Return the table at the start of a safetensors file."""
    try:
        return read_head(path)
    except ValueError:
        raise incomplete(name, f"{path.name} is no safetensors file") from None


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what the library raises into a PlaygroundError; let a lack of memory through."""
    try:
        yield
    except PlaygroundError:
        raise
    except SafetensorError as error:
        raise incomplete(name, str(error)) from error
    except Exception as error:
        if ran_out(error):
            raise
        said = (str(error).strip() or "no details").splitlines()[0][:200]
        raise PlaygroundError(
            "cannot_load",
            f"{name} could not be loaded ({type(error).__name__}: {said}).",
            "Choose another checkpoint of this model, unquantised and in safetensors.",
            model=name,
            reason=f"{type(error).__name__}: {said}",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from printing about what is meant here, such as an unused MTP module."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
