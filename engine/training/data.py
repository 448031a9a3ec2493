"""Training text and the target's hidden states over it.

Contract: a `Corpus` is a folder of token chunks (see `generate`) with one `hidden-NNNN.npy` (fp16,
[tokens, D]) per chunk, made by `add_hidden` in one teacher-forced pass. Both steps resume where
they stopped. Conversations keep their order; every 25th is held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

HOLD_OUT = 25
ASSISTANT = (1, 520, 9531, 198)  # "<|im_start|>assistant\n" in SmolLM2's tokens
END = 2  # "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens [B, T]; hidden [B, T, D], the target's final states; mask and answer [B, T].

    mask marks real tokens, answer those that belong to a reply.
    """

    tokens: Tensor
    hidden: Tensor
    mask: Tensor
    answer: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


class Corpus:
    """All conversations of a folder, hidden states mapped from disk."""

    def __init__(self, folder: Path) -> None:
        self._rows: list[np.ndarray] = []
        self._hidden: list[np.ndarray] = []
        for chunk in sorted(folder.glob("chunk-*.npz")):
            states = np.load(hidden_path(chunk), mmap_mode="r")
            data = np.load(chunk)
            ends = np.cumsum(data["lens"])
            tokens = data["tokens"].astype(np.int64)
            for start, end in zip(ends - data["lens"], ends, strict=True):
                self._rows.append(tokens[start:end])
                self._hidden.append(states[start:end])
        everything = range(len(self._rows))
        self.held_out = [i for i in everything if i % HOLD_OUT == 0]
        self.train = [i for i in everything if i % HOLD_OUT]
        self.num_tokens = sum(len(row) for row in self._rows)

    def frequent(self, count: int) -> Tensor:
        """Return the `count` most frequent token ids, in ascending order.  [count]"""
        counts = np.bincount(np.concatenate(self._rows))
        return torch.from_numpy(np.sort(np.argsort(-counts)[:count]))

    def coverage(self, vocab: Tensor) -> float:
        """Return the share of all tokens that lie in `vocab`."""
        counts = np.bincount(np.concatenate(self._rows), minlength=int(vocab.max()) + 1)
        return float(counts[vocab.numpy()].sum() / counts.sum())

    def batch(self, rows: list[int]) -> Batch:
        """Return conversations padded to the longest."""
        longest = max(len(self._rows[i]) for i in rows)
        width = self._hidden[rows[0]].shape[1]
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        hidden = torch.zeros(len(rows), longest, width)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        answer = torch.zeros(len(rows), longest, dtype=torch.bool)
        for j, i in enumerate(rows):
            size = len(self._rows[i])
            tokens[j, :size] = torch.from_numpy(self._rows[i])
            hidden[j, :size] = torch.from_numpy(self._hidden[i].astype(np.float32))
            mask[j, :size] = True
            for start, end in answer_spans(self._rows[i].tolist()):
                answer[j, start:end] = True
        return Batch(tokens, hidden, mask, answer)

    def epochs(self, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        """Yield shuffled training batches for ever, conversations of similar length together."""
        rng = np.random.default_rng(seed)
        count = 0
        while True:
            order = rng.permutation(self.train)
            pool = batch_size * 16
            for start in range(0, len(order) - batch_size, pool):
                part = sorted(order[start : start + pool], key=lambda i: len(self._rows[i]))
                groups = [part[k : k + batch_size] for k in range(0, len(part), batch_size)]
                for k in rng.permutation(len(groups)):
                    count += 1
                    if count > skip:
                        yield self.batch([int(i) for i in groups[k]])


def answer_spans(row: Sequence[int]) -> list[tuple[int, int]]:
    """Return [start, end) of every reply; the token that ends a reply belongs to it."""
    ids = list(row)
    spans = []
    for at in (i for i, token in enumerate(ids) if token == ASSISTANT[0]):
        start = at + len(ASSISTANT)
        if tuple(ids[at:start]) == ASSISTANT:
            end = next((i + 1 for i in range(start, len(ids)) if ids[i] == END), len(ids))
            spans.append((start, end))
    return spans


def hidden_path(chunk: Path) -> Path:
    """Return where the hidden states of a chunk lie."""
    return chunk.with_name(chunk.stem.replace("chunk", "hidden") + ".npy")


@torch.inference_mode()
def add_hidden(
    model: LlamaForCausalLM,
    folder: Path,
    *,
    batch_size: int = 16,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Write the target's final hidden states for every chunk that lacks them."""
    for chunk in sorted(folder.glob("chunk-*.npz")):
        path = hidden_path(chunk)
        if path.exists():
            continue
        data = np.load(chunk)
        ends = np.cumsum(data["lens"])
        starts = ends - data["lens"]
        states = np.zeros((int(ends[-1]), model.config.hidden_size), dtype=np.float16)
        order = np.argsort(data["lens"])
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            tokens = torch.zeros(len(rows), int(data["lens"][rows].max()), dtype=torch.long)
            for j, i in enumerate(rows):
                piece = data["tokens"][starts[i] : ends[i]].astype(np.int64)
                tokens[j, : len(piece)] = torch.from_numpy(piece)
            # Padding lies behind the real tokens, so causal attention needs no mask for it.
            out = model.model(input_ids=tokens.to(model.device), use_cache=False)
            final = out.last_hidden_state.to("cpu", torch.float16).numpy()
            for j, i in enumerate(rows):
                states[starts[i] : ends[i]] = final[j, : ends[i] - starts[i]]
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, states)
        partial.rename(path)
        report(f"hidden states of {chunk.name}")
