"""Time at a model's size: acceptance is set, the text stays the target's."""

import copy

import pytest

from engine import bench_shapes
from engine.bench import table
from engine.bench_shapes import ALPHAS, PROMPT, make, run_shape
from engine.errors import PlaygroundError
from engine.models import loader
from engine.models.static import StaticModel
from tests.engine.replaying import Replaying
from tests.engine.tiny import CPU

SIZES = {
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
SMALLER = {**SIZES, "num_hidden_layers": 1, "tie_word_embeddings": True}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(bench_shapes.SHAPES, "tiny", (SIZES, SMALLER))
    monkeypatch.setattr(bench_shapes, "NEW_TOKENS", 64)
    monkeypatch.setattr(bench_shapes, "GAMMAS", (2, 3))


def test_the_next_token_depends_on_the_last_one_alone():
    made = make(SIZES, SMALLER, CPU)
    for ids in ([5], [9, 9, 5], [1, 2, 3, 4, 5]):
        assert int(made.target.read(ids).logits[-1].argmax()) == made.follows[5]
    assert len(set(made.follows)) > 50


@pytest.mark.parametrize("fixed", [False, True], ids=["growing cache", "fixed places"])
def test_rows_count_what_was_asked_for_and_the_text_is_plain(fixed, monkeypatch):
    if fixed:
        monkeypatch.setattr(
            loader, "prepare", lambda model: StaticModel(copy.deepcopy(model), Replaying())
        )
    result = run_shape("tiny", repeats=1, device="cpu", report=lambda _: None)
    rows = {(row["method"], row["domain"]): row for row in result["rows"]}
    methods = {"plain", "draft", "mtp-qwen", "mtp-deepseek"}
    methods |= {"transformers-plain", "transformers-compiled"}
    domains = {"all", *(f"alpha {alpha}" for alpha in ALPHAS)}
    assert set(rows) == {(method, domain) for method in methods for domain in domains}
    assert all(row["identical"] for row in rows.values())
    for method in ("draft", "mtp-qwen", "mtp-deepseek"):
        rates = [rows[method, f"alpha {alpha}"]["acceptance_rate"] for alpha in ALPHAS]
        lengths = [rows[method, f"alpha {a}"]["mean_acceptance_length"] for a in ALPHAS]
        assert rates == sorted(rates)
        assert 1 < lengths[0] < lengths[-1] <= 4
        # gamma 2 or 3: alpha + alpha^2 (+ alpha^3) of two (three) drafts pass on average.
        for alpha, rate in zip(ALPHAS, rates, strict=True):
            low, high = sum(alpha**i for i in (1, 2, 3)) / 3, (alpha + alpha**2) / 2
            assert low - 0.2 < rate < high + 0.2
    limit = result["limit"]
    assert len(limit["passes_ms"]) == 16
    # Two layers, the head, norms; of the separate embedding nothing.
    layer = 32 * (64 + 64 + 64) + 64 * 32 - 32 * 64 + 3 * 32 * 48
    assert limit["weights_mb"] == pytest.approx(4 * (2 * layer + 512 * 32) / 1e6, abs=0.1)
    assert result["provenance"]["pair"] == "tiny"
    assert "mtp-qwen" in table(result)


def test_an_unknown_shape_is_refused():
    with pytest.raises(PlaygroundError) as caught:
        run_shape("nonsense")
    assert caught.value.code == "unknown_shape"
    assert "8b" in caught.value.remedy


def test_the_prompt_fits_the_smallest_shape():
    assert SIZES["max_position_embeddings"] > PROMPT + 64
