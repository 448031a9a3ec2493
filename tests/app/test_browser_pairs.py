"""The list of pairs in a real browser: chosen, worded, run, replaced, linked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from app import i18n
from app.session import Session
from engine import catalog
from engine.catalog import pair_of
from tests.app.conftest import Site, serve
from tests.app.test_browser import run_to_the_end, visit, wait_said
from tests.app.test_browser_traces import chosen
from tests.app.test_session import FIRST, LACK, CountingLoader
from tests.engine.folders import qwen35_folder

pytestmark = pytest.mark.browser

LABEL = "24 GB: Qwen3-8B + Qwen3-0.6B (not verified)"


@pytest.fixture
def site(recording: Path) -> Iterator[Site]:
    """A page whose engine keeps one toy at a time."""
    loader = CountingLoader()
    session = Session(loader, recording=recording)
    session.start_loading(FIRST).done.wait(10)
    yield from serve(session, loader)


def choose(page: Any, label: str) -> None:
    page.locator("#pair input").click()
    page.get_by_role("option", name=label).click()


def shown_pair(page: Any) -> str:
    return str(page.locator("#pair input").input_value())


def wait_methods(page: Any, language: str, *methods: str) -> None:
    """Wait until exactly these methods are offered, in a language."""
    labels = [i18n.text(language, f"method.{name}") for name in methods]
    page.wait_for_function(
        "labels => [...document.querySelectorAll('#method label')]"
        ".map(l => l.textContent.trim()).join('|') === labels.join('|')",
        arg=labels,
    )


def test_another_pair_offers_its_methods_and_runs_in_place_of_the_first(
    page: Any, site: Site
) -> None:
    visit(page, site)
    assert shown_pair(page) == "CPU: SmolLM2-135M-Instruct"
    assert page.locator("#model .dl-note").count() == 0
    choose(page, LABEL)
    wait_methods(page, "en", "plain", "draft", "lookup")
    note = page.locator("#model .dl-note")
    note.wait_for()
    assert i18n.text("en", "expect.far_smaller") in str(note.text_content())
    assert page.locator("#model .dl-model.idle").count() == 1
    page.locator("#method label", has_text="Draft").click()
    run_to_the_end(page)
    page.wait_for_selector("#model .dl-model.ready")
    assert site.loader.asked == [FIRST, "qwen3-8b"]
    assert [pair.id for pair in site.loader.alive()] == ["qwen3-8b"]


def test_a_language_switch_words_the_list_and_keeps_the_choice(page: Any, site: Site) -> None:
    visit(page, site)
    choose(page, LABEL)
    wait_methods(page, "en", "plain", "draft", "lookup")
    page.locator("#language label", has_text="IT").click()
    wait_methods(page, "it", "plain", "draft", "lookup")
    expected = LABEL.replace("not verified", "non verificato")
    page.wait_for_function(
        "label => document.querySelector('#pair input').value === label", arg=expected
    )
    assert i18n.text("it", "expect.far_smaller") in str(page.locator("#model").text_content())


def test_a_pair_that_does_not_fit_says_so_and_the_first_one_runs_again(
    page: Any, site: Site
) -> None:
    site.loader.refused["qwen3-8b"] = LACK
    visit(page, site)
    choose(page, LABEL)
    wait_methods(page, "en", "plain", "draft", "lookup")
    page.click("#run")
    wait_said(page, i18n.error_text("en", LACK)[:40])
    page.wait_for_selector("#model .dl-model.error")
    choose(page, "CPU: SmolLM2-135M-Instruct")
    wait_methods(page, "en", "plain", "mtp", "draft", "lookup")
    run_to_the_end(page)
    assert site.loader.asked == [FIRST, "qwen3-8b", FIRST]


def test_a_link_to_a_pair_of_ones_own_names_it_and_runs_it(page: Any, site: Site) -> None:
    pair = pair_of("owner/Big-Model", draft="/models/a b&c=d")
    visit(page, site, "?" + urlencode({"pair": pair.id, "method": "draft", "lang": "en"}))
    wait_methods(page, "en", "plain", "draft", "lookup")
    assert shown_pair(page) == "Big-Model + a b&c=d (not verified)"
    assert chosen(page, "method") == "draft"
    note = page.locator("#model .dl-note")
    note.wait_for()
    assert note.text_content() == i18n.text("en", "pair.about.own")
    run_to_the_end(page)
    assert site.loader.asked == [FIRST, pair.id]


def test_the_list_has_every_pair(page: Any, site: Site) -> None:
    visit(page, site)
    page.locator("#pair input").click()
    page.get_by_role("option", name=LABEL).wait_for()
    listed = page.locator("#pair [role=option]")
    assert listed.count() == len(catalog.load().pairs)


def test_a_pair_by_name_is_looked_at_before_anything_is_loaded(
    page: Any, site: Site, tmp_path: Path
) -> None:
    target = qwen35_folder(tmp_path / "tiny-qwen")
    visit(page, site)
    page.click("#own > button")
    page.click("#own-use")  # without a target
    wait_said(page, "A pair needs a target")
    page.fill("#own-target input, #own-target textarea", str(target))
    page.fill("#own-mtp input, #own-mtp textarea", "native")
    page.click("#own-use")
    wait_methods(page, "en", "plain", "mtp", "lookup")
    card = page.locator("#preflight details.dl-preflight[open]").first
    card.wait_for()
    said = i18n.text("en", "check.mtp_here", family="qwen", modules=1)
    assert said in str(card.text_content())
    assert site.loader.asked == [FIRST]
    run_to_the_end(page)
    assert site.loader.asked == [FIRST, pair_of(str(target), mtp="native").id]
    page.locator("#language label", has_text="IT").click()
    wait_methods(page, "it", "plain", "mtp", "lookup")
    page.wait_for_function(
        "said => document.querySelector('#preflight').textContent.includes(said)",
        arg=i18n.text("it", "check.mtp_here", family="qwen", modules=1),
    )


def test_a_race_is_run_with_the_pair_of_the_playground(page: Any, site: Site) -> None:
    visit(page, site)
    choose(page, LABEL)
    wait_methods(page, "en", "plain", "draft", "lookup")
    page.get_by_role("tab", name="Race").click()
    page.wait_for_function(
        "label => document.querySelector('#race-pair').textContent.includes(label)", arg=LABEL
    )
    page.wait_for_function("document.querySelector('#race-method-1 input').value === 'nobody'")
    page.click("#race-run")
    page.wait_for_selector(".dl-race-tools:not([hidden])", timeout=60_000)
    assert page.locator(".dl-lane").count() == 3
    assert [pair.id for pair in site.loader.alive()] == ["qwen3-8b"]
