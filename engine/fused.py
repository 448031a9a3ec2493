"""The judgement as part of the target's pass: one recorded piece, one copy to the host per round.

Contract: `FusedStep` gives what `EagerStep` gives, token for token from the same seed, and reports
the time of sampling and rule as part of `verify`, because they cannot be told from it. It needs a
`StaticModel` and settings whose laws do not depend on the text (no repetition penalty); `step_for`
chooses.

`Judgement` is the rule of `engine.verify`, the draw of `engine.sampling` and the looks of
`engine.describe` without a branch on a number: what the host would decide is selected on the
device. Tests hold it equal to those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.describe import NUM_CHOICES, top
from engine.events import Choice, Source, Token, Verdict
from engine.models.base import LanguageModel
from engine.models.static import StaticModel
from engine.proposers.base import Proposer
from engine.sampling import Sampler, Streams
from engine.step import Clock, Drafting, EagerStep, Outcome, Step
from engine.text import Codec
from engine.verify import Rule, verify

Law = tuple[float, int, float, float]
"""Temperature, top-k, top-p, min-p: what a recorded judgement has built in."""


def step_for(
    target: LanguageModel,
    proposer: Proposer,
    codec: Codec,
    sampler: Sampler,
    streams: Streams,
    rule: Rule = verify,
) -> Step:
    """Return the fastest step that gives what these settings ask for."""
    fixed = rule is verify and sampler.settings.repetition_penalty == 1.0
    kind = FusedStep if fixed and isinstance(target, StaticModel) else EagerStep
    return kind(target, proposer, codec, sampler, streams, rule)


class FusedStep(EagerStep):
    """Judge in the recorded pass."""

    @torch.inference_mode()
    def judge(self, token_ids: Sequence[int], drafting: Drafting) -> Outcome:
        """Let the target read context and proposal, judge and draw the next token in one pass."""
        target = self._target
        assert isinstance(target, StaticModel)
        draft = drafting.draft
        clock = Clock(target.device)
        proposed = draft.token_ids.tolist()
        want = len(proposed) + 1
        judgement = target.continuation(
            (want, _law(self._sampler)), lambda: Judgement(len(proposed), self._sampler, target)
        )
        before = self._streams.next.get_state()
        judgement.load(draft.token_ids, draft.probs, self._streams)
        reading, (packed,) = target.read_then(
            [*token_ids, *proposed], judgement, want=want, features=want if self._taps else 0
        )
        found = Found.of(packed.tolist(), len(proposed))
        if found.certain:  # a draw that was no draw costs no random number
            self._streams.next.set_state(before)
        verify_seconds = clock.lap()
        kept = found.num_accepted
        return Outcome(
            token_ids=[*proposed[:kept], found.next_token],
            features=reading.features[: kept + 1],
            verdict=found.verdict(self._codec),
            verify=verify_seconds,
            sampling=0.0,
            rule=0.0,
            bookkeeping=clock.lap(),
            num_rolled_back=reading.num_rolled_back,
            num_forwarded=reading.num_forwarded,
        )


class Judgement:
    """Rule, draw and looks over fixed buffers, for proposals of g tokens under one law."""

    def __init__(self, num_proposed: int, sampler: Sampler, target: StaticModel) -> None:
        self._sampler = sampler
        self._greedy = sampler.settings.temperature == 0
        device, vocab = target.device, target.vocab_size
        self._ids = torch.zeros(num_proposed, dtype=torch.long, device=device)
        self._q = torch.zeros(num_proposed + 1, vocab, device=device)  # the last row stays empty
        self._u = torch.zeros(num_proposed, device=device)
        self._v = torch.zeros(1, dtype=torch.float64, device=device)

    def load(self, token_ids: Tensor, q: Tensor, streams: Streams) -> None:
        """Take a proposal, and the coins for it.  token_ids [g], q [g, V]"""
        self._ids.copy_(token_ids)
        self._q[:-1] = q
        self._u.copy_(torch.rand(len(self._u), generator=streams.accept, device=self._u.device))
        if not self._greedy:
            device = self._v.device
            coin = torch.rand(1, generator=streams.next, dtype=torch.float64, device=device)
            self._v.copy_(coin)

    def __call__(self, logits: Tensor) -> tuple[Tensor]:
        """Judge.  logits [g + 1, V] -> one row of numbers that `Found` reads"""
        g = len(self._ids)
        scores = logits.float()
        p = self._laws(scores)  # [g + 1, V]
        rows = torch.arange(g, device=p.device)
        p_token, q_token = p[rows, self._ids], self._q[rows, self._ids]  # [g]
        passed = (p_token > 0) & ((p_token >= q_token) | (self._u * q_token < p_token))
        num_accepted = passed.long().cumprod(0).sum()[None]  # [1]
        p_next, q_next = p[num_accepted][0], self._q[num_accepted][0]  # [V]
        residual = (p_next - q_next).clamp(min=0.0)
        mass = residual.sum()
        swept = (num_accepted == g) | (mass <= 0)
        next_probs = torch.where(swept, p_next, residual / mass)
        next_token, certain = _drawn(next_probs, self._v)
        law = torch.softmax(scores, -1) if self._greedy else p
        best, best_ids = top(law, min(NUM_CHOICES, law.shape[-1]))
        rest, rest_ids = top(next_probs[None], min(NUM_CHOICES, law.shape[-1]))
        parts = [
            num_accepted,
            next_token,
            certain,
            p_token,
            (p_token / q_token).clamp(max=1.0),
            self._u,
            torch.minimum(p[:-1], self._q[:-1]).sum(-1),
            torch.special.entr(law).sum(-1),
            -top(scores, 2)[0].diff(dim=-1),
            best,
            best_ids,
            rest,
            rest_ids,
        ]
        return (torch.cat([part.double().flatten() for part in parts]),)

    def _laws(self, scores: Tensor) -> Tensor:
        """Return the laws of all positions; `Sampler.probs` without a way over the host."""
        if not self._greedy:
            return self._sampler.warped(scores)
        favourite = scores.argmax(-1, keepdim=True)
        return torch.zeros_like(scores).scatter_(1, favourite, 1.0)


@dataclass(frozen=True, slots=True)
class Found:
    """What a judgement says, on the host."""

    num_accepted: int
    next_token: int
    certain: bool
    columns: tuple[tuple[float, ...], ...]
    """p [g], accept_prob [g], u [g], overlap [g], entropy [g + 1], top2_gap [g + 1]."""
    top: tuple[tuple[tuple[int, float], ...], ...]
    residual_top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, numbers: list[float], g: int) -> Found:
        """Read the row that `Judgement` packs."""
        left = iter(numbers)

        def take(count: int) -> tuple[float, ...]:
            return tuple(next(left) for _ in range(count))

        num_accepted, next_token, certain = take(3)
        columns = tuple(take(size) for size in (g, g, g, g, g + 1, g + 1))
        k = (len(numbers) - 3 - 4 * g - 2 * (g + 1)) // (2 * (g + 2))
        values, ids = take(k * (g + 1)), take(k * (g + 1))
        pairs = [(int(i), value) for i, value in zip(ids, values, strict=True)]
        rest, rest_ids = take(k), take(k)
        return cls(
            int(num_accepted),
            int(next_token),
            bool(certain),
            columns,
            tuple(tuple(pairs[k * row : k * (row + 1)]) for row in range(g + 1)),
            tuple((int(i), value) for i, value in zip(rest_ids, rest, strict=True)),
        )

    def verdict(self, codec: Codec) -> Verdict:
        """Return the record of the verdict."""
        p, accept_prob, u, overlap, entropy, top2_gap = self.columns
        source: Source = "recovered"
        if self.num_accepted == len(p):
            source = "bonus" if p else "target"

        def chosen(pairs: tuple[tuple[int, float], ...]) -> tuple[Choice, ...]:
            return tuple(Choice(i, codec.label(i), value) for i, value in pairs if value > 0)

        return Verdict(
            num_accepted=self.num_accepted,
            next_token=Token(self.next_token, codec.label(self.next_token)),
            next_source=source,
            p=p,
            accept_prob=accept_prob,
            u=u,
            overlap=overlap,
            entropy=entropy,
            top2_gap=top2_gap,
            top=tuple(chosen(row) for row in self.top),
            residual_top=chosen(self.residual_top) if source == "recovered" else (),
        )


def _drawn(probs: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token by inversion, as `sampling.draw` does.  [V], [1] -> [1], [1] (whether sure)"""
    favourite = probs.argmax(-1, keepdim=True)
    certain = probs[favourite] == 1.0
    below = probs.double().cumsum(0)
    token = torch.searchsorted(below, v * below[-1:], right=True)
    places = torch.arange(len(probs), device=probs.device)
    last = torch.where(probs > 0, places, 0).amax(0, keepdim=True)
    token = torch.where(token < len(probs), token, last)
    return torch.where(certain, favourite, token), certain


def _law(sampler: Sampler) -> Law:
    chosen = sampler.settings
    return (chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p)
