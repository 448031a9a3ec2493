"""The list of pairs: every one is named with its size class, and says where nobody ran it."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr
import pytest

from app import i18n, pairs, permalink
from app.controls import FIELDS
from app.session import Session
from app.tabs.playground import Handlers, model_line
from app.visit import Visit
from engine import catalog
from engine.catalog import PARTS, pair_of
from tests.app.fakes import FakeLoader
from tests.app.test_permalink import USUAL, parsed

KNOWN = catalog.load()
OWN = pair_of("Qwen/Qwen3-4B", draft="/models/a b&c=d ü", mtp="native")


def say(language: str = "en") -> Any:
    return partial(i18n.text, language)


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_every_pair_of_the_list_is_worded(language: str) -> None:
    labels = dict(pairs.choices(say(language), KNOWN, OWN.id))
    assert len(labels) == len(KNOWN.pairs) + 1
    for pair in KNOWN.pairs.values():
        label = pairs.label(say(language), KNOWN, pair)
        assert i18n.text(language, f"value.size.{pair.size}") in label
        assert KNOWN.model(pair.target).name in label
        note = pairs.note(say(language), KNOWN, pair)
        assert bool(note) is not KNOWN.is_verified(pair)
        if pair.expect:
            assert i18n.text(language, f"expect.{pair.expect}") in note


def test_a_label_says_what_is_loaded_and_that_nobody_ran_it() -> None:
    def named(pair_id: str) -> str:
        return pairs.label(say(), KNOWN, KNOWN.pair(pair_id))

    assert named("smollm2") == "CPU: SmolLM2-135M-Instruct"
    assert named("qwen3-8b") == "24 GB: Qwen3-8B + Qwen3-0.6B (not verified)"
    assert named("mimo-7b") == "24 GB: MiMo-7B-RL + MTP (not verified)"
    assert named("mimo-7b-fastmtp") == "24 GB: MiMo-7B-RL + FastMTP (not verified)"
    assert named(OWN.id) == "Qwen3-4B + MTP + a b&c=d ü (not verified)"


def test_a_note_tells_the_licence_the_memory_and_that_it_is_gated() -> None:
    note = pairs.note(say(), KNOWN, KNOWN.pair("llama-3.1-8b"))
    assert "Llama 3.1 Community, Llama 3.2 Community" in note
    assert "18.5 GB" in note
    assert i18n.text("en", "pair.gated") in note
    assert i18n.text("en", "pair.gated") not in pairs.note(say(), KNOWN, KNOWN.pair("qwen3-8b"))


def test_a_note_is_shown_as_text() -> None:
    assert "<script>" not in model_line("en", None, "<script>")


class Request:
    """As much of Gradio's request as the page reads."""

    def __init__(self, query: str) -> None:
        self.query_params = parsed(query) if query else {}


def restored(query: str, language: str = "en") -> dict[str, Any]:
    handlers = Handlers(Session(FakeLoader()))
    updates = handlers.restore(Visit(language=language), Request(query))  # type: ignore[arg-type]
    return dict(zip(FIELDS, updates, strict=False))


def test_a_pair_of_ones_own_survives_its_address() -> None:
    fields = {**USUAL, "pair": OWN.id, "method": "draft"}
    methods = {"smollm2": ("plain",), OWN.id: ("plain", "mtp", "draft", "lookup")}
    found = permalink.read_query(parsed(permalink.query_of(fields, "en")), methods)
    assert (found.bad, found.fields["pair"]) == ([], OWN.id)
    assert KNOWN.pair(found.fields["pair"]) == OWN


def test_a_link_with_a_pair_of_ones_own_offers_it_and_its_methods() -> None:
    updates = restored(permalink.query_of({**USUAL, "pair": OWN.id, "method": "draft"}, "en"))
    assert updates["pair"]["value"] == OWN.id
    assert OWN.id in [value for _, value in updates["pair"]["choices"]]
    methods = [value for _, value in updates["method"]["choices"]]
    assert methods == [
        "plain",
        "mtp",
        "draft",
        "lookup",
    ]
    assert updates["method"]["value"] == "draft"


