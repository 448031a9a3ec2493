"""Held-out prompts and the acceptance that greedy drafting reaches on the target's replies to them.

The prompts are written by hand and none of them is in the training text. Every figure counts greedy
replies, teacher-forced and without any cache: the share of reply positions at which the first n
drafts all equal the target's choices.
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

PROMPTS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function that returns the sum of the even numbers in a list.",
        "Show me a small Python class for a bank account with deposit and withdraw.",
        "What does a for loop do? Show one in Python that prints the squares up to 100.",
    ),
    "maths": (
        "Solve: 12 times 15 minus 30.",
        "A cinema has 14 rows of 22 seats. 57 seats are empty. How many people are watching?",
        "Half of the 36 pupils walk to school and a third come by bus. How many do neither?",
    ),
    "translation": (
        "Translate this into Spanish: Where can I buy a ticket for the night bus?",
        "What is the French for: My neighbour plays the piano every evening.",
        "Please put this into German: The bakery on the corner sells fresh rolls.",
    ),
    "list": (
        "List the planets of the solar system in order.",
        "Give me a recipe for vegetable soup.",
        "What are ten good names for a grey cat?",
    ),
    "summary": (
        "Summarize: Bats are the only mammals that truly fly. Most of them hunt insects at night "
        "and find their way by listening to the echo of their own calls. Some live in colonies of "
        "many thousands.",
        "Give the gist of this note: The boiler was repaired on Tuesday, but the pressure fell "
        "again over night, so the plumber will return on Friday with a new valve.",
        "In one sentence, what is this about? Paper was once made from rags. When rags ran short "
        "in the nineteenth century, mills began to use wood, and paper became cheap.",
    ),
    "rewrite": (
        "Make this polite: Stop playing the drums at night, nobody can sleep.",
        "Rewrite as formal English: hey, the stuff you sent is broken, fix it asap",
        "Turn this into a cheerful announcement: The shop opens on Saturday.",
    ),
    "prose": (
        "Describe a beautiful day at the beach.",
        "Tell me a story about a dragon who was afraid of fire.",
        "Write a letter of complaint about a broken washing machine.",
    ),
    "repeat": (
        "Say this back to me exactly: The grey heron stands in the shallow pond and waits.",
        "Write the following line four times: Every window in the old mill was lit.",
        "Copy this address twice: Flat 7, 22 Harbour Lane, near the ferry landing.",
    ),
    "question": (
        "What causes thunder and lightning?",
        "How do I change a flat tire?",
        "What is the difference between a virus and bacteria?",
        "Who was Isaac Newton and what did he discover?",
        "Explain how a refrigerator works.",
    ),
}
"""Held-out prompts by domain: the page's eight, and questions."""

POOLED = "all"
PRESETS = "presets"
REPLY_TOKENS = 96
LONGEST = 4


class Replies:
    """The target's greedy replies to the held-out prompts and to the page's presets."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
    ) -> None:
        """Make them, or read them from `folder`."""
        presets = [preset.prompt for preset in catalog.load().presets.values()]
        prompts = [prompt for group in PROMPTS.values() for prompt in group]
        path = folder / "chunk-0000.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            rows = [_reply(model, tokenizer, prompt) for prompt in (*prompts, *presets)]
            np.savez(
                path,
                tokens=np.concatenate(rows).astype(np.uint16),
                lens=np.array([len(row) for row in rows], dtype=np.int32),
            )
        add_hidden(model, folder)
        self._corpus = Corpus(folder)
        self._device = model.device
        self._rows: dict[str, list[int]] = {}
        start = 0
        for domain, group in PROMPTS.items():
            self._rows[domain] = list(range(start, start + len(group)))
            start += len(group)
        self._rows[POOLED] = list(range(start))
        self._rows[PRESETS] = list(range(start, start + len(presets)))

    def acceptance(self, run_lengths: RunLengths) -> dict[str, list[float]]:
        """Return acceptance by domain, over all held-out prompts, and over the presets."""
        return {
            name: acceptance(run_lengths, self._corpus, rows, device=self._device)
            for name, rows in self._rows.items()
        }

    def pooled(self, run_lengths: RunLengths) -> list[float]:
        """Return the acceptance over all held-out prompts."""
        return acceptance(run_lengths, self._corpus, self._rows[POOLED], device=self._device)


RunLengths = Callable[[Batch], Tensor]
"""How many greedy drafts in a row match the target's choices, per reply position.  -> [n]"""


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
    run_lengths: RunLengths, corpus: Corpus, rows: list[int], *, device: torch.device
) -> list[float]:
    """Return the share of positions whose first n drafts all match, n = 1..LONGEST."""
    lengths = torch.cat([run_lengths(corpus.batch([i]).to(device)) for i in rows])
    return [float((lengths >= n).float().mean()) for n in range(1, LONGEST + 1)]


def table(rates: dict[str, list[float]]) -> str:
    """Return acceptance as a Markdown table."""
    head = " | ".join(f"first {n}" if n > 1 else "first" for n in range(1, LONGEST + 1))
    lines = [f"| prompts | {head} |", "|---|" + "---|" * LONGEST]
    for name, values in rates.items():
        lines.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    return "\n".join(lines)


def spell(rates: list[float]) -> str:
    """Return rates as text."""
    return " / ".join(f"{rate:.3f}" for rate in rates)
