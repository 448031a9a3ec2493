"""Linear layers with weights in a layout of their own: oneDNN's packed fp32, or int8.

Why: a verify pass multiplies a handful of rows by every weight. Stock `F.linear` on many CPUs pays
almost per row there; a packed weight is streamed once for all rows, which is what makes a pass over
gamma + 1 tokens cost little more than a pass over one. Measured figures are in the README.

The ops are the ones torch's own compiler emits. They are private, so `pack` checks on a small
matrix that they exist and agree with `F.linear`, and leaves the model alone (returning False)
otherwise.

int8 is for drafters only: whatever they propose is judged by the target, so rounding costs a little
acceptance and never correctness.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

Apply = Callable[[Tensor], Tensor]
"""x [..., in] -> [..., out]."""

_LAYOUT_ROWS = 64
"""The row count oneDNN chooses its layout for: measured 1 to 6 % faster over 1 to 9 rows than the
layout for 8, with AVX2 and with AVX-512."""


class PackedLinear(nn.Module):
    """y = x W^T + b with a packed W; inference on a CPU in fp32 only.

    oneDNN may pick another kernel, with another order of summation, for a single row. With `steady`
    that is looked for, and a single row then runs as two, so that it gives the bits it would give
    among others.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, steady: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed = _ops()._reorder_linear_weight(weight.detach().contiguous(), _LAYOUT_ROWS)
        self._doubles = steady and self._single_rows_differ()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        if self._doubles and x.shape[0] == 1:
            return self._product(x.expand(2, -1).contiguous())[:1]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        y: Tensor = _ops()._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y

    @torch.inference_mode()
    def _single_rows_differ(self) -> bool:
        x = torch.randn(4, self.in_features, generator=torch.Generator().manual_seed(0))
        return not torch.equal(self._product(x[:1]), self._product(x)[:1])


class Int8Linear(nn.Module):
    """y = x W^T + b with an int8 W (a scale per row) and x quantised as it comes; on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().float()
        scales = weight.abs().amax(1).clamp(min=1e-12).double() / 127  # [out]
        zeros = torch.zeros(self.out_features, dtype=torch.long)
        with warnings.catch_warnings():  # torch may drop these one day; `int8_pays` would see it
            warnings.simplefilter("ignore", UserWarning)
            stored = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(stored, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]"""
        # Without VNNI a full 8-bit range can overflow the 16-bit sums; 7 bits cannot.
        y: Tensor = torch.ops.quantized.linear_dynamic(x.contiguous(), self._packed, True)
        return y


def packed(weight: Tensor, bias: Tensor | None = None) -> Apply:
    """Return a packed linear whose rows do not depend on each other, or torch's own."""
    if is_supported():
        return PackedLinear(weight, bias, steady=True)
    return partial(_stock, weight, bias)


def int8(weight: Tensor, bias: Tensor | None = None) -> Apply:
    """Return an int8 linear."""
    return Int8Linear(weight, bias)


def _stock(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return nn.functional.linear(x, weight, bias)


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


def trimmed_head(weight: Tensor, vocab: Tensor | None, *, in_int8: bool = False) -> nn.Module:
    """Return a head over the rows `vocab` [R] of weight [V, D], packed where that works."""
    rows = weight if vocab is None else weight[vocab]
    layer: nn.Module = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(rows, requires_grad=False)
    if in_int8:
        layer = Int8Linear(rows)
    elif rows.device.type == "cpu" and is_supported():
        layer = PackedLinear(rows)
    return layer if vocab is None else TrimmedHead(layer, vocab, weight.shape[0])


def pack(model: nn.Module) -> bool:
    """Replace every `nn.Linear` of `model` by a packed one, dropping the originals; say if it did.

    Layers that share a weight share the packed copy.
    """
    if not is_supported():
        return False
    known: dict[int, nn.Module] = {}
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


@cache
def int8_pays() -> bool:
    """Return whether int8 works here and is faster than packed fp32, on one matrix of a draft."""
    weight = torch.randn(3072, 576, generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, 576, generator=torch.Generator().manual_seed(1))
    try:
        rounded = Int8Linear(weight)
        with torch.inference_mode():
            exact = nn.functional.linear(x, weight)
            if (rounded(x) - exact).norm() > 0.05 * exact.norm():
                return False
            return _fastest(rounded, x) < _fastest(packed(weight), x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def _fastest(layer: Apply, x: Tensor) -> float:
    """Return the seconds of the fastest of some calls."""
    best = float("inf")
    for _ in range(30):
        begun = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - begun)
    return best


def _ops() -> Any:
    return torch.ops.mkldnn
