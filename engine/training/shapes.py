"""Which shape should a draft model have? `python -m engine.training.shapes --work FOLDER`.

Trains candidates equally long on the text in FOLDER and prints, for each, its acceptance on the
held-out prompts, what a draft token costs on this machine, and the speed-up that both predict:
cost decides as much as acceptance. Candidates: 1 to 4 layers of the target, and a narrow model
with an embedding of its own. Each resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from engine import catalog, theory
from engine.costs import pass_seconds
from engine.models import lean, linear
from engine.models.base import LanguageModel
from engine.models.source import checkpoint_folder
from engine.training import draft
from engine.training.__main__ import say
from engine.training.data import Batch, Corpus
from engine.training.evaluate import Replies
from engine.training.loop import soft_cross_entropy, train

LAYERS = {
    "1 layer": (0,),
    "2 layers": (0, 29),
    "3 layers": (0, 1, 29),
    "4 layers": (0, 1, 28, 29),
}
NARROW = "narrow, 4 layers of 256"
STEPS = 24


def main() -> None:
    """Train, measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m engine.training.shapes", description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200, help="of training, per shape")
    parser.add_argument("--vocab", type=int, default=12288)
    options = parser.parse_args()
    folder = checkpoint_folder(catalog.load().models["smollm2-135m"])
    target: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    target.eval().requires_grad_(False)
    corpus = Corpus(options.work / "text")
    vocab = corpus.frequent(options.vocab)
    replies = Replies(target, AutoTokenizer.from_pretrained(folder), options.work / "held-out")
    passes = pass_seconds(lean.LeanLlama(copy.deepcopy(target)))
    lines = ["| shape | head | first | first 2 | first 3 | draft token / pass | speed-up (γ) |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in (*LAYERS, NARROW):
        model = candidate(target, name)
        embedding = target.model.embed_tokens.weight
        own = model.lm_head.weight if name == NARROW else embedding
        loss = partial(_loss, model, embedding, vocab)
        measure = partial(_run_lengths, model, embedding, vocab)
        train(
            model,
            corpus,
            loss,
            state_path=options.work / f"shape-{name.replace(' ', '-').replace(',', '')}.pt",
            seconds=options.seconds,
            learning_rate=6e-4,
            batch_size=6,
            evaluate=partial(replies.pooled, measure),
            report=say,
        )
        rates = replies.pooled(measure)
        for head, rows in (("trimmed", vocab), ("full", None)):
            step = draft_seconds(model, own.detach(), rows)
            best = predicted(rates, step, passes)
            figures = " | ".join(f"{rate:.3f}" for rate in rates[:3])
            lines.append(
                f"| {name} | {head} | {figures} | {step / passes[0]:.3f} | "
                f"{best[0]:.2f} ({best[1]}) |"
            )
            say(lines[-1])
    say("\n".join(lines))


def candidate(target: LlamaForCausalLM, name: str) -> LlamaForCausalLM:
    """Return an untrained candidate."""
    if name != NARROW:
        return draft.pruned(target, LAYERS[name])
    config = copy.deepcopy(target.config)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 256, 704, 4
    config.num_attention_heads, config.num_key_value_heads = 4, 2
    config.head_dim = 64
    torch.manual_seed(0)
    return LlamaForCausalLM(config).float()


def draft_seconds(model: LlamaForCausalLM, weight: Tensor, rows: Tensor | None) -> float:
    """Return the median seconds of a draft token, as the app runs the model.  weight [V, D]"""
    in_int8 = linear.int8_pays()
    head = linear.trimmed_head(weight, rows, in_int8=in_int8)
    make = linear.int8 if in_int8 else linear.packed
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    runs: LanguageModel = lean.LeanLlama(copied, make=make, head=head)
    ids = [(7 * i) % 1000 for i in range(96)]
    runs.read(ids)
    times = []
    for step in range(STEPS):
        begun = time.perf_counter()
        runs.read([*ids, *range(step + 1)])
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def predicted(rates: list[float], step: float, passes: list[float]) -> tuple[float, int]:
    """Return the best speed-up and its draft length, without the loop's own overhead.

    rates: shares of positions at which the first 1, 2, ... drafts match.
    """
    conditional = [b / a if a else 0.0 for a, b in zip([1.0, *rates], rates, strict=False)]
    return max(
        (
            theory.speed_up_measured(
                conditional[:gamma], c=step / passes[0], v=passes[gamma] / passes[0]
            ),
            gamma,
        )
        for gamma in range(1, len(rates) + 1)
    )


def _loss(model: LlamaForCausalLM, embedding: Tensor, vocab: Tensor, batch: Batch) -> Tensor:
    """Return the distillation loss; a narrow model scores with its own head."""
    if model.config.hidden_size == embedding.shape[1]:
        return draft.loss_of(model, embedding, vocab, batch)
    out = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    wanted = batch.mask[:, :-1] & batch.answer[:, 1:]
    ours, theirs = out[:, :-1][wanted], batch.hidden[:, :-1][wanted]
    return soft_cross_entropy(ours @ model.lm_head.weight[vocab].T, theirs @ embedding[vocab].T)


def _run_lengths(
    model: LlamaForCausalLM, embedding: Tensor, vocab: Tensor, batch: Batch, longest: int = 4
) -> Tensor:
    own = model.lm_head.weight
    head = None if own.shape == embedding.shape else own
    return draft.run_lengths(model, embedding, vocab, batch, longest, head=head)


if __name__ == "__main__":
    main()
