"""The loop: one function for plain and speculative decoding alike.

Contract: `decode` yields `Started`, `Prefilled`, then rounds (`Drafted` when something was
proposed, `Verified`), then `Finished`. The target starts cold. Before every proposal the target
has read everything but the last token, and the proposer gets the features of every position it has
not seen. No clock runs and no torch mode is open while it yields, so a slow reader costs nothing
and the consumer may resume it from any thread. Closing the generator early leaves the models
usable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.events import (
    Drafted,
    Event,
    Finished,
    Prefilled,
    Round,
    Started,
    Timings,
    Token,
    Verified,
)
from engine.fused import step_for
from engine.models.base import LanguageModel
from engine.policy import Policy, policy_for
from engine.proposers.base import Context, Proposer
from engine.sampling import Sampler, Streams
from engine.step import Clock, Step
from engine.text import Codec, Transcript
from engine.verify import Rule, verify


def never() -> bool:
    """Nobody cancels."""
    return False


def decode(
    target: LanguageModel,
    proposer: Proposer,
    codec: Codec,
    started: Started,
    *,
    streams: Streams,
    policy: Policy | None = None,
    rule: Rule = verify,
    step: Step | None = None,
    cancelled: Callable[[], bool] = never,
) -> Generator[Event, None, None]:
    """Run `started` and yield what happens; `streams` and `proposer` belong to this run alone."""
    settings = started.settings
    prompt = list(started.prompt_ids)
    step = step or step_for(target, proposer, codec, Sampler(settings), streams, rule)
    policy = policy or policy_for(settings)
    transcript = Transcript(codec, settings.max_new_tokens, settings.stop)
    pending = _Features()
    yield started
    target.forget()
    prefill = step.prefill(prompt)
    taken, pieces, text = transcript.take([prefill.token])
    ids = [*prompt, *taken]
    pending.add(prefill.features)
    clock = Clock(target.device)
    if not transcript.reason and settings.gamma > 0:
        step.draft(pending.context(ids), 0)
    yield Prefilled(
        num_prompt_tokens=len(prompt),
        output=_tokens(taken, codec),
        pieces=tuple(pieces),
        text=text,
        seconds=prefill.seconds,
        proposer_seconds=clock.lap(),
        p=prefill.p,
        entropy=prefill.entropy,
        top=prefill.top,
    )
    index = 0
    while not transcript.reason:
        if cancelled():
            transcript.end("cancelled")
            break
        if len(ids) >= target.max_length:
            transcript.end("context")
            break
        clock = Clock(target.device)
        # More could not be kept (the round adds a token of the target's own), or not be read.
        room = min(transcript.num_left - 1, target.max_length - len(ids))
        gamma = max(0, min(policy.next_gamma(), room))
        context = pending.context(ids) if gamma else None
        drafting = step.draft(context, gamma)
        total = clock.lap()
        if drafting.proposal.tokens:
            yield Drafted(index, gamma, drafting.proposal, drafting.seconds)
        clock = Clock(target.device)
        outcome = step.judge(ids, drafting)
        total += clock.lap()
        taken, pieces, text = transcript.take(outcome.token_ids)
        text_seconds = clock.lap()
        ids += taken
        pending.add(outcome.features)
        policy.observe(len(drafting.draft), outcome.verdict.num_accepted)
        output = _tokens(taken, codec)
        bookkeeping = clock.lap()
        seconds = Timings(
            draft=drafting.seconds,
            verify=outcome.verify,
            sampling=outcome.sampling,
            rule=outcome.rule,
            text=text_seconds,
            bookkeeping=drafting.bookkeeping + outcome.bookkeeping + bookkeeping,
            total=total + text_seconds + bookkeeping,
        )
        yield Verified(
            Round(
                index=index,
                gamma=gamma,
                proposal=drafting.proposal,
                verdict=outcome.verdict,
                output=output,
                pieces=tuple(pieces),
                text=text,
                seconds=seconds,
                num_rolled_back=outcome.num_rolled_back,
                num_forwarded=outcome.num_forwarded,
            )
        )
        index += 1
    tail = transcript.finish()
    if transcript.reason is None:
        raise RuntimeError("the loop ended without a reason")
    yield Finished(
        token_ids=tuple(transcript.token_ids),
        text=transcript.text,
        tail=tail,
        num_hidden=transcript.num_hidden,
        reason=transcript.reason,
    )


def _tokens(token_ids: list[int], codec: Codec) -> tuple[Token, ...]:
    return tuple(Token(i, codec.label(i)) for i in token_ids)


@dataclass(slots=True)
class _Features:
    """Target features that the proposer has not seen yet."""

    _waiting: list[Tensor] = field(default_factory=list)
    _start: int = 0

    def add(self, features: Tensor) -> None:
        """Queue the features of the next positions.  [n, F]"""
        if features.numel():
            self._waiting.append(features)

    def context(self, token_ids: list[int]) -> Context:
        """Hand over everything that waits."""
        waiting, start = self._waiting, self._start
        features = torch.cat(waiting) if waiting else torch.empty(0, 0)
        self._waiting = []
        self._start += features.shape[0]
        return Context(token_ids, features, start)
