"""From logits to the distribution a token is drawn from.

Contract: `Sampler.probs` gives one row per position, each with the processors applied to *its own*
prefix (a repetition penalty on row i knows the tokens proposed before i). Greedy is temperature 0:
a one-hot row at the first largest logit. Everything is fp32. The processors are transformers' own,
in `generate`'s order, so the distributions are those of `generate` with the same settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.events import Settings


@dataclass(slots=True)
class Sampler:
    """The user's processors: repetition penalty, temperature, top-k, top-p, min-p."""

    settings: Settings
    _penalty: RepetitionPenaltyLogitsProcessor | None = field(init=False, default=None)
    _warpers: LogitsProcessorList = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.settings
        if chosen.repetition_penalty != 1.0:
            self._penalty = RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty)
        self._warpers = LogitsProcessorList()
        if chosen.temperature > 0:
            if chosen.temperature != 1.0:
                # The floor keeps logits / temperature finite in fp32.
                self._warpers.append(TemperatureLogitsWarper(max(chosen.temperature, 1e-30)))
            if chosen.top_k > 0:
                self._warpers.append(TopKLogitsWarper(chosen.top_k))
            if chosen.top_p < 1.0:
                self._warpers.append(TopPLogitsWarper(chosen.top_p))
            if chosen.min_p > 0.0:
                self._warpers.append(MinPLogitsWarper(chosen.min_p))

    def probs(self, logits: Tensor, token_ids: Sequence[int]) -> Tensor:
        """Return the distributions of the last n positions.

        logits [n, V]: row i predicts the token after token_ids[: len - n + 1 + i]. -> [n, V]
        """
        scores = self.scores(logits, token_ids)
        if self.settings.temperature == 0:
            return torch.zeros_like(scores).scatter_(1, largest(scores)[:, None], 1.0)
        return self.warped(scores)

    def warped(self, scores: Tensor) -> Tensor:
        """Return the laws at temperatures above 0.  [n, V] -> [n, V]"""
        # These warpers never look at the ids.
        scores = self._warpers(torch.empty(0, dtype=torch.long), scores)
        return torch.softmax(scores, dim=-1)

    def scores(self, logits: Tensor, token_ids: Sequence[int]) -> Tensor:
        """Return what a greedy choice maximises: logits after the penalty.  [n, V] -> [n, V]"""
        scores = logits.float()
        if self._penalty is None:
            return scores
        ids = torch.tensor([list(token_ids)], device=logits.device)
        first = len(token_ids) - logits.shape[0] + 1
        rows = [
            self._penalty(ids[:, : first + i], scores[i : i + 1].clone())
            for i in range(logits.shape[0])
        ]
        return torch.cat(rows)

    def is_unsure(self, logits: Tensor, token: int) -> bool:
        """Return whether a drafting model gave `token` less than the confidence cut.  [1, V]

        Looks at the model's own softmax. Stopping *after* a token is exact; dropping it is not.
        """
        cut = self.settings.confidence
        return cut > 0 and float(torch.softmax(logits[0].float(), -1)[token]) < cut


def draw(probs: Tensor, generator: torch.Generator) -> int:
    """Draw one token from probs [V]; a one-hot row costs no random number.

    By inversion: one uniform number and a running sum, in fp64. `torch.multinomial` draws a number
    per token of the vocabulary, which takes longer than a draft step.
    """
    favourite = int(largest(probs[None]))
    if float(probs[favourite]) == 1.0:
        return favourite
    below = probs.double().cumsum(0)  # [V]
    u = torch.rand(1, generator=generator, dtype=torch.float64, device=probs.device)
    token = int(torch.searchsorted(below, u * below[-1], right=True))
    # u * total may round up to the total; the last token with any probability is meant then.
    return token if token < len(probs) else int(probs.nonzero()[-1])


def largest(rows: Tensor) -> Tensor:
    """Return the index of the first largest value of each row.  [n, V] -> [n]"""
    if rows.device.type == "cpu":
        return torch.from_numpy(rows.numpy().argmax(-1))  # many times as fast as torch's here
    return rows.argmax(-1)


@dataclass(slots=True)
class Streams:
    """Independent random streams of one run: draft draws, acceptance coins, next-token draws.

    They must not share numbers: reusing the draft's randomness for the residual biases the output.
    """

    draft: torch.Generator
    accept: torch.Generator
    next: torch.Generator

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> Streams:
        """Derive the three streams from the user's seed."""
        return cls(*(_stream(seed, number, device) for number in range(3)))


def _stream(seed: int, number: int, device: torch.device) -> torch.Generator:
    # SplitMix64 (Steele et al. 2014): neighbouring seeds must give unrelated streams.
    mask = (1 << 64) - 1
    z = (seed * 3 + number + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return torch.Generator(device=device).manual_seed((z ^ (z >> 31)) >> 1)
