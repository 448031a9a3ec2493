"""Preflight looks and never loads."""

from dataclasses import replace

import pytest

from engine import catalog, preflight


def checks() -> dict[str, preflight.Check]:
    known = catalog.load()
    return {c.code: c for c in preflight.preflight(known, known.pair("smollm2"))}


def test_bundled_weights_are_found() -> None:
    assert checks()["weights_bundled"].passed


def test_missing_bundled_weights_are_named() -> None:
    known = catalog.load()
    lost = replace(known.models["draftlight-mtp-135m"], folder="models/nowhere")
    broken = replace(known, models={**known.models, lost.id: lost})
    found = preflight.preflight(broken, broken.pair("smollm2"))
    assert [c.text for c in found if not c.passed] == ["models/nowhere is missing"]


def test_a_target_that_is_not_here_yet_is_no_failure(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    check = checks()["weights_to_fetch"]
    assert check.passed
    assert "93 MB" in check.text


def test_too_little_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_memory_gb", lambda: 0.2)
    assert not checks()["memory"].passed


def test_unknown_memory_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_memory_gb", lambda: None)
    assert checks()["memory_unknown"].passed
