"""Every family's module, taught to agree, is accepted where a reference without a cache says so.

Random modules are hardly ever right, so what happens behind an accepted draft would go untested.
"""

from functools import cache

import pytest
import torch
from torch import nn

from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.native_mtp import load_native
from engine.proposers.mtp import MTP
from engine.sampling import Sampler
from tests.engine import families
from tests.engine.families import Reference, write
from tests.engine.test_native_mtp import parts_of
from tests.engine.tiny import argmax_decode, finished, rounds, run

PROMPT = [5, 9, 1, 5, 9, 7, 3, 5, 9]
NEW_TOKENS = 40
GAMMAS = (1, 3, 5)


@cache
def plain_text(family):
    """The prompt and what a model says behind it, every token from a pass without a cache."""
    return [*PROMPT, *argmax_decode(taught(family).model, PROMPT, NEW_TOKENS)]


@cache
def taught(family, *, steps=12):
    """Return the module of a family, taught what its target says behind two prompts.

    Few steps: it shall be right often, not always.
    """
    model = families.FAMILIES[family][0]()
    reference = Reference(family, model)
    lessons = [lesson(model, prompt) for prompt in (PROMPT, PROMPT[::-1])]
    weights = [reference.projection, *reference.block.parameters()]
    for weight in weights:
        weight.requires_grad_(True)
    optimizer = torch.optim.Adam(weights, lr=2e-2)
    for _ in range(steps):
        losses = [depths(reference, *each) for each in lessons]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    for weight in weights:
        weight.requires_grad_(False)
    return reference


@torch.no_grad()
def lesson(model, prompt):
    """Return a text of a model, and its states over it."""
    ids = torch.tensor([*prompt, *argmax_decode(model, prompt, NEW_TOKENS)])
    seen = model(ids[None], output_hidden_states=True, use_cache=False)
    return ids, seen.hidden_states[-1][0]


def depths(reference, ids, hidden, count=3):
    """The loss of chains that start everywhere, each depth on the outputs of the one before."""
    losses = []
    for depth in range(1, count + 1):
        hidden = reference._run(ids[depth:], hidden[:-1])
        logits = reference.model.lm_head(hidden[:-1])
        losses.append(nn.functional.cross_entropy(logits, ids[depth + 1 :]))
    return torch.stack(losses).sum()


@pytest.fixture(scope="module", params=families.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def loaded(family, tmp_path_factory):
    """The module of a family, loaded from a checkpoint on disk."""
    reference = taught(family)
    folder = tmp_path_factory.mktemp(family) / "checkpoint"
    checkpoint = write(folder, reference.model, reference.tensors())
    (module,) = load_native(checkpoint, reference.model)
    return module


def run_of(family, module, gamma):
    model = taught(family).model
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    generator = torch.Generator().manual_seed(1)
    proposer = MTP(parts_of(model, module), Sampler(settings), generator)
    return run(HFModel(model), proposer, PROMPT, settings)


def expected_rounds(family, gamma):
    """What is drafted and how much of it is accepted, round by round, without any cache."""
    text, reference = plain_text(family), taught(family)
    at, found = len(PROMPT) + 1, []
    while at < len(text):
        # The last token of a round is the target's own, so more drafts could not be kept.
        num_drafts = min(gamma, len(text) - at - 1)
        drafts = reference.draft(text[:at], num_drafts).argmax(-1).tolist() if num_drafts else []
        right = [draft == token for draft, token in zip(drafts, text[at:], strict=False)]
        accepted = (*right, False).index(False)
        found.append((drafts, accepted))
        at += accepted + 1
    return found


@pytest.mark.parametrize("gamma", GAMMAS)
def test_drafts_and_acceptance_of_every_round_are_the_references(family, loaded, gamma):
    events = run_of(family, loaded, gamma)
    assert [*PROMPT, *finished(events).token_ids] == plain_text(family)
    done = [
        ([token.id for token in each.proposal.tokens], each.verdict.num_accepted)
        for each in rounds(events)
    ]
    assert done == expected_rounds(family, gamma)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_lessons_left_rounds_of_every_kind(family, gamma):
    """Nothing accepted, everything, and (with several drafts) a part: else the test is blind."""
    full = [(drafts, n) for drafts, n in expected_rounds(family, gamma) if len(drafts) == gamma]
    kinds = {"none" if n == 0 else "all" if n == gamma else "part" for _, n in full}
    assert kinds >= ({"none", "all"} if gamma == 1 else {"all", "part"})
