"""The views of measurements in a real browser: their buttons, their options, their texts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine import trace
from tests.app.conftest import Site
from tests.app.test_browser import run_to_the_end, visit
from tests.app.test_views_measured import measured, parted

pytestmark = pytest.mark.browser


def inspect(page: Any, site: Site) -> None:
    """Run something and come to Inspect."""
    visit(page, site)
    run_to_the_end(page)
    page.locator("#tab-inspect-button").click()
    page.wait_for_selector("#view-examiner .dl-view-title")


def measure(page: Any, kind: str, view: str, figure: str) -> None:
    """Press a view's button and wait for its figure."""
    page.click(f"#measure-{kind}")
    page.wait_for_selector(f"#view-{view} [data-figure={figure}] .main-svg")


def said(page: Any, view: str) -> str:
    return " ".join(page.locator(f"#view-{view} .dl-sentence").all_text_contents())


def test_costs_are_measured_on_request_and_serve_the_map_too(page: Any, toy_site: Site) -> None:
    inspect(page, toy_site)
    assert "Nothing was measured yet" in said(page, "costs")
    measure(page, "run_lengths", "run_lengths", "replayed_passes")
    assert "Exact: a real run" in said(page, "run_lengths")
    assert page.locator("#view-run_lengths [data-figure=replayed_speed]").count() == 0
    measure(page, "cost_curve", "costs", "break_even")
    assert "predicted" in said(page, "costs")
    assert "Measured on 2026-01-01" in said(page, "costs")
    page.wait_for_selector("#view-run_lengths [data-figure=replayed_speed] .main-svg")
    assert "Best in hindsight: γ =" in said(page, "run_lengths")


def test_the_lab_fails_a_wrong_rule_and_keeps_the_choice_in_another_language(
    page: Any, toy_site: Site
) -> None:
    inspect(page, toy_site)
    measure(page, "lab", "lab", "lab_distance")
    assert "Lossless, as far as 500 draws can tell" in said(page, "lab")
    page.locator("#lab-rule label", has_text="no residual").click()
    page.locator("#lab-num_draws label", has_text="8000").click()
    page.click("#measure-lab")
    page.wait_for_selector("#view-lab .dl-sentence.warn")
    assert "Not lossless" in said(page, "lab")
    assert "8,000 draws" in said(page, "lab")
    page.locator("#language label", has_text="IT").click()
    page.wait_for_selector("#lab-rule label:has-text('senza residuo')")
    assert page.locator("#lab-rule input:checked").get_attribute("value") == "no_residual"
    assert "Non senza perdite" in said(page, "lab")


def test_a_token_of_the_lab_is_never_markup(page: Any, toy_site: Site) -> None:
    inspect(page, toy_site)
    measure(page, "lab", "lab", "lab_law")
    ticks = page.locator("#view-lab [data-figure=lab_law] .xtick").all_text_contents()
    assert "<b>" in ticks


def test_the_examiner_counts_the_tokens_that_are_the_same(page: Any, toy_site: Site) -> None:
    inspect(page, toy_site)
    assert "Text identical to plain: 48 tokens" in said(page, "examiner")


def test_an_instrument_that_fails_says_why_and_loses_nothing(
    page: Any, toy_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.errors import PlaygroundError

    def refuse(*_: Any, **__: Any) -> Any:
        raise PlaygroundError("needs_greedy", "Greedy only.", "Set the temperature to 0.")

    inspect(page, toy_site)
    measure(page, "run_lengths", "run_lengths", "run_lengths")
    monkeypatch.setattr(toy_site.loader.pair, "measure", refuse)
    page.click("#measure-run_lengths")
    page.wait_for_selector("#view-run_lengths .dl-sentence.warn")
    page.wait_for_timeout(500)  # long enough for a redraw that would wipe it out
    assert "This is exact for greedy text only" in said(page, "run_lengths")
    assert page.locator("#view-run_lengths [data-figure=run_lengths] .main-svg").count()


def test_on_a_phone_no_view_is_wider_than_the_screen(page: Any, toy_site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    inspect(page, toy_site)
    measure(page, "cost_curve", "costs", "break_even")
    measure(page, "lab", "lab", "lab_law")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_tie_is_told_with_its_tiny_numbers(page: Any, toy_site: Site) -> None:
    """A trace with an examined difference is opened; its gap must not read as 0."""
    visit(page, toy_site)
    records = parted(measured("divergence")).records()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parted.jsonl"
        trace.write(path, records)
        page.locator("#tab-inspect-button").click()
        page.locator("#dl-traces input[type=file]").set_input_files(path)
        page.wait_for_selector("#view-examiner .dl-pieces")
    assert "within 0.00001 of each other" in said(page, "examiner")
    assert "difference 0.00004 between" in said(page, "examiner")
    assert page.locator("#view-examiner .dl-parted").all_text_contents() == [
        " blue because",
        " bright because",
    ]
