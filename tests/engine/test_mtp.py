"""The MTP proposer equals a reference without any cache, and wrong wirings do not."""

import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models.hf import HFModel
from engine.models.lean import LeanMTP
from engine.models.linear import TrimmedHead, packed
from engine.models.mtp_module import MTPModule, checkpoint_name, load_module, module_config
from engine.models.static_chain import StaticChain
from engine.proposers.mtp import MTP
from engine.sampling import Sampler
from engine.training.mtp import depth_outputs
from tests.engine.replaying import Replaying
from tests.engine.tiny import llama, mtp_parts, run

PROMPT = [5, 9, 1, 5, 9, 7, 3]
TARGET = llama(noise=0.2)  # noise: norm weights of 1 would hide a missing norm
PARTS = mtp_parts(TARGET)
LEAN = dataclasses.replace(PARTS, module=LeanMTP(PARTS.module, packed))
STATIC = dataclasses.replace(PARTS, module=StaticChain(copy.deepcopy(PARTS.module), Replaying()))
KINDS = pytest.mark.parametrize("parts", [PARTS, LEAN, STATIC], ids=["library", "lean", "static"])


class Watched(MTP):
    """Remembers every proposal with its context."""

    def __init__(self, parts=PARTS, **chosen):
        super().__init__(parts, Sampler(Settings(**chosen)), torch.Generator().manual_seed(1))
        self.seen = []

    def propose(self, context, gamma):
        draft = super().propose(context, gamma)
        if gamma:
            self.seen.append((list(context.token_ids), draft))
        return draft


@torch.no_grad()
def reference_logits(ids, drafted, *, hidden=None, shift=0):
    """Logits of every depth, from one pass of the target and no cache.  [g, V]

    Depth d predicts the token after ids + drafted[: d - 1].
    """
    whole = torch.tensor([[*ids, *drafted[:-1]]])
    out = TARGET(whole, output_hidden_states=True, use_cache=False)
    states = out.hidden_states[-1] if hidden is None else hidden(out)
    embeddings = PARTS.embedding(whole)
    if shift:
        embeddings = embeddings.roll(shift, 1)
    outputs = depth_outputs(PARTS.module, embeddings, states, len(drafted))
    # Row i of depth d saw tokens up to i + d; the draft of this context starts at the last token.
    row = len(ids) - 2
    return torch.stack([TARGET.lm_head(out[0, row]) for out in outputs])


def watched_run(gamma=4, temperature=0.0, *, parts=PARTS, **options):
    proposer = Watched(parts, temperature=temperature)
    chosen = Settings(gamma=gamma, max_new_tokens=30, temperature=temperature, seed=2)
    events = run(HFModel(TARGET), proposer, PROMPT, chosen, **options)
    return proposer.seen, events


@KINDS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_every_proposal_of_a_run_equals_the_reference_without_a_cache(gamma, temperature, parts):
    seen, _ = watched_run(gamma, temperature, parts=parts)
    assert len(seen) > 5
    for ids, draft in seen:
        expected = reference_logits(ids, draft.token_ids.tolist())
        assert torch.allclose(draft.logits, expected, atol=1e-4)


@KINDS
def test_drafting_for_itself_in_all_accept_rounds_equals_the_reference_too(parts):
    """Under a rule that accepts everything, entries must still be made again from true features."""
    from engine.verify import verify

    def accept_all(token_ids, q, p, u):
        right = verify(token_ids, q, p, u)
        source = "bonus" if len(token_ids) else "target"
        return right._replace(num_accepted=len(token_ids), next_probs=p[-1], next_source=source)

    seen, _ = watched_run(3, parts=parts, rule=accept_all)
    assert len(seen) > 5
    for ids, draft in seen:
        assert torch.allclose(
            draft.logits, reference_logits(ids, draft.token_ids.tolist()), atol=1e-4
        )


def test_wrong_wirings_give_other_logits():
    seen, _ = watched_run()
    ids, draft = seen[3]
    drafted = draft.token_ids.tolist()
    before_norm = []

    def keep(module, inputs, output):
        before_norm.append(inputs[0])

    hook = TARGET.model.norm.register_forward_hook(keep)
    wrong = {
        "features before the final norm": {"hidden": lambda out: before_norm[-1]},
        "features of a lower layer": {"hidden": lambda out: out.hidden_states[1]},
        "features off by one": {"hidden": lambda out: out.hidden_states[-1].roll(1, 1)},
        "tokens off by one": {"shift": 1},
    }
    for name, options in wrong.items():
        other = reference_logits(ids, drafted, **options)
        assert not torch.allclose(draft.logits, other, atol=1e-2), name
    hook.remove()


