"""The first layers of a target as its drafter: exact, apart from the target, and shared with it."""

import pytest
import torch

from engine.events import Settings
from engine.memory import held_bytes
from engine.models.hf import HFModel
from engine.models.lean import LeanLlama
from engine.models.linear import pack
from engine.models.toy import ToyModel
from engine.proposers.draft_model import DraftModel
from engine.proposers.early_exit import exits, first_layers, shortened
from engine.sampling import Sampler
from tests.engine.tiny import VOCAB, argmax_decode, emitted, llama, rounds, run

PROMPT = [5, 9, 1, 5, 9, 7, 3]
LAYERS = 6
MODEL = llama(noise=0.1, num_hidden_layers=LAYERS)


def packed_model():
    model = llama(noise=0.1, num_hidden_layers=LAYERS)
    pack(model)
    return HFModel(model)


TARGETS = {
    "library": lambda: HFModel(MODEL),
    "packed": packed_model,
    "lean": lambda: LeanLlama(llama(noise=0.1, num_hidden_layers=LAYERS), drop=True),
}


def drafted_run(target, count, gamma, temperature=0.0, tokens=40):
    sampler = Sampler(Settings(temperature=temperature))
    generator = torch.Generator().manual_seed(1)
    proposer = DraftModel(first_layers(target, count), sampler, generator, vocab_size=VOCAB)
    chosen = Settings(gamma=gamma, max_new_tokens=tokens, temperature=temperature)
    return run(target, proposer, PROMPT, chosen)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_logits_are_those_of_the_state_after_that_layer(kind, count):
    short = first_layers(TARGETS[kind](), count)
    with torch.no_grad():
        out = MODEL(torch.tensor([PROMPT]), output_hidden_states=True, use_cache=False)
        expected = MODEL.lm_head(MODEL.model.norm(out.hidden_states[count][0]))
    assert torch.allclose(short.read(PROMPT, want=7).logits, expected, atol=1e-5, rtol=1e-5)
    short.forget()
    for end in (3, 6, 4, 7):  # forward, and back by itself
        ids = PROMPT[:end] if end != 4 else [*PROMPT[:3], 8]
        rows = short.read(ids).logits
    assert torch.allclose(rows[-1], expected[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", TARGETS)
def test_all_layers_are_always_accepted_and_fewer_are_not(kind, temperature):
    done = rounds(drafted_run(TARGETS[kind](), LAYERS, 4, temperature))
    assert sum(len(r.proposal.tokens) for r in done) > 20
    assert all(r.verdict.num_accepted == len(r.proposal.tokens) for r in done)
    done = rounds(drafted_run(TARGETS[kind](), 2, 4, temperature))
    assert any(r.verdict.num_accepted < len(r.proposal.tokens) for r in done)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_the_greedy_text_is_the_targets_own(kind, gamma):
    for count in (1, 4):
        events = drafted_run(TARGETS[kind](), count, gamma)
        assert emitted(events) == argmax_decode(MODEL, PROMPT, 40)


@pytest.mark.parametrize("kind", TARGETS)
def test_reading_early_leaves_the_target_as_it_was(kind):
    target, alone = TARGETS[kind](), TARGETS[kind]()
    short = first_layers(target, 2)
    for model in (target, alone):
        model.tap((1, "final"))
    for end in (4, 6, 7):
        short.read(PROMPT[:end])
        short.read([*PROMPT[:end], 1, 2])
        ours = target.read(PROMPT[:end], features=2)
        theirs = alone.read(PROMPT[:end], features=2)
        assert torch.equal(ours.logits, theirs.logits)
        assert torch.equal(ours.features, theirs.features)
        assert ours.num_forwarded == theirs.num_forwarded
    assert short.read([*PROMPT, 1]).num_forwarded == 1  # nor does the target disturb it


def test_a_shortened_model_leaves_the_whole_one_alone():
    names = set(MODEL.state_dict())
    short = shortened(MODEL, 2)
    assert len(short.model.layers) == short.config.num_hidden_layers == 2
    assert len(MODEL.model.layers) == MODEL.config.num_hidden_layers == LAYERS
    assert set(MODEL.state_dict()) == names
    assert short.lm_head.weight is MODEL.lm_head.weight
    assert type(short) is type(MODEL)


@pytest.mark.parametrize("kind", TARGETS)
def test_no_weight_is_held_twice(kind):
    target = TARGETS[kind]()
    short = first_layers(target, LAYERS)
    caches = held_bytes(target._cache) + held_bytes(short._cache)
    assert held_bytes(target, short) <= held_bytes(target) + caches


def test_a_hybrid_can_exit_early_too():
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"] * 2,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = HFModel(Qwen3_5ForCausalLM(config).eval())
    assert list(exits(target)) == [2, 3, 4]  # the first layer alone keeps no keys
    for count in (2, 3, 4):
        events = drafted_run(target, count, 3, tokens=12)
        assert emitted(events) == argmax_decode(target.model, PROMPT, 12)
        if count == 4:
            done = rounds(events)
            assert all(r.verdict.num_accepted == len(r.proposal.tokens) for r in done)


@pytest.mark.parametrize("count", [-1, 0, LAYERS + 1])
@pytest.mark.parametrize("kind", TARGETS)
def test_only_layers_that_are_there_can_be_asked_for(kind, count):
    target = TARGETS[kind]()
    assert list(exits(target)) == list(range(1, LAYERS + 1))
    with pytest.raises(ValueError, match=f"after {count} layers"):
        first_layers(target, count)


def test_a_model_without_layers_cannot_exit_early():
    assert not exits(ToyModel())
    with pytest.raises(ValueError, match="ToyModel"):
        first_layers(ToyModel(), 1)
