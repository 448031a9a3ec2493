"""The lean forward computes what the library's modules compute, whatever was read before."""

import dataclasses
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaForCausalLM

from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.lean import MOST_ROWS, KeyValues, LeanLlama, LeanMTP, attention, supports
from engine.models.linear import int8, packed, trimmed_head
from engine.models.mtp_module import MTPModule, module_config
from tests.engine.test_cache import next_context, sliding_model, steps
from tests.engine.tiny import (
    METHODS,
    VOCAB,
    argmax_decode,
    finished,
    llama,
    mtp_parts,
    rounds,
    tiny_pair,
)

TAPS = ("final", 0, 1, 2)
WIDTH = 32 * len(TAPS)
ROPES = {
    "linear rope": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "llama3 rope": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn rope": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
}
# Noise: norm weights of 1 and biases of 0 would hide a missing one.
MODELS = {
    "two heads a key": llama(noise=0.2),
    "a key per head": llama(noise=0.2, num_key_value_heads=4),
    "one key for all": llama(noise=0.2, num_key_value_heads=1),
    "biases": llama(noise=0.2, attention_bias=True, mlp_bias=True),
    "wide heads": llama(noise=0.2, head_dim=16),
    "tied head": llama(noise=0.2, tie_word_embeddings=True),
    **{name: llama(noise=0.2, rope_parameters=values) for name, values in ROPES.items()},
}
LONG = llama(noise=0.2, max_length=1024)
NUMBERS = torch.randint(0, VOCAB, (700,), generator=torch.Generator().manual_seed(0)).tolist()
OTHER = [(number + 1) % VOCAB for number in NUMBERS]


def pair_of(source, *, row_wise=False, **options):
    """The lean model and the library's, with the same taps."""
    model, reference = LeanLlama(source, **options), HFModel(source)
    model.row_wise = row_wise
    model.tap(TAPS)
    reference.tap(TAPS)
    return model, reference


def same(ours, theirs):
    assert ours.logits.shape == theirs.logits.shape
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-4)
    assert ours.features.shape == theirs.features.shape
    assert torch.allclose(ours.features, theirs.features, atol=1e-4)


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("name", MODELS)
@given(steps=steps)
@settings(deadline=None, max_examples=8)
def test_any_sequence_of_contexts_reads_like_the_library(name, row_wise, steps):
    model, reference = pair_of(MODELS[name], row_wise=row_wise)
    context, num_cached = [1, 2, 3, 1, 2], 0
    for kind, fresh, number, want, features in steps:
        context = next_context(context, kind, fresh, number)
        if kind == "forget":
            model.forget()
            num_cached = 0
        want, features = min(want, len(context)), min(features, len(context))
        reading = model.read(context, want=want, features=features)
        reference.forget()
        same(reading, reference.read(context, want=want, features=features))
        assert reading.features.shape == ((features, WIDTH) if features else (0, 0))
        assert num_cached - reading.num_rolled_back + reading.num_forwarded == len(context)
        assert reading.num_forwarded >= max(want, features)
        num_cached = len(context)


@pytest.mark.parametrize("row_wise", [False, True])
def test_hundreds_of_tokens_read_like_the_library(row_wise):
    """The buffers grow twice, and prefills stand behind what is there."""
    model, reference = pair_of(LONG, row_wise=row_wise)
    contexts = [NUMBERS[:end] for end in (20, 20 + MOST_ROWS, 40 + 2 * MOST_ROWS, 255, 256, 257)]
    contexts += [NUMBERS[:512], NUMBERS[:513], [*NUMBERS[:200], *OTHER[200:240]], NUMBERS]
    for context in contexts:
        reference.forget()
        same(
            model.read(context, want=4, features=18),
            reference.read(context, want=4, features=18),
        )


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("rows", [1, 2, MOST_ROWS, MOST_ROWS + 1, 5 * MOST_ROWS])
@pytest.mark.parametrize("held", [0, 1, 30])
def test_a_pass_of_any_width_behind_any_cache_reads_like_the_library(held, rows, row_wise):
    model, reference = pair_of(LONG, row_wise=row_wise)
    if held:
        model.read(NUMBERS[:held])
    context = NUMBERS[: held + rows]
    reading = model.read(context, want=rows, features=rows)
    assert reading.num_forwarded == rows
    same(reading, reference.read(context, want=rows, features=rows))


def test_the_check_would_notice_a_row_that_sees_one_key_too_few():
    def short(q, keys, values, first, row_wise):
        return attention(q, keys, values, max(first - 1, 0), row_wise)

    model, reference = pair_of(LONG, attend=short)
    model.read(NUMBERS[:30])
    ours, theirs = model.read(NUMBERS[:33], want=3), reference.read(NUMBERS[:33], want=3)
    assert not torch.allclose(ours.logits, theirs.logits, atol=1e-2)


