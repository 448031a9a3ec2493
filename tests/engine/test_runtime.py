import dataclasses
import math
import threading

import pytest
import torch

from engine.catalog import load
from engine.costs import WIDEST
from engine.device import choose_device
from engine.errors import PlaygroundError
from engine.events import Settings, Started
from engine.models import linear
from engine.models.toy import ToyModel
from engine.request import check_settings
from engine.runtime import describe_place, load_pair, measure
from tests.engine.tiny import CPU, METHODS, finished, rounds, tiny_pair, toy_pair


def code_of(call, *args, **options):
    with pytest.raises(PlaygroundError) as caught:
        call(*args, **options)
    assert caught.value.remedy
    assert caught.value.message in str(caught.value)
    return caught.value.code


BAD_SETTINGS = [
    {"gamma": -1},
    {"gamma": 9},
    {"max_new_tokens": -1},
    {"temperature": -0.1},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": 1.1},
    {"top_p": math.nan},
    {"min_p": -0.1},
    {"min_p": 1.1},
    {"min_p": math.nan},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": -1.0},
    {"repetition_penalty": math.nan},
    {"repetition_penalty": math.inf},
    {"seed": -1},
    {"seed": 2**63},
    {"alpha": -0.1},
    {"alpha": 1.1},
    {"alpha": math.nan},
    {"confidence": -0.1},
    {"confidence": 1.1},
    {"confidence": math.nan},
    {"stop": ("",)},
    {"stop": ("a", "")},
]


@pytest.mark.parametrize("wrong", BAD_SETTINGS, ids=str)
def test_a_number_that_no_run_can_use_is_refused_by_name(wrong):
    with pytest.raises(PlaygroundError) as caught:
        check_settings(Settings(**wrong))
    assert caught.value.code == "bad_setting"
    (name,) = wrong
    assert caught.value.facts["name"] == name


@pytest.mark.parametrize(
    "edge",
    [
        {},
        {"gamma": 0},
        {"gamma": 8},
        {"max_new_tokens": 0},
        {"temperature": 10.0},
        {"top_p": 1.0, "temperature": 1.0},
        {"top_p": 1e-9, "temperature": 1.0},
        {"min_p": 1.0, "temperature": 1.0},
        {"top_k": 1_000_000, "temperature": 1.0},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 1e30, "temperature": 1.0},
        {"temperature": 1e-300},
        {"seed": 2**62},
        {"alpha": 0.0},
        {"confidence": 1.0, "temperature": 1.0},
        {"stop": ("\n",)},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["draft", "synthetic"])
def test_numbers_at_the_edge_run(method, edge):
    chosen = Settings(**{"max_new_tokens": 6, **edge})
    check_settings(chosen)
    events = list(toy_pair().run(method, "abc", chosen))
    assert len(finished(events).token_ids) == chosen.max_new_tokens


def test_a_request_that_cannot_run_says_why():
    pair = dataclasses.replace(toy_pair(), target=ToyModel(8, max_length=5))
    assert code_of(pair.check, "nonsense", "abc", Settings()) == "unknown_method"
    assert code_of(pair.check, "mtp", "abc", Settings()) == "unknown_method"
    assert code_of(pair.check, "plain", " \n ", Settings()) == "empty_prompt"
    assert code_of(pair.check, "plain", "???", Settings()) == "empty_prompt"
    assert code_of(pair.check, "plain", "abc", Settings(gamma=99)) == "bad_setting"
    assert code_of(pair.check, "plain", "abcab", Settings()) == "prompt_too_long"
    pair.check("plain", "abca", Settings())


def test_a_run_is_checked_before_its_first_event():
    run = toy_pair().run("draft", "", Settings())
    assert code_of(next, run) == "empty_prompt"


def test_a_pair_offers_the_methods_it_has_models_for():
    offered = tiny_pair().methods
    assert offered == ("plain", "mtp", "draft", "lookup", "early_exit", "synthetic")
    assert toy_pair().methods == ("plain", "draft", "lookup", "synthetic")  # no layers to leave
    assert dataclasses.replace(toy_pair(), draft=None).methods == ("plain", "lookup", "synthetic")
    assert set(METHODS) | {"early_exit", "eagle3"} == set(load().methods)


def test_plain_never_proposes_whatever_gamma_says():
    events = list(toy_pair().run("plain", "abc", Settings(gamma=5, adaptive=True)))
    assert events[0].settings.gamma == 0
    assert not any(done.proposal.tokens for done in rounds(events))


