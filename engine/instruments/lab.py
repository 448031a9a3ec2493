"""Does a drawn token follow the target's law? Thousands of draws of one step say so.

The rows p and q of one step are read once: the prompt and one token of the target's own behind it.
Every draw then repeats only what is random: the draft's token, the coin, the token after a loss.
Total variation distance between the drawn shares and p is compared with the distances that exact
draws from p give by chance: its *band* between their 1 % and 99 % points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.instruments.rules import RULES
from engine.proposers.base import Context
from engine.sampling import Sampler, Streams, draw
from engine.verify import Rule

if TYPE_CHECKING:
    from engine.runtime import LoadedPair

SHOWN = 8  # tokens with a bar of their own
NULL_RUNS = 200


def measure(
    pair: LoadedPair,
    method: str,
    prompt: str,
    settings: Settings,
    *,
    cancelled: Callable[[], bool],
    rule: str = "exact",
    num_draws: int = 2000,
) -> dict[str, Any]:
    """Draw; a greedy run is looked at with temperature 1.

    Raises PlaygroundError("nothing_drafted") when the method proposes nothing behind this prompt,
    ValueError for an unknown rule.
    """
    if rule not in RULES:
        raise ValueError(f"no rule {rule!r}")
    if settings.temperature == 0:
        settings = dataclasses.replace(settings, temperature=1.0)
    p, q = _rows(pair, method, prompt, settings)
    streams = Streams.seeded(settings.seed, p.device)
    counts, num_accepted = _draw_all(p, q, RULES[rule], streams, num_draws, cancelled)
    plain = torch.multinomial(p, num_draws, replacement=True, generator=streams.next)
    without = torch.bincount(plain, minlength=p.shape[0]) / num_draws
    with_draft = counts / counts.sum().clamp(min=1)
    band = _band(p, num_draws, streams.next)
    top = p.topk(min(SHOWN, p.shape[0])).indices
    distance = _distance(with_draft, p)
    return {
        "method": method,
        "rule": rule,
        "num_draws": int(counts.sum()),
        "temperature": settings.temperature,
        "labels": [*(pair.codec.label(i) for i in top.tolist()), ""],
        "target": _shares(p, top),
        "with_draft": _shares(with_draft, top),
        "without": _shares(without, top),
        "distance": distance,
        "distance_without": _distance(without, p),
        "band": band,
        "lossless": distance <= band[1],
        "acceptance": num_accepted / max(int(counts.sum()), 1),
        "expected": float(torch.minimum(p, q).sum()),
    }


@torch.inference_mode()
def _rows(pair: LoadedPair, method: str, prompt: str, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return p [V] and q [V] of the first proposed token."""
    with pair.exclusive():
        sampler = Sampler(settings)
        streams = Streams.seeded(settings.seed, pair.target.device)
        proposer = pair.proposer(method, sampler, streams.draft)
        ids = pair.codec.encode(prompt, raw=settings.raw)
        target = pair.target
        target.forget()
        target.tap(proposer.taps)
        reading = target.read(ids, features=len(ids) if proposer.taps else 0)
        context = [*ids, int(reading.logits[-1].argmax())]
        draft = proposer.propose(Context(context, reading.features, 0), 1)
        if not len(draft):
            raise PlaygroundError(
                "nothing_drafted",
                "Nothing was proposed behind this prompt.",
                "Choose another method or prompt.",
                method=method,
            )
        p = sampler.probs(target.read(context).logits, context)[-1]
        return p, draft.probs[0]


@torch.inference_mode()
def _draw_all(
    p: Tensor,
    q: Tensor,
    rule: Rule,
    streams: Streams,
    num_draws: int,
    cancelled: Callable[[], bool],
) -> tuple[Tensor, int]:
    """Return how often each token came first [V], and how often the draft's was accepted."""
    counts = torch.zeros_like(p)
    rows = torch.stack([p, p])  # the second row serves the token behind, which nobody looks at
    drafted = torch.multinomial(q, num_draws, replacement=True, generator=streams.draft)
    coins = torch.rand(num_draws, generator=streams.accept, device=p.device)
    num_accepted = 0
    for i in range(num_draws):
        if i % 64 == 0 and cancelled():
            break
        decision = rule(drafted[i : i + 1], q[None], rows, coins[i : i + 1])
        accepted = decision.num_accepted > 0
        first = int(drafted[i]) if accepted else draw(decision.next_probs, streams.next)
        num_accepted += accepted
        counts[first] += 1
    return counts, num_accepted


def _band(p: Tensor, num_draws: int, generator: torch.Generator) -> list[float]:
    """Return the 1 % and 99 % points of the distance of exact draws."""
    distances = []
    for _ in range(NULL_RUNS):
        drawn = torch.multinomial(p, num_draws, replacement=True, generator=generator)
        shares = torch.bincount(drawn, minlength=p.shape[0]) / num_draws
        distances.append(_distance(shares, p))
    points = torch.tensor(distances, dtype=torch.float64)
    return [float(points.quantile(0.01)), float(points.quantile(0.99))]


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the total variation distance of two laws: half the sum of the differences."""
    return float((a.double() - b.double()).abs().sum() / 2)


def _shares(law: Tensor, top: Tensor) -> list[float]:
    """Return the shares of the top tokens, and of all others together."""
    own = law[top].double()
    return [*own.tolist(), float(law.double().sum() - own.sum())]
