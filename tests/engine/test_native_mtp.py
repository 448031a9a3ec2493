"""Modules that ship inside checkpoints: found by their keys, loaded strictly, wired as trained."""

import dataclasses
from functools import cache

import pytest
import torch

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.mtp_families import DEEPSEEK, FAMILIES, QWEN, SKIP, detect, num_claimed
from engine.models.native_mtp import load_native
from engine.proposers.mtp import MTP, MTPParts
from engine.sampling import Sampler
from tests.engine import families
from tests.engine.families import Reference, write
from tests.engine.tiny import CPU, finished, run

PROMPT = [5, 9, 1, 5, 9, 7, 3, 5, 9]
NEW_TOKENS = 24


@cache
def model_of(family):
    return families.FAMILIES[family][0]()


@cache
def reference_of(family):
    return Reference(family, model_of(family))


@pytest.fixture(scope="module", params=families.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def loaded(family, tmp_path_factory):
    """The module of a family, loaded from a checkpoint on disk."""
    folder = tmp_path_factory.mktemp(family) / "checkpoint"
    model, reference = model_of(family), reference_of(family)
    (module,) = load_native(write(folder, model, reference.tensors()), model)
    return module


def parts_of(model, module):
    return MTPParts(
        module=module,
        embedding=model.get_input_embeddings(),
        head=model.get_output_embeddings(),
        vocab_size=families.VOCAB,
        device=CPU,
    )


class Watched(MTP):
    """Remembers every proposal with its context."""

    def __init__(self, parts, settings):
        super().__init__(parts, Sampler(settings), torch.Generator().manual_seed(1))
        self.seen = []

    def propose(self, context, gamma):
        draft = super().propose(context, gamma)
        if gamma:
            self.seen.append((list(context.token_ids), draft))
        return draft


def watched_run(family, module, gamma):
    model = model_of(family)
    settings = Settings(gamma=gamma, max_new_tokens=NEW_TOKENS)
    proposer = Watched(parts_of(model, module), settings)
    return proposer, finished(run(HFModel(model), proposer, PROMPT, settings))


@torch.no_grad()
def plain_ids(family):
    """Greedy ids of the model itself, without any cache."""
    ids = list(PROMPT)
    for _ in range(NEW_TOKENS):
        logits = model_of(family)(torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return tuple(ids[len(PROMPT) :])


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_greedy_ids_equal_plain_and_proposals_equal_the_reference(family, loaded, gamma):
    proposer, done = watched_run(family, loaded, gamma)
    assert done.token_ids == plain_ids(family)
    reference = reference_of(family)
    assert len(proposer.seen) > 2
    for ids, draft in proposer.seen:
        expected = reference.draft(ids, len(draft))
        assert torch.allclose(draft.logits, expected, atol=2e-4)
        assert draft.token_ids.tolist() == expected.argmax(-1).tolist()


def test_another_wiring_is_not_the_reference(family, loaded):
    kind = loaded.family
    wrong = [dataclasses.replace(kind, hidden_first=not kind.hidden_first)]
    wrong.append(dataclasses.replace(kind, masks_first=not kind.masks_first))
    ids = plain_ids(family)[:6]
    expected = reference_of(family).draft([*PROMPT, *ids], 1)
    for other in wrong:
        loaded.family = other
        try:
            proposer, _ = watched_run(family, loaded, 1)
        finally:
            loaded.family = kind
        [draft] = [draft for seen, draft in proposer.seen if seen == [*PROMPT, *ids]] or [None]
        assert draft is None or not torch.allclose(draft.logits, expected, atol=1e-3)


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "model.language_model."])
def test_a_family_is_told_by_its_keys_whatever_stands_before_them(prefix):
    for name, (make, layout) in families.FAMILIES.items():
        keys = [key.removeprefix("model.") for key in reference_of(name).tensors()]
        found = detect([prefix + key for key in keys], make().config.num_hidden_layers)
        assert found is not None
        assert found.family.id == layout
        assert len(found.modules) == 1
        assert all(place.split(".")[0] in ("projection", "enorm", "hnorm", "norm", "block")
                   for place in found.modules[0])  # fmt: skip


