"""The form: nothing impossible gets past it."""

from __future__ import annotations

from typing import Any

import pytest

from app.controls import FIELDS
from app.form import Form, read_form
from engine.errors import PlaygroundError

GOOD: dict[str, Any] = {
    "pair": "smollm2", "method": "mtp", "prompt": "Hello", "gamma": 3, "adaptive": False,
    "temperature": 0, "seed": 0, "max_new_tokens": 64, "compare": True, "stop": "",
    "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1,
    "confidence": 0, "head_rows": 0,
}  # fmt: skip


def read(**changes: Any) -> Form:
    return read_form(**{**GOOD, **changes})


def test_a_good_form_becomes_settings() -> None:
    form = read(gamma=5, adaptive=True, temperature=0.7, seed=9)
    assert (form.settings.gamma, form.settings.adaptive) == (5, True)
    assert (form.settings.temperature, form.settings.seed) == (0.7, 9)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"prompt": ""}, "empty_prompt"),
        ({"prompt": " \n"}, "empty_prompt"),
        ({"prompt": None}, "empty_prompt"),
        ({"prompt": "x" * 20_001}, "prompt_too_long_characters"),
        ({"gamma": 0}, "bad_whole_number"),
        ({"gamma": 9}, "bad_whole_number"),
        ({"gamma": 2.5}, "bad_whole_number"),
        ({"temperature": -1}, "bad_number"),
        ({"temperature": float("nan")}, "bad_number"),
        ({"temperature": None}, "bad_number"),
        ({"seed": "abc"}, "bad_whole_number"),
        ({"seed": float("inf")}, "bad_whole_number"),
        ({"max_new_tokens": 0}, "bad_whole_number"),
        ({"max_new_tokens": 10**9}, "bad_whole_number"),
        ({"top_k": -1}, "bad_whole_number"),
        ({"top_p": 0}, "bad_number"),
        ({"top_p": 1.1}, "bad_number"),
        ({"min_p": 2}, "bad_number"),
        ({"confidence": 1.5}, "bad_number"),
        ({"confidence": -0.05}, "bad_number"),
        ({"confidence": float("nan")}, "bad_number"),
        ({"confidence": None}, "bad_number"),
        ({"repetition_penalty": 0}, "bad_number"),
        ({"stop": "\n".join("abcdefghi")}, "bad_stop"),
        ({"stop": "x" * 81}, "bad_stop"),
    ],
)
def test_what_cannot_run_is_refused_by_name(change: dict[str, Any], code: str) -> None:
    with pytest.raises(PlaygroundError) as caught:
        read(**change)
    assert caught.value.code == code


def test_runs_that_differ_only_in_drafting_share_a_baseline() -> None:
    assert read().work == read(method="draft", gamma=7, adaptive=True, compare=False).work
    assert read().work != read(seed=1).work
    assert read().work != read(prompt="Other").work


def test_every_field_of_the_page_reaches_the_form() -> None:
    assert set(GOOD) == set(FIELDS)
    form = read(top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1, stop="END")
    settings = form.settings
    assert (settings.top_k, settings.top_p, settings.min_p) == (40, 0.9, 0.05)
    assert (settings.repetition_penalty, settings.stop) == (1.1, ("END",))


def test_a_limit_is_told_as_a_person_would_write_it() -> None:
    with pytest.raises(PlaygroundError) as caught:
        read(top_p=7)
    assert (caught.value.facts["low"], caught.value.facts["high"]) == ("0.01", "1")


@pytest.mark.parametrize(
    ("typed", "stops"),
    [
        ("", ()),
        (None, ()),
        ("END", ("END",)),
        ("one\n\ntwo\none", ("one", "two")),
        (r"\n\n", ("\n\n",)),
        (" a ", (" a ",)),
    ],
)
def test_stop_texts_stand_one_per_line(typed: str | None, stops: tuple[str, ...]) -> None:
    assert read(stop=typed).settings.stop == stops


def test_the_confidence_cut_reaches_the_run_and_leaves_the_baseline_alone() -> None:
    form = read(confidence=0.4)
    assert form.settings.confidence == 0.4
    assert form.work == read().work
