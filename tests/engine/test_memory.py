import torch
from torch import nn

from engine.memory import held_bytes
from engine.models.linear import Int8Linear, PackedLinear, int8_pays, is_supported
from tests.engine.tiny import llama, tiny_pair, toy_pair


def test_every_storage_counts_once_whoever_shares_it():
    model = llama()
    weights = sum(p.numel() * 4 for p in {id(p): p for p in model.parameters()}.values())
    assert weights <= held_bytes(model) <= weights + 4096  # and the rotary table
    assert held_bytes(model, model, [model]) == held_bytes(model)
    row = torch.zeros(1000)
    assert held_bytes([row, row[:10], {"part": row[5:]}]) == 4000


def test_packed_and_int8_weights_count_by_their_shape():
    weight = torch.randn(48, 64)
    if is_supported():
        assert 48 * 64 * 4 <= held_bytes(PackedLinear(weight)) <= 48 * 64 * 4 + 4096
    if int8_pays():
        assert 48 * 64 <= held_bytes(Int8Linear(weight)) < 48 * 64 * 2


def test_a_method_needs_its_target_and_its_drafter():
    pair = tiny_pair()
    plain = pair.memory("plain")
    assert plain >= held_bytes(pair.target)
    assert pair.memory("lookup") == plain
    assert pair.memory("draft") >= plain + held_bytes(pair.draft) * 0.5
    assert plain < pair.memory("mtp") < 2 * plain
    module = nn.Linear(4, 4)
    assert held_bytes(module) == 80
    assert toy_pair().memory("plain") == toy_pair().target.table.nbytes
