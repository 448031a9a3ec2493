"""The cache follows the context: whatever was read before, a read gives what a fresh one gives."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM
from transformers.cache_utils import DynamicLayer

from engine.errors import PlaygroundError
from engine.models import cache as cache_module
from engine.models.base import num_kept
from engine.models.cache import cache_for
from engine.models.hf import MOST_PENDING, HFModel
from engine.models.toy import ToyModel
from engine.prefix import common_prefix
from tests.engine import families
from tests.engine.tiny import VOCAB, llama

LAYERS = 2
TAPS = ("final", 1)


def sliding_model(window=6):
    """A model whose layers see the last `window` tokens only."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = MistralConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            sliding_window=window,
            initializer_range=0.3,
        )
        return MistralForCausalLM(config).eval()


MODELS = {"llama": llama(), "sliding window": sliding_model()}

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(
        st.sampled_from(["extend", "shrink", "fork", "repeat", "forget"]),
        tokens,
        st.integers(0, 30),
        st.integers(1, 4),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=9,
)


def next_context(context, kind, fresh, number):
    match kind:
        case "extend":
            return [*context, *fresh]
        case "shrink":
            return context[: 1 + number % len(context)]
        case "fork":
            return [*context[: number % (len(context) + 1)], *fresh]
    return context


@pytest.mark.parametrize("name", MODELS)
@given(steps=steps)
@settings(deadline=None, max_examples=20)
def test_any_sequence_of_contexts_reads_like_a_fresh_model(name, steps):
    model, reference = HFModel(MODELS[name]), HFModel(MODELS[name])
    model.tap(TAPS)
    reference.tap(TAPS)
    context, num_cached = [1, 2, 3, 1, 2], 0
    for kind, fresh, number, want, features in steps:
        context = next_context(context, kind, fresh, number)
        if kind == "forget":
            model.forget()
            num_cached = 0
        want, features = min(want, len(context)), min(features, len(context))
        reading = model.read(context, want=want, features=features)
        reference.forget()
        expected = reference.read(context, want=want, features=features)
        assert reading.logits.shape == (want, VOCAB)
        assert torch.allclose(reading.logits, expected.logits, atol=1e-4)
        assert reading.features.shape == ((features, 64) if features else (0, 0))
        assert torch.allclose(reading.features, expected.features, atol=1e-4)
        assert num_cached - reading.num_rolled_back + reading.num_forwarded == len(context)
        assert reading.num_forwarded >= max(want, features)
        num_cached = len(context)


@pytest.mark.parametrize("name", MODELS)
def test_hundreds_of_tokens_read_like_a_fresh_model(name):
    numbers = torch.randint(0, VOCAB, (340,), generator=torch.Generator().manual_seed(0)).tolist()
    other = [(number + 1) % VOCAB for number in numbers]
    model, reference = HFModel(MODELS[name]), HFModel(MODELS[name])
    contexts = [numbers[:250], numbers[:255], numbers[:256], numbers[:262], numbers[:257]]
    contexts += [[*numbers[:200], *other[200:340]], [*numbers[:190], *other[190:200]], numbers]
    for context in contexts:
        reference.forget()
        expected = reference.read(context, want=3).logits
        assert torch.allclose(model.read(context, want=3).logits, expected, atol=1e-4)


def test_two_models_of_one_network_keep_separate_caches():
    network = llama()
    one, other = HFModel(network), HFModel(network)
    one.read([1, 2, 3])
    other.read([7, 8, 9, 10])
    expected = HFModel(network).read([1, 2, 3, 4]).logits
    assert torch.allclose(one.read([1, 2, 3, 4]).logits, expected, atol=1e-4)


def test_a_fresh_read_gives_the_logits_of_the_model_itself():
    model = llama()
    context = [1, 5, 9, 2, 2, 7]
    reading = HFModel(model).read(context, want=6)
    with torch.no_grad():
        expected = model(torch.tensor([context]), use_cache=False).logits[0]
    assert torch.allclose(reading.logits, expected, atol=1e-5)


def test_features_are_the_hidden_states_of_their_positions():
    model = HFModel(llama())
    model.tap(("final", 1))
    reading = model.read([1, 5, 9, 2], features=3)
    with torch.no_grad():
        out = model.model(torch.tensor([[1, 5, 9, 2]]), output_hidden_states=True)
        expected = torch.cat([out.hidden_states[-1], out.hidden_states[1]], -1)[0, 1:]
        logits = model.model.lm_head(reading.features[-1, :32])
    assert torch.allclose(reading.features, expected, atol=1e-5)
    # "final" is the state behind the final norm: the head alone makes logits of it.
    assert torch.allclose(logits, reading.logits[-1], atol=1e-5)


def test_only_the_remainder_is_forwarded_and_only_the_difference_is_dropped():
    model = HFModel(llama())
    counts = []
    for context, want in (([1, 2, 3, 4], 1), ([1, 2, 3, 4, 5, 6], 2), ([1, 2, 3, 9], 1)):
        reading = model.read(context, want=want)
        counts.append((reading.num_rolled_back, reading.num_forwarded))
    assert counts == [(0, 4), (0, 2), (3, 1)]


