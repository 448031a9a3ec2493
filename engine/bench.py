"""Measure speed on this machine, as ratios.

Contract: everything compared is measured interleaved in one process, after a warm-up, and reported
as the median of per-repeat ratios with their range. transformers' own `generate` on the same
weights stands beside our plain decoding, which is *the* baseline.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from engine import catalog
from engine.device import peak_memory_gb
from engine.events import Settings
from engine.metrics import fold
from engine.models.source import checkpoint_folder
from engine.runtime import LoadedPair, load_pair

WIDTHS = (1, 2, 3, 4, 5, 6, 8)
CONTEXT = 128
NEW_TOKENS = 64
METHODS = (("mtp", 1), ("mtp", 2), ("mtp", 3), ("draft", 1), ("draft", 2), ("lookup", 3))

Report = Callable[[str], None]


def run_bench(
    pair_id: str, *, device: str | None = None, repeats: int = 5, report: Report = print
) -> dict[str, Any]:
    """Return pass costs, decoding speeds and memory of a pair, ready to print."""
    pair = load_pair(pair_id, device=device)
    memory = round(peak_memory_gb(), 2)  # before the reference model joins
    report("verify passes")
    passes = pass_costs(pair, repeats=repeats * 4)
    report("decoding")
    speeds = decode_speeds(pair, repeats=repeats, report=report)
    return {
        "machine": pair.where,
        "pass over k tokens / one-token pass": passes,
        "speed / plain decoding on this engine": speeds,
        "memory": {"peak GB of engine and pair": memory},
    }


def pass_costs(pair: LoadedPair, *, repeats: int) -> dict[str, str]:
    """Return T(k) / T(1) of the target behind a context of 128 tokens, and T(1) in ms."""
    target = pair.target
    generator = torch.Generator().manual_seed(0)
    size = CONTEXT + max(WIDTHS)
    ids = torch.randint(0, target.vocab_size, (size,), generator=generator).tolist()
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    target.forget()
    target.read(ids[:CONTEXT])
    for _ in range(repeats):
        for width in WIDTHS:
            target.read(ids[:CONTEXT])  # roll back to the same context, outside the clock
            begun = time.perf_counter()
            target.read(ids[: CONTEXT + width], want=width)
            times[width].append(time.perf_counter() - begun)
    one = times[1]
    rows = {
        f"k = {width}": _spread([t / base for t, base in zip(times[width], one, strict=True)])
        for width in WIDTHS
    }
    return {"one-token pass": f"{statistics.median(one) * 1e3:.1f} ms", **rows}


def decode_speeds(pair: LoadedPair, *, repeats: int, report: Report) -> dict[str, str]:
    """Return the speed of every method over plain, pooled over the preset prompts."""
    known = catalog.load()
    prompts = [preset.prompt for preset in known.presets.values()]
    folder = checkpoint_folder(known.models[known.pair(pair.id).target])
    generate = reference(pair, str(folder))
    ratios: dict[str, list[float]] = {}
    plain_speed = []
    for repeat in range(repeats):
        prompt_set = prompts if repeat % 2 == 0 else prompts[::-1]
        plain = sum(_seconds(pair, "plain", 0, prompt) for prompt in prompt_set)
        plain_speed.append(len(prompts) * (NEW_TOKENS - 1) / plain)
        theirs = sum(generate(prompt) for prompt in prompt_set)
        ratios.setdefault("transformers generate", []).append(plain / theirs)
        for method, gamma in METHODS:
            if method in pair.methods:
                ours = sum(_seconds(pair, method, gamma, prompt) for prompt in prompt_set)
                ratios.setdefault(f"{method}, gamma {gamma}", []).append(plain / ours)
        report(f"repeat {repeat + 1} of {repeats}")
    return {
        "plain": f"{statistics.median(plain_speed):.1f} tokens/s",
        **{name: _spread(values) for name, values in ratios.items()},
    }


def reference(pair: LoadedPair, folder: str) -> Callable[[str], float]:
    """Return a function that times transformers' greedy `generate` on the same weights.

    Its time per prompt covers the same tokens as a run's decode time: all but the first.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def measure(prompt: str) -> float:
        ids = torch.tensor([pair.codec.encode(prompt)])
        seconds = []
        for count in (1, NEW_TOKENS):
            begun = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
            )
            seconds.append(time.perf_counter() - begun)
        return seconds[1] - seconds[0]

    return measure


def _seconds(pair: LoadedPair, method: str, gamma: int, prompt: str) -> float:
    """Return the decode seconds of one greedy run, scaled to NEW_TOKENS - 1 tokens."""
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    metrics = fold(pair.run(method, prompt, settings))
    tokens = metrics.num_emitted - metrics.num_prefill_tokens
    return metrics.decode_seconds * (NEW_TOKENS - 1) / tokens


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"
