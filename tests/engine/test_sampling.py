import itertools

import pytest
import torch
from transformers import GenerationConfig

from engine.sampling import Streams, draw, largest
from tests.engine.tiny import CPU, llama, sampler

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 500},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.5, "min_p": 0.2},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
]


def logits_for(count, seed=0):
    return torch.randn(count, 97, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize("chosen", SETTINGS, ids=str)
def test_every_row_has_the_law_of_transformers_generate(chosen):
    model = llama()
    config = GenerationConfig(
        do_sample=True, **{"top_k": 0, "top_p": 1.0, **chosen}, bos_token_id=0, max_length=50
    )
    processors = model._get_logits_processor(
        generation_config=config, input_ids_seq_length=3, device="cpu", model_kwargs={}
    )
    ids = [3, 5, 5, 9, 11, 7]
    logits = logits_for(4)
    ours = sampler(**chosen).probs(logits, ids)
    for i in range(4):
        prefix = torch.tensor([ids[: len(ids) - 3 + i]])
        theirs = torch.softmax(processors(prefix, logits[i : i + 1].clone()), -1)[0]
        assert torch.equal(ours[i] > 0, theirs > 0)
        assert torch.allclose(ours[i], theirs, atol=1e-6)


def test_the_logits_handed_in_stay_as_they_are():
    logits = logits_for(2)
    before = logits.clone()
    sampler(temperature=0.5, top_k=3, repetition_penalty=2.0).probs(logits, [1, 2, 3])
    assert torch.equal(logits, before)


def test_greedy_is_one_hot_at_the_first_of_equal_logits():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert sampler().probs(logits, [0, 1]).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_greedy_is_the_limit_of_low_temperature_and_of_top_1():
    logits = logits_for(3)
    greedy = sampler().probs(logits, [1, 2, 3])
    for chosen in ({"temperature": 1e-4}, {"temperature": 1.0, "top_k": 1}):
        assert torch.allclose(sampler(**chosen).probs(logits, [1, 2, 3]), greedy, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-42, 1e-300])
def test_a_temperature_near_zero_gives_no_nan(temperature):
    logits = logits_for(3)
    chosen = sampler(temperature=temperature, top_k=4, top_p=0.9, min_p=0.1)
    probs = chosen.probs(logits, [1, 2, 3])
    assert torch.allclose(probs, sampler().probs(logits, [1, 2, 3]), atol=1e-4)


def test_tokens_that_a_drafter_never_scores_get_no_probability():
    logits = logits_for(2)
    logits[:, 10:] = -torch.inf
    probs = sampler(temperature=0.7, top_p=0.9, repetition_penalty=1.3).probs(logits, [1, 50, 20])
    assert not probs[:, 10:].any()
    assert torch.allclose(probs.sum(-1), torch.ones(2))


def test_the_repetition_penalty_of_a_row_knows_only_the_tokens_before_it():
    logits = torch.full((3, 4), 2.0)
    probs = sampler(temperature=1.0, repetition_penalty=1e9).probs(logits, [0, 1, 2])
    lost = (probs < 0.2).tolist()
    assert lost == [[True, False, False, False], [True, True, False, False], [True] * 3 + [False]]


def test_the_repetition_penalty_acts_before_a_greedy_choice():
    logits = torch.tensor([[5.0, 4.0, 0.0]])
    assert sampler(repetition_penalty=2.0).probs(logits, [0])[0].argmax() == 1


def test_half_precision_logits_become_fp32_laws():
    probs = sampler(temperature=1.0).probs(logits_for(1).bfloat16(), [1])
    assert probs.dtype == torch.float32
    assert float(probs.sum()) == pytest.approx(1, abs=1e-6)


def test_a_certain_row_costs_no_random_number():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert draw(torch.tensor([0.0, 1.0, 0.0]), generator) == 1
    assert torch.equal(generator.get_state(), before)


def test_draws_follow_the_law_and_never_give_an_impossible_token():
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    generator = torch.Generator().manual_seed(1)
    counts = torch.bincount(torch.tensor([draw(probs, generator) for _ in range(4000)]))
    assert counts[1] == 0
    assert torch.allclose(counts / 4000, probs, atol=0.03)


def _numbers(streams, count=400):
    each = (streams.draft, streams.accept, streams.next)
    return [torch.rand(count, generator=generator) for generator in each]


def test_the_same_seed_gives_the_same_streams():
    first, second = _numbers(Streams.seeded(7, CPU)), _numbers(Streams.seeded(7, CPU))
    assert all(map(torch.equal, first, second))


def test_the_streams_of_one_run_and_of_neighbouring_seeds_are_unrelated():
    streams = [row for seed in range(3) for row in _numbers(Streams.seeded(seed, CPU))]
    streams += _numbers(Streams.seeded(2**62, CPU))
    for one, other in itertools.combinations(streams, 2):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.2


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.49, 1), (0.5, 3), (1.0, 3)])
def test_the_ends_of_the_uniform_number_never_give_an_impossible_token(monkeypatch, u, token):
    # 1.0 stands for a product that was rounded up to the total.
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([u], dtype=torch.float64))
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert draw(probs, torch.Generator()) == token


def test_a_tie_is_won_by_the_first():
    rows = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert largest(rows).tolist() == [1, 0]
