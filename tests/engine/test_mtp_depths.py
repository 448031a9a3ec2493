"""Checkpoints with a module for each position: equal to a reference without any cache."""

import dataclasses
from functools import cache

import pytest
import torch
from torch import nn

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models import loader
from engine.models.hf import HFModel
from engine.models.mtp_families import DEEPSEEK, MIMO_V2, STEP, detect
from engine.models.native_mtp import load_native
from engine.models.wiring import check_wiring
from engine.proposers.base import Context
from engine.proposers.mtp_depths import MTPDepths
from engine.sampling import Sampler
from tests.engine import families
from tests.engine.families import Reference, write
from tests.engine.test_native_mtp import NEW_TOKENS, PROMPT, model_of, plain_ids
from tests.engine.tiny import finished, rounds, run

COUNT = 3
TARGETS = {"step": "mimo", "mimo_v2": "glm", "deepseek": "glm"}
"""By layout: a target of the tests. The first two families are too new for some versions."""


class Trained(Reference):
    """One of several modules, before whose norm the states are read and chained."""

    def __init__(self, layout, number):
        super().__init__(TARGETS[layout], model_of(TARGETS[layout]), seed=5 + number)
        self.layout = layout
        self.raw = layout != "deepseek"
        self.number = number
        if layout == "step":
            self.head = nn.Linear(families.WIDTH, families.VOCAB, bias=False)
            with torch.random.fork_rng():
                torch.manual_seed(50 + number)
                self.head.weight = nn.Parameter(torch.randn_like(self.head.weight) * 0.3, False)
        else:
            self.head = self.model.lm_head

    def tensors(self):
        number = self.number
        last = self.model.config.num_hidden_layers
        self.number = number if self.layout == "mimo_v2" else last + number
        found = super().tensors()
        if self.layout == "deepseek":
            found = {key.replace(f"layers.{last}.", f"layers.{self.number}."): weight
                     for key, weight in found.items()}  # fmt: skip
        if self.layout == "mimo_v2":
            found = {key.replace("post_attention_layernorm", "pre_mlp_layernorm"): weight
                     for key, weight in found.items()}  # fmt: skip
        if self.layout == "step":
            key = f"model.layers.{self.number}.transformer.shared_head.output.weight"
            found[key] = self.head.weight.clone()
        self.number = number
        return found


@cache
def modules_of(layout):
    return [Trained(layout, number) for number in range(COUNT)]


@torch.no_grad()
def drafted(layout, ids, num_steps):
    """Return the greedy logits of a draft behind `ids`, every module over everything.

    Module k runs over the tokens rolled on by k, on what module k - 1 made of the same positions.
    """
    first = modules_of(layout)[0]
    before = []
    keep = first.model.model.norm.register_forward_pre_hook(lambda _, x: before.append(x[0]))
    seen = first.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    keep.remove()
    hidden = before[0][0, :-1] if first.raw else seen.hidden_states[-1][0, :-1]
    tokens, all_logits = list(ids[1:]), []
    for module in modules_of(layout)[:num_steps]:
        hidden = module._run(torch.tensor(tokens), hidden)
        out = module.normed(hidden[-1], module.norm) if module.raw else hidden[-1]
        all_logits.append(module.head(out))
        tokens = [*tokens[1:], int(all_logits[-1].argmax())]
    return torch.stack(all_logits)


