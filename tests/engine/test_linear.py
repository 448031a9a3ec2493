import pytest
import torch
from torch import nn

from engine.models import linear
from engine.models.hf import HFModel
from engine.models.linear import (
    Int8Linear,
    PackedLinear,
    TrimmedHead,
    int8_pays,
    pack,
    packed,
    trimmed_head,
)
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


# [out, in]: the matrices of the bundled models, and odd ones.
SHAPES = [
    (576, 1536),
    (3072, 576),
    (960, 576),
    (576, 576),
    (576, 1152),
    (4096, 576),
    (48, 32),
    (97, 32),
    (7, 5),
    (1, 300),
]


def random_layer(shape, *, bias):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator) * 0.05
    x = torch.randn(16, shape[1], generator=generator)
    return weight, torch.randn(shape[0], generator=generator) if bias else None, x


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_of_a_steady_linear_does_not_depend_on_the_others(shape, bias):
    weight, offset, x = random_layer(shape, bias=bias)
    layer = PackedLinear(weight, offset, steady=True)
    with torch.inference_mode():
        alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
        assert alone.shape == (16, shape[0])
        assert torch.allclose(alone, nn.functional.linear(x, weight, offset), atol=1e-4)
        for rows in (2, 3, 4, 5, 8, 9, 16):
            for first in range(0, 16 - rows + 1, 3):
                together = layer(x[first : first + rows])
                assert torch.equal(together, alone[first : first + rows]), (rows, first)


def test_a_single_row_that_would_differ_runs_as_two(monkeypatch):
    """oneDNN may sum a single row in another order; here a stand-in always does."""
    seen = []

    class Unsteady:
        _reorder_linear_weight = staticmethod(lambda weight, rows: weight)

        @staticmethod
        def _linear_pointwise(x, w, *_):
            seen.append(len(x))
            return x @ w.T + (1e-5 if len(x) == 1 else 0)

    monkeypatch.setattr(linear, "_ops", Unsteady)
    weight, x = torch.randn(6, 4), torch.randn(3, 4)
    steady, other = PackedLinear(weight, steady=True), PackedLinear(weight)
    seen.clear()
    assert steady(x[:1]).shape == (1, 6)
    steady(x)
    other(x[:1])
    assert seen == [2, 3, 1]
    assert torch.equal(steady(x[:1]), (x[:1].expand(2, -1) @ weight.T)[:1])
    assert not torch.equal(other(x[:1]), steady(x[:1]))


def test_without_the_private_ops_a_packed_linear_is_torchs_own(monkeypatch):
    monkeypatch.setattr(linear, "is_supported", lambda: False)
    weight, bias, x = torch.randn(6, 4), torch.randn(6), torch.randn(3, 4)
    assert torch.equal(packed(weight, bias)(x), nn.functional.linear(x, weight, bias))
    assert torch.equal(packed(weight)(x), nn.functional.linear(x, weight))


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_int8_linear_is_close_to_the_exact_one(shape, bias, rows):
    weight, offset, x = random_layer(shape, bias=bias)
    x = x[:rows]
    with torch.inference_mode():
        got = linear.int8(weight, offset)(x)
        exact = nn.functional.linear(x, weight, offset)
    assert got.shape == exact.shape
    assert 0 < (got - exact).norm() < 0.05 * exact.norm()


def test_every_row_of_an_int8_weight_has_a_scale_of_its_own():
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([1e-3, 1.0, 1e3, 0.0, 1.0, 1e2, 1e-2, 5.0])
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        got = Int8Linear(weight * sizes[:, None])(x)[0]
    exact = (weight @ x[0]) * sizes
    assert ((got - exact).abs() <= 0.05 * sizes * x.norm()).all()
    assert got[3] == 0


@pytest.fixture
def fresh_verdict():
    """`int8_pays` looks again, and forgets what it saw in the test."""
    int8_pays.cache_clear()
    yield
    int8_pays.cache_clear()


@pytest.mark.usefixtures("fresh_verdict")
@pytest.mark.parametrize(
    ("int8_seconds", "fp32_seconds", "pays"), [(1.0, 2.0, True), (2.0, 1.0, False)]
)
def test_int8_pays_when_it_is_measured_to_be_faster(monkeypatch, int8_seconds, fp32_seconds, pays):
    def seconds(layer, x):
        return int8_seconds if isinstance(layer, Int8Linear) else fp32_seconds

    monkeypatch.setattr(linear, "_fastest", seconds)
    assert int8_pays() is pays


@pytest.mark.usefixtures("fresh_verdict")
def test_int8_that_is_missing_or_wrong_does_not_pay(monkeypatch):
    class Wrong(Int8Linear):
        def forward(self, x):
            return 1.1 * super().forward(x)

    def missing(*_):
        raise NotImplementedError

    monkeypatch.setattr(linear, "_fastest", lambda layer, x: 1.0 - isinstance(layer, Int8Linear))
    assert int8_pays()
    for stand_in in (Wrong, missing):
        int8_pays.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(linear, "Int8Linear", stand_in)
            assert not int8_pays()


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
def test_a_weight_that_two_layers_share_is_packed_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    pack(model)
    assert model[2] is model[0]
    assert model[1] is not model[0]


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


def test_an_int8_head_scores_the_same_tokens():
    weight, vocab = torch.randn(40, 64), torch.tensor([7, 2, 35])
    x = torch.randn(2, 64)
    with torch.inference_mode():
        scores = trimmed_head(weight, vocab, in_int8=True)(x)
        full = x @ weight.T
    assert isinstance(trimmed_head(weight, None, in_int8=True), Int8Linear)
    assert torch.isfinite(scores).sum() == 6
    kept = scores[:, vocab]
    assert 0 < (kept - full[:, vocab]).norm() < 0.05 * full[:, vocab].norm()


def test_a_head_without_a_vocabulary_scores_everything():
    weight, x = torch.randn(10, 4), torch.randn(3, 4)
    head = trimmed_head(weight, None)
    assert not isinstance(head, TrimmedHead)
    with torch.inference_mode():
        assert torch.allclose(head(x), x @ weight.T, atol=1e-5)
