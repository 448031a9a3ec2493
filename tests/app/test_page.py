"""The page: it builds, it keeps to this machine, and its colours are the legend's."""

from __future__ import annotations

import os

import gradio as gr
import pytest

from app import i18n, theme
from app.controls import EXPLAINED, Controls
from app.main import build, launch_options
from app.session import Session
from app.wording import Wording
from tests.app.fakes import FakeLoader


def test_the_page_builds_without_loading_anything() -> None:
    session = Session(FakeLoader())
    demo = build(session)
    ids = {block["props"].get("elem_id") for block in demo.get_config_file()["components"]}
    assert {"pair", "method", "prompt", "gamma", "run", "stop", "strip", "language"} <= ids
    assert session.loading(session.default_pair) is None


def test_the_confidence_cut_is_off_at_first_and_explained() -> None:
    config = build(Session(FakeLoader())).get_config_file()
    props = [block["props"] for block in config["components"]]
    (cut,) = [each for each in props if each.get("elem_id") == "confidence"]
    assert (cut["value"], cut["step"]) == (0, 0.05)
    assert cut["info"] == i18n.text("en", "help.confidence")


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_language_switch_words_the_help_too(language: str) -> None:
    wording = Wording()
    with gr.Blocks():
        Controls(Session(FakeLoader()), wording).form()
    words = [texts["info"] for texts in wording.updates(language) if "info" in texts]
    assert words == [i18n.text(language, f"help.{name}") for name in EXPLAINED]


def test_nothing_is_shared_kept_or_reported() -> None:
    options = launch_options()
    assert options["share"] is False
    assert options["run_history"] is False
    assert options["footer_links"] == []
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_every_fate_has_a_colour_and_a_style_of_its_own() -> None:
    css = theme.css()
    fates = [mark.fate for mark in theme.LEGEND]
    assert len(fates) == len(set(fates)) == 8
    for mark in theme.LEGEND:
        assert css.count(f"--fate-{mark.fate}:") == 2
        assert f".f-{mark.fate} {{" in css
    assert len({mark.mark for mark in theme.LEGEND}) == 8


def test_the_style_sheet_loads_nothing_from_anywhere() -> None:
    assert "url(" not in theme.css()
    assert "@import" not in theme.css()
