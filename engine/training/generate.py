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

from engine.training.openers import OPENERS

LONGEST_PROMPT = 120  # tokens the target may use for the user's turn
LONGEST_TURN = 330  # tokens after the system prompt, both turns together
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
    while have < num_tokens:
        rows = _one_batch(model, tokenizer, batch_size, seed * 1_000_003 + index)
        lens = np.array([len(row) for row in rows], dtype=np.int32)
        tokens = np.concatenate([np.array(row, dtype=np.uint16) for row in rows])
        partial = folder / f"partial-{index:04d}.npz"
        np.savez(partial, tokens=tokens, lens=lens)
        partial.rename(folder / f"chunk-{index:04d}.npz")
        have += int(lens.sum())
        index += 1
        rate = (have - first) / (time.monotonic() - started)
        report(f"{have} of {num_tokens} tokens, {rate:.0f} tokens/s")


@torch.inference_mode()
def _one_batch(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int
) -> list[list[int]]:
    """Sample `batch_size` conversations that share one opener."""
    rng = random.Random(seed)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    opener = rng.choices(list(OPENERS), weights=list(OPENERS.values()))[0]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": opener}], tokenize=False, add_generation_prompt=False
    )
    head = text.rstrip().removesuffix(tokenizer.eos_token)
    prefix = tokenizer(head, add_special_tokens=False)["input_ids"]
    answer = tokenizer("\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    device = model.device
    # A third of the answers is greedy, the rest is sampled at two temperatures.
    heat = torch.tensor([(1e-4, 0.7, 1.0)[i % 3] for i in range(batch_size)], device=device)
    rows = [list(prefix) for _ in range(batch_size)]
    forced: list[list[int]] = [[] for _ in range(batch_size)]
    answering = [False] * batch_size
    done = [False] * batch_size
    cache = StaticCache(config=model.config, max_cache_len=len(prefix) + LONGEST_TURN + 1)
    feed = torch.tensor([prefix], device=device).expand(batch_size, -1)
    for step in range(LONGEST_TURN):
        logits = model(input_ids=feed, cache=cache, logits_to_keep=1).logits[:, -1].float()
        warm = torch.where(torch.tensor(answering, device=device), heat, 1.0)
        drawn = _draw(logits, warm, generator).tolist()
        for i, row in enumerate(rows):
            if done[i]:
                continue
            if forced[i]:
                row.append(forced[i].pop(0))
                continue
            token = end if step >= LONGEST_PROMPT and not answering[i] else drawn[i]
            row.append(token)
            if token == end:
                done[i] = answering[i]
                if not answering[i]:
                    answering[i], forced[i] = True, list(answer)
        if sum(done) >= ENOUGH_DONE * batch_size:
            break
        feed = torch.tensor([[row[-1]] for row in rows], device=device)
    return rows


def _draw(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Sample among the 50 most likely tokens.  [B, V], [B] -> [B]"""
    values, ids = logits.topk(50, dim=-1)
    probs = torch.softmax(values / heat[:, None], dim=-1)
    pick = torch.multinomial(probs, 1, generator=generator)
    return ids.gather(1, pick)[:, 0]
