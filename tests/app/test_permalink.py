"""Permalinks: a form survives its address, and a bad value is said, not bent."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import permalink
from app.controls import FIELDS, MORE_NUMBERS, NUMBERS
from app.form import LIMITS, MAX_PROMPT_CHARACTERS, WHOLE, read_form

METHODS = {"one": ("plain", "mtp"), "two": ("plain", "lookup")}
USUAL: dict[str, Any] = {
    "pair": "one", "method": "mtp", "prompt": "Hello", "gamma": 2, "temperature": 0, "seed": 0,
    **permalink.DEFAULTS,
}  # fmt: skip


def parsed(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))


def test_an_address_holds_what_differs_and_no_more() -> None:
    assert list(parsed(permalink.query_of(USUAL, "it"))) == [*permalink.ALWAYS, "lang"]
    query = parsed(permalink.query_of({**USUAL, "top_p": 0.9, "compare": False}, "en"))
    assert (query["top_p"], query["compare"], query["lang"]) == ("0.9", "0", "en")


def test_its_names_and_defaults_are_those_of_the_page() -> None:
    assert {*permalink.ALWAYS, *permalink.DEFAULTS} == set(FIELDS)
    for name, value, _ in (*NUMBERS, *MORE_NUMBERS):
        assert USUAL[name] == value


def number(name: str) -> st.SearchStrategy[Any]:
    low, high = LIMITS[name]
    return st.integers(int(low), int(high)) if name in WHOLE else st.floats(low, high)


forms = st.fixed_dictionaries(
    {
        "pair": st.just("two"),
        "method": st.sampled_from(METHODS["two"]),
        "prompt": st.text(min_size=0, max_size=60),
        "stop": st.sampled_from(["", "END", "\\n\\n\nüß & = + %", "  "]),
        "adaptive": st.booleans(),
        "compare": st.booleans(),
        **{name: number(name) for name in LIMITS},
    }
)


@given(forms)
def test_a_form_survives_its_address(form: dict[str, Any]) -> None:
    found = permalink.read_query(parsed(permalink.query_of(form, "zh")), METHODS)
    assert found.bad == []
    assert {**permalink.DEFAULTS, **found.fields} == form
    if form["prompt"].strip():
        read_form(**{**permalink.DEFAULTS, **found.fields})


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("gamma", "9", "bad_whole_number"),
        ("gamma", "2.5", "bad_whole_number"),
        ("gamma", "", "bad_whole_number"),
        ("temperature", "nan", "bad_number"),
        ("temperature", "-0.1", "bad_number"),
        ("seed", "1e99", "bad_whole_number"),
        ("top_p", "0", "bad_number"),
        ("adaptive", "yes", "bad_setting"),
        ("compare", "2", "bad_setting"),
        ("pair", "three", "unknown_pair"),
        ("method", "lookup", "unknown_method"),  # of the other pair
        ("method", "<b>", "unknown_method"),
        ("stop", "x" * 81, "bad_stop"),
        ("prompt", "x" * (MAX_PROMPT_CHARACTERS + 1), "prompt_too_long_characters"),
    ],
)
def test_a_bad_value_is_left_out_and_said_at_its_field(name: str, value: str, code: str) -> None:
    found = permalink.read_query({"seed": "5", name: value}, METHODS)
    assert name not in found.fields
    assert [error.code for error in found.bad] == [code]
    assert name == "seed" or found.fields == {"seed": 5}
    said = permalink.complaint(found.bad)
    assert said is not None
    assert said["field"] == {"stop": "stop_texts"}.get(name, name)


def test_several_bad_values_are_said_at_once() -> None:
    found = permalink.read_query({"gamma": "x", "seed": "-1", "method": "mtp"}, METHODS)
    said = permalink.complaint(found.bad)
    assert said is not None
    assert (said["code"], said["field"]) == ("error.bad_link", "gamma")
    assert said["facts"] == {"names": "gamma, seed"}
    assert found.fields == {"method": "mtp"}


def test_unknown_names_are_left_alone() -> None:
    found = permalink.read_query({"__theme": "dark", "lang": "it", "run": "1"}, METHODS)
    assert (found.fields, found.bad) == ({}, [])
    assert permalink.complaint(found.bad) is None


def test_a_form_that_no_server_would_take_as_an_address_is_refused() -> None:
    long = {**USUAL, "prompt": "字" * MAX_PROMPT_CHARACTERS}
    (error,) = permalink.check(permalink.query_of(long, "zh"), METHODS)
    assert error.code == "link_too_long"
    fits = {**USUAL, "prompt": "word " * (MAX_PROMPT_CHARACTERS // 5)}
    assert permalink.check(permalink.query_of(fits, "en"), METHODS) == []
