"""The training recipe on a tiny target: it learns, resumes, and what it writes is what loads."""

import random
import re
from functools import partial

import numpy as np
import pytest
import torch

from engine import catalog
from engine.models.mtp_module import MTPModule, load_module, module_config
from engine.models.stored import read_folder
from engine.training import draft, evaluate, export, mtp, prompts
from engine.training.data import ASSISTANT, END, Corpus, add_hidden, answer_spans
from engine.training.evaluate import acceptance
from engine.training.loop import Spent, train
from engine.training.openers import OPENERS
from tests.engine.tiny import llama

VOCAB = torch.arange(0, 97, 2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target():
    return llama(vocab=9600)  # as many as the template's tokens need


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    replies = [np.tile(rng.integers(3, 97, 5), 6)[: rng.integers(12, 30)] for _ in range(60)]
    rows = [np.array([5, END, *ASSISTANT, *reply]) for reply in replies]
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
        evaluate=lambda: [0.5, 0.25, 0.1, 0.0],
        report=lambda _: None,
    )


def test_hidden_states_are_those_of_a_pass_over_the_row_alone(target, corpus):
    i = max(corpus.train, key=lambda i: len(corpus._rows[i]))
    batch = corpus.batch([min(corpus.train, key=lambda i: len(corpus._rows[i])), i])
    alone = torch.from_numpy(corpus._rows[i])[None]
    with torch.inference_mode():
        states = target.model(input_ids=alone).last_hidden_state[0]
    assert torch.allclose(batch.hidden[1, : len(states)], states, atol=5e-3)  # kept in fp16


QUESTION = (1, 4093, 198)  # "<|im_start|>user\n"


def test_a_reply_begins_behind_the_template_and_ends_with_its_end():
    assert answer_spans(np.array([1, 9, END, *ASSISTANT, 7, 8])) == [(7, 9)]
    assert answer_spans([1, 9, END, *ASSISTANT, 7, 8, END]) == [(7, 10)]
    assert answer_spans([1, 9, END, *ASSISTANT, 7, END, 198, 5]) == [(7, 9)]
    assert answer_spans([4, 5]) == []
    assert answer_spans([4, *ASSISTANT[:-1]]) == []
    assert answer_spans([]) == []


def test_both_replies_count_and_the_second_question_does_not():
    row = [*QUESTION, 9, END, 198, *ASSISTANT, 7, 8, END, 198]
    first_end = len(row) - 1
    row += [*QUESTION, 5, 6, END, 198, *ASSISTANT, 11, 12, 13, END]
    spans = answer_spans(row)
    assert [row[start:end] for start, end in spans] == [[7, 8, END], [11, 12, 13, END]]
    assert spans[0][1] == first_end
    # A second reply that was cut off in its template is none.
    assert answer_spans(row[: first_end + 1 + len(QUESTION)]) == spans[:1]


def test_a_batch_marks_the_replies_of_every_row(target, tmp_path):
    two = [3, END, *ASSISTANT, 7, END, 4, END, *ASSISTANT, 8, 9, END]
    rows = [two, [5, *ASSISTANT, 6]]
    np.savez(
        tmp_path / "chunk-0000.npz",
        tokens=np.concatenate(rows).astype(np.uint16),
        lens=np.array([len(row) for row in rows], dtype=np.int32),
    )
    add_hidden(target, tmp_path)
    batch = Corpus(tmp_path).batch([0, 1])
    assert batch.tokens[0][batch.answer[0]].tolist() == [7, END, 8, 9, END]
    assert batch.tokens[1][batch.answer[1]].tolist() == [6]
    assert batch.mask.sum(1).tolist() == [len(row) for row in rows]


# --- what the text is about ---


def held_out_prompts():
    texts = [preset.prompt for preset in catalog.load().presets.values()]
    return texts + [prompt for group in evaluate.PROMPTS.values() for prompt in group]


def pattern(template):
    """What a template may become, as an expression; a field is any text of at least a letter."""
    parts = re.split(r"\{\w+\}", template.lower())
    return re.compile(".+".join(re.escape(part) for part in parts), re.DOTALL)


def test_no_preset_and_no_held_out_prompt_is_among_the_training_texts():
    held_out = [text.lower() for text in held_out_prompts()]
    assert len(held_out) > 30
    texts = (*prompts.TEMPLATES, *prompts.PASSAGE_TASKS, *prompts.FOLLOW_UPS, *prompts.SENTENCES)
    assert not {text.lower() for text in texts} & set(held_out)
    for sentence in prompts.SENTENCES:
        assert not [text for text in held_out if sentence.lower() in text], sentence


