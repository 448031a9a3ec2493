"""Target + draft model: a smaller model with the same tokenizer guesses token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.base import LanguageModel, Reading, Tap
from engine.proposers.base import Context, Draft, no_draft
from engine.sampling import Sampler, draw


class DraftModel:
    """Draws each token from the draft model under the user's own processors.

    The draft model may have fewer or more rows than the target (`vocab_size` is the target's) and
    rows that stand for nothing, or for something else, there: those are `masked` [M]. They get q =
    0, as do tokens that it does not have.
    """

    taps: tuple[Tap, ...] = ()

    def __init__(
        self,
        model: LanguageModel,
        sampler: Sampler,
        generator: torch.Generator,
        *,
        vocab_size: int,
        masked: Tensor | None = None,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._generator = generator
        self._vocab_size = vocab_size
        self._masked = masked
        model.forget()

    @torch.inference_mode()
    def propose(self, context: Context, gamma: int) -> Draft:
        """Draft `gamma` tokens; the prefix rule of `read` undoes rejected ones by itself."""
        ids = list(context.token_ids)
        gamma = min(gamma, self._model.max_length - len(ids))
        if gamma <= 0:
            # The last token is left for the first draft step, which has to read it anyway.
            if 1 < len(ids) <= self._model.max_length:
                self._read(ids[:-1], len(ids) - 1)
            return no_draft(self._vocab_size, self._model.device)
        all_logits, all_probs = [], []
        for _ in range(gamma):
            logits = self._read(ids, len(context.token_ids)).logits
            logits = logits[:, : self._vocab_size]  # [1, V_draft]
            if self._masked is not None:
                logits = logits.index_fill(1, self._masked, -torch.inf)
            missing = self._vocab_size - logits.shape[1]
            if missing:
                logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
            probs = self._sampler.probs(logits, ids)
            ids.append(draw(probs[0], self._generator))
            all_logits.append(logits)
            all_probs.append(probs)
            if self._sampler.is_unsure(logits, ids[-1]):
                break
        return Draft(
            torch.tensor(ids[-len(all_probs) :], device=self._model.device),
            torch.cat(all_probs),
            torch.cat(all_logits),
        )

    def _read(self, ids: list[int], committed: int) -> Reading:
        """Let the draft model read `ids`; it sees token 0 for one that it does not know."""
        known = self._model.vocab_size
        if known < self._vocab_size:
            ids = [i if i < known else 0 for i in ids]
        return self._model.read(ids, committed=committed)
