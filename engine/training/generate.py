"""Make training text: the target writes prompts and answers them.

Contract: `generate(...)` appends chunks `chunk-NNNN.npz` (`tokens` uint16, `lens` int32: whole
conversations, concatenated) to a folder until it holds enough tokens. It can be stopped and started
again at any time; finished chunks are never touched. Nothing but the target's own output is used,
so the data needs no other licence than the target's.

The pass runs in bf16 with a static cache: any text will do as training text (what the modules learn
is the target's distribution *over* it), and bf16 is twice as fast here where the processor has it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, StaticCache

from engine.training.data import answer_spans
from engine.training.prompts import UserTurn, first_turn, next_turn

LONGEST_PROMPT = 120  # tokens the target may use for the user's turn
LENGTHS = (256, 320, 320, 512)  # tokens behind the system prompt; drawn per batch
PASSAGES_KEPT = 600  # the pool that tasks about a text draw from
ENOUGH_DONE = 0.8  # a batch ends when this share of its conversations is complete


def generate(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    num_tokens: int,
    batch_size: int = 128,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Append chunks of conversations to `folder` until it holds `num_tokens` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks = sorted(folder.glob("chunk-*.npz"))
    have = sum(int(np.load(chunk)["lens"].sum()) for chunk in chunks)
    started, first = time.monotonic(), have
    index = len(chunks)
    script = _Script(tokenizer)
    passages: list[str] = []
    while have < num_tokens:
        number = seed * 1_000_003 + index
        rows = _one_batch(model, script, passages, batch_size, number)
        passages = (script.passages(rows, random.Random(number)) + passages)[:PASSAGES_KEPT]
        lens = np.array([len(row) for row in rows], dtype=np.int32)
        tokens = np.concatenate([np.array(row, dtype=np.uint16) for row in rows])
        partial = folder / f"partial-{index:04d}.npz"
        np.savez(partial, tokens=tokens, lens=lens)
        partial.rename(folder / f"chunk-{index:04d}.npz")
        have += int(lens.sum())
        index += 1
        rate = (have - first) / (time.monotonic() - started)
        report(f"{have} of {num_tokens} tokens, {rate:.0f} tokens/s")


class _Conversation:
    """One row of a batch: what was said, what is still to be said word for word."""

    def __init__(self, prefix: list[int], first: list[int], num_turns: int) -> None:
        self.ids = list(prefix)
        self.forced = list(first)
        self.turns_left = num_turns
        self.answering = False
        self.done = False
        self._turn_length = 0

    def add(self, drawn: int, script: _Script, rng: random.Random) -> None:
        """Take the next token: a forced one, the end of an overlong prompt, or the drawn one."""
        if self.done:
            return
        token = self.forced.pop(0) if self.forced else drawn
        self._turn_length += 1
        if not (self.forced or self.answering) and self._turn_length >= LONGEST_PROMPT:
            token = script.end
        self.ids.append(token)
        if token != script.end:
            return
        self._turn_length = 0
        if not self.answering:
            self.forced = list(script.answer)
            self.answering = True
            return
        self.turns_left -= 1
        self.answering = False
        if self.turns_left:
            self.forced = [*script.ask, *script.encode(next_turn(rng))]
        else:
            self.done = True


class _Script:
    """The chat template in tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)
        chat = [{"role": "user", "content": ""}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        self.prefix = self._ids(text.rstrip().removesuffix(tokenizer.eos_token))
        self.answer = self._ids("\n<|im_start|>assistant\n")
        self.ask = self._ids("\n<|im_start|>user\n")

    def encode(self, turn: UserTurn) -> list[int]:
        """Return the tokens of a user turn, with its end when nothing is left to write."""
        return self._ids(turn.text) + [self.end] * turn.whole

    def passages(self, rows: list[list[int]], rng: random.Random) -> list[str]:
        """Return pieces of replies, a few sentences each."""
        found = []
        for row in rows:
            reply = self._tokenizer.decode(row[answer_spans(row)[0][0] :]).split("<|im_end|>")[0]
            sentences = reply.replace("\n", " ").split(". ")
            start = rng.randrange(len(sentences))
            text = ". ".join(sentences[start : start + rng.randint(1, 4)]).strip()
            if 40 < len(text) < 500:
                found.append(text if text.endswith(".") else f"{text}.")
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


@torch.inference_mode()
def _one_batch(
    model: LlamaForCausalLM, script: _Script, passages: list[str], batch_size: int, seed: int
) -> list[list[int]]:
    """Sample `batch_size` conversations."""
    rng = random.Random(seed)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    device = model.device
    num_steps = rng.choice(LENGTHS)
    # Half of the answers is greedy, the rest is sampled at two temperatures.
    heat = torch.tensor([(1e-4, 0.7, 1e-4, 1.0)[i % 4] for i in range(batch_size)], device=device)
    rows = [
        _Conversation(script.prefix, script.encode(first_turn(rng, passages)), 1 + (i % 3 == 0))
        for i in range(batch_size)
    ]
    cache = StaticCache(config=model.config, max_cache_len=len(script.prefix) + num_steps + 1)
    feed = torch.tensor([script.prefix], device=device).expand(batch_size, -1)
    for _ in range(num_steps):
        logits = model(input_ids=feed, cache=cache, logits_to_keep=1).logits[:, -1].float()
        warm = torch.where(torch.tensor([row.answering for row in rows], device=device), heat, 1.0)
        for row, token in zip(rows, _draw(logits, warm, generator).tolist(), strict=True):
            row.add(token, script, rng)
        if sum(row.done for row in rows) >= ENOUGH_DONE * batch_size:
            break
        feed = torch.tensor([[row.ids[-1]] for row in rows], device=device)
    return [row.ids for row in rows if answer_spans(row.ids)]


def _draw(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Sample among the 50 most likely tokens.  [B, V], [B] -> [B]"""
    values, ids = logits.topk(50, dim=-1)
    probs = torch.softmax(values / heat[:, None], dim=-1)
    pick = torch.multinomial(probs, 1, generator=generator)
    return ids.gather(1, pick)[:, 0]
