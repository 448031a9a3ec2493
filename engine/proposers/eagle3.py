"""EAGLE-3: a trained head drafts from three of the target's hidden states."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from engine.models.base import Tap
from engine.models.eagle3_module import Eagle3Module
from engine.models.linear import TrimmedHead
from engine.proposers.base import Context
from engine.proposers.mtp import MTP, MTPParts
from engine.sampling import Sampler


@dataclasses.dataclass(frozen=True, slots=True)
class Eagle3Parts:
    """What the head needs; shared by all runs.

    taps: the target's layers it reads, in the order of `fc`.  chained: how it drafts once it has a
    hidden state of its own width; its output head gives -inf to tokens it never drafts.
    """

    module: Eagle3Module
    chained: MTPParts
    taps: tuple[Tap, ...]


def eagle3_parts(
    module: Eagle3Module,
    taps: tuple[Tap, ...],
    embedding: nn.Module,
    vocab_size: int,
    vocab: Tensor | None,
) -> Eagle3Parts:
    """Put a head together.  vocab [R]: the target's id of each token it scores; None: the same."""
    head = module.head if vocab is None else TrimmedHead(module.head, vocab, vocab_size)
    device = module.norm.weight.device
    return Eagle3Parts(module, MTPParts(module, embedding, head, vocab_size, device), taps)


class Eagle3(MTP):
    """Drafts as an MTP module does; what it ingests are the target's states, fused.

    Entries made while drafting came from its own outputs; as there, they are dropped at the next
    `propose` and made again from the target's true states.
    """

    def __init__(self, parts: Eagle3Parts, sampler: Sampler, generator: torch.Generator) -> None:
        super().__init__(parts.chained, sampler, generator)
        self.taps = parts.taps
        self._module = parts.module

    def _ingest(self, context: Context) -> None:
        if len(context.features):
            fused = self._module.fuse(context.features)
            context = dataclasses.replace(context, features=fused)
        super()._ingest(context)