def test_started_says_what_runs_where():
    first = next(toy_pair().run("draft", "abc", Settings(seed=4)))
    assert first == Started(
        method="draft",
        pair="toy",
        target="toy",
        proposer="noisy toy",
        settings=Settings(seed=4),
        prompt="abc",
        prompt_ids=(0, 1, 2),
        where={"device": "cpu"},
    )


def test_a_second_run_waits_for_the_first():
    pair = toy_pair()
    first = pair.run("plain", "abc", Settings())
    next(first)
    second_began = threading.Event()

    def second():
        for _ in pair.run("plain", "abc", Settings(max_new_tokens=2)):
            second_began.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not second_began.wait(0.1)
    first.close()
    assert second_began.wait(10)
    thread.join()


def test_a_run_that_fails_frees_the_pair():
    pair = toy_pair()
    expected = finished(list(pair.run("draft", "abc", Settings()))).token_ids
    read, calls = pair.draft.read, []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise OSError("gone")
        return read(*args, **options)

    pair.draft.read = failing
    with pytest.raises(OSError, match="gone"):
        list(pair.run("draft", "abc", Settings()))
    pair.draft.read = read
    assert finished(list(pair.run("draft", "abc", Settings()))).token_ids == expected


def test_measuring_runs_what_people_use_and_gives_the_costs_of_those_that_draft():
    pair, seen = toy_pair(), []
    run = pair.run

    def watched(method, prompt, chosen, *, policy):
        seen.append((method, policy.next_gamma()))
        return run(method, prompt, chosen, policy=policy)

    pair.run = watched
    costs = measure(pair)
    measured = ("plain", "draft", "lookup")
    assert seen == [(method, gamma) for method in measured for gamma in (1, 4)]
    assert set(costs) == {"draft", "lookup"}
    for found in costs.values():
        assert len(found.passes) == WIDEST
        assert min(found.passes) > 0
        assert found.draft_step > 0
        assert 0 <= found.plain_overhead <= found.overhead
    assert pair.costs == {}  # whoever asked keeps them


def test_an_unknown_pair_is_refused_before_anything_is_loaded():
    assert code_of(load_pair, "nonsense") == "unknown_pair"


def test_a_device_that_is_not_there_is_refused():
    assert code_of(choose_device, "abacus") == "no_device"
    assert choose_device("cpu") == CPU
    assert choose_device("auto") == choose_device(None)


@pytest.mark.parametrize(("packed", "linears"), [(True, "packed"), (False, "stock")])
def test_the_place_is_described_for_whoever_reads_the_times(packed, linears, monkeypatch):
    monkeypatch.setattr(linear, "is_supported", lambda: packed)
    place = describe_place(CPU, torch.float32, 2)
    assert place["device"] == "cpu"
    assert (place["threads"], place["dtype"], place["linears"]) == ("2", "float32", linears)
    assert place["torch"] == torch.__version__


@pytest.mark.parametrize("method", ["plain", "mtp", "draft"])
def test_memory_that_runs_out_in_a_run_is_told_and_the_next_run_is_whole(method, monkeypatch):
    pair = tiny_pair()
    settings = Settings(gamma=2, max_new_tokens=16)
    whole = finished(list(pair.run(method, "one two one", settings))).token_ids
    read, calls = type(pair.target).read, []

    def scarce(self, *args, **options):
        calls.append(self)
        if len(calls) == 4:
            torch.empty(1 << 52)  # more than any machine gives
        return read(self, *args, **options)

    monkeypatch.setattr(type(pair.target), "read", scarce)
    events = []
    with pytest.raises(PlaygroundError) as caught:
        events.extend(pair.run(method, "one two one", settings))
    assert caught.value.code == "memory_ran_out"
    assert caught.value.remedy
    assert caught.value.__context__ is None  # no frames that hold tensors
    assert finished(list(pair.run(method, "one two one", settings))).token_ids == whole


def test_another_error_in_a_run_stays_what_it_is(monkeypatch):
    pair = tiny_pair()

    def broken(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(type(pair.target), "read", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        list(pair.run("plain", "one two one", Settings()))


def test_a_head_that_cannot_be_cut_is_told_before_the_run():
    pair = tiny_pair()
    settings = Settings(head_rows=16)
    assert code_of(pair.check, "mtp", "one", settings) == "head_whole"
    pair.check("draft", "one", settings)  # only an MTP module reads it
