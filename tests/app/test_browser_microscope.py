"""The coin microscope in a real browser: what it says of each fate, and that it hides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import replay
from tests.app.conftest import Site
from tests.app.test_browser import run_to_the_end, visit, wait_said

pytestmark = pytest.mark.browser

LAWS = """node => {
  const cells = [...node.querySelectorAll(".dl-micro-laws .dl-laws > *")];
  const width = cells.filter((cell) => cell.matches(".dl-laws-name")).length + 1;
  const rows = [];
  for (let i = width; i < cells.length; i += width) {
    rows.push(cells.slice(i, i + width).map((cell) => cell.textContent));
  }
  return rows;
}"""


def sampled(page: Any, site: Site) -> None:
    """Run with a temperature, so that coins are thrown."""
    visit(page, site)
    page.locator("#gamma label", has_text="3").click()
    page.fill("#temperature input", "0.8")
    run_to_the_end(page)


def look(page: Any, fate: str) -> Any:
    """Click the first token of a fate; return the microscope."""
    page.locator(f"#strip .dl-text .f-{fate}").first.click()
    micro = page.locator("#strip .dl-micro")
    assert micro.is_visible()
    return micro


def test_the_coin_is_told_in_words_and_drawn_where_it_fell(page: Any, toy_site: Site) -> None:
    sampled(page, toy_site)
    micro = look(page, "accepted")
    assert "u = 0.300 < p/q: accepted" in micro.text_content()
    assert "at least as much as the drafter" in micro.text_content()
    micro = look(page, "rejected")
    assert "u = 0.300 ≥ p/q = 0.200: rejected" in micro.text_content()
    assert "The acceptance to expect here: 10.0 %" in micro.text_content()
    assert "The target put “␣scatters” in its place" in micro.text_content()
    places = micro.evaluate(
        """node => [".dl-coin > i", ".dl-coin-u"].map((name) => {
          const style = node.querySelector(name).style;
          return parseFloat(style.width || style.left);
        })"""
    )
    assert places == [pytest.approx(20), pytest.approx(30)]


def test_p_and_q_stand_side_by_side_and_what_is_not_known_is_a_dash(
    page: Any, toy_site: Site
) -> None:
    sampled(page, toy_site)
    rows = look(page, "rejected").evaluate(LAWS)
    assert rows == [
        ["␣scatters", "60.0 %", "—"],
        ["␣of", "10.0 %", "50.0 %"],
        ["␣else", "25.0 %", "—"],
        ["␣or", "—", "20.0 %"],
    ]


def test_an_unjudged_token_has_true_probabilities_and_no_coin(page: Any, toy_site: Site) -> None:
    sampled(page, toy_site)
    micro = look(page, "unjudged")
    assert "no coin was thrown" in micro.text_content()
    assert micro.locator(".dl-coin-u").count() == 0
    assert micro.locator(".dl-law.p").count()


def test_a_recovered_token_shows_what_it_was_drawn_from(page: Any, toy_site: Site) -> None:
    sampled(page, toy_site)
    micro = look(page, "recovered")
    assert "The target refused “␣of”" in micro.text_content()
    assert micro.locator(".dl-law.r b").all_text_contents() == ["60.0 %", "25.0 %"]
    assert micro.locator(".dl-law.q").count()  # both laws of the place it stands at


@pytest.mark.parametrize("fate", ["bonus", "target"])
def test_the_targets_own_token_shows_the_targets_law_alone(
    page: Any, toy_site: Site, fate: str
) -> None:
    sampled(page, toy_site)
    micro = look(page, fate)
    assert "No coin" in micro.text_content()
    assert micro.locator(".dl-law.q, .dl-coin").count() == 0


def test_a_greedy_run_needs_no_coin_and_says_what_the_bars_are(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    for fate, why in (("accepted", "It is the target's"), ("rejected", "It is not the target's")):
        micro = look(page, fate)
        assert why in micro.text_content()
        assert "the coin is not needed" in micro.text_content()
        assert "softmax behind the choice" in micro.text_content()
        assert micro.locator(".dl-coin, .dl-micro-overlap").count() == 0
    # The recorded p of a greedy choice is 0 here: it is not a bar of the softmax.
    assert ["␣of", "—", "50.0 %"] in micro.evaluate(LAWS)


def test_arrows_move_it_escape_and_a_second_click_close_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    token = page.locator("#strip .dl-text .tok").first
    token.click()
    micro = page.locator("#strip .dl-micro")
    first = micro.get_attribute("data-token")
    page.keyboard.press("ArrowRight")
    second = micro.get_attribute("data-token")
    assert first != second
    assert page.evaluate("document.activeElement.cell.id") == int(second)
    micro.locator(".dl-micro-back").click()
    assert micro.get_attribute("data-token") == first
    page.keyboard.press("ArrowRight")
    assert micro.get_attribute("data-token") == second
    assert page.evaluate("document.activeElement.className") == "dl-micro-back"
    page.keyboard.press("Escape")
    assert micro.is_hidden()
    assert page.evaluate("document.activeElement.cell.id") == int(second)
    token.click()
    assert micro.is_visible()
    token.click()
    assert micro.is_hidden()


def test_hovering_still_shows_the_small_card_while_it_is_open(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    micro = look(page, "accepted")
    page.locator("#strip .dl-text .f-bonus").first.hover()
    assert page.locator("#strip .dl-card").is_visible()
    assert "accepted" in micro.locator(".dl-card-fate").text_content()


@pytest.mark.parametrize("fate", ["accepted", "rejected", "recovered", "bonus"])
def test_it_covers_neither_its_token_nor_the_first_screen(
    page: Any, toy_site: Site, fate: str
) -> None:
    sampled(page, toy_site)
    micro = look(page, fate).bounding_box()
    token = page.locator("#strip .dl-text .tok.pin").bounding_box()
    assert token["y"] + token["height"] <= micro["y"]
    assert micro["y"] + micro["height"] <= 640
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.locator("#strip .dl-text").bounding_box()["height"] >= 120


def test_it_stays_at_its_token_while_a_run_goes_on_and_leaves_with_it(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    page.locator("#compare input").uncheck()
    page.fill("#prompt textarea", "look while it runs")
    page.click("#run")
    page.wait_for_selector("#strip .dl-row[data-round='0'] .f-accepted")
    page.locator("#strip .dl-row[data-round='0'] .f-accepted").first.click()
    micro = page.locator("#strip .dl-micro")
    before = micro.get_attribute("data-token")
    wait_said(page, "Finished")
    assert micro.get_attribute("data-token") == before
    assert micro.is_visible()
    page.click("#run")
    page.wait_for_function("document.querySelector('#strip .dl-micro').hidden")
    wait_said(page, "Finished")


def test_another_language_words_it_again(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    micro = look(page, "rejected")
    page.locator("#language label", has_text="中文").click()
    page.wait_for_selector("#strip .dl-micro:has-text('温度为 0')")
    assert micro.is_visible()


def test_model_text_stays_text_in_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "xss look closer")
    run_to_the_end(page)
    page.locator("#strip .dl-text .tok", has_text="<img").first.click()
    assert "<img" in page.locator("#strip .dl-micro").text_content()
    assert page.locator("#strip .dl-micro img, #strip .dl-micro script").count() == 0
    assert page.title() == "Draftlight"


def test_on_a_phone_a_tap_is_a_hover_and_the_next_one_looks_closer(
    chromium: Any, toy_site: Site
) -> None:
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, locale="en-GB"
    )
    page = context.new_page()
    try:
        visit(page, toy_site)
        wait_said(page, "This run was recorded")
        token = page.locator("#strip .dl-text .f-rejected").nth(1)
        token.tap()
        assert page.locator("#strip .dl-card").is_visible()
        assert page.locator("#strip .dl-micro").is_hidden()
        token.tap()
        micro = page.locator("#strip .dl-micro").bounding_box()
        box = page.locator("#strip .dl-text .tok.pin").bounding_box()
        assert box["y"] + box["height"] <= micro["y"]
        assert micro["y"] + micro["height"] <= 844
        page.locator("#strip .dl-text .f-accepted").first.tap()  # it moves with one tap
        assert page.locator("#strip .dl-micro .f-accepted").count()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        context.close()


def test_a_replay_file_has_it_too_without_server_or_network(
    chromium: Any, recording: Path, tmp_path: Path
) -> None:
    target = tmp_path / "run.html"
    assert replay.main([str(recording), str(target)]) == 0
    context = chromium.new_context(locale="en-GB", offline=True)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    try:
        page.goto(target.as_uri())
        page.locator(".dl-text .f-rejected").first.click()
        assert "the coin is not needed" in page.locator(".dl-micro").text_content()
        assert page.locator(".dl-player").is_hidden()  # the file has one of its own
        page.click(".replay-back")
        assert errors == []
    finally:
        context.close()
