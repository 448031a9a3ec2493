"""Another `Step` can stand in for the eager one: the loop only sees the protocol."""

import dataclasses

import pytest
import torch

from engine.events import Drafted, Settings
from engine.metrics import fold
from engine.models.toy import ToyCodec, ToyModel
from engine.proposers.draft_model import DraftModel
from engine.sampling import Sampler, Streams
from engine.step import EagerStep
from tests.engine.tiny import CPU, finished, rounds, run

CHOSEN = Settings(gamma=3, max_new_tokens=20, temperature=1.0)


class Fused(EagerStep):
    """Cannot tell drafting from verifying."""

    def draft(self, context, gamma):
        return dataclasses.replace(super().draft(context, gamma), seconds=None)


def parts():
    target, streams = ToyModel(8), Streams.seeded(0, CPU)
    sampler = Sampler(CHOSEN)
    proposer = DraftModel(ToyModel(8, noise=1.0), sampler, streams.draft, vocab_size=8)
    return target, proposer, sampler, streams


@pytest.fixture
def eager():
    target, proposer, _, streams = parts()
    return run(target, proposer, [1, 2], CHOSEN, streams=streams)


@pytest.fixture
def fused():
    target, proposer, sampler, streams = parts()
    step = Fused(target, proposer, ToyCodec(8), sampler, streams)
    return run(target, proposer, [1, 2], CHOSEN, streams=streams, step=step)


def test_a_step_that_cannot_split_its_time_gives_the_same_text(eager, fused):
    assert finished(fused) == finished(eager)
    assert [done.verdict for done in rounds(fused)] == [done.verdict for done in rounds(eager)]


def test_an_unknown_split_is_reported_as_unknown(fused):
    assert all(event.seconds is None for event in fused if isinstance(event, Drafted))
    assert all(done.seconds.draft is None for done in rounds(fused) if done.proposal.tokens)
    assert fold(fused).draft_seconds == 0


def test_the_target_reads_the_whole_round_in_one_pass():
    target, proposer, _, streams = parts()
    asked, read = [], target.read

    def watched(ids, **options):
        asked.append((len(ids), options.get("want", 1)))
        return read(ids, **options)

    target.read = watched
    events = run(target, proposer, [1, 2], CHOSEN, streams=streams)
    assert len(asked) == 1 + len(rounds(events))
    length = 3  # the prompt and the first token
    for done, (num_ids, want) in zip(rounds(events), asked[1:], strict=True):
        assert (num_ids, want) == (
            length + len(done.proposal.tokens),
            len(done.proposal.tokens) + 1,
        )
        length += len(done.output)


def test_coins_are_thrown_for_proposed_tokens_only():
    target, proposer, _, streams = parts()
    events = run(target, proposer, [1, 2], CHOSEN, streams=streams)
    used = [u for done in rounds(events) for u in done.verdict.u]
    again = torch.rand(0, generator=(fresh := Streams.seeded(0, CPU).accept)).tolist()
    for done in rounds(events):
        again += torch.rand(len(done.proposal.tokens), generator=fresh).tolist()
    assert used == again
