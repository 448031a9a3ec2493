"""Names become folders, or a message that says what to do; the library's own errors, no network."""

import errno
import importlib
import json

import huggingface_hub
import pytest
from huggingface_hub import errors

from engine.errors import PlaygroundError
from engine.models import hub
from engine.models.source import Progress

NAME = "owner/model"
WIRE = importlib.import_module(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
"""The library's own HTTP library, whichever it is: its errors come through."""


def refusal(name=NAME):
    with pytest.raises(PlaygroundError) as caught:
        hub.folder_of(str(name))
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def library(monkeypatch, checkpoint):
    """The library's download, replaced; it remembers what it was asked and does what it is told."""

    class Library:
        asked = None
        error = None
        does = staticmethod(lambda **_: None)

        def __call__(self, name, **options):
            self.asked = (name, options)
            self.does(**options)
            if self.error:
                raise self.error
            return str(checkpoint)

    library = Library()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", library)
    return library


def answered(kind, status, message):
    """Make one of the library's errors as it makes them: with the hub's answer."""
    request = WIRE.Request("GET", f"https://huggingface.co/api/models/{NAME}")
    return kind(message, response=WIRE.Response(status, request=request))


def test_a_folder_is_used_as_it_is(checkpoint, library):
    assert hub.folder_of(str(checkpoint)) == checkpoint
    assert library.asked is None


def test_a_folder_beats_a_repository_of_the_same_name(checkpoint, library, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    assert hub.folder_of("checkpoint").resolve() == checkpoint
    assert library.asked is None


def test_only_data_is_fetched(checkpoint, library):
    assert hub.folder_of(NAME) == checkpoint
    name, options = library.asked
    assert name == NAME
    files = [
        "config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "chat_template.jinja",
        "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "model.pt", "modeling_x.py", "model.gguf", "model.onnx",
        "onnx/model.safetensors", "consolidated.safetensors", "training.pth", "README.md",
    ]  # fmt: skip
    kept = huggingface_hub.utils.filter_repo_objects(
        files,
        allow_patterns=options["allow_patterns"],
        ignore_patterns=options["ignore_patterns"],
    )
    assert list(kept) == files[:7]
    assert "token" not in options  # the library knows where it is


def test_what_arrives_is_reported_by_bytes(library):
    def download(*, tqdm_class, **_):
        with tqdm_class(total=3, desc="Fetching 3 files") as files:
            with tqdm_class(total=0, initial=0, unit="B", desc="Reconstructing") as written:
                written.total = 200
                written.update(50)
                written.update(150)
            files.update(3)
        with tqdm_class(total=100, unit="B", desc="Downloading bytes") as wire:
            wire.update(10)

    library.does = download
    seen = []
    hub.folder_of(NAME, seen.append)
    assert seen[0] == Progress("find", detail=NAME)
    assert [step.fraction for step in seen if step.stage == "download"] == [0.25, 1.0]


def test_the_library_makes_our_bars_and_they_count_though_bars_are_switched_off(library):
    make = importlib.import_module("huggingface_hub._snapshot_download")
    if not hasattr(make, "hf_thread_map") or not hasattr(make, "_create_progress_bar"):
        pytest.skip("this version of the library makes its bars in another way")

    def download(*, tqdm_class, **_):
        options = {"cls": tqdm_class, "log_level": 30, "desc": "Reconstructing", "unit": "B"}
        bar = make._create_progress_bar(name="huggingface_hub.x", total=10, **options)
        each = make.hf_thread_map
        each(lambda n: bar.update(n), [5, 5], desc="Fetching", tqdm_class=tqdm_class, max_workers=1)

    library.does = download
    seen = []
    huggingface_hub.utils.disable_progress_bars()
    hub.folder_of(NAME, seen.append)
    assert [step.fraction for step in seen if step.stage == "download"] == [0.5, 1.0]


def test_the_bar_prints_nothing(library, capsys):
    def download(*, tqdm_class, **_):
        with tqdm_class(total=10, unit="B", desc="Reconstructing") as bar:
            bar.update(10)
            bar.refresh()

    library.does = download
    hub.folder_of(NAME)
    assert capsys.readouterr() == ("", "")


def failing_request(kind="ConnectError"):
    return getattr(WIRE, kind)("nobody answers")


FAILURES = {
    "missing": (answered(errors.RepositoryNotFoundError, 404, "no such"), "repo_missing"),
    "gated": (answered(errors.GatedRepoError, 403, "ask first"), "repo_gated"),
    "offline": (errors.OfflineModeIsEnabled("offline"), "hub_offline"),
    "not here": (errors.LocalEntryNotFoundError("not in the cache"), "hub_offline"),
    "no network": (failing_request(), "hub_offline"),
    "proxy": (failing_request("ProxyError"), "hub_offline"),
    "disk full": (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
    "broken hub": (answered(errors.HfHubHTTPError, 500, "oops\nrequest 1"), "download_failed"),
    "disabled": (answered(errors.DisabledRepoError, 403, "disabled"), "download_failed"),
    "no right to write": (PermissionError(errno.EACCES, "denied"), "download_failed"),
    "cut": (ConnectionResetError(), "download_failed"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_every_failure_on_the_way_is_told_with_its_remedy(case, library):
    library.error, code = FAILURES[case]
    error = refusal()
    assert error.code == code
    assert NAME in error.message
    assert "\n" not in str(error)


def test_a_gated_model_names_the_page_and_how_to_log_in(library):
    library.error = FAILURES["gated"][0]
    error = refusal()
    assert f"https://huggingface.co/{NAME}" in error.remedy
    assert "HF_TOKEN" in error.remedy


def test_a_full_disk_says_how_much_is_free(library, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    library.error = FAILURES["disk full"][0]
    assert refusal().facts["free"] > 0


def test_offline_the_real_library_says_that_it_cannot_reach_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert refusal().code == "hub_offline"


@pytest.mark.parametrize(
    "name",
    ["/no/such", "./nowhere", "~/nowhere", "a/b/c", "C:\\x", "../x", "~nobody-x"],
)
def test_what_looks_like_a_path_is_missed_as_a_folder(name, library):
    assert refusal(name).code == "no_folder"
    assert library.asked is None


@pytest.mark.parametrize("name", ["", "two words", "owner/na me", "a--b", "-x", "owner/", "x" * 99])
def test_what_is_no_name_is_refused(name, library, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert refusal(name).code == "bad_model_name"
    assert library.asked is None


# --- what lies in the folder ---


def test_a_folder_without_a_configuration_is_no_checkpoint(checkpoint):
    (checkpoint / "config.json").unlink()
    assert refusal(checkpoint).code == "no_config"


@pytest.mark.parametrize(
    ("file", "code"),
    [("pytorch_model.bin", "pickles_only"), ("model.pth", "pickles_only"), ("x", "no_weights")],
)
def test_pickles_are_never_opened(checkpoint, file, code):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / file).write_bytes(b"")
    assert refusal(checkpoint).code == code


def test_a_repository_that_has_only_other_weights_is_refused(checkpoint, library):
    (checkpoint / "model.safetensors").unlink()
    assert refusal().code == "no_weights"


def test_a_missing_part_of_the_weights_is_named(checkpoint):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refusal(checkpoint)
    assert error.code == "incomplete_checkpoint"
    assert "model-00002.safetensors" in error.message


def test_one_gguf_file_is_enough_and_two_are_too_many(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    assert hub.folder_of(str(tmp_path)) == tmp_path
    (tmp_path / "b.gguf").write_bytes(b"")
    error = refusal(tmp_path)
    assert (error.code, error.facts["count"]) == ("several_gguf", 2)
