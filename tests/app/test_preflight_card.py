"""The card before Run: everything that can be found has its words, and no name is markup."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app import i18n, preflight_card
from engine import catalog, support
from engine.burden import Burden
from engine.catalog import ASSETS, pair_of
from engine.check import Check, check
from engine.preflight import Preflight, preflight
from engine.support import Support
from tests.engine.folders import edit, qwen35_folder

KNOWN = catalog.load()
WORDS = i18n.words("en")


def say(language: str = "en") -> Any:
    return partial(i18n.text, language)


def card(found: Preflight, language: str = "en", **how: bool) -> str:
    return preflight_card.card(say(language), KNOWN, found, **how)


def written_checks() -> list[tuple[set[str], set[str], set[str] | None]]:
    """Return of every check in the engine its states, its codes and (where told) its facts."""
    found = []
    for path in sorted((ASSETS.parent / "engine").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"
            if not called or path.name == "trace.py":  # a check of another kind
                continue
            state, code = node.args[:2]  # type: ignore[attr-defined]
            states = {part.value for part in ast.walk(state) if _is_text(part)}
            facts = {word.arg for word in node.keywords}  # type: ignore[attr-defined]
            found.append((states, _codes(code), None if None in facts else facts))
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in preflight_card.MARKS


def _codes(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    ways = {"predicted_": ("mtp", "draft"), "error.": ()}
    assert isinstance(node, ast.JoinedStr)
    start = str(node.values[0].value)  # type: ignore[attr-defined]
    return {start + way for way in ways[start]}


def test_every_check_of_the_engine_has_its_words() -> None:
    checks = written_checks()
    assert len(checks) > 30
    for states, codes, facts in checks:
        for code in codes:
            keys = [f"check.{code}"] + [f"check.{code}.remedy"] * bool(states & {"warn", "fail"})
            for key in keys:
                assert key in WORDS, key
                assert facts is None or i18n.placeholders(WORDS[key]) <= facts, key


def test_no_words_are_left_for_checks_that_are_gone() -> None:
    codes = set.union(*(codes for _, codes, _ in written_checks()))
    worded = {key.removeprefix("check.") for key in WORDS if key.startswith("check.")}
    assert {key.removesuffix(".remedy") for key in worded} == codes


def test_every_note_answer_and_reason_has_its_words() -> None:
    for row in support._rows():
        assert f"support.answer.{row.answer}" in WORDS
        assert not row.note or f"support.note.{row.note}" in WORDS
    for method in KNOWN.methods.values():
        if method.page and method.uses:
            starts = ["", ".unused", ".unread"] if method.id == "mtp" else [""]
            assert {f"why_not.{method.id}{end}" for end in starts} <= set(WORDS)


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_every_pair_of_the_catalogue_has_a_card_without_gaps(language: str) -> None:
    for pair in KNOWN.pairs:
        found = preflight(KNOWN, KNOWN.pair(pair), device="cpu")
        shown = card(found, language, unfolded=True)
        assert "{" not in shown
        assert shown.count("<li") > 3
        assert shown.startswith('<details class="dl-preflight')


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_pair_that_cannot_work_says_so_first(language: str, tmp_path: Path) -> None:
    folder = qwen35_folder(tmp_path / "target")
    edit(folder, model_type="nobody-knows-this")
    found = preflight(KNOWN, pair_of(str(folder), mtp="native"), device="cpu")
    assert preflight_card.worst(found) == "fail"
    shown = card(found, language)
    assert 'class="dl-preflight fail"' in shown
    assert "{" not in shown
    first = re.search(r"<li class=\"(\w+)\"", shown)
    assert first is not None
    assert first[1] == "fail"


def test_names_are_shown_as_text() -> None:
    evil = "<script>alert(1)</script>"
    found = Preflight(
        KNOWN.pair("smollm2").id,
        (check("fail", "type_unknown", evil, evil, model=evil, type=evil),
         Check("fail", "error.never_heard_of", evil, evil, {})),
        ways=(Burden("mtp", (evil,), None, ("download",)),),
        support=(Support("mtp", "qwen", evil, "yes", "", evil, evil),),
        unread=(evil,),
    )  # fmt: skip
    shown = card(found)
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 6


def test_what_is_not_offered_says_why() -> None:
    shown = card(preflight(KNOWN, KNOWN.pair("qwen3-8b"), device="cpu"))
    assert 'class="greyed"' in shown
    assert i18n.text("en", "preflight.not_offered") in shown
    assert 'class="greyed"' in card(preflight(KNOWN, KNOWN.pair("smollm2"), device="cpu"))


def test_a_loaded_pair_counts_its_memory() -> None:
    found = preflight(KNOWN, KNOWN.pair("smollm2"), device="cpu").loaded(1_234_000_000)
    [size] = [check for check in found.checks if check.code.startswith("fits")]
    assert (size.state, preflight_card.worded(say(), size)[0]) == (
        "ok",
        i18n.text("en", "check.fits_loaded", gb="1.2"),
    )


def test_it_opens_when_it_was_asked_for() -> None:
    found = preflight(KNOWN, KNOWN.pair("smollm2"), device="cpu")
    assert '<details class="dl-preflight ok" open>' in card(found, unfolded=True)
    assert " open>" not in card(found)
