"""The step player in a real browser: recorded times, phases in order, and live runs that win."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.run_view import RunView
from engine import trace
from engine.events import Started
from tests.app.conftest import Site
from tests.app.fakes import UNTIL_STOPPED
from tests.app.test_browser import run_to_the_end, value, visit, wait_said

pytestmark = pytest.mark.browser

PENDING = "#strip .dl-text .f-pending:visible"


def opened(page: Any, site: Site, query: str = "") -> Any:
    """Open the page on its recording; return the player."""
    visit(page, site, query)
    page.wait_for_selector("#strip .dl-player:visible")
    return page.locator("#strip .dl-player")


def part(page: Any, name: str) -> Any:
    return page.locator(f"#strip .dl-player-{name}")


def scrub(page: Any, to: int) -> None:
    part(page, "scrub").evaluate(
        "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')); }", to
    )


def said(page: Any) -> tuple[str, str]:
    return str(part(page, "phase").text_content()), str(part(page, "said").text_content())


def visible_text(page: Any) -> str:
    return "".join(page.locator("#strip .dl-text .tok:not(.ghost):visible").all_text_contents())


def to_round(page: Any, number: int, phase: str) -> None:
    """Step to the first frame of a phase of a round."""
    scrub(page, 0)
    part(page, "scrub").focus()
    for _ in range(200):
        at, text = said(page)
        if at == phase and f"Round {number} of" in text:
            return
        page.keyboard.press("ArrowRight")
    raise AssertionError(f"no {phase} in round {number}")


def test_a_round_goes_from_draft_to_rollback_and_each_phase_says_itself(
    page: Any, toy_site: Site
) -> None:
    opened(page, toy_site)
    to_round(page, 2, "draft")  # the toy loses the second token of round 2
    before = visible_text(page)
    assert page.locator(PENDING).count() == 1
    seen = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen.append((said(page)[0], page.locator(PENDING).count()))
    phases = ["draft", "draft", "verify", "verdict", "rollback"]
    assert seen == list(zip(phases, [2, 3, 3, 0, 0], strict=True))
    assert "2 taken back" in said(page)[1]
    page.keyboard.press("ArrowLeft")
    assert "1 of 3 accepted" in said(page)[1]
    fates = page.locator("#strip .dl-text .tok.step").evaluate_all(
        "nodes => nodes.map((node) => node.cell.fate)"
    )
    assert fates == ["accepted", "rejected", "unjudged"]
    page.keyboard.press("ArrowLeft")
    assert "reads 4 tokens in one pass" in said(page)[1]
    assert visible_text(page).startswith(before)
    page.keyboard.press("ArrowLeft")
    assert "the MTP module proposed 3 tokens in 3.0 ms" in said(page)[1]


def test_the_time_so_far_is_the_recorded_time(page: Any, toy_site: Site, recording: Any) -> None:
    opened(page, toy_site)
    view = RunView()
    for event in trace.read_runs(recording):
        if isinstance(event, Started):
            view = RunView()
        view.add(event)
    metrics = view.metrics
    whole = metrics.prefill_seconds + metrics.proposer_prefill_seconds + metrics.decode_seconds
    assert part(page, "sum").text_content() == f"so far {1000 * whole:.0f} ms"
    scrub(page, 0)
    assert part(page, "sum").text_content() == "so far 21 ms"
    part(page, "on").click()  # round 1: three tokens, 43 ms
    assert part(page, "sum").text_content() == "so far 64 ms"


def test_stepping_changes_the_text_and_never_the_numbers(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    page.wait_for_function("document.querySelectorAll('#strip .dl-row[hidden]').length === 0")
    numbers = page.locator("#strip .dl-numbers").text_content()
    whole = visible_text(page)
    scrub(page, 0)
    assert said(page)[0] == "prefill"
    assert visible_text(page) == "The"
    assert page.locator("#strip .dl-numbers").text_content() == numbers
    part(page, "on").click()
    part(page, "on").click()
    assert "Round 2 of" in said(page)[1]
    part(page, "back").click()
    assert "Round 1 of" in said(page)[1]
    scrub(page, 9999)
    assert visible_text(page) == whole == toy_site.loader.pair.text


def test_play_goes_on_by_itself_to_the_end_and_pause_holds(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    part(page, "speed").select_option("0.02")
    part(page, "play").click()  # from the end it starts over
    assert part(page, "play").get_attribute("aria-label") == "Pause"
    page.wait_for_function("document.querySelector('#strip .dl-player-scrub').value > 0")
    part(page, "play").click()
    held = part(page, "scrub").input_value()
    page.wait_for_timeout(300)
    assert part(page, "scrub").input_value() == held
    part(page, "speed").select_option("1")
    part(page, "scrub").focus()
    page.keyboard.press(" ")
    page.wait_for_function(
        "(() => { const s = document.querySelector('#strip .dl-player-scrub');"
        " return s.value === s.max; })()"
    )
    assert visible_text(page) == toy_site.loader.pair.text
    assert part(page, "play").get_attribute("aria-label") == "Play"


def test_phase_by_phase_moves_only_when_asked(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    part(page, "speed").select_option("step")
    for expected in (0, 1, 2):
        part(page, "play").click()
        assert part(page, "scrub").input_value() == str(expected)
    page.wait_for_timeout(300)
    assert part(page, "scrub").input_value() == "2"


def test_with_reduced_motion_nothing_moves_by_itself(page: Any, toy_site: Site) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, toy_site)
    assert part(page, "speed").input_value() == "step"
    assert part(page, "speed").locator("option:not([disabled])").count() == 1
    part(page, "play").click()
    part(page, "play").click()
    assert part(page, "scrub").input_value() == "1"


def test_a_new_run_wins_over_the_player(page: Any, toy_site: Site) -> None:
    player = opened(page, toy_site)
    part(page, "speed").select_option("0.02")
    part(page, "play").click()
    page.fill("#prompt textarea", "the player must give way")
    page.click("#run")
    page.wait_for_function("document.querySelector('#strip .dl-player').hidden")
    assert page.locator("#strip .dl-row[hidden]").count() == 0
    wait_said(page, "Finished")
    page.wait_for_selector("#strip .dl-player:visible")
    assert player.is_visible()
    assert part(page, "play").get_attribute("aria-label") == "Play"
    assert visible_text(page) == toy_site.loader.pair.text


def test_a_stopped_run_can_be_stepped_through(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    page.locator("#compare input").uncheck()
    page.fill("#prompt textarea", f"go on {UNTIL_STOPPED}")
    page.click("#run")
    wait_said(page, "Decoding")  # until then the rows are the recording's
    page.wait_for_selector("#strip .dl-row[data-round='1']")
    page.click("#stop")
    wait_said(page, "Stopped after")
    page.wait_for_selector("#strip .dl-player:visible")
    shown = visible_text(page)
    scrub(page, 0)
    assert visible_text(page) == "The"
    scrub(page, 9999)
    assert visible_text(page) == shown


def test_bad_input_and_another_language_leave_the_phase_alone(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    to_round(page, 2, "verify")
    at = part(page, "scrub").input_value()
    page.fill("#prompt textarea", "")
    page.click("#run")
    wait_said(page, "The prompt is empty")
    page.locator("#language label", has_text="IT").click()
    page.wait_for_selector("#strip .dl-player-said:has-text('Giro 2 di')")
    assert part(page, "scrub").input_value() == at
    assert page.locator(PENDING).count() == 3


def test_a_hidden_lost_token_still_shows_while_it_is_pending(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    page.click("#strip .dl-ghosts")
    to_round(page, 2, "verify")
    assert page.locator(PENDING).count() == 3


@pytest.mark.parametrize("query", ["", "?lang=zh", "?lang=it"])
def test_the_bar_is_slim_and_leaves_the_text_its_room(
    page: Any, toy_site: Site, query: str
) -> None:
    player = opened(page, toy_site, query)
    assert player.bounding_box()["height"] <= 44
    assert page.locator("#strip .dl-text").bounding_box()["height"] >= 150
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    said_node = part(page, "said")
    most = int(part(page, "scrub").get_attribute("max"))
    for at in range(min(most, 12)):
        scrub(page, at)
        fits = said_node.evaluate("node => node.scrollHeight <= node.clientHeight + 2")
        assert fits, said_node.text_content()


def test_a_slower_run_leaves_the_text_room_too(page: Any, toy_site: Site) -> None:
    opened(page, toy_site)
    page.fill("#prompt textarea", "slow and stepped")
    page.locator("#method label", has_text="Lookup").click()
    run_to_the_end(page)
    page.wait_for_selector("#strip .dl-verdict:visible")
    assert re.fullmatch(r"0\.\d+", value(page, "speed_up").rstrip("×"))
    assert page.locator("#strip .dl-text").bounding_box()["height"] >= 145
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