def test_only_the_remainder_is_forwarded_and_only_the_difference_is_dropped():
    model = LeanLlama(llama())
    counts = []
    for context, want in (([1, 2, 3, 4], 1), ([1, 2, 3, 4, 5, 6], 2), ([1, 2, 3, 9], 1)):
        reading = model.read(context, want=want)
        counts.append((reading.num_rolled_back, reading.num_forwarded))
    assert counts == [(0, 4), (0, 2), (3, 1)]


def test_without_taps_there_are_no_features():
    model = LeanLlama(llama())
    assert model.read([1, 2, 3], features=2).features.shape == (0, 0)


def test_an_impossible_read_is_an_error_and_changes_nothing():
    model = LeanLlama(llama())
    expected = model.read([1, 2, 3]).logits
    for context, options in (([], {}), ([1], {"want": 2}), ([1], {"features": 2})):
        with pytest.raises(ValueError, match="token"):
            model.read(context, **options)
    assert torch.allclose(model.read([1, 2, 3]).logits, expected, atol=1e-5)


NEXT = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 9], [1, 2, 3, 4, 5], [1, 2, 3, 4]]


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("context", NEXT, ids=str)
@pytest.mark.parametrize("failing", [[1, 2, 3, 4, 5, VOCAB], [1, 2, VOCAB, 3], [VOCAB]], ids=str)
def test_an_id_that_does_not_exist_leaves_the_next_read_exact(failing, context, row_wise):
    model, reference = pair_of(llama(), row_wise=row_wise)
    model.read([1, 2, 3, 4])
    with pytest.raises(IndexError):
        model.read(failing)
    same(model.read(context, features=1), reference.read(context, features=1))


