"""The training loop both drafters share: resumable, bounded by seconds, honest about them.

Contract: `train` runs until `seconds` of training (over all sittings) are used up, saving its
state and its learning curve about every two minutes; calling it again goes on from there. The
learning rate follows a cosine over the whole budget. It returns what was actually spent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.training.data import Batch, Corpus

SAVE_EVERY = 120.0
WARM_UP_STEPS = 40
LONGEST_STEP = 20.0  # seconds; a step that took longer was suspended meanwhile


@dataclass(slots=True)
class Spent:
    """What training took so far; curve: rows of seconds, tokens, acceptance by position."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    curve: list[list[float]] = field(default_factory=list)


def train(
    module: nn.Module,
    corpus: Corpus,
    loss_of: Callable[[Batch], Tensor],
    *,
    state_path: Path,
    seconds: float,
    learning_rate: float,
    batch_size: int,
    evaluate: Callable[[], list[float]],
    report: Callable[[str], None],
    seed: int = 0,
) -> Spent:
    """Train the parameters of `module` that require gradients; `evaluate` gives the curve."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95))
    spent = Spent()
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        module.load_state_dict(state["module"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        spent = Spent(**state["spent"])
    device = parameters[0].device
    dtype = fastest_dtype(device)
    batches = corpus.epochs(batch_size, seed, skip=spent.steps)
    saved = spent.seconds
    while spent.seconds < seconds:
        begun = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * _schedule(spent.steps, spent.seconds / seconds)
        batch = next(batches).to(device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        spent.steps += 1
        spent.tokens += int(batch.mask.sum())
        spent.seconds += min(time.monotonic() - begun, LONGEST_STEP)
        if spent.steps % 50 == 0:
            report(
                f"{spent.seconds:.0f} s, step {spent.steps}, "
                f"{spent.tokens / 1e6:.2f} M tokens, loss {loss.item():.3f}"
            )
        if spent.seconds - saved > SAVE_EVERY or spent.seconds >= seconds:
            saved = spent.seconds
            rates = evaluate()
            spent.curve.append([spent.seconds, float(spent.tokens), *rates])
            _save(state_path, module, optimizer, spent)
            report(f"{spent.seconds:.0f} s: {' / '.join(f'{rate:.3f}' for rate in rates)}")
    return spent


def _schedule(step: float, done: float) -> float:
    """Warm up, then a cosine down to 5 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return min(1.0, (step + 1) / WARM_UP_STEPS) * (0.95 * cosine + 0.05)


def _save(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, spent: Spent) -> None:
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    weights = {n: t for n, t in module.state_dict().items() if n in trained}
    partial = path.with_suffix(".partial")
    torch.save(
        {"module": weights, "optimizer": optimizer.state_dict(), "spent": asdict(spent)}, partial
    )
    partial.rename(path)


def fastest_dtype(device: torch.device) -> torch.dtype:
    """Return bf16 where a matrix product in it is faster here, else fp32."""
    if device.type != "cpu":
        return torch.bfloat16
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(1024, 1024).to(dtype)
        a @ a
        begun = time.perf_counter()
        for _ in range(3):
            a @ a
        times[dtype] = time.perf_counter() - begun
    return min(times, key=lambda dtype: times[dtype])


def soft_cross_entropy(scores: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean cross-entropy of scores [n, R] against softmax(teacher) [n, R]."""
    wanted = torch.softmax(teacher.float(), -1)
    return -(wanted * torch.log_softmax(scores.float(), -1)).sum(-1).mean()
