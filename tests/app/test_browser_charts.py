"""The live charts in a real browser: data, words, colours, zoom, pace, and life without them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from app import theme
from tests.app.conftest import Site
from tests.app.fakes import LONG
from tests.app.test_browser import run_to_the_end, value, visit, wait_said

pytestmark = pytest.mark.browser

TRACES = """name => {
  const plot = document.querySelector(`#strip [data-chart=${name}] .dl-plot`);
  return (plot.data ?? []).map((trace) => [...trace.y]);
}"""
DRAWN = (
    """name => document.querySelector(`#strip [data-chart=${name}] .dl-plot`).data?.length > 0"""
)


def traces(page: Any, name: str) -> list[list[float]]:
    page.wait_for_function(DRAWN, arg=name)
    return list(page.evaluate(TRACES, name))


def test_all_three_charts_have_the_data_of_the_run(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "charts please")
    run_to_the_end(page)
    level, speed_up = traces(page, "speed_up")
    assert set(level) == {1}
    assert f"{speed_up[-1]:.2f}" == value(page, "speed_up")
    rolling, by_position = traces(page, "acceptance")
    assert 0 < rolling[-1] <= 100
    assert by_position == sorted(by_position, reverse=True)
    draft, verify, overhead, plain = traces(page, "latency")
    assert len(draft) == len(verify) == len(overhead) == len(speed_up)
    assert plain[0] == pytest.approx(40, rel=0.02)
    assert page.locator("#strip .dl-chart-note:visible").count() == 0


def test_a_plain_run_says_what_its_charts_cannot_show(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "plain charts")
    page.locator("#method label", has_text="Plain").click()
    page.click("#run")
    wait_said(page, "Finished")
    notes = page.locator("#strip .dl-chart-note:visible").all_text_contents()
    assert len(notes) == 2
    assert "yardstick" in notes[0]
    assert "Nothing was proposed" in notes[1]
    assert len(traces(page, "latency")[0])


def test_charts_speak_the_language_and_wear_the_ground(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    traces(page, "latency")
    page.locator("#language label", has_text="IT").click()
    wait_said(page, "Questa")
    layout = "document.querySelector('[data-chart=latency] .dl-plot').layout"
    assert page.evaluate(layout + ".xaxis.title.text") == "giro"
    assert page.evaluate(layout + ".separators") == ",."
    assert "semplice" in page.locator("[data-chart=latency] .dl-key").text_content()
    line = "document.querySelector('[data-chart=speed_up] .dl-plot').data[1].line.color"
    assert page.evaluate(line) == theme.colour("text", dark=False)
    page.click("#dark")
    page.wait_for_function(f"{line} === '{theme.colour('text', dark=True)}'")


def test_a_zoom_survives_the_redraws_of_a_run(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "zoom in")
    page.locator("#method label", has_text="Plain").click()
    page.click("#run")
    wait_said(page, "Decoding with")
    # The recording has 15 rounds: more than these are of the new run.
    node = "document.querySelector('[data-chart=latency]')"
    page.wait_for_function(f"{node}.dataset.points > 15 && {node}.dataset.points < 35")
    box = page.locator("[data-chart=latency] .nsewdrag").first.bounding_box()
    x, y = box["x"], box["y"] + box["height"] / 2
    page.mouse.move(x + 0.2 * box["width"], y)
    page.mouse.down()
    page.mouse.move(x + 0.7 * box["width"], y, steps=3)
    page.mouse.up()
    span = page.evaluate(f"{node}.querySelector('.dl-plot').layout.xaxis.range")
    wait_said(page, "Finished")
    assert float(page.evaluate(f"{node}.dataset.points")) > 40
    assert page.evaluate(f"{node}.querySelector('.dl-plot').layout.xaxis.range") == span


def test_no_more_than_four_redraws_a_second(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    traces(page, "latency")
    page.locator("#compare input").uncheck()
    page.fill("#max_new_tokens input", "400")
    page.fill("#prompt textarea", f"count redraws {LONG}")
    page.evaluate(
        """() => {
          const { react } = window.Plotly;
          window.drawn = [];
          window.Plotly.react = (...all) => {
            window.drawn.push(Date.now());
            return react(...all);
          };
        }"""
    )
    page.click("#run")
    wait_said(page, "Decoding with")
    page.evaluate("window.drawn.length = 0")
    wait_said(page, "Finished")
    *during, _, _, _ = page.evaluate("window.drawn")  # the end draws all three in a row
    assert len(during) >= 2
    assert min(b - a for a, b in itertools.pairwise(during)) >= 200


def test_a_chart_explains_itself_and_escape_closes_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    why = page.locator("[data-chart=acceptance] .dl-formula")
    page.locator("[data-chart=acceptance] .dl-info").focus()
    page.keyboard.press("Enter")
    assert "last 8 rounds" in why.text_content()
    assert why.is_visible()
    page.keyboard.press("Escape")
    assert why.is_hidden()


def test_without_plotly_the_charts_say_so_and_the_run_goes_on(page: Any, toy_site: Site) -> None:
    page.route("**/plotly.min.js", lambda route: route.abort())
    visit(page, toy_site)
    page.fill("#prompt textarea", "no plotly")
    run_to_the_end(page)
    notes = page.locator("#strip .dl-chart-note:visible").all_text_contents()
    assert len(notes) == 3
    assert all("could not be loaded" in note for note in notes)
    assert float(value(page, "speed_up")) > 1
