"""The form: nothing impossible gets past it."""

from __future__ import annotations

from typing import Any

import pytest

from app.form import Form, read_form
from engine.errors import PlaygroundError

GOOD: dict[str, Any] = {
    "pair": "smollm2", "method": "mtp", "prompt": "Hello", "gamma": 3, "adaptive": False,
    "temperature": 0, "seed": 0, "max_new_tokens": 64, "compare": True,
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
