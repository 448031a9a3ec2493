"""The main job in a real browser with the real default trio: press Run, read tokens and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.session import Session
from tests.app.conftest import Site, serve
from tests.app.test_browser import value, visit, wait_said
from tests.app.test_browser_charts import traces

pytestmark = [pytest.mark.browser, pytest.mark.trio]

LABELS = {"mtp": "MTP", "draft": "Draft model", "plain": "Plain"}


@pytest.fixture(scope="module")
def trio_site(pair: Any, recording: Path) -> Iterator[Site]:
    """The page with the default trio behind it."""

    def load(pair_id: str, **_: Any) -> Any:
        assert pair_id == pair.id
        return pair

    session = Session(load, recording=recording)
    session.start_loading(session.default_pair).done.wait(10)
    yield from serve(session, load)


def run(page: Any, site: Site, method: str) -> str:
    """Run the list preset with a method; return the clean text on screen."""
    visit(page, site)
    page.context.set_default_timeout(120_000)
    page.click("#preset-list")
    page.locator("#method label", has_text=LABELS[method]).click()
    page.fill("#max_new_tokens input", "40")
    page.click("#run")
    wait_said(page, "Finished")
    return "".join(page.locator("#strip .dl-text .tok:not(.ghost)").all_text_contents())


@pytest.mark.parametrize("method", ["mtp", "draft"])
def test_a_speculative_run_shows_fates_and_measured_numbers(
    page: Any, trio_site: Site, method: str
) -> None:
    text = run(page, trio_site, method)
    assert len(text) > 40
    for fate in ("accepted", "rejected", "recovered"):
        assert page.locator(f"#strip .dl-text .f-{fate}").count(), fate
    assert float(value(page, "speed_up").rstrip("×")) > 0
    assert float(value(page, "per_second")) > 0
    assert 0 < float(value(page, "rate")) < 100
    assert 1 < float(value(page, "length")) < 4
    speed_up = traces(page, "speed_up")[1]
    assert f"{speed_up[-1]:.2f}" == value(page, "speed_up").rstrip("×")
    assert 0 < traces(page, "acceptance")[0][-1] <= 100
    assert all(part > 0 for part in traces(page, "latency")[1])
    assert "books ✓" in page.locator("#strip .dl-foot").text_content()
    plain = run(page, trio_site, "plain")
    assert plain == text


def test_a_plain_run_shows_the_targets_own_tokens_and_no_rate(page: Any, trio_site: Site) -> None:
    run(page, trio_site, "plain")
    assert page.locator("#strip .dl-text .f-target").count() == 40
    assert page.locator("#strip .dl-text .ghost").count() == 0
    assert value(page, "rate").strip() == "—"
    assert value(page, "length") == "1.00"
    assert len(traces(page, "latency")[1]) == 39


def test_two_visitors_share_the_real_engine_through_stop_dark_and_another_language(
    page: Any, chromium: Any, trio_site: Site
) -> None:
    other = chromium.new_context(locale="it-IT").new_page()
    other.context.set_default_timeout(120_000)
    try:
        for visitor, preset in ((page, "prose"), (other, "translation")):
            visit(visitor, trio_site)
            visitor.click(f"#preset-{preset}")
            visitor.locator("#compare input").uncheck()
        page.fill("#max_new_tokens input", "400")
        other.fill("#max_new_tokens input", "24")
        page.click("#run")
        wait_said(page, "Decoding")
        other.click("#run")
        wait_said(other, "In coda")
        page.click("#dark")
        page.locator("#language label", has_text="中文").click()
        page.wait_for_selector("#strip .dl-text .f-accepted")
        page.click("#stop")
        wait_said(other, "Finito")
        assert page.locator("#strip .dl-text .tok:not(.ghost)").count() < 400
        assert page.locator("#run").text_content().strip() == "运行"
        assert page.evaluate("document.body.classList.contains('dark')")
        texts = [visitor.locator("#strip .dl-text").text_content() for visitor in (page, other)]
        assert texts[0]
        assert texts[1]
        assert texts[0] != texts[1]
    finally:
        other.context.close()
