"""The views of a run's events in a real browser: drawn, worded, and fed by what was run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import Site
from tests.app.test_browser import run_to_the_end, value, visit, wait_said

pytestmark = pytest.mark.browser

PLACES = ("waterfall", "acceptance", "content", "bursts", "health", "logs", "runs", "names")
DRAWN = "name => document.querySelector(`[data-figure=${name}] .dl-figure-plot`)?.data?.length > 0"
LINE = (
    "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted: 150 tokens, Drafted: 200 "
    "tokens, Per-position acceptance rate: 0.850, 0.650, Avg Draft acceptance rate: 75.0%"
)


def inspect(page: Any) -> None:
    page.click("#tab-inspect-button")
    page.wait_for_selector("#view-waterfall .dl-view-title")


def figure(page: Any, name: str) -> list[dict[str, Any]]:
    """Scroll to a figure, wait until it is drawn, and return its traces."""
    page.locator(f"[data-figure={name}]").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg=name)
    pick = "({x, y, text, texttemplate}) => ({x: x && [...x], y: y && [...y], text, texttemplate})"
    node = f"document.querySelector('[data-figure={name}] .dl-figure-plot')"
    return list(page.evaluate(f"{node}.data.map({pick})"))


def text_of(page: Any, view: str) -> str:
    page.locator(f"#view-{view}").scroll_into_view_if_needed()
    return str(page.locator(f"#view-{view}").text_content())


def test_the_waterfall_ends_at_the_speed_up_of_the_playground(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "Where did it go?")
    run_to_the_end(page)
    speed_up = value(page, "speed_up")
    inspect(page)
    (bars,) = figure(page, "waterfall")
    assert f"{bars['x'][-1]:.2f}" == speed_up
    assert bars["y"][1] == "drafting"
    labels = page.locator("[data-figure=waterfall] .bartext").all_text_contents()
    assert labels[-1] == f"{speed_up}×"
    assert "a speed-up of" in text_of(page, "waterfall")
    page.locator("#language label", has_text="IT").click()
    page.wait_for_function(
        "() => document.querySelector('#view-waterfall').textContent.includes('Dove è finita')"
    )
    assert figure(page, "waterfall")[0]["y"][1] == "bozza"


def test_acceptance_content_and_bursts_are_drawn_from_the_recording(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    inspect(page)
    marginal, conditional = figure(page, "by_position")
    assert marginal["text"][0] == conditional["text"][0]
    assert figure(page, "accepted_per_round")[0]["y"]
    assert "word start" in figure(page, "by_kind")[0]["y"]
    assert figure(page, "by_entropy")[0]["text"]
    ours, plain = figure(page, "arrival")
    assert ours["y"][-1] == plain["y"][-1]
    assert ours["x"][-1] < plain["x"][-1]
    assert len(figure(page, "gaps")[0]["y"]) == len(ours["y"]) - 1


def test_the_books_are_ticked_and_the_canary_sings_at_a_click(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "Healthy?")
    run_to_the_end(page)
    inspect(page)
    assert text_of(page, "health").count("✓") == 9
    assert "has not run" in text_of(page, "health")
    page.click("#measure-canary")
    page.wait_for_selector("#view-health .dl-sentence.good:has-text('is wired')")


def test_a_pasted_log_line_becomes_a_row_and_nonsense_a_remedy(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    inspect(page)
    page.fill("#log textarea", LINE)
    page.click("#read-log")
    page.wait_for_selector("#view-logs td:has-text('vLLM')")
    cells = page.locator("#view-logs tbody td").all_text_contents()
    assert cells == ["vLLM", "200", "150", "—", "75.0 %", "2.50", "85 · 65", "—"]
    page.fill("#log textarea", "<img src=x onerror=alert(1)>")
    page.click("#read-log")
    page.wait_for_selector("#view-logs .dl-sentence.warn:has-text('accept len:')")
    assert page.input_value("#log textarea").startswith("<img")
    page.fill("#log textarea", LINE)
    page.click("#read-log")
    page.wait_for_selector("#view-logs td:has-text('vLLM')")
    page.click("#tab-playground-button")
    inspect(page)
    assert "vLLM" in text_of(page, "logs")


def test_runs_of_the_visit_stand_side_by_side_and_prompts_stay_text(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    inspect(page)
    assert "Every run you make" in text_of(page, "runs")
    page.click("#tab-playground-button")
    prompt = "<b>bold</b> & more"
    page.fill("#prompt textarea", prompt)
    run_to_the_end(page)
    page.fill("#temperature input", "1")
    run_to_the_end(page)
    inspect(page)
    page.locator("#view-runs").scroll_into_view_if_needed()
    page.wait_for_selector("#view-runs tbody tr:nth-child(2)")
    assert page.locator("#view-runs tbody tr").count() == 2
    assert prompt in text_of(page, "runs")
    assert page.locator("#view-runs td b").count() == 0
    (line,) = figure(page, "by_temperature")
    assert line["x"] == [0, 1]


def test_every_number_tells_its_other_names(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.click("#strip [data-number=length] .dl-info")
    also = page.locator("#strip [data-number=length] .dl-also")
    assert "EAGLE: compression ratio" in also.text_content()
    assert page.locator("#strip [data-number=saved] .dl-also").count() == 0
    inspect(page)
    page.locator("#view-names").scroll_into_view_if_needed()
    page.wait_for_selector("#view-names td:has-text('spec_verify_ct')")


@pytest.mark.parametrize("size", [(1366, 640), (390, 844)])
def test_no_view_makes_the_page_scroll_sideways(
    page: Any, toy_site: Site, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    inspect(page)
    for name in PLACES:
        page.locator(f"#view-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#view-{name} .dl-view-title")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
