"""Linear layers whose weight oneDNN keeps in its own packed layout.

Why: a verify pass multiplies a handful of rows by every weight. Stock `F.linear` on many CPUs pays
almost per row there; a packed weight is streamed once for all rows, which is what makes a pass over
gamma + 1 tokens cost little more than a pass over one. Measured figures are in the README.

The ops are the ones torch's own compiler emits. They are private, so `pack` checks on a small
matrix that they exist and agree with `F.linear`, and leaves the model alone (returning False)
otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

_TYPICAL_ROWS = 8  # the row count oneDNN optimises its layout for


class PackedLinear(nn.Module):
    """y = x W^T + b with a packed W; inference on a CPU in fp32 only."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed = _ops()._reorder_linear_weight(weight.detach().contiguous(), _TYPICAL_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        y: Tensor = _ops()._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y


class TrimmedHead(nn.Module):
    """An output head that scores only some tokens; the others get -inf.

    For drafters: whatever they propose from is a valid q, and a small head is a cheap one.
    """

    def __init__(self, rows: nn.Module, vocab: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.rows = rows
        self._vocab = vocab
        self._vocab_size = vocab_size

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., V]"""
        scores: Tensor = self.rows(x)
        full = scores.new_full((*scores.shape[:-1], self._vocab_size), -torch.inf)
        full[..., self._vocab] = scores
        return full


def trimmed_head(weight: Tensor, vocab: Tensor | None) -> nn.Module:
    """Return a head over the rows `vocab` [R] of weight [V, D], packed where that works."""
    rows = weight if vocab is None else weight[vocab]
    layer: nn.Module = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(rows, requires_grad=False)
    if rows.device.type == "cpu" and is_supported():
        layer = PackedLinear(rows)
    return layer if vocab is None else TrimmedHead(layer, vocab, weight.shape[0])


def pack(model: nn.Module, *, shared: dict[int, nn.Module] | None = None) -> bool:
    """Replace every `nn.Linear` of `model` by a packed one, dropping the originals; say if it did.

    `shared` maps the address of a weight to the layer already packed from it, so that models which
    share a matrix (a tied head) share the packed copy too; pass one dict for all of them.
    """
    if not is_supported():
        return False
    known: dict[int, nn.Module] = {} if shared is None else shared
    _release_files(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                address = child.weight.data_ptr()
                if address not in known:
                    known[address] = PackedLinear(child.weight, child.bias)
                setattr(module, name, known[address])
    return True


def _release_files(model: nn.Module) -> None:
    """Copy small parameters (norms) out of the mapped files, so that those can be let go."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data = parameter.data.clone()


@cache
def is_supported() -> bool:
    """Return whether the packed ops exist here and give `F.linear`'s results."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 64, generator=generator)
    bias = torch.randn(48, generator=generator)
    try:
        with torch.inference_mode():
            for rows in (1, 5):
                x = torch.randn(rows, 64, generator=generator)
                got = PackedLinear(weight, bias)(x)
                if not torch.allclose(got, nn.functional.linear(x, weight, bias), atol=1e-4):
                    return False
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def _ops() -> Any:
    return torch.ops.mkldnn
