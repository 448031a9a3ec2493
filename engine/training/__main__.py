"""Train the bundled drafters again: `python -m engine.training --work FOLDER`.

One command: generate text, compute hidden states, train the MTP module, train the draft model,
write both to `--out` with their model cards. Every step resumes where it was stopped.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from engine import catalog
from engine.device import choose_device
from engine.models.loader import draft_vocab
from engine.models.mtp_module import MTPModule, load_module, module_config
from engine.models.source import checkpoint_folder
from engine.models.stored import read_folder
from engine.training import draft, export, mtp
from engine.training.data import Corpus, add_hidden
from engine.training.evaluate import Replies, RunLengths, acceptance, spell, table
from engine.training.generate import generate
from engine.training.loop import Spent, fastest_dtype, train

SAME_KIND = 200  # held-out conversations of the training text that the card counts


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def main() -> None:
    """Run every step that is not done yet, or only measure what is there."""
    options = _options()
    device = choose_device(options.device)
    folder = checkpoint_folder(catalog.load().models["smollm2-135m"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if options.evaluate:
        with TemporaryDirectory() as replies:
            target = _target(folder, device, torch.float32)
            _evaluate(options, target, Replies(target, tokenizer, Path(replies)))
        return
    text = options.work / "text"
    fast = _target(folder, device, fastest_dtype(device))
    generate(fast, tokenizer, text, num_tokens=options.tokens, report=say)
    add_hidden(fast, text, report=say)
    del fast
    target = _target(folder, device, torch.float32)
    held_out = Replies(target, tokenizer, options.work / "held-out")
    corpus = Corpus(text)
    vocab = corpus.frequent(options.vocab)
    say(f"{corpus.num_tokens} tokens, {vocab.numel()} rows cover {corpus.coverage(vocab):.4f}")
    if "mtp" in options.only:
        _train_mtp(options, target, corpus, held_out, vocab)
    if "draft" in options.only:
        _train_draft(options, target, corpus, held_out, vocab)


def _evaluate(options: argparse.Namespace, target: LlamaForCausalLM, replies: Replies) -> None:
    """Print the acceptance table of the drafters in --out."""
    embedding = target.model.embed_tokens.weight
    if "mtp" in options.only:
        folder = options.out / "smollm2-135m-mtp"
        module, vocab = load_module(folder, target.config)
        module = module.to(target.device)
        rows = _vocab(vocab, target)
        measure = partial(mtp.run_lengths, module, embedding, rows)
        say(f"MTP module\n{table(replies.acceptance(measure))}")
    if "draft" in options.only:
        folder = options.out / "smollm2-135m-draft"
        model = draft.pruned(target).to(target.device)
        model.load_state_dict(read_folder(folder)[0], strict=False)
        rows = _vocab(draft_vocab(folder), target)
        measure = partial(draft.run_lengths, model, embedding, rows)
        say(f"draft model\n{table(replies.acceptance(measure))}")


def _vocab(vocab: torch.Tensor | None, target: LlamaForCausalLM) -> torch.Tensor:
    everything = torch.arange(target.config.vocab_size) if vocab is None else vocab
    return everything.to(target.device)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.training", description=__doc__)
    parser.add_argument("--work", type=Path, help="folder for text and states")
    parser.add_argument("--evaluate", action="store_true", help="only measure what is in --out")
    parser.add_argument("--out", type=Path, default=catalog.ASSETS / "models")
    parser.add_argument("--tokens", type=int, default=1_500_000)
    parser.add_argument("--vocab", type=int, default=12288, help="rows of the head to train on")
    parser.add_argument("--mtp-seconds", type=float, default=2400)
    parser.add_argument("--draft-seconds", type=float, default=1800)
    parser.add_argument("--learning-rate", type=float, default=6e-4, help="at its highest")
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=["mtp", "draft"], choices=["mtp", "draft"])
    parser.add_argument("--afresh", action="store_true", help="do not start from what is in --out")
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    if not (options.work or options.evaluate):
        parser.error("say where the text shall lie: --work FOLDER")
    return options


def _target(folder: Path, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval().requires_grad_(False).to(device)


def _train_mtp(
    options: argparse.Namespace,
    target: LlamaForCausalLM,
    corpus: Corpus,
    held_out: Replies,
    vocab: torch.Tensor,
) -> None:
    out = options.out / "smollm2-135m-mtp"
    module = _first_module(target, None if options.afresh else out).to(target.device)
    vocab = vocab.to(target.device)
    embedding = target.model.embed_tokens.weight
    measure = partial(mtp.run_lengths, module, embedding, vocab)
    say(f"MTP module at the start: {spell(held_out.pooled(measure))}")
    spent = train(
        module,
        corpus,
        partial(mtp.loss_of, module, embedding, vocab),
        state_path=options.work / "mtp.pt",
        seconds=options.mtp_seconds,
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        evaluate=partial(held_out.pooled, measure),
        report=say,
    )
    facts = _facts(measure, corpus, held_out, spent, target)
    export.write_mtp(out, module, target.config, vocab, facts)


def _facts(
    measure: RunLengths,
    corpus: Corpus,
    held_out: Replies,
    spent: Spent,
    target: LlamaForCausalLM,
) -> export.Facts:
    """Measure what the model card tells."""
    some = corpus.held_out[:SAME_KIND]
    same_kind = acceptance(measure, corpus, some, device=target.device)
    return export.Facts(corpus, spent, held_out.acceptance(measure), same_kind)


def _first_module(target: LlamaForCausalLM, bundled: Path | None) -> MTPModule:
    """Return the bundled module, or one made from the target's last block."""
    if bundled is not None and (bundled / "config.json").exists():
        module, _ = load_module(bundled, target.config)
        return module.train().requires_grad_(True)
    module = MTPModule(module_config(target.config))
    module.block.load_state_dict(target.model.layers[-1].state_dict())
    module.norm.load_state_dict(target.model.norm.state_dict())
    width = target.config.hidden_size
    with torch.no_grad():
        half = torch.eye(width) * 0.5
        noise = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(0)) * 0.01
        module.projection.weight.copy_(torch.cat([half, half], 1) + noise)
    return module


def _train_draft(
    options: argparse.Namespace,
    target: LlamaForCausalLM,
    corpus: Corpus,
    held_out: Replies,
    vocab: torch.Tensor,
) -> None:
    out = options.out / "smollm2-135m-draft"
    model = draft.pruned(target).to(target.device)
    vocab = vocab.to(target.device)
    if not options.afresh and (out / "config.json").exists():
        model.load_state_dict(read_folder(out)[0], strict=False)
    embedding = target.model.embed_tokens.weight
    measure = partial(draft.run_lengths, model, embedding, vocab)
    say(f"draft model at the start: {spell(held_out.pooled(measure))}")
    spent = train(
        model,
        corpus,
        partial(draft.loss_of, model, embedding, vocab),
        state_path=options.work / "draft.pt",
        seconds=options.draft_seconds,
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        evaluate=partial(held_out.pooled, measure),
        report=say,
    )
    facts = _facts(measure, corpus, held_out, spent, target)
    export.write_draft(out, model, vocab, facts)


if __name__ == "__main__":
    main()
