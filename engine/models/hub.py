"""Checkpoints by name: a local folder as it is, or a repository of the model hub.

Contract: `folder_of(name)` returns a folder that holds a configuration and weights that can be read
without running anything: safetensors, or one GGUF file. Only data is fetched, never code or
pickles; what was fetched before is used again, also without a network. The library reads the
visitor's token from where it always does. Everything that can go wrong on the way is a
PlaygroundError with its remedy.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils import tqdm, validate_repo_id

from engine.errors import PlaygroundError
from engine.models.source import Progress, Report, cache_folder, silent

WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Files to fetch: weights, configurations, tokenizers."""

UNWANTED = ("*/*", "consolidated*")
"""Copies of the weights in other formats, which many repositories hold beside their own."""

Headers = dict[str, dict[str, Any]]
_TRANSFER = "Downloading bytes"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def folder_of(name: str, report: Report = silent) -> Path:
    """Return the checkpoint folder of a local path or a hub id.

    Raises PlaygroundError: bad_model_name, no_folder, repo_missing, repo_gated, hub_offline,
    disk_full, download_failed, no_config, pickles_only, no_weights, several_gguf,
    incomplete_checkpoint.
    """
    report(Progress("find", detail=name))
    local = Path(os.path.expanduser(name))  # unlike Path's own, it takes a ~ that means nobody
    folder = local if name.strip() and local.is_dir() else _fetched(name, report)
    check_folder(folder, name)
    return folder


def cached_folder(name: str) -> Path | None:
    """Return the folder of a repository whose weights were fetched before; nobody is asked."""
    try:
        found = huggingface_hub.try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError:
        return None
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and any(folder.glob("*.safetensors")) else None


