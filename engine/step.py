"""One round: propose, read, judge, draw.

Contract: `Step` is what the loop runs; `EagerStep` composes the protocols. A fused implementation
(one graph for the whole round) is another `Step` whose `draft` does all the work. Every method
enters inference mode by itself, because a mode must never stay open while the loop yields. Clocks
are read after the device is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.describe import (
    choices,
    describe_proposal,
    describe_verdict,
    entropies,
    shown_law,
)
from engine.device import synchronise
from engine.events import Choice, Proposal, Verdict
from engine.models.base import LanguageModel
from engine.proposers.base import Context, Draft, Proposer, no_draft, with_shared_kv
from engine.sampling import Sampler, Streams, draw
from engine.text import Codec
from engine.verify import Rule, verify


class Clock:
    """Splits time into phases: `lap()` returns the seconds since the last lap."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Wait for the device and return the seconds since the last lap (or the start)."""
        synchronise(self._device)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


@dataclass(frozen=True, slots=True)
class Prefill:
    """The target read the prompt: its first draw, features of every prompt position."""

    token: int
    features: Tensor
    p: float
    entropy: float
    top: tuple[Choice, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Drafting:
    """A proposal and its record; `seconds` is None when it cannot be told from the verify pass."""

    draft: Draft
    proposal: Proposal
    seconds: float | None
    bookkeeping: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged proposal: new tokens (accepted ones, then the drawn one), features they leave."""

    token_ids: list[int]
    features: Tensor
    verdict: Verdict
    verify: float
    sampling: float
    rule: float
    bookkeeping: float
    num_rolled_back: int
    num_forwarded: int


class Step(Protocol):
    """The body of the loop."""

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Read the prompt and draw the first token from the target."""
        ...

    def draft(self, context: Context | None, gamma: int) -> Drafting:
        """Ask the proposer; without a context (gamma = 0) propose nothing."""
        ...

    def judge(self, token_ids: Sequence[int], drafting: Drafting) -> Outcome:
        """Read context and proposal in one target pass, judge, and draw the next token."""
        ...


class EagerStep:
    """Compose propose / read / verify with plain torch calls."""

    def __init__(
        self,
        target: LanguageModel,
        proposer: Proposer,
        codec: Codec,
        sampler: Sampler,
        streams: Streams,
        rule: Rule = verify,
    ) -> None:
        self._target = target
        self._proposer = proposer
        self._codec = codec
        self._sampler = sampler
        self._streams = streams
        self._rule = rule
        self._greedy = sampler.settings.temperature == 0
        target.tap(proposer.taps)

    @torch.inference_mode()
    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Read the prompt and draw the first token from the target."""
        clock = Clock(self._target.device)
        reading = self._target.read(prompt_ids, features=len(prompt_ids) if self._taps else 0)
        p = self._sampler.probs(reading.logits, prompt_ids)  # [1, V]
        token = draw(p[0], self._streams.next)
        seconds = clock.lap()
        law = shown_law(p, reading.logits, greedy=self._greedy)
        return Prefill(
            token=token,
            features=reading.features,
            p=float(p[0, token]),
            entropy=float(entropies(law, reading.logits, greedy=self._greedy)),
            top=choices(law, self._codec)[0],
            seconds=seconds,
        )

    @torch.inference_mode()
    def draft(self, context: Context | None, gamma: int) -> Drafting:
        """Ask the proposer; without a context (gamma = 0) propose nothing."""
        clock = Clock(self._target.device)
        if context is None:
            nothing = no_draft(self._target.vocab_size, self._target.device)
            return Drafting(nothing, Proposal((), (), ()), 0.0, clock.lap())
        context = with_shared_kv(context, self._proposer, self._target)
        draft = self._proposer.propose(context, gamma)
        seconds = clock.lap()
        proposal = describe_proposal(draft, self._codec, greedy=self._greedy)
        return Drafting(draft, proposal, seconds, clock.lap())

    @torch.inference_mode()
    def judge(self, token_ids: Sequence[int], drafting: Drafting) -> Outcome:
        """Let the target read context and proposal in one pass, judge, and draw the next token."""
        draft = drafting.draft
        clock = Clock(self._target.device)
        proposed = draft.token_ids.tolist()
        seen = [*token_ids, *proposed]
        want = len(proposed) + 1
        reading = self._target.read(
            seen, want=want, features=want if self._taps else 0, committed=len(token_ids)
        )
        verify_seconds = clock.lap()
        p = self._sampler.probs(reading.logits, seen)  # [g + 1, V]
        u = torch.rand(len(proposed), generator=self._streams.accept, device=p.device)  # [g]
        sampling = clock.lap()
        decision = self._rule(draft.token_ids, draft.probs, p, u)
        rule_seconds = clock.lap()
        next_token = draw(decision.next_probs, self._streams.next)
        sampling += clock.lap()
        verdict = describe_verdict(
            draft,
            p,
            reading.logits,
            u,
            decision,
            next_token,
            self._codec,
            greedy=self._greedy,
        )
        kept = decision.num_accepted
        return Outcome(
            token_ids=[*proposed[:kept], next_token],
            features=reading.features[: kept + 1],
            verdict=verdict,
            verify=verify_seconds,
            sampling=sampling,
            rule=rule_seconds,
            bookkeeping=clock.lap(),
            num_rolled_back=reading.num_rolled_back,
            num_forwarded=reading.num_forwarded,
        )

    @property
    def _taps(self) -> bool:
        return bool(self._proposer.taps)
