"""Held-out prompts and the acceptance that greedy drafting reaches on the target's replies to them.

The prompts are written by hand and unlike the training text, which the target wrote itself. Every
figure counts greedy replies, teacher-forced and without any cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from engine import catalog
from engine.training.data import Batch, Corpus, add_hidden

PROMPTS = (
    "Describe a beautiful day at the beach.",
    "Write a Python function that returns the sum of the even numbers in a list.",
    "What causes thunder and lightning?",
    "Give me a recipe for vegetable soup.",
    "Who was Isaac Newton and what did he discover?",
    "List the planets of the solar system in order.",
    "Write a letter of complaint about a broken washing machine.",
    "How do I change a flat tire?",
    "What is the difference between a virus and bacteria?",
    "Tell me a story about a dragon who was afraid of fire.",
    "Solve: 12 times 15 minus 30.",
    "Explain how a refrigerator works.",
)
REPLY_TOKENS = 96


def make_replies(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> Corpus:
    """Let the target answer the held-out prompts and the page's presets greedily, once."""
    path = folder / "chunk-0000.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        presets = [preset.prompt for preset in catalog.load().presets.values()]
        rows = [_reply(model, tokenizer, prompt) for prompt in (*PROMPTS, *presets)]
        np.savez(
            path,
            tokens=np.concatenate(rows).astype(np.uint16),
            lens=np.array([len(row) for row in rows], dtype=np.int32),
        )
    add_hidden(model, folder)
    return Corpus(folder)


def _reply(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt"
    ).to(model.device)
    out = model.generate(**inputs, max_new_tokens=REPLY_TOKENS, do_sample=False)
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = out[0].cpu().numpy()
    return ids


def acceptance(
    run_lengths: Callable[[Batch], Tensor],
    corpus: Corpus,
    rows: list[int],
    *,
    device: torch.device,
    longest: int = 4,
) -> list[float]:
    """Return the share of positions whose first n drafts all match, n = 1..longest."""
    lengths = torch.cat([run_lengths(corpus.batch([i]).to(device)) for i in rows])
    return [float((lengths >= n).float().mean()) for n in range(1, longest + 1)]


def spell(rates: list[float]) -> str:
    """Return rates as text."""
    return " / ".join(f"{rate:.3f}" for rate in rates)
