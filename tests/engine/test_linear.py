import pytest
import torch
from torch import nn

from engine.models import linear
from engine.models.hf import HFModel
from engine.models.linear import PackedLinear, TrimmedHead, pack, trimmed_head
from tests.engine.tiny import llama

needs_packing = pytest.mark.skipif(
    not linear.is_supported(), reason="this torch build has no packed linear ops"
)


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 17, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_linear_equals_the_stock_one(rows, bias):
    layer = nn.Linear(72, 50, bias=bias)
    x = torch.randn(1, rows, 72)
    with torch.inference_mode():
        got = PackedLinear(layer.weight, layer.bias)(x)
        assert torch.allclose(got, layer(x), atol=1e-4)


@needs_packing
def test_a_packed_model_gives_the_same_logits():
    stock, packed = llama(), llama()
    assert pack(packed)
    assert not [m for m in packed.modules() if type(m) is nn.Linear]
    ours, expected = HFModel(packed), HFModel(stock)
    for context, want in (([1, 2, 3, 4, 5], 5), ([1, 2, 3, 9], 1), ([1, 2, 3, 9, 9, 9], 2)):
        got = ours.read(context, want=want).logits
        assert torch.allclose(got, expected.read(context, want=want).logits, atol=1e-4)


@needs_packing
def test_a_shared_head_is_packed_once():
    target, draft = llama(), llama(seed=5)
    draft.lm_head.weight = target.lm_head.weight
    shared = {}
    pack(target, shared=shared)
    pack(draft, shared=shared)
    assert draft.lm_head is target.lm_head
    assert draft.model.layers[0].mlp.up_proj is not target.model.layers[0].mlp.up_proj


@needs_packing
def test_only_fp32_is_packed():
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4))
    pack(model)
    assert [type(layer) for layer in model] == [nn.Linear, PackedLinear]


def test_without_the_private_ops_a_model_is_left_alone(monkeypatch):
    linear.is_supported.cache_clear()
    monkeypatch.setattr(linear, "_ops", object)
    try:
        model = nn.Sequential(nn.Linear(4, 4))
        assert not pack(model)
        assert type(model[0]) is nn.Linear
        assert type(trimmed_head(torch.randn(6, 4), None)) is nn.Linear
    finally:
        linear.is_supported.cache_clear()


def test_ops_that_compute_something_else_are_not_used(monkeypatch):
    class Wrong:
        _reorder_linear_weight = staticmethod(lambda weight, rows: weight)
        _linear_pointwise = staticmethod(lambda x, w, *_: x @ w.T + 1)

    linear.is_supported.cache_clear()
    monkeypatch.setattr(linear, "_ops", Wrong)
    try:
        assert not linear.is_supported()
    finally:
        linear.is_supported.cache_clear()


def test_a_trimmed_head_scores_its_tokens_and_rules_out_the_rest():
    weight, vocab = torch.randn(10, 4), torch.tensor([7, 2, 5])
    x = torch.randn(2, 3, 4)
    with torch.inference_mode():
        scores = trimmed_head(weight, vocab)(x)
        full = x @ weight.T
    assert scores.shape == (2, 3, 10)
    assert torch.allclose(scores[..., vocab], full[..., vocab], atol=1e-5)
    others = [i for i in range(10) if i not in (7, 2, 5)]
    assert (scores[..., others] == -torch.inf).all()


def test_a_head_without_a_vocabulary_scores_everything():
    weight, x = torch.randn(10, 4), torch.randn(3, 4)
    head = trimmed_head(weight, None)
    assert not isinstance(head, TrimmedHead)
    with torch.inference_mode():
        assert torch.allclose(head(x), x @ weight.T, atol=1e-5)
