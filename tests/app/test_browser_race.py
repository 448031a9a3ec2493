"""The race in a real browser."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.app.conftest import Site
from tests.app.test_browser import visit

pytestmark = pytest.mark.browser


def open_race(page: Any, site: Site, query: str = "") -> None:
    visit(page, site, query)
    page.locator("#dl-tabs button[role=tab]").nth(1).click()
    page.wait_for_selector("#race-run:visible")


def race(page: Any) -> None:
    page.click("#race-run")
    page.wait_for_selector(".dl-race-tools:not([hidden])", timeout=60_000)


def test_four_lanes_race_to_a_verdict_on_one_screen(page: Any, toy_site: Site) -> None:
    open_race(page, toy_site)
    race(page)
    page.click(".dl-race-end")
    verdicts = page.locator(".dl-lane-verdict").all_text_contents()
    assert verdicts[0].startswith("The yardstick")
    assert verdicts[1:] == ["Text identical to plain, 48 tokens."] * 3
    clocks = [float(text.split()[0]) for text in page.locator(".dl-lane-clock").all_text_contents()]
    assert float(page.locator(".dl-race-clock").text_content().split()[0]) == max(clocks)
    first = page.locator('.dl-lane[data-place="1"] .dl-lane-clock').text_content()
    assert float(first.split()[0]) == min(clocks)
    texts = page.locator(".dl-lane-text").all_text_contents()
    assert texts == [toy_site.loader.pair.text] * 4
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_the_replay_starts_together_and_can_be_slowed_and_played_again(
    page: Any, toy_site: Site
) -> None:
    open_race(page, toy_site)
    race(page)
    page.select_option(".dl-race-speed", "0.1")
    page.click(".dl-race-again")
    page.wait_for_function("parseFloat(document.querySelector('.dl-race-clock').textContent) > 0")
    assert page.locator(".dl-lane.over").count() == 0
    page.click(".dl-race-end")
    assert page.locator(".dl-lane.over").count() == 4


def test_reduced_motion_shows_the_end_at_once(page: Any, toy_site: Site) -> None:
    page.emulate_media(reduced_motion="reduce")
    open_race(page, toy_site)
    race(page)
    assert page.locator(".dl-lane.over").count() == 4


def test_a_race_without_lanes_says_so_and_a_language_switch_keeps_the_result(
    page: Any, toy_site: Site
) -> None:
    open_race(page, toy_site, "?lang=it")
    race(page)
    page.click(".dl-race-end")
    page.locator("#language label", has_text="EN").click()
    page.wait_for_function(
        "document.querySelector('.dl-lane-verdict').textContent.startsWith('The yardstick')"
    )
    assert page.locator(".dl-lane").count() == 4


def test_on_a_phone_lanes_stack(page: Any, toy_site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_race(page, toy_site)
    race(page)
    page.click(".dl-race-end")
    boxes = [page.locator(".dl-lane").nth(i).bounding_box() for i in range(4)]
    assert all(box["x"] + box["width"] <= 390 for box in boxes)
    assert all(a["y"] + a["height"] <= b["y"] for a, b in itertools.pairwise(boxes))