@pytest.mark.parametrize("model", [ToyModel(8), HFModel(llama())], ids=["toy", "hf"])
def test_an_impossible_read_is_an_error_and_changes_nothing(model):
    expected = model.read([1, 2, 3]).logits
    for context, options in (
        ([], {}),
        ([1], {"want": 2}),
        ([1], {"features": 2}),
        ([1], {"want": 0}),
    ):
        with pytest.raises(ValueError, match="token"):
            model.read(context, **options)
    assert torch.allclose(model.read([1, 2, 3]).logits, expected, atol=1e-5)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(
    "next_context", [[1, 2, 3, 4, 5, 6, 7], [1, 2, 9], [1, 2, 3, 4, 5]], ids=str
)
def test_a_read_that_fails_halfway_leaves_the_next_one_correct(layer, next_context):
    model = HFModel(llama())
    model.read([1, 2, 3, 4])

    def fail(*_):
        raise MemoryError

    hook = model.model.model.layers[layer].mlp.register_forward_hook(fail)
    with pytest.raises(MemoryError):
        model.read([1, 2, 3, 4, 5, 6, 7])
    hook.remove()
    expected = HFModel(llama()).read(next_context)
    assert torch.allclose(model.read(next_context).logits, expected.logits, atol=1e-4)


HYBRIDS = {
    "qwen3.5": families.qwen3_5(initializer_range=0.1),
    "qwen3-next": families.qwen3_next(initializer_range=0.1),
    "lfm2": families.lfm2(initializer_range=0.1),
}


@pytest.mark.parametrize("name", HYBRIDS)
@example(  # remembered, one more, then back: transformers 5.25 counts tokens in this layer
    steps=[("extend", [0], 0, 1, 0), ("extend", [0], 0, 1, 0), ("extend", [0], 0, 1, 2)],
    hints=[0, 6, 0, *[0] * 6],
)
@given(steps=steps, hints=st.lists(st.integers(0, 40), min_size=9, max_size=9))
@settings(deadline=None, max_examples=25)
def test_a_recurrent_state_follows_any_sequence_of_contexts(name, steps, hints):
    model, reference = HFModel(HYBRIDS[name]), HFModel(HYBRIDS[name])
    taps = ("final", "pre_norm", 1)
    model.tap(taps)
    reference.tap(taps)
    context = [1, 2, 3, 1, 2]
    for (kind, fresh, number, want, features), hint in zip(steps, hints, strict=False):
        context = next_context(context, kind, fresh, number)
        if kind == "forget":
            model.forget()
        want, features = min(want, len(context)), min(features, len(context))
        # Usually equal to 5e-6; a polluted state is wrong by more than 1e-2.
        # The hint may be wrong in any way: it decides what is remembered, never what comes out.
        committed = None if hint > 30 else hint
        reading = model.read(context, want=want, features=features, committed=committed)
        reference.forget()
        expected = reference.read(context, want=want, features=features)
        assert torch.allclose(reading.logits, expected.logits, atol=5e-5)
        assert torch.allclose(reading.features, expected.features, atol=5e-5)


def round_of(model, context, accepted, gamma=4):
    """Read a proposal of which `accepted` tokens will stay; return the reading."""
    draft = [(context[-1] + 3 * i) % 50 for i in range(1, gamma + 1)]
    reading = model.read([*context, *draft], want=gamma + 1, committed=len(context))
    context += [*draft[:accepted], 55]
    return reading


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_rejection_costs_a_recurrent_model_no_pass_of_its_own(name):
    model = HFModel(HYBRIDS[name])
    context = [1, 2, 3, 4, 5]
    model.read(context)
    context.append(6)
    forwarded = [round_of(model, context, 2).num_forwarded]
    forwarded.append(round_of(model, context, 4).num_forwarded)
    forwarded.append(round_of(model, context, 0).num_forwarded)
    # Rejected: the token before, two accepted ones and the correction ride along with 4 drafts.
    # All accepted: only the new token does.
    assert forwarded == [5, 8, 5]


def test_what_would_ride_along_for_ever_gets_a_pass_of_its_own():
    model = HFModel(HYBRIDS["qwen3.5"])
    context = [1, 2, 3, 4, 5]
    model.read(context)
    context.append(6)
    forwarded = [round_of(model, context, 0).num_forwarded for _ in range(3 * MOST_PENDING)]
    assert max(forwarded) == MOST_PENDING + 1 + 5
    assert forwarded[:3] == [5, 6, 7]
    assert forwarded[-MOST_PENDING:] != sorted(forwarded[-MOST_PENDING:])


@torch.inference_mode()
def test_cropping_a_recurrent_state_would_be_wrong_and_is_seen_in_the_logits():
    network = HYBRIDS["qwen3.5"]
    model = HFModel(network)
    model.read([1, 2, 3, 4, 5], committed=0)
    cache = model._cache.library_cache
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer):
            layer.crop(-2)
    out = network(input_ids=torch.tensor([[7]]), cache=cache, use_cache=True)
    expected = HFModel(network).read([1, 2, 3, 7]).logits
    assert (out.logits[0, -1:] - expected).abs().max() > 1e-2


def test_a_cache_nobody_knows_how_to_take_back_is_refused(monkeypatch):
    class Strange:
        is_croppable = False

    network = llama()
    real = cache_module.DynamicCache

    def strange_cache(config=None):
        made = real(config=config)
        made.layers = [Strange()]
        return made

    monkeypatch.setattr(cache_module, "DynamicCache", strange_cache)
    with pytest.raises(PlaygroundError) as caught:
        cache_for(network)
    assert caught.value.code == "cannot_roll_back"


@given(
    held=st.lists(st.integers(0, 2), max_size=8),
    context=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    want=st.integers(1, 8),
    features=st.integers(0, 8),
)
@settings(deadline=None)
def test_the_kept_prefix_is_shared_and_leaves_every_wanted_row_to_compute(
    held, context, want, features
):
    want, features = min(want, len(context)), min(features, len(context))
    kept = num_kept(held, context, want=want, features=features)
    assert 0 <= kept <= len(context) - max(want, features)
    assert held[:kept] == context[:kept]
    shared = common_prefix(held, context)
    assert kept == shared or kept == len(context) - max(want, features)
    assert shared == min(len(held), len(context)) or held[shared] != context[shared]