def test_no_template_can_become_a_preset_or_a_held_out_prompt():
    assert pattern("Write a poem about {topic}.").fullmatch("write a poem about cats.")
    fields = {
        "topic": prompts.TOPICS,
        "other": prompts.TOPICS,
        "task": prompts.CODE_TASKS,
        "sentence": prompts.SENTENCES,
        "language": prompts.LANGUAGES,
    }
    for text in held_out_prompts():
        for template in prompts.TEMPLATES:
            if not pattern(template).fullmatch(text.lower()):
                continue
            # The frame fits; then what fills it must not.
            names = [name for name in fields if f"{{{name}}}" in template and name != "language"]
            fillings = [value.lower() for name in names for value in fields[name]]
            assert names, (template, text)
            assert not [value for value in fillings if value in text.lower()], (template, text)


def test_every_template_can_be_filled():
    rng = random.Random(0)
    for template in prompts.TEMPLATES:
        text = prompts._filled(rng, template)
        assert "{" not in text
        assert text != template
    for task in prompts.PASSAGE_TASKS:
        assert "A passage." in task.format(text="A passage.")
    assert len(set(prompts.TOPICS)) == len(prompts.TOPICS) > 100


def turns(seed, passages):
    rng = random.Random(seed)
    return [prompts.first_turn(rng, passages) for _ in range(40)] + [
        prompts.next_turn(rng) for _ in range(40)
    ]


@pytest.mark.parametrize("passages", [[], ["The mill stood still.", "A boat came {in}."]])
def test_turns_are_the_same_again_from_the_same_seed(passages):
    assert turns(3, passages) == turns(3, passages)
    assert turns(3, passages) != turns(4, passages)


def test_turns_come_from_every_source_and_only_openers_are_left_open():
    passages = ["The mill stood still."]
    drawn = [turn for seed in range(5) for turn in turns(seed, passages)]
    assert {turn.whole for turn in drawn} == {True, False}
    assert all(turn.text for turn in drawn if turn.whole)
    assert [turn for turn in drawn if passages[0] in turn.text]
    assert [turn for turn in drawn if turn.text in prompts.FOLLOW_UPS]
    opened = {turn.text for turn in drawn if not turn.whole}
    assert opened <= {*OPENERS, "", "Can you", "What about", "Why", "How"}
    assert not [turn for turn in turns(0, []) if passages[0] in turn.text]


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
    assert second.seconds >= 1.2
    assert second.steps > first.steps
    assert second.tokens > first.tokens


def test_what_is_written_is_what_loads_and_holds_nothing_of_the_target(target, corpus, tmp_path):
    module = MTPModule(module_config(target.config))
    spent = Spent(1.0, 2_000_000, 10, [[1.0, 2e6, 0.5, 0.2, 0.1, 0.0]])
    facts = export.Facts(corpus, spent, {"all": [0.5, 0.2, 0.1, 0.0]}, [0.7, 0.3, 0.2, 0.1])
    export.write_mtp(tmp_path / "mtp", module, target.config, VOCAB, facts)
    loaded, vocab = load_module(tmp_path / "mtp", target.config)
    assert torch.equal(vocab, VOCAB)
    for name, tensor in module.state_dict().items():
        assert_stored(loaded.state_dict()[name], tensor)
    model = draft.pruned(target, (0,))
    export.write_draft(tmp_path / "draft", model, VOCAB, facts)
    names = set(read_folder(tmp_path / "draft")[0])
    assert not [name for name in names if "embed" in name or "lm_head" in name]
    assert "model.layers.0.self_attn.q_proj.weight" in names
    for folder in ("mtp", "draft"):
        card = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        assert "| all | 0.500 | 0.200 | 0.100 | 0.000 |" in card
        assert "0.700 / 0.300 / 0.200 / 0.100" in card
        curve = (tmp_path / folder / "curve.csv").read_text(encoding="utf-8").splitlines()
        assert curve == [",".join(export.CURVE), "1,2e+06,0.5,0.2,0.1,0"]


def test_a_draft_that_is_the_target_is_always_right(target, corpus):
    everything = torch.arange(target.config.vocab_size)
    embedding = target.model.embed_tokens.weight
    measure = partial(draft.run_lengths, target, embedding, everything)
    rates = acceptance(measure, corpus, corpus.held_out, device=CPU)
    assert rates[0] > 0.98  # the states are kept in fp16, so a tie may flip


def assert_stored(found, tensor):
    """Matrices come back within half a step of their row, the rest as fp16."""
    if tensor.ndim != 2:
        assert torch.equal(found, tensor.half().float())
        return
    step = tensor.abs().amax(1, keepdim=True) / 127
    assert ((found - tensor).abs() <= 0.501 * step).all()