@pytest.fixture(scope="module", params=TARGETS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def parts(layout, tmp_path_factory):
    """The modules of a checkpoint on disk, ready to draft."""
    folder = tmp_path_factory.mktemp(layout) / "checkpoint"
    tensors = {}
    for module in modules_of(layout):
        tensors |= module.tensors()
    model = model_of(TARGETS[layout])
    loaded = load_native(write(folder, model, tensors), model)
    assert len(loaded) == COUNT
    return loader.native_parts(loaded, model, model.lm_head.weight)


class Watched(MTPDepths):
    """Remembers every proposal with its context."""

    def __init__(self, parts, settings):
        super().__init__(parts, Sampler(settings), torch.Generator().manual_seed(1))
        self.seen = []

    def propose(self, context, gamma):
        draft = super().propose(context, gamma)
        if gamma:
            self.seen.append((list(context.token_ids), draft))
        return draft


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
def test_text_is_plain_and_every_proposal_the_references(layout, parts, gamma):
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    proposer = Watched(parts, settings)
    events = run(HFModel(model_of(TARGETS[layout])), proposer, PROMPT, settings)
    assert finished(events).token_ids == plain_ids(TARGETS[layout])
    assert len(proposer.seen) > 2
    assert max(len(draft) for _, draft in proposer.seen) == min(gamma, COUNT)
    for ids, draft in proposer.seen:
        expected = drafted(layout, ids, len(draft))
        assert torch.allclose(draft.logits, expected, atol=2e-4)
        assert draft.token_ids.tolist() == expected.argmax(-1).tolist()
    assert all(len(each.proposal.tokens) <= COUNT for each in rounds(events))


def features_of(parts, ids):
    model = HFModel(model_of(TARGETS["deepseek"]))
    model.tap(parts.taps)
    return model.read(ids, want=1, features=len(ids)).features.clone()


@pytest.mark.parametrize("gammas", [[0, 3, 1, 3], [3, 0, 0, 2, 3], [1, 1, 1, 3, 2, 3], [0, 2, 3]])
def test_a_module_that_rested_catches_up(layout, parts, gammas):
    """Whatever lengths came before and whatever was rejected, a draft depends on the text alone."""
    if layout != "deepseek":
        pytest.skip("the order of the modules is the same for all")
    ids = [*PROMPT, *plain_ids("glm")]
    features = features_of(parts, ids)
    proposer = MTPDepths(parts, Sampler(Settings()), torch.Generator().manual_seed(1))
    end, at = 4, 0
    for number, gamma in enumerate(gammas):
        draft = proposer.propose(Context(ids[: end + 1], features[at:end], at), gamma)
        assert len(draft) == gamma
        if gamma:
            expected = drafted(layout, ids[: end + 1], gamma)
            assert torch.allclose(draft.logits, expected, atol=2e-4)
        at, end = end, end + 1 + number % 3


def test_features_must_continue(parts):
    proposer = MTPDepths(parts, Sampler(Settings()), torch.Generator())
    with pytest.raises(ValueError, match="continue"):
        proposer.propose(Context([1, 2, 3], torch.zeros(1, families.WIDTH), 1), 1)


def test_confidence_ends_a_draft_and_the_next_one_is_right(layout, parts):
    settings = Settings(gamma=3, max_new_tokens=NEW_TOKENS, confidence=0.99)
    proposer = Watched(parts, settings)
    run(HFModel(model_of(TARGETS[layout])), proposer, PROMPT, settings)
    assert {len(draft) for _, draft in proposer.seen} != {3}
    for ids, draft in proposer.seen:
        assert torch.allclose(draft.logits, drafted(layout, ids, len(draft)), atol=2e-4)


def test_the_self_test_reads_the_state_that_the_family_reads(layout, parts):
    model = HFModel(model_of(TARGETS[layout]))
    found = check_wiring(model, parts, PROMPT * 3)
    with_the_other = ("final",) if parts.taps == ("pre_norm",) else ("pre_norm",)
    other = check_wiring(model, dataclasses.replace(parts, taps=with_the_other), PROMPT * 3)
    assert (found.agreement, found.other_state) == (other.other_state, other.agreement)


def test_layouts_are_told_apart_by_their_keys():
    def kind_of(layout):
        keys = [key for module in modules_of(layout) for key in module.tensors()]
        found = detect(keys, model_of(TARGETS[layout]).config.num_hidden_layers)
        return found.family, len(found.modules)

    assert kind_of("step") == (STEP, COUNT)
    assert kind_of("mimo_v2") == (MIMO_V2, COUNT)
    assert kind_of("deepseek") == (DEEPSEEK, COUNT)


def test_the_module_that_lacks_a_tensor_is_named(tmp_path):
    tensors = {}
    for module in modules_of("step"):
        tensors |= module.tensors()
    lost = "model.layers.3.transformer.shared_head.norm.weight"
    del tensors[lost]
    model = model_of("mimo")
    with pytest.raises(PlaygroundError) as caught:
        load_native(write(tmp_path / "lost", model, tensors), model)
    assert caught.value.code == "bad_module"
    assert "norm.weight" in str(caught.value)
