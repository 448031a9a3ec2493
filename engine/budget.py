"""Where the milliseconds of a target pass go, next to the least they could be.

Contract: everything is measured, in one process and interleaved: the pass as it is; the same pass
with linears that compute nothing; without attention too; and the last over a model with tiny rows,
which leaves the interpreter and torch's dispatch of the small ops. Differences of their medians
give the parts, so the parts sum to the pass; linears and attention include their own dispatch. The
streaming limit is the time to read as many bytes as the pass reads weights, with torch's own sum.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from engine import catalog
from engine.device import use_cores
from engine.errors import PlaygroundError
from engine.loading import find
from engine.models.lean import LeanLlama, supports
from engine.models.linear import Apply

CONTEXT = 128
WIDTHS = tuple(range(1, 9))
TINY = 64  # hidden size of the model that costs nothing but Python


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds of one pass over `width` tokens; python is that of the small ops."""

    width: int
    linears: float
    attention: float
    small_ops: float
    python: float

    @property
    def total(self) -> float:
        """Return the whole pass."""
        return self.linears + self.attention + self.small_ops + self.python


def pass_budget(pair_id: str, *, repeats: int = 15) -> tuple[list[Parts], float]:
    """Return the parts of passes over 1..8 tokens, and the streaming limit in ms.

    The weights are random: only their shapes matter. Raises PlaygroundError("no_budget") for a
    target that the lean forward does not know.
    """
    known = catalog.load()
    folder = find(known.model(known.pair(pair_id).target))
    use_cores()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config.dtype = torch.float32
    model = LlamaForCausalLM(config) if isinstance(config, LlamaConfig) else None
    if model is None or not supports(model):
        raise PlaygroundError(
            "no_budget",
            f"The target of {pair_id} runs on the library's own modules.",
            "Choose a pair with a Llama target, on a CPU.",
        )
    model = model.eval().requires_grad_(False)
    kinds = {
        "whole": LeanLlama(model),
        "no linears": LeanLlama(model, make=_free),
        "no attention": LeanLlama(model, make=_free, attend=_no_attention),
        "python": LeanLlama(_tiny(config), make=_free, attend=_no_attention),
    }
    bytes_read = sum(p.numel() for p in model.parameters()) * 4  # a tied head counts once
    del model
    return [_parts(kinds, width, repeats) for width in WIDTHS], streaming_ms(bytes_read)


def streaming_ms(num_bytes: int) -> float:
    """Return the milliseconds that reading this many bytes takes at best."""
    data = torch.ones(num_bytes // 4)
    seconds = []
    for _ in range(7):
        begun = time.perf_counter()
        data.sum()
        seconds.append(time.perf_counter() - begun)
    return min(seconds) * 1e3


def table(parts: list[Parts], streaming: float) -> str:
    """Return the budget as text."""
    lines = ["ms per pass   linears  attention  small ops   python    total   over T(1)"]
    for row in parts:
        lines.append(
            f"{row.width} token{'s' if row.width > 1 else ' '}     {row.linears:8.2f} "
            f"{row.attention:10.2f} {row.small_ops:10.2f} {row.python:8.2f} {row.total:8.2f} "
            f"{row.total / parts[0].total:11.2f}"
        )
    share = streaming / parts[0].total
    lines.append(f"streaming the weights once: {streaming:.2f} ms, {share:.0%} of a one-token pass")
    return "\n".join(lines)


def _parts(kinds: dict[str, LeanLlama], width: int, repeats: int) -> Parts:
    times: dict[str, list[float]] = {name: [] for name in kinds}
    ids = [1 + i % 50 for i in range(CONTEXT + width)]
    for _ in range(repeats):
        for name, model in kinds.items():
            model.row_wise = True
            model.read(ids[:CONTEXT])
            begun = time.perf_counter()
            model.read(ids, want=width)
            times[name].append((time.perf_counter() - begun) * 1e3)
    whole, bare, empty, python = (statistics.median(times[name]) for name in kinds)
    return Parts(width, whole - bare, bare - empty, empty - python, python)


def _free(weight: Tensor, bias: Tensor | None = None) -> Apply:
    """Return a linear of the right shape that computes nothing."""
    answer = torch.zeros(CONTEXT + max(WIDTHS), weight.shape[0])
    return lambda x: answer[: x.shape[0]]


def _no_attention(q: Tensor, keys: Tensor, values: Tensor, first: int, row_wise: bool) -> Tensor:
    return q.reshape(q.shape[0], -1)


def _tiny(config: LlamaConfig) -> LlamaForCausalLM:
    """Return a model with as many layers and next to no arithmetic."""
    small = copy.deepcopy(config)
    small.hidden_size, small.intermediate_size, small.vocab_size = TINY, TINY, TINY
    small.num_attention_heads = small.num_key_value_heads = 1
    small.head_dim = 2
    return LlamaForCausalLM(small).eval().requires_grad_(False)
