"""Is an MTP module wired as it was trained? One pass over a text says so.

A module that is fed the wrong hidden state, or reads its two inputs the other way round, changes no
text: it only drafts badly, and nobody notices. So at every load the module predicts a known text
two tokens ahead, everything before being true, and its favourites are compared with the target's.
The same is done with the inputs swapped and with the state on the other side of the target's final
norm. Where there is a module for each position, the first is looked at.

Contract: `check_wiring` leaves target and module as they were, apart from the target's cache.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.models.base import LanguageModel
from engine.models.mtp_module import MTPModule
from engine.models.static_chain import StaticChain
from engine.proposers.mtp import MTPParts

PASSAGE = (
    "The sun rises in the east and sets in the west. The sun rises in the east and sets in the "
    "west. One, two, three, four, five, six, seven, eight, nine, ten. One, two, three, four, five, "
    "six, seven, eight, nine, ten. The library opens at nine in the morning. The library opens at "
    "nine in the morning."
)
"""What is predicted; every sentence comes twice, so that even a small target is sure of it."""

WEAK = 0.2
"""Below this share a module is of little use, however it is wired."""

MARGIN = 0.1
"""So much more for another wiring means that the other one is right."""

Verdict = Literal["fine", "swapped", "norm", "weak"]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Shares of places where the module's favourite is the target's.

    agreement: as it is wired.  swapped: with its two inputs the other way round.  other_state: fed
    the state before the target's final norm, or behind it where it is wired to the one before.
    None: where that cannot be tried.
    """

    agreement: float
    swapped: float | None
    other_state: float | None
    num_places: int

    @property
    def verdict(self) -> Verdict:
        """What to think of it; "swapped" and "norm" name what would fit better."""
        swapped, other_state = self.swapped or 0.0, self.other_state or 0.0
        if max(swapped, other_state) > self.agreement + MARGIN:
            return "swapped" if swapped >= other_state else "norm"
        return "weak" if self.agreement < WEAK else "fine"


@torch.inference_mode()
def check_wiring(target: LanguageModel, parts: MTPParts, token_ids: list[int]) -> Wiring:
    """Compare the module's favourites with the target's over a text of at least three tokens."""
    states, others, logits = _read(target, token_ids)
    if parts.taps == ("pre_norm",):
        if others is None:
            raise ValueError("the target does not show its state before the final norm")
        states, others = others, states
    wanted = logits[1:].argmax(-1)  # [n - 1]: what follows token i + 1
    embeddings = parts.embedding(torch.tensor(token_ids[1:], device=target.device))
    module = parts.module
    if isinstance(module, StaticChain):
        module = module.module  # the same wiring, and one that can be changed for a moment

    def share(hidden: Tensor) -> float:
        out = module.run(embeddings, hidden[:-1], 0, module.new_cache())
        same = parts.head(out).argmax(-1) == wanted
        return float(same.float().mean())

    agreement = share(states)
    swapped = None
    if isinstance(module, MTPModule):
        family = module.family
        module.family = dataclasses.replace(family, hidden_first=not family.hidden_first)
        try:
            swapped = share(states)
        finally:
            module.family = family
    other_state = None if others is None else share(others)
    return Wiring(agreement, swapped, other_state, len(token_ids) - 1)


def _read(target: LanguageModel, token_ids: list[int]) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the states behind and (where known) before the final norm [n, D], logits [n, V]."""
    both = bool(getattr(target, "knows_pre_norm", False))
    target.tap(("final", "pre_norm") if both else ("final",))
    target.forget()
    reading = target.read(token_ids, want=len(token_ids), features=len(token_ids))
    target.tap(())
    target.forget()
    if not both:
        return reading.features, None, reading.logits
    behind, before = reading.features.chunk(2, dim=-1)
    return behind, before, reading.logits