def test_a_link_without_a_pair_offers_the_page_s_own_in_the_visitors_language() -> None:
    updates = restored("seed=3", "it")
    assert updates["pair"]["value"] == "smollm2"
    labels = [label for label, _ in updates["pair"]["choices"]]
    assert labels == [label for label, _ in pairs.choices(say("it"), KNOWN)]
    assert "value" not in updates["method"]


@pytest.mark.parametrize("bad", ["nonsense", "target=", "target=a&x=b", "draft=a/b", "target"])
def test_a_link_with_a_pair_that_cannot_be_keeps_the_page_s_own(bad: str) -> None:
    updates = restored(permalink.query_of({**USUAL, "pair": bad}, "en"))
    assert updates["pair"]["value"] == "smollm2"


def test_another_pair_brings_its_methods_and_its_note() -> None:
    handlers = Handlers(Session(FakeLoader()))
    methods, line = handlers.change_pair(Visit(), "mimo-7b")
    assert [value for _, value in methods["choices"]] == ["plain", "mtp", "lookup"]
    assert methods["value"] == "mtp"
    assert i18n.text("en", "expect.one_step") in line
    methods, _ = handlers.change_pair(Visit(), "qwen3-8b")
    assert methods["value"] == "draft"


def test_a_language_switch_keeps_the_pair_and_its_methods() -> None:
    handlers = Handlers(Session(FakeLoader()))
    pair, methods = handlers.offer("zh", "qwen3-8b")
    assert pair["value"] == "qwen3-8b"
    assert (i18n.text("zh", "method.draft"), "draft") in methods["choices"]
    assert "value" not in methods


def test_a_link_is_made_of_a_pair_of_ones_own() -> None:
    handlers = Handlers(Session(FakeLoader()))
    values = {**USUAL, "pair": OWN.id}
    message = handlers.link(Visit(), *(values[name] for name in FIELDS))
    assert "link.copied" in message


def choose(**names: str) -> tuple[Visit, list[Any]]:
    handlers, state = Handlers(Session(FakeLoader())), Visit()
    return state, handlers.choose(state, *(names.get(part, "") for part in PARTS))


def test_a_pair_by_name_is_chosen_with_its_methods_and_its_note() -> None:
    state, (pair, method, note, said) = choose(target="Qwen/Qwen3-4B", draft="Qwen/Qwen3-0.6B")
    assert state.chosen == pair["value"] == pair_of("Qwen/Qwen3-4B", draft="Qwen/Qwen3-0.6B").id
    assert pair["value"] in [value for _, value in pair["choices"]]
    assert method["value"] == "draft"
    assert "mtp" not in [value for _, value in method["choices"]]
    assert "dl-model" in note
    assert said == gr.skip()


def test_a_pair_without_a_target_changes_nothing_and_says_what_to_mend() -> None:
    state, (*updates, said) = choose(draft="Qwen/Qwen3-0.6B")
    assert (state.chosen, updates) == ("", [gr.skip()] * 3)
    assert "error.own_target" in said or "error." in said
    assert list(Handlers(Session(FakeLoader())).ask_chosen(state)) == []


def test_a_space_takes_no_pairs_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEM", "spaces")
    monkeypatch.setenv("SPACE_ID", "somebody/draftlight")
    state, (*updates, said) = choose(target="/etc")
    assert (state.chosen, updates) == ("", [gr.skip()] * 3)
    assert "error." in said


def test_the_card_follows_the_language_and_asks_for_nothing_again() -> None:
    handlers, state = Handlers(Session(FakeLoader())), Visit()
    assert handlers.word_card("it", state) == gr.skip()
    shown, *_ = handlers.look(state, "qwen3-8b")
    worded = handlers.word_card("it", state)
    assert i18n.text("en", "preflight.not_offered") in shown
    assert i18n.text("it", "preflight.not_offered") in worded


def test_what_takes_time_says_that_it_is_looked_for() -> None:
    handlers, state = Handlers(Session(FakeLoader())), Visit()
    first, last = handlers.ask_hub(state, "smollm2")
    assert i18n.text("en", "preflight.looking") in first[0]
    assert first[1:] == [gr.skip()] * 2
    assert " open>" in last[0]
