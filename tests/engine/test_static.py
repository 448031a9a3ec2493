"""Passes of fixed shape over fixed buffers read like the library's own growing cache.

No GPU is needed for that: `Replaying` does with every operation what a CUDA graph does.
"""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.events import Settings
from engine.models import static
from engine.models.bucket import FIRST, STEP, Bucket
from engine.models.hf import HFModel
from engine.models.native_mtp import load_native
from engine.models.static import StaticModel
from engine.models.static_chain import StaticChain, supports_chain
from tests.engine import families
from tests.engine.families import Reference, write
from tests.engine.replaying import Replaying
from tests.engine.test_cache import next_context, steps
from tests.engine.tiny import VOCAB, finished, llama, mtp_parts, rounds, tiny_pair

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
}
TAPS = ("final", 1, "pre_norm")


def made(kind, config, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config(**{**SMALL, **changes})).eval().requires_grad_(False)


def qwen3():
    return made(Qwen3ForCausalLM, Qwen3Config, head_dim=16)


NETWORKS = {
    "llama": lambda: llama(max_length=4096),
    "llama, no shared keys": lambda: llama(max_length=4096, num_key_value_heads=4),
    "llama, one key": lambda: llama(max_length=4096, num_key_value_heads=1),
    "qwen3, wide heads": qwen3,
}


@pytest.mark.parametrize("name", NETWORKS)
@given(steps=steps)
@settings(deadline=None, max_examples=20)
def test_any_sequence_of_contexts_reads_like_a_fresh_model(name, steps):
    model, reference = StaticModel(NETWORKS[name](), Replaying()), HFModel(NETWORKS[name]())
    assert reference.model.config._attn_implementation == "sdpa"
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
        assert torch.allclose(reading.logits, expected.logits, atol=1e-4)
        assert reading.features.shape == expected.features.shape
        assert torch.allclose(reading.features, expected.features, atol=1e-4)
        assert num_cached - reading.num_rolled_back + reading.num_forwarded == len(context)
        num_cached = len(context)


@pytest.mark.parametrize("name", NETWORKS)
def test_long_contexts_grow_through_buckets_and_keep_what_they_hold(name):
    numbers = torch.randint(0, VOCAB, (1300,), generator=torch.Generator().manual_seed(0)).tolist()
    model, reference = StaticModel(NETWORKS[name](), Replaying()), HFModel(NETWORKS[name]())
    seen = []
    for length in (400, 403, FIRST, FIRST + 2, 700, 1024, 1027, 600, 1300):
        reference.forget()
        expected = reference.read(numbers[:length], want=3).logits
        reading = model.read(numbers[:length], want=3)
        assert torch.allclose(reading.logits, expected, atol=1e-4)
        seen.append(model.capacity)
    assert seen == [512] * 3 + [1024] * 3 + [2048] * 3
    assert reading.num_forwarded == 700  # rolled back to 600 before


