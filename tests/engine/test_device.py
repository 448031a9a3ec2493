import os

import pytest
import torch

from engine.device import choose_device, peak_memory_gb, synchronise, use_all_cores
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


def test_threads_never_exceed_the_cores_that_are_allowed(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        assert use_all_cores() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_peak_memory_is_in_gigabytes():
    assert 0.05 < peak_memory_gb() < 200
