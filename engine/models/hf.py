"""A transformers causal model behind the `LanguageModel` protocol.

Contract: see `models/base`. One sequence, one crop cache, logits only for the rows asked for. The
model's weights are never changed here; `forget` and a new read are all it takes to start over.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.models.base import Reading, Tap, num_kept
from engine.models.cache import crop_cache_for


class HFModel:
    """A `LanguageModel` around any croppable `PreTrainedModel` with a language-model head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        text_config = model.config.get_text_config()
        self.vocab_size = int(text_config.vocab_size)
        self.max_length = int(text_config.max_position_embeddings)
        self.device = model.device
        self._taps: tuple[Tap, ...] = ()
        self._cache = crop_cache_for(model)
        self._held: list[int] = []

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Choose the hidden states that `read` returns: after the final norm, or after layer n."""
        self._taps = taps

    def forget(self) -> None:
        """Drop the cache: the next read starts cold."""
        self._cache = crop_cache_for(self.model)
        self._held = []

    @torch.inference_mode()
    def read(
        self,
        token_ids: Sequence[int],
        *,
        want: int = 1,
        features: int = 0,
        committed: int | None = None,
    ) -> Reading:
        """Have read `token_ids`; return logits and features of the last positions."""
        ids = list(token_ids)
        kept = num_kept(self._held, ids, want=want, features=features)
        num_rolled_back = self._cache.crop(kept)
        fresh = torch.tensor([ids[kept:]], device=self.device)  # [1, n]
        need_features = bool(features and self._taps)
        try:
            out = self.model(
                input_ids=fresh,
                cache=self._cache.library_cache,
                use_cache=True,
                logits_to_keep=want,
                output_hidden_states=need_features,
            )
        except BaseException:
            self.forget()  # the first layers may hold the new tokens already, the last ones not
            raise
        self._held = ids
        return Reading(
            logits=out.logits[0, -want:],
            features=self._features(out.hidden_states, features) if need_features else _NOTHING,
            num_rolled_back=num_rolled_back,
            num_forwarded=len(ids) - kept,
        )

    def _features(self, hidden_states: Sequence[Tensor], count: int) -> Tensor:
        """Return the tapped states of the last `count` positions.  -> [count, F]"""
        rows = [hidden_states[-1 if tap == "final" else tap][0, -count:] for tap in self._taps]
        return torch.cat(rows, dim=-1)


_NOTHING = torch.empty(0, 0)
