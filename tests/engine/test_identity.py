"""Passes over k tokens give the bits of k passes over one, and the self-test notices when not."""

import dataclasses

import pytest
import torch

from engine.models import identity, linear
from engine.models.base import Reading
from engine.models.hf import HFModel
from engine.models.identity import MOST_COST, PLACES, WIDTHS, Identity, passes_agree, settle
from engine.models.lean import MOST_ROWS, LeanLlama, attention
from engine.models.toy import ToyModel
from tests.engine.tiny import VOCAB, llama

needs_packing = pytest.mark.skipif(
    not linear.is_supported(), reason="this torch build has no packed linear ops"
)
SHAPES = {
    "two heads a key": {},
    "one key for all": {"num_key_value_heads": 1},
    "a key per head": {"num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "as wide as the bundled ones": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "initializer_range": 0.05,
    },
}


def lean(*, row_wise=True, **changes) -> LeanLlama:
    model = LeanLlama(llama(noise=0.05, **changes))
    model.row_wise = row_wise
    return model


@needs_packing
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_wise_pass_over_several_tokens_is_as_many_passes_over_one(name):
    model = lean(**SHAPES[name])
    model.tap(("final", 1))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (290,), generator=generator).tolist()
    for place in (1, 2, 17, 63, 64, 129, 255, 270):
        model.forget()
        if place > 1:  # the last token has a pass of its own, here as below
            model.read(ids[: place - 1])
        model.read(ids[:place])
        singles = [
            model.read(ids[: place + i + 1], features=1) for i in range(MOST_ROWS)
        ]  # one token each
        assert [reading.num_forwarded for reading in singles] == [1] * MOST_ROWS
        for width in (2, 3, 4, 5, 8, 9, MOST_ROWS):
            model.read(ids[:place])
            got = model.read(ids[: place + width], want=width, features=width)
            assert got.num_forwarded == width
            logits = torch.cat([reading.logits for reading in singles[:width]])
            features = torch.cat([reading.features for reading in singles[:width]])
            assert torch.equal(got.logits, logits), (place, width)
            assert torch.equal(got.features, features), (place, width)


@needs_packing
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_self_test_agrees(name, place):
    assert passes_agree(lean(**SHAPES[name]), place)


def test_a_table_model_agrees_with_itself():
    assert passes_agree(ToyModel(8), PLACES[0])


class Nudged:
    """A table model whose logits are off by one rounding in some passes."""

    def __init__(self, applies):
        self.vocab_size = 8
        self._model = ToyModel(8)
        self._applies = applies

    def forget(self):
        self._model.forget()

    def read(self, ids, *, want=1) -> Reading:
        reading = self._model.read(ids, want=want)
        logits = reading.logits.clone()
        if self._applies(reading.num_forwarded):
            logits[-1, 3] += 1e-6 * (1 + logits[-1, 3].abs())
        return dataclasses.replace(reading, logits=logits)


@pytest.mark.parametrize("width", WIDTHS)
def test_one_wrong_bit_in_passes_of_one_width_is_noticed(width):
    assert not passes_agree(Nudged(lambda rows: rows == width), PLACES[0])


def test_one_wrong_bit_in_passes_over_a_single_token_is_noticed():
    assert not passes_agree(Nudged(lambda rows: rows == 1), PLACES[0])


def test_rows_that_see_how_many_they_are_are_noticed():
    def counting(q, keys, values, first, row_wise):
        return attention(q, keys, values, first, row_wise) * (1 + 1e-6 * (q.shape[0] > 1))

    model = LeanLlama(llama(noise=0.05), attend=counting)
    model.row_wise = True
    assert not passes_agree(model, PLACES[0])


# --- what is made of it ---


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("model", [ToyModel(8), HFModel(llama())], ids=["toy", "library"])
def test_a_model_that_cannot_attend_row_by_row_is_left_alone(model, before):
    model.row_wise = before
    assert settle(model) == Identity(bit_identical=False, cost=1.0)
    assert model.row_wise is before


@pytest.mark.parametrize(
    ("agree", "cost", "expected"),
    [
        (True, 1.0, Identity(True, 1.0)),
        (True, MOST_COST, Identity(True, MOST_COST)),
        (True, MOST_COST + 0.01, Identity(False, MOST_COST + 0.01)),
        (False, 0.5, Identity(False, 1.0)),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_row_wise_is_chosen_where_it_gives_identity_and_costs_little(
    before, agree, cost, expected, monkeypatch
):
    monkeypatch.setattr(identity, "passes_agree", lambda model, place: agree)
    monkeypatch.setattr(identity, "_cost", lambda model: cost)
    model = lean(row_wise=before)
    assert settle(model) == expected
    assert model.row_wise is expected.bit_identical


def test_one_place_that_disagrees_is_enough(monkeypatch):
    asked = []

    def agree(model, place):
        asked.append((place, model.row_wise))
        return place != PLACES[-1]

    monkeypatch.setattr(identity, "passes_agree", agree)
    model = lean(row_wise=False)
    assert not settle(model).bit_identical
    assert not model.row_wise
    assert asked == [(place, True) for place in PLACES]


@needs_packing
def test_a_settled_model_is_cold_and_does_what_was_found():
    model = lean()
    found = settle(model)
    assert found.cost > 0
    assert model.row_wise == found.bit_identical == (found.cost <= MOST_COST)
    reading = model.read([1, 2, 3])
    assert (reading.num_rolled_back, reading.num_forwarded) == (0, 3)
    expected = HFModel(llama(noise=0.05)).read([1, 2, 3]).logits
    assert torch.allclose(reading.logits, expected, atol=1e-4)