def test_the_first_depth_of_the_reference_is_the_module_itself():
    embeddings, hidden = torch.randn(1, 9, 32), torch.randn(1, 9, 32)
    with torch.no_grad():
        ours = PARTS.module(embeddings[:, 1:], hidden[:, :-1])
        (reference,) = depth_outputs(PARTS.module, embeddings, hidden, 1)
    assert torch.allclose(ours, reference, atol=1e-5)


def test_a_pass_in_pieces_through_a_cache_is_a_pass_in_one():
    from engine.models.cache import CropCache

    embeddings, hidden = torch.randn(1, 9, 32), torch.randn(1, 9, 32)
    cache = CropCache(PARTS.module.config)
    with torch.no_grad():
        whole = PARTS.module(embeddings, hidden)
        parts = [
            PARTS.module(embeddings[:, a:b], hidden[:, a:b], first=a, cache=cache.library_cache)
            for a, b in ((0, 4), (4, 5), (5, 9))
        ]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


def test_positions_matter_to_the_module():
    embeddings, hidden = torch.randn(1, 4, 32), torch.randn(1, 4, 32)
    stretched = torch.tensor([[0, 2, 4, 6]])
    module = MTPModule(module_config(TARGET.config))
    module.load_state_dict(PARTS.module.state_dict())
    with torch.no_grad():
        right = module(embeddings, hidden)
        rotary = module.rotary.forward
        module.rotary.forward = lambda x, positions: rotary(x, stretched)
        assert not torch.allclose(module(embeddings, hidden), right, atol=1e-2)


# --- checkpoints ---


def write_module(folder, *, without="", config=None, vocab=None):
    state = {
        checkpoint_name(name, 2): tensor.clone()
        for name, tensor in PARTS.module.state_dict().items()
    }
    if vocab is not None:
        state["draft_vocab"] = torch.tensor(vocab, dtype=torch.int32)
    state.pop(without, None)
    half = len(state) // 2
    items = list(state.items())
    save_file(dict(items[:half]), folder / "model-00001-of-00002.safetensors")
    save_file(dict(items[half:]), folder / "model-00002-of-00002.safetensors")
    values = {"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 97, **(config or {})}
    (folder / "config.json").write_text(json.dumps(values))
    return list(state)


def test_a_checkpoint_gives_the_module_back(tmp_path):
    names = write_module(tmp_path, vocab=[3, 5, 8])
    assert "model.layers.2.eh_proj.weight" in names
    assert "model.layers.2.shared_head.norm.weight" in names
    assert "model.layers.2.self_attn.q_proj.weight" in names
    module, vocab = load_module(tmp_path, TARGET.config)
    assert vocab.tolist() == [3, 5, 8]
    for name, tensor in PARTS.module.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)


def test_a_missing_tensor_is_named(tmp_path):
    names = write_module(tmp_path)
    for name in (names[0], names[-1]):
        for file in tmp_path.iterdir():
            file.unlink()
        write_module(tmp_path, without=name)
        assert name not in load_file(tmp_path / "model-00002-of-00002.safetensors")
        with pytest.raises(PlaygroundError, match=name) as caught:
            load_module(tmp_path, TARGET.config)
        assert caught.value.code == "bad_module"


@pytest.mark.parametrize("wrong", [{"hidden_size": 64}, {"vocab_size": 98}])
def test_a_module_for_a_target_of_another_size_is_refused(tmp_path, wrong):
    write_module(tmp_path, config=wrong)
    with pytest.raises(PlaygroundError) as caught:
        load_module(tmp_path, TARGET.config)
    assert caught.value.code == "bad_module"


def test_a_module_that_scores_only_some_tokens_proposes_only_those():
    from torch import nn

    vocab = torch.tensor([3, 5, 8, 13])
    rows = nn.Linear(32, 4, bias=False)
    rows.weight = nn.Parameter(TARGET.lm_head.weight[vocab], requires_grad=False)
    parts = dataclasses.replace(PARTS, head=TrimmedHead(rows, vocab, 97))
    for temperature in (0.0, 1.0):
        proposer = Watched(parts, temperature=temperature, repetition_penalty=1.2)
        chosen = Settings(gamma=3, max_new_tokens=20, temperature=temperature)
        run(HFModel(TARGET), proposer, PROMPT, chosen)
        drafted = {token for _, draft in proposer.seen for token in draft.token_ids.tolist()}
        assert drafted <= set(vocab.tolist())
        assert len(drafted) > 1
