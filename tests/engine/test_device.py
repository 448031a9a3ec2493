import os

import pytest
import torch

from engine.device import choose_device, peak_memory_gb, synchronise, use_cores
from engine.errors import PlaygroundError


def test_without_a_wish_the_best_device_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device().type == choose_device("auto").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device().type == "cuda"
    assert choose_device("cpu").type == "cpu"


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for wanted in ("cuda", "cuda:1", "abacus"):
        with pytest.raises(PlaygroundError, match="cpu") as caught:
            choose_device(wanted)
        assert caught.value.code == "no_device"


def test_a_cpu_is_always_in_step():
    assert synchronise(torch.device("cpu")) is None


@pytest.fixture
def four_threads(monkeypatch):
    """Torch as it starts on four cores, two of which are allowed, and nobody chose a number."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_threads_never_exceed_the_cores_that_are_allowed(four_threads):
    assert use_cores() == torch.get_num_threads() == 2


def test_a_core_is_spared_once_and_never_the_last_one(four_threads):
    assert use_cores(spare=1) == 1
    assert use_cores(spare=1) == 1
    assert use_cores(spare=7) == 1


def test_whoever_chose_the_number_of_threads_gets_it(four_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert use_cores(spare=1) == 2


def test_peak_memory_is_in_gigabytes():
    assert 0.05 < peak_memory_gb() < 200