def test_copies_of_embedding_and_head_are_left_alone():
    keys = ["model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"]
    for key in keys:
        assert DEEPSEEK.place(key, 2) == (0, SKIP)
    found = detect([*keys, "model.layers.2.eh_proj.weight"], 2)
    assert found is not None
    assert list(found.modules[0]) == ["projection.weight"]


def test_layers_of_the_target_are_no_module():
    keys = [f"model.layers.{n}.self_attn.q_proj.weight" for n in range(4)]
    assert detect(keys, 4) is None
    assert detect([*keys, "model.layers.3.eh_proj.weight"], 4) is None
    assert detect([*keys, "visual.layers.9.eh_proj.weight"], 4) is None


def test_several_modules_are_kept_apart():
    keys = [f"model.layers.{n}.{name}.weight" for n in (4, 5) for name in ("eh_proj", "enorm")]
    found = detect(keys, 4)
    assert found is not None
    assert [sorted(module.values()) for module in found.modules] == [
        sorted(keys[:2]),
        sorted(keys[2:]),
    ]


def test_every_family_has_a_row_of_its_own():
    assert len({family.id for family in FAMILIES}) == len(FAMILIES) == 6
    assert QWEN.place("mtp.layers.0.self_attn.q_norm.weight", 4) == (
        0,
        "block.self_attn.q_norm.weight",
    )


def code_of(call, *args):
    with pytest.raises(PlaygroundError) as caught:
        call(*args)
    return caught.value.code, str(caught.value)


def test_a_missing_tensor_names_itself(family, tmp_path):
    model, tensors = model_of(family), reference_of(family).tensors()
    lost = next(key for key in tensors if "o_proj" in key)
    del tensors[lost]
    code, text = code_of(load_native, write(tmp_path / "lost", model, tensors), model)
    assert code == "bad_module"
    assert "block.self_attn.o_proj.weight" in text


def test_a_tensor_of_another_shape_and_one_without_a_place_are_named(tmp_path):
    model, tensors = model_of("mimo"), reference_of("mimo").tensors()
    narrow = {**tensors, "model.mtp_layers.0.input_proj.weight": torch.zeros(32, 32)}
    code, text = code_of(load_native, write(tmp_path / "narrow", model, narrow), model)
    assert (code, "input_proj" in text, "[32, 32]" in text) == ("bad_module", True, True)
    strange = {**tensors, "model.mtp_layers.0.gate.weight": torch.zeros(2)}
    code, text = code_of(load_native, write(tmp_path / "strange", model, strange), model)
    assert (code, "mtp_layers.0.gate" in text) == ("bad_module", True)


def test_a_claim_without_weights_is_not_the_same_as_no_module(tmp_path):
    model = model_of("qwen3.5")
    claimed = write(tmp_path / "claimed", model, {}, mtp_num_hidden_layers=1)
    code, text = code_of(load_native, claimed, model)
    assert code == "mtp_weights_missing"
    assert "--mtp" in text
    assert code_of(load_native, write(tmp_path / "none", model, {}), model)[0] == "no_mtp"


def test_claims_are_read_from_every_field_and_place():
    assert num_claimed({"num_nextn_predict_layers": 1}) == 1
    assert num_claimed({"text_config": {"mtp_num_hidden_layers": 2}}) == 2
    assert num_claimed({"num_mtp_modules": 3, "num_mtp_layers": 1}) == 3
    assert num_claimed({"num_mtp_layers": None, "hidden_size": 8}) == 0


def test_a_folder_with_the_module_alone_is_enough(tmp_path):
    model, reference = model_of("qwen3.5"), reference_of("qwen3.5")
    from safetensors.torch import save_file

    save_file(reference.tensors(), tmp_path / "head.safetensors")
    (module,) = load_native(tmp_path, model)
    assert torch.equal(module.projection.weight, reference.projection)
