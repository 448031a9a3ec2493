"""Traces and links in a real browser: opened, saved, replayed without a network, restored."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from app import i18n, replay
from app.shown import Shown, shown_of
from engine import trace
from engine.events import Finished, Settings
from tests.app.conftest import Site
from tests.app.fakes import XSS, FakePair
from tests.app.test_browser import bad_field, visit, wait_said

pytestmark = pytest.mark.browser

FILE_FIELD = "#dl-traces input[type=file]"


def recorded(path: Path, prompt: str = "A prompt of a file") -> Shown:
    """Write a trace with a plain run and an mtp run; return what it shows."""
    pair = FakePair(pause=0)
    plain = pair.run("plain", prompt, Settings(gamma=0), cancelled=lambda: False)
    mtp = pair.run("mtp", prompt, Settings(gamma=4), cancelled=lambda: False)
    trace.write(path, [*plain, *mtp])
    shown = shown_of(trace.read_runs(path), path.name)
    assert shown is not None
    return shown


# --- the file by itself ---


@pytest.fixture
def alone(chromium: Any) -> Iterator[Any]:
    """A page without any network; no script may fail and nothing may be asked for."""
    context = chromium.new_context(
        viewport={"width": 1366, "height": 900}, locale="en-GB", offline=True
    )
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert errors == []
    assert [urlsplit(address).scheme for address in asked] == ["file"]


def made(tmp_path: Path, prompt: str = "A prompt of a file") -> tuple[Shown, str]:
    shown = recorded(tmp_path / "run.jsonl", prompt)
    target = tmp_path / "run.html"
    assert replay.main([str(tmp_path / "run.jsonl"), str(target)]) == 0
    return shown, target.as_uri()


def clean_text(page: Any) -> str:
    return "".join(page.locator(".dl-text .tok:not(.ghost)").all_text_contents())


def scrub(page: Any, at: int) -> None:
    page.evaluate(
        """at => { const node = document.querySelector(".replay-scrub");
        node.value = at; node.dispatchEvent(new Event("input")); }""",
        at,
    )


def test_the_file_opens_on_the_finished_run(alone: Any, tmp_path: Path) -> None:
    shown, address = made(tmp_path)
    alone.goto(address)
    last = shown.events[-1]
    assert isinstance(last, Finished)
    assert clean_text(alone) == last.text
    assert shown.plain is not None
    ratio = shown.metrics.tokens_per_second / shown.plain.tokens_per_second  # type: ignore[operator]
    assert alone.locator("[data-number=speed_up] .dl-value").text_content() == f"{ratio:.2f}"
    length = shown.metrics.mean_acceptance_length
    assert alone.locator("[data-number=length] .dl-value").text_content() == f"{length:.2f}"
    for fate in ("accepted", "rejected", "unjudged", "recovered", "bonus", "target"):
        assert alone.locator(f".dl-text .f-{fate}").count(), fate
    for chart in ("speed_up", "acceptance", "latency"):
        assert alone.locator(f"[data-chart={chart}] svg").count() == 1
    bars = alone.locator("[data-chart=latency] .part-verify").count()
    assert bars == len(shown.rounds)


def test_the_player_steps_scrubs_and_plays_to_the_same_end(alone: Any, tmp_path: Path) -> None:
    _, address = made(tmp_path)
    alone.goto(address)
    end = (clean_text(alone), alone.locator(".dl-numbers").text_content())
    scrub(alone, 0)
    assert alone.locator(".dl-text .tok").count() == 1
    alone.click(".replay-on")
    assert alone.locator(".dl-text .f-pending").count() == 4
    alone.click(".replay-on")
    assert alone.locator(".dl-text .f-pending").count() == 0
    assert alone.locator("[data-chart=latency] .part-verify").count() == 1
    two = clean_text(alone)
    alone.click(".replay-on")
    alone.click(".replay-on")
    assert clean_text(alone) != two
    alone.click(".replay-back")
    alone.click(".replay-back")
    assert clean_text(alone) == two
    alone.select_option(".replay-speed select", "4")
    alone.focus(".replay-play")
    alone.keyboard.press("Enter")
    assert alone.locator(".replay-play").text_content() == "Pause"
    alone.get_by_role("button", name="Play", exact=True).wait_for()
    assert (clean_text(alone), alone.locator(".dl-numbers").text_content()) == end


def test_the_file_speaks_every_language(alone: Any, tmp_path: Path) -> None:
    _, address = made(tmp_path)
    alone.goto(address)
    for code, label in i18n.LANGUAGES.items():
        alone.get_by_role("button", name=label, exact=True).click()
        assert alone.locator(".replay-play").text_content() == i18n.text(code, "replay.play")
        first = alone.locator(".dl-legend .tok").first.text_content()
        assert first == i18n.text(code, "fate.pending")
        said = alone.locator(".dl-status").text_content()
        assert said == i18n.text(code, "replay.done", method="mtp")


def test_model_text_stays_text_in_the_file(alone: Any, tmp_path: Path) -> None:
    _, address = made(tmp_path, "xss " + XSS + "</script>")
    alone.goto(address)
    assert alone.title().startswith("Draftlight")
    assert alone.locator("main img, main script, .dl-text b").count() == 0
    assert "<script>" in alone.locator(".dl-text").text_content()
    assert "</script>" in alone.locator(".dl-prompt").text_content()


def test_the_file_fits_a_phone_and_follows_the_dark(alone: Any, tmp_path: Path) -> None:
    _, address = made(tmp_path)
    alone.set_viewport_size({"width": 390, "height": 844})
    alone.goto(address)
    assert alone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = alone.evaluate(ground)
    alone.emulate_media(color_scheme="dark")
    assert alone.evaluate(ground) != light
    alone.emulate_media(color_scheme="dark", media="print")
    assert alone.evaluate(ground) == light
    assert alone.locator(".replay-player").is_hidden()


# --- on the page ---


def inspect(page: Any) -> None:
    page.click("#tab-inspect-button")
    page.wait_for_selector("#view-shown .dl-view[data-drawn]")


def open_file(page: Any, path: Path, says: str) -> str:
    page.set_input_files(FILE_FIELD, path)
    panel = page.locator("#view-shown .dl-view")
    panel.get_by_text(says).wait_for()
    return str(panel.text_content())


def test_a_file_is_opened_shown_and_replayed(page: Any, toy_site: Site, tmp_path: Path) -> None:
    shown = recorded(tmp_path / "mine.jsonl")
    visit(page, toy_site)
    inspect(page)
    text = open_file(page, tmp_path / "mine.jsonl", "From the file mine.jsonl.")
    assert "A prompt of a file" in text
    assert f"{shown.metrics.num_emitted} tokens in {shown.metrics.num_rounds} rounds" in text
    page.wait_for_selector("#view-acceptance .dl-figure")
    page.click("#tab-playground-button")
    wait_said(page, "This run was recorded")
    assert page.locator("#strip .dl-stamp").text_content() == "recording"
    assert "A prompt of a file" in page.locator("#strip .dl-prompt").text_content()
    own = f"{shown.metrics.mean_acceptance_length:.2f}"
    assert page.locator("#strip [data-number=length] .dl-value").text_content() == own


def test_a_bad_file_says_its_line_and_changes_nothing(
    page: Any, toy_site: Site, tmp_path: Path
) -> None:
    recorded(tmp_path / "good.jsonl")
    (tmp_path / "bad.jsonl").write_text(trace.HEADER + "\n{\n", encoding="utf-8")
    visit(page, toy_site)
    inspect(page)
    open_file(page, tmp_path / "good.jsonl", "From the file good.jsonl.")
    text = open_file(page, tmp_path / "bad.jsonl", "bad.jsonl cannot be read as a trace: line 2")
    assert "From the file good.jsonl." in text
    page.locator("#language label", has_text="IT").click()
    page.locator("#view-shown").get_by_text("bad.jsonl non si legge come traccia").wait_for()


def test_a_file_may_be_dropped(page: Any, toy_site: Site, tmp_path: Path) -> None:
    recorded(tmp_path / "dropped.jsonl")
    visit(page, toy_site)
    inspect(page)
    page.evaluate(
        """text => {
        const data = new DataTransfer();
        data.items.add(new File([text], "dropped.jsonl"));
        const options = { bubbles: true, cancelable: true, dataTransfer: data };
        document.querySelector("#view-acceptance").dispatchEvent(new DragEvent("drop", options));
        }""",
        (tmp_path / "dropped.jsonl").read_text(encoding="utf-8"),
    )
    page.locator("#view-shown").get_by_text("From the file dropped.jsonl.").wait_for()


def test_what_is_shown_can_be_saved_three_ways(page: Any, toy_site: Site, tmp_path: Path) -> None:
    shown = recorded(tmp_path / "mine.jsonl")
    visit(page, toy_site)
    inspect(page)
    open_file(page, tmp_path / "mine.jsonl", "From the file mine.jsonl.")
    saved = {}
    for ending in ("jsonl", "csv", "html"):
        with page.expect_download() as caught:
            page.click(f"#trace-{ending}")
        name = caught.value.suggested_filename
        assert name.startswith("draftlight-mtp-g4-2")
        assert name.endswith("." + ending)
        saved[ending] = tmp_path / name
        caught.value.save_as(saved[ending])
    again = shown_of(trace.read_runs(saved["jsonl"]), "mine.jsonl")
    assert again == shown
    with saved["csv"].open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == shown.metrics.num_rounds
    assert saved["html"].read_text(encoding="utf-8") == replay.page_of(shown)


# --- links ---


def field_value(page: Any, name: str) -> str:
    return str(page.locator(f"#{name} input, #{name} textarea").first.input_value())


def chosen(page: Any, name: str) -> str:
    return str(page.locator(f"#{name} input:checked").get_attribute("value"))


def test_a_link_fills_the_form_in_and_runs_nothing(page: Any, toy_site: Site) -> None:
    pair = toy_site.loader.pair
    before = len(pair.ended)
    query = "?method=lookup&gamma=5&temperature=0.7&seed=9&prompt=a+%26+b%0Ac&lang=it&top_p=0.9"
    visit(page, toy_site, query + "&adaptive=1&compare=0&__theme=light")
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'a & b\\nc'")
    assert (chosen(page, "method"), chosen(page, "gamma")) == ("lookup", "5")
    assert [field_value(page, name) for name in ("temperature", "seed")] == ["0.7", "9"]
    assert page.locator("#adaptive input").is_checked()
    assert not page.locator("#compare input").is_checked()
    page.locator("#top_p input").wait_for()
    assert field_value(page, "top_p") == "0.9"
    page.wait_for_function(
        "run => document.querySelector('#run').textContent.trim() === run",
        arg=i18n.text("it", "button.run"),
    )
    wait_said(page, i18n.text("it", "recording.done", method="mtp")[:20])
    assert (len(pair.ended), pair.alive) == (before, 0)


def test_a_link_with_a_pair_alone_keeps_the_pages_method(page: Any, toy_site: Site) -> None:
    visit(page, toy_site, "?pair=smollm2&seed=3")
    page.wait_for_function("document.querySelector('#seed input').value === '3'")
    assert (chosen(page, "method"), chosen(page, "gamma")) == ("mtp", "2")


def test_a_bad_value_of_a_link_is_said_at_its_field(page: Any, toy_site: Site) -> None:
    visit(page, toy_site, "?gamma=99&seed=4")
    page.wait_for_selector(".dl-bad")
    assert bad_field(page) == ("gamma", "Draft length γ must be a whole number from 1 to 8.")
    assert (chosen(page, "gamma"), field_value(page, "seed")) == ("2", "4")


@pytest.mark.parametrize("modern", [True, False], ids=["https", "plain http"])
def test_the_copied_link_gives_the_form_back(page: Any, toy_site: Site, modern: bool) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.evaluate(
        """modern => {
        const clipboard = { writeText: async (text) => { window.copied = text; } };
        Object.defineProperty(navigator, "clipboard", { value: modern ? clipboard : undefined });
        document.execCommand = () => { window.copied = document.activeElement.value; return true; };
        }""",
        modern,
    )
    page.fill("#prompt textarea", "Grüße & <b>\n字")
    page.locator("#method label", has_text="Prompt lookup").click()
    page.fill("#seed input", "12")
    page.click("#link")
    wait_said(page, "The address of this form is copied. Whoever")
    address = str(page.evaluate("window.copied"))
    query = dict(parse_qsl(urlsplit(address).query))
    assert (query["method"], query["seed"], query["lang"]) == ("lookup", "12", "en")
    page.goto(address)
    page.wait_for_selector("#strip .dl-number")
    page.wait_for_function("document.querySelector('#seed input').value === '12'")
    assert field_value(page, "prompt") == "Grüße & <b>\n字"
    assert chosen(page, "method") == "lookup"


def test_a_long_link_is_copied_with_a_warning_and_works(page: Any, toy_site: Site) -> None:
    prompt = "word " * 3999 + "end"
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.evaluate(
        """Object.defineProperty(navigator, "clipboard", { value:
        { writeText: async (text) => { window.copied = text; } } })"""
    )
    page.fill("#prompt textarea", prompt)
    page.click("#link")
    wait_said(page, "The address of this form is copied. It has 20,")
    page.goto(str(page.evaluate("window.copied")))
    page.wait_for_selector("#strip .dl-number")
    page.wait_for_function(
        "prompt => document.querySelector('#prompt textarea').value === prompt", arg=prompt
    )


def test_a_link_that_cannot_be_copied_stands_in_the_address_bar(page: Any, toy_site: Site) -> None:
    visit(page, toy_site)
    wait_said(page, "This run was recorded")
    page.evaluate(
        """() => { Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = () => false; }"""
    )
    page.click("#link")
    wait_said(page, "Copying is not allowed here.")
    assert "method=mtp" in page.url
    page.fill("#temperature input", "7")
    page.click("#link")
    page.wait_for_selector(".dl-bad")
    assert bad_field(page)[0] == "temperature"


def test_the_link_button_is_on_the_first_screen(page: Any, toy_site: Site) -> None:
    for size in ({"width": 1366, "height": 640}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)
        visit(page, toy_site)
        box = page.locator("#link").bounding_box()
        assert box["y"] + box["height"] <= size["height"]
        assert box["x"] + box["width"] <= size["width"]