def test_a_bucket_is_never_longer_than_the_model_can_read():
    model = StaticModel(llama(max_length=700))
    model.read([1] * 600)
    assert model.capacity == -(-700 // STEP) * STEP


def test_short_passes_are_recorded_once_per_width_and_long_ones_never():
    record = Replaying()
    model = StaticModel(llama(max_length=4096), record)
    ids = [1, 2, 3] * 10
    model.read(ids)
    assert (record.recorded, record.replayed) == (0, 0)  # 30 tokens: a prompt
    for turn in range(3):
        for width in (1, 2, 5):
            ids = ids + [width] * width
            model.read(ids, want=width)
        assert record.recorded == 3
        assert record.replayed == 3 * (turn + 1)
    model.tap(("final",))
    model.read([*ids, 1], want=1, features=1)
    assert record.recorded == 4  # other results
    model.read(ids * 20)
    model.read([*ids * 20, 5])
    assert record.recorded == 5  # the old ones write into a bucket that is gone


def test_what_a_read_gave_is_not_changed_by_the_next_one():
    model = StaticModel(llama(), Replaying())
    model.tap(("final",))
    first = model.read([1, 2, 3, 4], want=2, features=2)
    logits, features = first.logits.clone(), first.features.clone()
    for token in range(5):
        model.read([1, 2, 3, token], want=2, features=2)
    assert torch.equal(first.logits, logits)
    assert torch.equal(first.features, features)


def test_the_recorder_of_these_tests_refuses_a_look_at_the_host():
    """`int(tensor)` in a pass would be frozen into a graph; this is how it would show."""
    position = torch.tensor([3])
    with pytest.raises(AssertionError, match="looks at a number"):
        Replaying()(lambda: (torch.arange(int(position)),))
    replay = Replaying()(lambda: (position * 2,))
    position.fill_(5)
    assert replay()[0].item() == 10


@pytest.mark.parametrize("failing", [True, False])
def test_a_bucket_that_does_not_fit_is_tried_again_without_room_to_spare(failing, monkeypatch):
    model = StaticModel(llama(max_length=4096), Replaying())
    ids = [1, 2, 3] * 200
    model.read(ids[:500])
    move = Bucket._move

    def tight(self, capacity, held):
        if failing or capacity > 700:
            raise torch.OutOfMemoryError("none left")
        move(self, capacity, held)

    monkeypatch.setattr(Bucket, "_move", tight)
    if failing:
        with pytest.raises(torch.OutOfMemoryError):
            model.read(ids)
        monkeypatch.undo()
    reading = model.read(ids)
    assert model.capacity == (1024 if failing else 640)
    assert reading.num_forwarded == 100  # what was held is still good
    assert torch.allclose(
        reading.logits, HFModel(llama(max_length=4096)).read(ids).logits, atol=1e-4
    )


def test_early_layers_and_bad_taps():
    model = StaticModel(llama())
    model.tap((0, 2))
    assert model.read([1, 2, 3], features=2).features.shape == (2, 64)
    with pytest.raises(ValueError, match="at least one"):
        model.read([])


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (lambda: llama(), True),
        (qwen3, True),
        (lambda: made(MistralForCausalLM, MistralConfig, sliding_window=8), False),
        (lambda: made(MistralForCausalLM, MistralConfig, sliding_window=None), True),
        (
            lambda: llama(
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
            ),
            False,
        ),
        (
            lambda: made(
                DeepseekV3ForCausalLM,
                DeepseekV3Config,
                n_routed_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=16,
                n_group=1,
                topk_group=1,
                kv_lora_rank=8,
                q_lora_rank=8,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                v_head_dim=8,
                num_key_value_heads=4,
            ),
            False,
        ),
    ],
    ids=["llama", "qwen3", "sliding", "full", "dynamic rope", "latent"],
)
def test_only_models_of_fixed_shapes_are_taken(network, expected):
    assert static.supports(network()) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["plain", "mtp", "draft", "lookup"])
def test_runs_are_those_of_the_library_s_cache(method, temperature):
    def run(pair):
        chosen = Settings(gamma=3, max_new_tokens=60, temperature=temperature, seed=3)
        events = list(pair.run(method, "abcabcab", chosen))
        return finished(events).token_ids, [done.verdict.num_accepted for done in rounds(events)]

    reference = tiny_pair()
    models = {part: getattr(reference, part) for part in ("target", "draft")}
    assert all(isinstance(model, HFModel) for model in models.values())
    static_ones = {
        part: StaticModel(copy.deepcopy(model.model), Replaying()) for part, model in models.items()
    }
    assert run(dataclasses.replace(reference, **static_ones)) == run(reference)


# --- chains ---


@pytest.mark.parametrize("family", ["bundled", "window", *families.FAMILIES])
def test_a_chain_gives_what_its_module_gives(family, tmp_path):
    module = module_of(family, tmp_path)
    if not supports_chain(module):
        assert family in OTHERWISE
        return
    assert family not in OTHERWISE
    record = Replaying()
    chain, library = StaticChain(copy.deepcopy(module), record), module
    width = module.projection.weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):  # a second run takes the buffers over
        ours, theirs = chain.new_cache(), library.new_cache()
        held = 0
        for n, drop in ((20, 0), (1, 0), (3, 2), (1, 0), (3, 1), (490, 3), (5, 0), (1, 0)):
            embeddings, hidden = torch.randn(2, n, width, generator=generator)
            with torch.inference_mode():
                expected = library.run(embeddings, hidden, held, theirs)
            got = chain.run(embeddings, hidden, held, ours)
            assert torch.allclose(got, expected, atol=1e-4)
            held += n - drop
            assert ours.crop(held) == theirs.crop(held) == drop
    # 1, 3 before the bucket grows; 5, 1 after; then 1, 3 again.
    assert record.recorded == 5


OTHERWISE = {"qwen3-next", "deepseek", "glm"}
"""They choose among experts, or keep no keys and values of equal width."""


def module_of(family, folder):
    if family in ("bundled", "window"):
        module = copy.deepcopy(mtp_parts(llama(noise=0.2)).module)
        module.window = 5 if family == "window" else None
        return module
    model = families.FAMILIES[family][0]()
    (module,) = load_native(
        write(folder / family, model, Reference(family, model).tensors()), model
    )
    return module


def test_a_cache_that_was_replaced_is_refused():
    chain = StaticChain(copy.deepcopy(mtp_parts(llama()).module))
    old = chain.new_cache()
    chain.new_cache()
    with pytest.raises(ValueError, match="another run"):
        chain.run(torch.zeros(1, 32), torch.zeros(1, 32), 0, old)
