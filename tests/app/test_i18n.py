"""Texts: complete in every language, filled in safely, and there for every error code."""

from __future__ import annotations

import ast
import re

import pytest

from app import charts, i18n
from app.controls import EXPLAINED, MORE_NUMBERS, NUMBERS
from app.form import LIMITS
from app.theme import LEGEND
from app.token_strip import SCRIPTS
from engine import catalog
from engine.catalog import ASSETS
from engine.errors import PlaygroundError

LANGUAGES = list(i18n.LANGUAGES)


def error_codes() -> set[str]:
    codes = set()
    root = ASSETS.parent
    for path in [*(root / "engine").rglob("*.py"), *(root / "app").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PlaygroundError":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    codes.add(str(first.value))
    return codes


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_the_same_keys_and_placeholders(language: str) -> None:
    english, other = i18n.words("en"), i18n.words(language)
    assert list(other) == list(english)
    for key, template in english.items():
        assert i18n.placeholders(other[key]) == i18n.placeholders(template), key
        assert other[key].strip(), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_keep_the_house_style(language: str) -> None:
    for key, template in i18n.words(language).items():
        assert not re.search("[!！]", template), key


def test_every_error_code_has_a_text() -> None:
    missing = {code for code in error_codes() if f"error.{code}" not in i18n.words("en")}
    assert missing == set()


def test_every_method_preset_and_fate_has_a_name() -> None:
    words, known = i18n.words("en"), catalog.load()
    for method in known.methods.values():
        if method.page:
            assert f"method.{method.id}" in words
            assert f"value.{method.id}" in words
    assert len(known.presets) == 8
    for preset in known.presets:
        assert f"preset.{preset}" in words
    for mark in LEGEND:
        assert f"fate.{mark.fate}" in words
        assert f"fate.{mark.fate}.why" in words


def test_every_key_the_strip_asks_for_literally_exists() -> None:
    for name in SCRIPTS:
        script = (ASSETS / name).read_text(encoding="utf-8")
        for key in re.findall(r'word\("([\w.]+)"\)', script):
            assert key in i18n.words("en"), key


def test_everything_the_page_asks_for_by_name_has_its_texts() -> None:
    script = (ASSETS / "numbers.js").read_text(encoding="utf-8")
    found = re.search(r"const NUMBERS = \[(.*)\]", script)
    assert found
    numbers = re.findall(r'"(\w+)"', found[1])
    wanted = {f"{kind}.{name}" for kind in ("number", "formula", "counters") for name in numbers}
    wanted |= {f"chart.{name}{end}" for name in charts.NAMES for end in ("", ".why", ".empty")}
    wanted |= {f"series.{name}" for name, _, _ in charts.LATENCY_PARTS} | {"series.plain_token"}
    wanted |= set(re.findall(r"'@([\w.]+)'", str(charts.templates(dark=False))))
    wanted |= {f"label.{name}" for name, *_ in (*NUMBERS, *MORE_NUMBERS)}
    wanted |= {f"value.{name}" for name in LIMITS}
    wanted |= {f"help.{name}" for name in EXPLAINED}
    assert wanted - set(i18n.words("en")) == set()


def test_an_error_is_worded_by_its_code_and_names_what_to_mend() -> None:
    error = PlaygroundError("bad_number", "m", "r", name="seed", low=0, high=9)
    assert i18n.error_text("en", error) == "Seed must be a number from 0 to 9."
    assert i18n.error_text("it", error).startswith("Il seme")


@pytest.mark.parametrize("code", ["not_known", "bad_number"])
def test_an_error_without_text_or_facts_falls_back_to_the_engines_english(code: str) -> None:
    assert i18n.error_text("zh", PlaygroundError(code, "What.", "Do that.")) == "What. Do that."


@pytest.mark.parametrize(
    ("query", "header", "language"),
    [
        ("it", "zh-CN", "it"),
        (None, "zh-CN,zh;q=0.9", "zh"),
        (None, "de-DE,de;q=0.9,it;q=0.5", "it"),
        ("xx", None, "en"),
        (None, None, "en"),
    ],
)
def test_the_address_goes_before_the_browser(
    query: str | None, header: str | None, language: str
) -> None:
    assert i18n.choose(query, header) == language