def small_files(name: str) -> tuple[Path, dict[str, int], Headers]:
    """Ask the hub about a repository without fetching its weights.

    Returns a folder with its configurations and tokenizer (apart from the library's own, which must
    not look as if it held weights), the sizes of all files by name, and shape, dtype and place of
    each tensor, where one file holds them all; where several do, an index is in the folder.
    Raises PlaygroundError as `folder_of` does.
    """
    _check_name(name)
    folder = cache_folder() / "looked-at" / name.replace("/", "--")
    try:
        about = huggingface_hub.model_info(name, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
        sizes = {file: size for file, size in sizes.items() if "/" not in file}
        huggingface_hub.snapshot_download(
            name,
            local_dir=folder,
            allow_patterns=[pattern for pattern in WANTED if pattern != "*.safetensors"],
            ignore_patterns=list(UNWANTED),
            tqdm_class=_bar_for(name, silent),
        )
        headers: Headers = {}
        if "model.safetensors" in sizes and "model.safetensors.index.json" not in sizes:
            found = huggingface_hub.get_safetensors_metadata(name).files_metadata
            headers = {
                key: {"shape": t.shape, "dtype": t.dtype, "data_offsets": t.data_offsets}
                for file in found.values()
                for key, t in file.tensors.items()
            }
    except Exception as error:
        raise _explained(name, error) from error
    return folder, sizes, headers


def check_folder(folder: Path, name: str) -> None:
    """Raise PlaygroundError unless a folder holds a checkpoint that can be loaded."""
    if gguf_file(folder, name) is not None:
        return
    if not (folder / "config.json").is_file():
        raise PlaygroundError(
            "no_config",
            f"{name} has no config.json, so it is no checkpoint of transformers.",
            "Name the folder that holds config.json and the weights.",
            model=name,
        )
    if not any(folder.glob("*.safetensors")):
        raise _no_weights(folder, name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        lost = sorted(file for file in files if not (folder / file).is_file())
        if lost:
            raise incomplete(name, f"{lost[0]} is missing")


def gguf_file(folder: Path, name: str) -> str | None:
    """Return the name of the GGUF file to load; None where there are safetensors or no such file.

    Raises PlaygroundError("several_gguf").
    """
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if not files or any(folder.glob("*.safetensors")):
        return None
    if len(files) > 1:
        raise PlaygroundError(
            "several_gguf",
            f"{name} holds {len(files)} GGUF files, and one of them has to be chosen.",
            "Put the one to load into a folder of its own and name that.",
            model=name,
            count=len(files),
        )
    return files[0]


def incomplete(name: str, what: str) -> PlaygroundError:
    """Return the error for a checkpoint of which a part is missing or damaged."""
    return PlaygroundError(
        "incomplete_checkpoint",
        f"The checkpoint {name} is not complete: {what}.",
        "Fetch it again, or copy the whole folder.",
        model=name,
        what=what,
    )


def _no_weights(folder: Path, name: str) -> PlaygroundError:
    if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
        return PlaygroundError(
            "pickles_only",
            f"{name} holds its weights only as pickles, which can run code when they are opened.",
            "Choose a checkpoint with safetensors, or convert this one where you trust it.",
            model=name,
        )
    return PlaygroundError(
        "no_weights",
        f"{name} holds no safetensors files, and other kinds of weights are not fetched.",
        "Choose a repository or folder with safetensors.",
        model=name,
    )


def _fetched(name: str, report: Report) -> Path:
    """Return the folder of a repository, fetched unless it is here."""
    _check_name(name)
    try:
        path = huggingface_hub.snapshot_download(
            name,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            tqdm_class=_bar_for(name, report),
        )
    except Exception as error:
        raise _explained(name, error) from error
    return Path(path)


def _check_name(name: str) -> None:
    """Raise PlaygroundError for what is meant as a folder that is not there, or is no name."""
    if name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1:
        raise PlaygroundError(
            "no_folder",
            f"There is no folder {name}.",
            "Check the path, or name a model of the hub, such as Qwen/Qwen3-0.6B.",
            folder=name,
        )
    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        raise PlaygroundError(
            "bad_model_name",
            f"{name!r} is neither a folder nor the id of a model.",
            "Ids look like Qwen/Qwen3-0.6B: an owner, a slash and a name.",
            model=name,
        ) from None


def _explained(name: str, error: Exception) -> PlaygroundError:
    """Return what went wrong while fetching, with what to do about it."""
    page = f"https://huggingface.co/{name}"
    if isinstance(error, errors.GatedRepoError):
        return PlaygroundError(
            "repo_gated",
            f"The authors of {name} want to be asked first.",
            f"Accept the licence at {page}, then run `hf auth login` or set HF_TOKEN.",
            model=name,
            page=page,
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return PlaygroundError(
            "repo_missing",
            f"The hub has no model {name}, or it is private.",
            "Check the spelling. For a private one, run `hf auth login` or set HF_TOKEN.",
            model=name,
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(name)
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled) or (
        type(error).__name__ in ("ConnectError", "ConnectTimeout", "ProxyError")
    ):
        return PlaygroundError(
            "hub_offline",
            f"{name} is not on this machine, and the hub cannot be reached.",
            "Connect (and unset HF_HUB_OFFLINE) and try again, or name a local folder.",
            model=name,
        )
    said = (str(error).strip() or "no details").splitlines()[0]
    reason = f"{type(error).__name__}: {said[:200]}"
    return PlaygroundError(
        "download_failed",
        f"{name} could not be fetched ({reason}).",
        "Try again; what has arrived is kept.",
        model=name,
        reason=reason,
    )


def _disk_full(name: str) -> PlaygroundError:
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = round(shutil.disk_usage(there).free / 1e9, 1)
    return PlaygroundError(
        "disk_full",
        f"The disk is full: {free} GB are free where {name} is to be kept.",
        "Make room, or set HF_HOME to a folder on a larger disk.",
        model=name,
        free=free,
    )


def _bar_for(name: str, report: Report) -> Any:
    """Return a progress bar of the kind the library makes, which tells `report` and prints nothing.

    Bytes on the disk count. Files do not, nor do bytes on the way, of which there may be fewer.
    """

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            # Past the library's own class: it counts nothing where bars were switched off, and
            # `models/loader` switches them off.
            options |= {"file": io.StringIO(), "disable": False}
            super(tqdm, self).__init__(*args, **options)

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self.unit == "B" and self.total and not str(self.desc).startswith(_TRANSFER):
                # Totals grow while files join; a share above 1 would be a lie for a moment.
                report(Progress("download", min(self.n / self.total, 1.0), name))
            return shown

    return Bar
