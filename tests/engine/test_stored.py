"""Weights survive storing up to the rounding that is promised, in either form."""

import pytest
import torch
from safetensors.torch import save_file

from engine.models.stored import compact, read_folder


def test_matrices_come_back_within_half_a_step_of_their_row(tmp_path):
    weight = torch.randn(20, 30) * torch.logspace(-4, 2, 20)[:, None]
    weight[3] = 0.0
    norm = torch.randn(30)
    stored = compact({"block.weight": weight, "norm.weight": norm})
    assert stored["block.weight"].dtype == torch.int8
    save_file(
        {**stored, "draft_vocab": torch.tensor([5, 9], dtype=torch.int32)},
        tmp_path / "a.safetensors",
    )
    back, vocab = read_folder(tmp_path)
    assert set(back) == {"block.weight", "norm.weight"}
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((back["block.weight"] - weight).abs() <= 0.501 * step).all()
    assert torch.equal(back["block.weight"][3], torch.zeros(30))
    assert torch.equal(back["norm.weight"], norm.half().float())
    assert vocab.tolist() == [5, 9]
    assert vocab.dtype == torch.long


def test_storing_again_loses_nothing_more(tmp_path):
    first = compact({"w": torch.randn(8, 16)})
    save_file(first, tmp_path / "a.safetensors")
    second = compact(read_folder(tmp_path)[0])
    assert torch.equal(first["w"], second["w"])
    assert torch.allclose(first["w.scale"], second["w.scale"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_floating_matrices_are_read_as_they_are(dtype, tmp_path):
    weight = torch.randn(4, 5).to(dtype)
    save_file({"a": weight}, tmp_path / "one.safetensors")
    save_file({"b": weight + 1}, tmp_path / "two.safetensors")
    back, vocab = read_folder(tmp_path)
    assert torch.equal(back["a"], weight.float())
    assert torch.equal(back["b"], (weight + 1).float())
    assert vocab is None
