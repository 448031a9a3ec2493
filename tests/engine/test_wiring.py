"""A wrongly wired module is told from a right one, on modules that were trained to agree."""

import dataclasses

import pytest
import torch
from torch import nn

from engine.models.hf import HFModel
from engine.models.mtp_families import MIMO
from engine.models.mtp_module import MTPModule, module_config
from engine.models.wiring import Wiring, check_wiring
from engine.proposers.mtp import MTPParts
from tests.engine.tiny import CPU, llama

IDS = torch.randint(0, 97, (80,), generator=torch.Generator().manual_seed(3)).tolist() * 2


@pytest.fixture(scope="module")
def target():
    return llama(noise=0.3)


def trained(target, *, hidden_first=False, before_norm=False):
    """Return a module that was taught to agree, fed and wired in the way that is asked for."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MTPModule(module_config(target.config))
    module.family = dataclasses.replace(module.family, hidden_first=hidden_first)
    model = HFModel(target)
    model.tap(("pre_norm" if before_norm else "final",))
    reading = model.read(IDS, want=len(IDS), features=len(IDS))
    hidden, wanted = reading.features[None, :-1].clone(), reading.logits[1:].argmax(-1).clone()
    embeddings = target.get_input_embeddings()(torch.tensor([IDS[1:]]))
    head = target.get_output_embeddings()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(60):
        loss = nn.functional.cross_entropy(head(module(embeddings, hidden))[0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval().requires_grad_(False)


def wiring_of(target, module, head=None):
    parts = MTPParts(
        module=module,
        embedding=target.get_input_embeddings(),
        head=head or target.get_output_embeddings(),
        vocab_size=97,
        device=CPU,
    )
    return check_wiring(HFModel(target), parts, IDS)


def test_a_module_that_agrees_is_fine_and_stays_as_it_was(target):
    module = trained(target)
    family = module.family
    found = wiring_of(target, module)
    assert found.agreement > 0.8
    assert found.verdict == "fine"
    assert found.num_places == len(IDS) - 1
    assert module.family is family


def test_the_wrong_concat_order_is_named(target):
    module = trained(target, hidden_first=True)
    module.family = dataclasses.replace(module.family, hidden_first=False)
    found = wiring_of(target, module)
    assert found.swapped > 0.8
    assert found.verdict == "swapped"
    module.family = dataclasses.replace(module.family, hidden_first=MIMO.hidden_first)
    assert wiring_of(target, module).verdict == "fine"


def test_the_wrong_norm_is_named(target):
    # The two states differ by a scale per channel, which the module's own norm does not undo.
    scaled = llama(noise=0.3)
    scaled.model.norm.weight *= torch.linspace(-3, 3, 32)
    found = wiring_of(scaled, trained(scaled, before_norm=True))
    assert found.other_state is not None
    assert found.other_state > found.agreement + 0.1
    assert found.verdict == "norm"


def test_a_cut_head_is_weak(target):
    module = trained(target)

    class Cut(nn.Module):
        def forward(self, hidden):
            logits = target.get_output_embeddings()(hidden)
            logits[:, 8:] = -torch.inf
            return logits

    assert wiring_of(target, module, Cut()).verdict == "weak"


def test_a_random_module_is_weak(target):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = MTPModule(module_config(target.config)).eval().requires_grad_(False)
    assert wiring_of(target, module).verdict == "weak"


def test_the_verdict_needs_a_margin():
    assert Wiring(0.5, 0.55, 0.55, 9).verdict == "fine"
    assert Wiring(0.3, 0.5, 0.6, 9).verdict == "norm"
    assert Wiring(0.3, 0.6, 0.5, 9).verdict == "swapped"
    assert Wiring(0.1, None, None, 9).verdict == "weak"
    assert Wiring(0.5, None, None, 9).verdict == "fine"