@pytest.mark.parametrize("context", NEXT, ids=str)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_pass_that_fails_halfway_leaves_the_next_one_exact(layer, context):
    calls = []

    def attend(*args):
        calls.append(args)
        if len(calls) == 2 + layer + 1:  # in the second pass
            raise MemoryError
        return attention(*args)

    model, reference = pair_of(llama(), attend=attend)
    model.read([1, 2, 3, 4])
    with pytest.raises(MemoryError):
        model.read([1, 2, 8, 8, 8, 8])
    same(model.read(context, features=1), reference.read(context, features=1))


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_memory_that_ends_while_the_buffers_grow_leaves_the_next_read_exact(failing, monkeypatch):
    model, reference = pair_of(LONG)
    model.read(NUMBERS[:250])
    calls, empty = [], torch.empty

    def short_of_memory(*args, **options):
        calls.append(args)
        if len(calls) == failing:
            raise MemoryError
        return empty(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", short_of_memory)
        with pytest.raises(MemoryError):
            model.read(NUMBERS[:300])
    for end in (252, 300, 600):
        reference.forget()
        same(model.read(NUMBERS[:end], want=2), reference.read(NUMBERS[:end], want=2))


# --- which models, which weights ---


class Changed(LlamaForCausalLM):
    """May compute anything."""


def of_class(kind):
    return kind(llama().config).eval()


UNKNOWN = {
    "another class": sliding_model,
    "a subclass": lambda: of_class(Changed),
    "dynamic rope": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "another activation": lambda: llama(hidden_act="gelu"),
    "bf16": lambda: llama().bfloat16(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_it_does_not_know_it_refuses(name):
    model = UNKNOWN[name]()
    assert not supports(model)
    with pytest.raises(ValueError, match="modules"):
        LeanLlama(model)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_tested_here_is_supported(name):
    assert supports(MODELS[name])


def test_dropping_empties_the_model_and_changes_nothing():
    source = llama(noise=0.2)
    _, reference = pair_of(llama(noise=0.2))
    fused = [weakref.ref(layer.mlp.up_proj.weight) for layer in source.model.layers]
    model, _ = pair_of(source, drop=True)
    gc.collect()
    assert [type(layer) for layer in source.model.layers] == [nn.Identity] * 2
    assert [weight() for weight in fused] == [None, None]
    same(
        model.read(NUMBERS[:20], want=3, features=3),
        reference.read(NUMBERS[:20], want=3, features=3),
    )


def test_without_dropping_the_model_stays_whole():
    source = llama(noise=0.2)
    before = HFModel(source).read(NUMBERS[:9]).logits
    LeanLlama(source).read(NUMBERS[:9])
    assert torch.equal(HFModel(source).read(NUMBERS[:9]).logits, before)


def test_a_head_of_ones_own_replaces_the_models():
    source, vocab = llama(noise=0.2), torch.tensor([3, 5, 8])
    head = trimmed_head(source.lm_head.weight, vocab)
    ours = LeanLlama(source, head=head).read(NUMBERS[:9], want=2).logits
    full = HFModel(source).read(NUMBERS[:9], want=2).logits
    assert torch.allclose(ours[:, vocab], full[:, vocab], atol=1e-4)
    assert torch.isfinite(ours).sum() == 6


def test_an_int8_model_is_close_to_the_exact_one():
    source = llama(noise=0.1)
    exact = LeanLlama(source).read(NUMBERS[:30], want=20).logits
    rounded = LeanLlama(source, make=int8).read(NUMBERS[:30], want=20).logits
    assert 0 < (rounded - exact).norm() < 0.15 * exact.norm()


def test_layers_of_which_only_one_has_a_bias_are_refused():
    source = llama()
    heads = source.model.layers[0].self_attn
    heads.q_proj.bias = nn.Parameter(torch.ones(32), requires_grad=False)
    with pytest.raises(ValueError, match="bias"):
        LeanLlama(source)


# --- buffers ---


def test_buffers_keep_what_they_held_when_they_grow():
    cache = KeyValues(2, 3, 4)
    cache.length = 250
    before = [torch.randn(3, 250, 4) for _ in range(4)]
    for buffer, values in zip((*cache.keys, *cache.values), before, strict=True):
        buffer[:, :250] = values
    cache.make_room(256)
    assert cache.keys[0].shape[1] == 256
    cache.make_room(257)
    assert {buffer.shape for buffer in (*cache.keys, *cache.values)} == {(3, 512, 4)}
    for buffer, values in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(buffer[:, :250], values)
    cache.make_room(2000)
    assert cache.values[1].shape[1] == 2000


@given(length=st.integers(0, 300), crop=st.integers(0, 300))
def test_cropping_says_how_much_it_dropped(length, crop):
    cache = KeyValues(1, 1, 2)
    cache.length = length
    assert cache.crop(crop) == max(length - crop, 0)
    assert cache.length == min(length, crop)


# --- the module ---

MODULES = {
    "two heads a key": {},
    "one key for all": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 16},
}


def module_of(**changes) -> MTPModule:
    return mtp_parts(llama(max_length=1024, **changes)).module


@torch.inference_mode()
def two_runs(ours, theirs, plan):
    """Outputs of both along the plan: (entries to keep, rows to run)."""
    generator = torch.Generator().manual_seed(0)
    caches = ours.new_cache(), theirs.new_cache()
    length = 0
    for kept, rows in plan:
        length = min(length, kept)
        embeddings, hidden = torch.randn(2, rows, 32, generator=generator)
        outputs = []
        for module, cache in zip((ours, theirs), caches, strict=True):
            cache.crop(kept)
            outputs.append(module.run(embeddings, hidden, length, cache))
        length += rows
        yield outputs


DRAFTING = [(0, 7), (7, 1), (8, 1), (9, 1), (7, 2), (9, 1), (10, 1), (9, 4), (13, 1), (3, 40)]
GROWING = [(0, 250), (250, 1), (251, 1), (252, 1), (250, 3), (253, 4), (257, 1), (255, 300)]


@pytest.mark.parametrize("plan", [DRAFTING, GROWING], ids=["drafting", "growing"])
@pytest.mark.parametrize("name", MODULES)
def test_the_lean_module_equals_the_librarys_however_its_cache_is_cut(name, plan):
    module = module_of(**MODULES[name])
    compared = 0
    for ours, theirs in two_runs(LeanMTP(module, packed), module, plan):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-4)
        compared += 1
    assert compared == len(plan)


def test_the_check_would_notice_another_module():
    module = module_of()
    other = MTPModule(module_config(llama(max_length=1024).config)).eval().requires_grad_(False)
    ours, theirs = next(two_runs(LeanMTP(other, packed), module, DRAFTING))
    assert not torch.allclose(ours, theirs, atol=1e-2)


def test_the_lean_module_in_int8_is_close():
    module = module_of()
    for ours, theirs in two_runs(LeanMTP(module, int8), module, DRAFTING):
        assert 0 < (ours - theirs).norm() < 0.15 * theirs.norm()


def test_two_runs_of_a_module_do_not_share_a_cache():
    module = LeanMTP(module_of(), packed)
    x = torch.randn(5, 32)
    one, other = module.new_cache(), module.new_cache()
    with torch.inference_mode():
        first = module.run(x, x, 0, one)
        module.run(-x, x, 0, other)
        assert torch.equal(module.run(x, x, 0, module.new_cache()), first)
    assert one.length == other.length == 5


# --- whole runs ---


@pytest.fixture(scope="module")
def lean_pair():
    """The tiny pair, every model in its lean form."""
    target = llama()
    parts = mtp_parts(target)
    return dataclasses.replace(
        tiny_pair(),
        target=LeanLlama(target),
        draft=LeanLlama(llama(noise=0.03)),
        mtp=dataclasses.replace(parts, module=LeanMTP(parts.module, packed)),
    )


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_plain_greedy_text(lean_pair, method, gamma, row_wise):
    lean_pair.target.row_wise = row_wise
    events = list(lean_pair.run(method, "abcabd", Settings(gamma=gamma, max_new_tokens=40)))
    expected = argmax_decode(llama(), events[0].prompt_ids, 40)
    assert list(finished(events).token_ids) == expected


def test_a_lean_target_that_drafts_for_itself_is_always_accepted(lean_pair):
    pair = dataclasses.replace(lean_pair, draft=LeanLlama(llama()))
    done = rounds(list(pair.run("draft", "abcabd", Settings(gamma=3, max_new_tokens=41))))
    assert len(done) > 5
    assert all(r.verdict.num_accepted == len(r.proposal.tokens) for r in done)
