"""The page in a real browser, with a toy engine behind it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.app.conftest import Site
from tests.app.fakes import LONG, UNTIL_STOPPED

pytestmark = pytest.mark.browser


FRAMES = """async (count) => {
  for (let i = 0; i < count; i++) await new Promise(requestAnimationFrame);
}"""


def visit(page: Any, site: Site, query: str = "") -> None:
    page.goto(site.url + query)
    page.wait_for_selector("#strip .dl-number")
    page.wait_for_selector("details.dl-preflight")  # the form is filled in by now


def wait_said(page: Any, start: str) -> str:
    """Wait until the status line starts with `start` and the charts had their frames; return it."""
    page.wait_for_function(
        "start => document.querySelector('#strip .dl-status').textContent.startsWith(start)",
        arg=start,
    )
    page.evaluate(FRAMES, 4)
    return str(page.locator("#strip .dl-status").text_content())


def value(page: Any, name: str) -> str:
    return str(page.locator(f"#strip [data-number={name}] .dl-value").text_content())


def bad_field(page: Any) -> tuple[str, str]:
    """Return the id of the one field that is marked, and what is said under it."""
    node = page.locator(".dl-bad")
    assert node.count() == 1
    return str(node.get_attribute("id")), str(node.locator(".dl-bad-why").text_content())


def run_to_the_end(page: Any) -> None:
    page.click("#run")
    wait_said(page, "First the baseline")
    wait_said(page, "Finished")


def test_the_page_opens_on_a_recording_and_run_replaces_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.wait_for_selector("#strip .dl-stamp:visible")
    assert page.locator("#strip .dl-stamp").text_content() == "recording"
    page.locator("#gamma label", has_text="3").click()  # long enough for a token to go unjudged
    run_to_the_end(page)
    assert page.locator("#strip .dl-stamp").is_hidden()
    assert float(value(page, "speed_up")) > 1
    assert "plain:" in page.locator("#strip [data-number=speed_up] .dl-below").text_content()
    assert "books ✓" in page.locator("#strip .dl-foot").text_content()
    for fate in ("accepted", "rejected", "unjudged", "recovered", "bonus", "target"):
        assert page.locator(f"#strip .dl-text .f-{fate}").count(), fate
    shown = page.locator("#strip .dl-text .tok:not(.ghost)").all_text_contents()
    assert "".join(shown) == toy_site.loader.pair.text


def test_everything_fits_the_first_screen(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    charts = "#strip .dl-charts"
    for name in ("#run", "#stop", "#compare", "#strip .dl-foot", "#strip .dl-legend", charts):
        box = page.locator(name).bounding_box()
        assert box["y"] + box["height"] <= 640, name


def test_a_phone_shows_all_of_it_without_scrolling_sideways(page: Any, toy_site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, toy_site)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    stage = page.locator("#dl-stage").bounding_box()
    assert stage["x"] + stage["width"] <= 390


def test_the_legend_names_all_fates(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    names = page.locator("#strip .dl-legend .tok").all_text_contents()
    assert names == [
        *("proposed", "accepted", "rejected", "unjudged"),
        *("recovered", "bonus", "target", "cut"),
    ]


def test_model_text_stays_text(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "xss please <b>bold</b>")
    run_to_the_end(page)
    assert page.title() == "Draftlight"
    assert page.locator("#strip img, #strip script, #strip .dl-text b").count() == 0
    assert "<script>" in page.locator("#strip .dl-text").text_content()


def test_stop_ends_the_engine_and_says_so(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    pair = toy_site.loader.pair
    page.fill("#prompt textarea", UNTIL_STOPPED)
    page.click("#run")
    wait_said(page, "First the baseline")
    page.click("#stop")
    wait_said(page, "Stopped")
    page.wait_for_timeout(300)
    assert pair.alive == 0
    assert pair.ended[-1] == "cancelled"


def test_closing_the_page_ends_the_engine(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    pair = toy_site.loader.pair
    page.fill("#prompt textarea", f"leave me {LONG}")
    page.fill("#max_new_tokens input", "512")
    page.click("#run")
    wait_said(page, "First the baseline")
    page.goto("about:blank")
    deadline = time.monotonic() + 20
    while pair.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pair.alive == 0
    assert pair.ended[-1] == "cancelled"


def test_bad_input_is_answered_before_anything_runs(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    num_ended = len(toy_site.loader.pair.ended)
    page.fill("#prompt textarea", "")
    page.click("#run")
    wait_said(page, "The prompt is empty")
    assert bad_field(page) == ("prompt", "The prompt is empty. Write one or choose a preset.")
    page.click("#preset-prose")
    page.fill("#temperature input", "-3")
    page.click("#run")
    wait_said(page, "Temperature must be a number from 0 to 2")
    assert bad_field(page)[0] == "temperature"
    assert page.get_attribute("#temperature input", "aria-invalid") == "true"
    page.fill("#temperature input", "0")
    page.fill("#seed input", "")
    page.click("#run")
    wait_said(page, "Seed must be a whole number")
    page.fill("#seed input", "0")
    assert page.locator(".dl-bad").count() == 0
    page.fill("#prompt textarea", "long " * 1200)
    page.click("#run")
    wait_said(page, "The prompt has 1,500 tokens")
    assert len(toy_site.loader.pair.ended) == num_ended


def test_a_field_is_marked_once_and_stays_mended_when_the_page_is_drawn_again(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    page.fill("#seed input", "-1")
    page.click("#run")
    page.wait_for_selector("#seed .dl-bad-why")
    page.wait_for_timeout(200)
    page.locator("#language label", has_text="IT").click()
    page.wait_for_selector("#seed .dl-bad-why:has-text('Il seme')")
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.closest('#language') !== null")
    page.fill("#seed input", "1")
    page.locator("#language label", has_text="EN").click()
    wait_said(page, "Seed must be")
    assert page.locator(".dl-bad").count() == 0


def test_an_error_behind_the_accordion_opens_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.click("#more > button")
    page.fill("#top_p input", "7")
    page.click("#more > button")
    page.wait_for_selector("#top_p", state="hidden")
    page.click("#run")
    page.wait_for_selector("#top_p .dl-bad-why:visible")
    page.wait_for_function("document.activeElement.closest('#top_p') !== null")
    page.fill("#top_p input", "1")
    assert page.locator(".dl-bad").count() == 0


def test_a_stop_text_ends_the_run_and_is_shown_as_cut(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "stop early")
    page.click("#more > button")
    page.wait_for_timeout(300)  # Gradio makes the fields when the accordion first opens
    page.fill("#stop_texts textarea", "longer way\nnever")
    run_to_the_end(page)
    assert "stop text" in wait_said(page, "Finished at")
    shown = page.locator("#strip .dl-text .tok:not(.ghost)").all_text_contents()
    assert "".join(shown) == toy_site.loader.pair.text.split("longer way")[0]
    cut = page.locator("#strip .dl-text .f-cut").all_text_contents()
    assert "".join(cut).lstrip("✂").startswith(" longer way")


def test_a_language_switch_keeps_the_prompt_and_words_the_finished_run(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "my own words")
    run_to_the_end(page)
    page.locator("#language label", has_text="IT").click()
    wait_said(page, "Finito")
    assert page.locator("#run").text_content().strip() == "Esegui"
    assert page.input_value("#prompt textarea") == "my own words"
    assert "accettato" in page.locator("#strip .dl-legend").text_content()
    assert page.locator("#strip .dl-text .f-bonus").count()
    assert page.evaluate("document.documentElement.lang") == "it"


def test_a_language_switch_during_a_run_does_not_disturb_it(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "switch while running")
    page.click("#run")
    wait_said(page, "First the baseline")
    page.locator("#language label", has_text="中文").click()
    wait_said(page, "完成")
    shown = page.locator("#strip .dl-text .tok:not(.ghost)").all_text_contents()
    assert "".join(shown) == toy_site.loader.pair.text


@pytest.mark.parametrize(("query", "label"), [("?lang=it", "Esegui"), ("?lang=zh", "运行")])
def test_the_address_chooses_the_language(
    page: Any, toy_site: Site, query: str, label: str
) -> None:
    visit(page, toy_site, query)
    page.wait_for_selector(f"#run:has-text('{label}')")


def test_a_token_opens_its_card_by_mouse_and_by_keyboard(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    card = page.locator("#strip .dl-card")
    page.locator("#strip .dl-text .f-accepted").first.hover()
    assert "min(1, p/q)" in card.text_content()
    page.mouse.move(5, 5)
    assert card.is_hidden()
    page.locator("#strip .dl-text .tok[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert card.is_visible()
    page.keyboard.press("Enter")  # the microscope takes its place
    assert card.is_hidden()
    assert page.locator("#strip .dl-micro").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#strip .dl-micro").is_hidden()


def test_one_switch_hides_the_lost_tokens(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.click("#strip .dl-ghosts")
    assert page.locator("#strip .dl-text .f-rejected").first.is_hidden()
    page.click("#strip .dl-ghosts")
    assert page.locator("#strip .dl-text .f-rejected").first.is_visible()


def test_copy_works_without_a_clipboard_api(page: Any, toy_site: Site) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.add_init_script(
        "document.addEventListener('copy', () => { window.copied = document.activeElement.value; })"
    )
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.click("#strip .dl-copy")
    page.wait_for_function("window.copied !== undefined")
    assert page.evaluate("window.copied") == toy_site.loader.pair.text


def test_a_number_opens_its_formula(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.locator("#strip [data-number=rate] .dl-info").click()
    formula = page.locator("#strip [data-number=rate] .dl-formula")
    assert formula.is_visible()
    assert "÷" in formula.locator(".dl-counters").text_content()


def test_a_slower_method_is_called_slower(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "slow one")
    page.locator("#method label", has_text="Lookup").click()
    run_to_the_end(page)
    page.wait_for_selector("#strip .dl-verdict:visible")
    verdict = page.locator("#strip .dl-verdict").text_content()
    assert "slower than plain decoding" in verdict
    gave, took = map(float, re.search(r"gave ([\d.]+) .* as ([\d.]+) plain", verdict).groups())
    assert gave / took == pytest.approx(float(value(page, "speed_up").rstrip("×")), abs=0.02)


def test_a_failed_load_is_explained_and_the_recording_still_plays(
    page: Any, broken_site: Site
) -> None:
    visit(page, broken_site)
    wait_said(page, "This run was recorded")
    page.wait_for_selector("#model .error:has-text('could not be downloaded')")
    page.click("#run")
    said = wait_said(page, "SmolLM2 is not on this machine")
    assert "pip install" in said


def test_two_visitors_take_turns(page: Any, chromium: Any, toy_site: Site) -> None:
    other = chromium.new_context(locale="it-IT").new_page()
    try:
        for visitor in (page, other):
            visit(visitor, toy_site)
            visitor.fill("#prompt textarea", f"taking turns {LONG}")
        page.click("#run")
        wait_said(page, "First the baseline")
        other.fill("#prompt textarea", "xss taking turns")
        other.click("#run")
        wait_said(other, "In coda: un'esecuzione prima della tua")
        assert "In coda" in other.locator("#queue .dl-queue").text_content()
        wait_said(page, "Finished")
        wait_said(other, "Finito")
        assert other.locator("#queue .dl-queue").text_content() == ""
        assert "<script>" in other.locator("#strip .dl-text").text_content()
        assert "<script>" not in page.locator("#strip .dl-text").text_content()
        assert toy_site.loader.pair.most_alive == 1
    finally:
        other.context.close()


def test_each_method_starts_at_its_best_draft_length(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)

    def chosen() -> str:
        return str(page.locator("#gamma input:checked").evaluate("node => node.value"))

    for method, gamma in (("draft", "1"), ("lookup", "5"), ("plain", "5"), ("mtp", "2")):
        page.locator(f"#method input[value={method}]").click()
        page.wait_for_function(
            "gamma => document.querySelector('#gamma input:checked').value === gamma", arg=gamma
        )
        assert chosen() == gamma


def test_the_foot_says_why_auto_rested_and_what_the_bits_and_drafters_are(
    page: Any, toy_site: Site
) -> None:
    visit(page, toy_site)
    page.fill("#prompt textarea", "rest now and then")
    page.click("#adaptive input")
    assert "does not pay" in page.get_attribute("#adaptive", "title")
    run_to_the_end(page)
    foot = page.locator("#strip .dl-foot")
    said = foot.text_content()
    assert re.search(r"auto did not draft in \d+ of \d+ rounds: .*first draft right in 100 %", said)
    assert "bit-identical" in said
    assert "drafters int8" in said
    box = foot.bounding_box()
    assert box["y"] + box["height"] <= 640
    page.fill("#temperature input", "0.8")
    run_to_the_end(page)
    assert "bit-identical" not in foot.text_content()
