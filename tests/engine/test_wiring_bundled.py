"""The self-test on the bundled module, saved again under the names of every family it could be of.

It was trained behind the final norm and has a norm of its own, so the families that read the state
before it (Step, MiMo-V2) or borrow the target's norm (ERNIE) cannot hold it.
"""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

from engine import catalog
from engine.catalog import ASSETS
from engine.models import loader
from engine.models.hf import HFModel
from engine.models.mtp_families import DEEPSEEK, MIMO, QWEN
from engine.models.mtp_module import load_module
from engine.models.native_mtp import load_native
from engine.models.source import checkpoint_folder
from engine.models.wiring import MARGIN, PASSAGE, check_wiring
from engine.proposers.mtp import MTPParts
from tests.engine.families import NAMES

LAYOUTS = {"deepseek": DEEPSEEK, "qwen": QWEN, "mimo": MIMO}


@pytest.fixture(scope="module")
def target(pair):
    """The bundled target on the library's own modules; `pair` made sure that it is there."""
    known = catalog.load()
    folder = checkpoint_folder(known.models[known.pair("smollm2").target])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def text(target):
    known = catalog.load()
    folder = checkpoint_folder(known.models[known.pair("smollm2").target])
    return loader.load_codec(folder, target).encode(PASSAGE, raw=True)


@pytest.fixture(scope="module", params=LAYOUTS)
def module(request, target, tmp_path_factory):
    """The bundled module, loaded back from a file in another family's names."""
    known = catalog.load()
    bundled = ASSETS / known.models[known.pair("smollm2").mtp].folder
    trained, _ = load_module(bundled, target.config)
    state = trained.state_dict()
    family = LAYOUTS[request.param]
    if family.hidden_first:  # the same sum, with its two halves the other way round
        state["projection.weight"] = torch.cat(state["projection.weight"].chunk(2, 1)[::-1], 1)
    parts = ("projection", "enorm", "hnorm", "norm", "block")
    names = dict(zip(parts, NAMES[request.param], strict=True))
    tensors = {}
    for place, weight in state.items():
        part, _, rest = place.partition(".")
        name = names[part].replace("layers.2.", f"layers.{target.config.num_hidden_layers}.")
        tensors[name + rest] = weight.contiguous()
    folder = tmp_path_factory.mktemp(request.param)
    save_file(tensors, folder / "module.safetensors")
    (loaded,) = load_native(folder, target)
    assert loaded.family is family
    return loaded


def found(target, module, text, *, head=None, taps=("final",)):
    parts = MTPParts(
        module=module,
        embedding=target.get_input_embeddings(),
        head=head or target.get_output_embeddings(),
        vocab_size=target.config.vocab_size,
        device=torch.device("cpu"),
        taps=taps,
    )
    return check_wiring(HFModel(target), parts, text)


def test_it_agrees_as_well_as_under_its_own_names(pair, target, module, text):
    said = found(target, module, text)
    assert said.verdict == "fine"
    # It may favour any token here, and only those it was trained on in the bundled pair.
    assert abs(said.agreement - float(pair.where["mtp_agreement"])) < 0.05


def test_inputs_the_other_way_round_are_named(target, module, text):
    family = module.family
    module.family = dataclasses.replace(family, hidden_first=not family.hidden_first)
    try:
        assert found(target, module, text).verdict == "swapped"
    finally:
        module.family = family


def test_the_state_before_the_norm_serves_this_module_as_well_and_no_warning_is_made(
    target, module, text
):
    """The two states differ, but hardly in what it reads; `test_wiring` has the other case."""
    said = found(target, module, text, taps=("pre_norm",))
    assert said.other_state is not None
    assert abs(said.agreement - said.other_state) < MARGIN
    assert said.verdict == "fine"


def test_a_head_that_lost_the_frequent_tokens_is_weak(target, module, text):
    class Cut(nn.Module):
        def forward(self, hidden):
            logits = target.get_output_embeddings()(hidden)
            logits[:, : logits.shape[1] // 2] = -torch.inf
            return logits

    assert found(target, module, text, head=Cut()).verdict == "weak"
