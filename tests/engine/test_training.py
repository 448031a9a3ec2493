"""The training recipe on a tiny target: it learns, resumes, and what it writes is what loads."""

from functools import partial

import numpy as np
import pytest
import torch

from engine.models.mtp_module import MTPModule, load_module, module_config
from engine.training import draft, export, mtp
from engine.training.data import ASSISTANT, Corpus, add_hidden, answer_start
from engine.training.evaluate import acceptance
from engine.training.loop import train
from tests.engine.tiny import llama

VOCAB = torch.arange(0, 97, 2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target():
    return llama()


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    rows = [np.tile(rng.integers(3, 97, 5), 6)[: rng.integers(12, 30)] for _ in range(60)]
    np.savez(
        folder / "chunk-0000.npz",
        tokens=np.concatenate(rows).astype(np.uint16),
        lens=np.array([len(row) for row in rows], dtype=np.int32),
    )
    add_hidden(target, folder)
    return Corpus(folder)


def learn(module, corpus, loss_of, path, seconds):
    return train(
        module,
        corpus,
        loss_of,
        state_path=path,
        seconds=seconds,
        learning_rate=3e-3,
        batch_size=8,
        evaluate=lambda: "",
        report=lambda _: None,
    )


def test_hidden_states_are_those_of_a_pass_over_the_row_alone(target, corpus):
    i = max(corpus.train, key=lambda i: len(corpus._rows[i]))
    batch = corpus.batch([min(corpus.train, key=lambda i: len(corpus._rows[i])), i])
    alone = torch.from_numpy(corpus._rows[i])[None]
    with torch.inference_mode():
        states = target.model(input_ids=alone).last_hidden_state[0]
    assert torch.allclose(batch.hidden[1, : len(states)], states, atol=5e-3)  # kept in fp16


def test_a_reply_begins_behind_the_template():
    row = np.array([1, 9, 2, *ASSISTANT, 7, 8])
    assert answer_start(row) == 7
    assert answer_start(np.array([4, 5])) == 0


@pytest.mark.parametrize("kind", ["mtp", "draft"])
def test_training_lowers_the_loss_and_goes_on_where_it_stopped(kind, target, corpus, tmp_path):
    embedding = target.model.embed_tokens.weight.detach()
    torch.manual_seed(0)
    if kind == "mtp":
        module = MTPModule(module_config(target.config))
        loss_of = partial(mtp.loss_of, module, embedding, VOCAB)
    else:
        module = draft.pruned(target, (0,))
        loss_of = partial(draft.loss_of, module, embedding, VOCAB)
    batch = corpus.batch(corpus.held_out)

    def loss():
        torch.manual_seed(1)
        with torch.no_grad():
            return float(loss_of(batch))

    before = loss()
    first = learn(module, corpus, loss_of, tmp_path / "state.pt", 0.6)
    assert loss() < before
    second = learn(module, corpus, loss_of, tmp_path / "state.pt", 1.2)
    assert second["seconds"] >= 1.2
    assert second["steps"] > first["steps"]
    assert second["tokens"] > first["tokens"]


def test_what_is_written_is_what_loads_and_holds_nothing_of_the_target(target, corpus, tmp_path):
    module = MTPModule(module_config(target.config))
    facts = export.Facts(corpus, {"seconds": 1.0, "tokens": 2e6}, [0.5, 0.2])
    export.write_mtp(tmp_path / "mtp", module, target.config, VOCAB, facts)
    loaded, vocab = load_module(tmp_path / "mtp", target.config)
    assert torch.equal(vocab, VOCAB)
    for name, tensor in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.half().float()), name
    model = draft.pruned(target, (0,))
    export.write_draft(tmp_path / "draft", model, VOCAB, facts)
    names = set(export.stored_weights(tmp_path / "draft"))
    assert not [name for name in names if "embed" in name or "lm_head" in name]
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert "0.500 / 0.200" in (tmp_path / "mtp" / "README.md").read_text(encoding="utf-8")


def test_a_draft_that_is_the_target_is_always_right(target, corpus):
    everything = torch.arange(target.config.vocab_size)
    embedding = target.model.embed_tokens.weight
    measure = partial(draft.run_lengths, target, embedding, everything)
    rates = acceptance(measure, corpus, corpus.held_out, device=CPU)
    assert rates[0] > 0.98  # the states are kept in fp16, so a tie may flip
