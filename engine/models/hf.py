"""A transformers causal model behind the `LanguageModel` protocol.

Contract: see `models/base`. One sequence, one cache, logits only for the rows asked for. The
model's weights are never changed here; `forget` and a new read are all it takes to start over.

A model with recurrent state goes back to the end of what was committed a round ago; the tokens
accepted since then ride along in the next pass (they count in `num_forwarded`), so a rejection
costs no pass of its own. When too many would ride along, they get one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.models.base import Reading, SharedKV, Tap, num_kept
from engine.models.cache import SnapshotCache, cache_for

MOST_PENDING = 8
"""Tokens that are read again beside new ones, at most, before they get a pass of their own."""

_FINAL_NORMS = ("norm", "embedding_norm", "final_layernorm", "final_layer_norm", "ln_f")
"""What libraries call the last norm of a trunk."""


def final_norm(model: PreTrainedModel) -> nn.Module | None:
    """Return the last norm of a model's trunk, where it has one under a known name."""
    decoder: Any = model.get_decoder()
    found = (getattr(decoder, name, None) for name in _FINAL_NORMS)
    return next((norm for norm in found if norm is not None), None)


class HFModel:
    """A `LanguageModel` around any `PreTrainedModel` with a language-model head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        text_config = model.config.get_text_config()
        self.vocab_size = int(text_config.vocab_size)
        self.max_length = int(text_config.max_position_embeddings)
        self.device = model.device
        self._taps: tuple[Tap, ...] = ()
        self._cache = cache_for(model)
        self._held: list[int] = []
        self._before_norm: Tensor | None = None
        self._norm = final_norm(model)

    @property
    def knows_pre_norm(self) -> bool:
        """Whether the state before the final norm can be tapped."""
        return self._norm is not None

    def tap(self, taps: tuple[Tap, ...]) -> None:
        """Choose the hidden states that `read` returns."""
        self._taps = taps

    def forget(self) -> None:
        """Drop the cache: the next read starts cold."""
        self._cache = cache_for(self.model)
        self._held = []

    def shared_kv(self, length: int) -> SharedKV:
        """Return keys and values of the first `length` positions (Gemma 4: for its assistant).

        Raises ValueError when less was read, or when the model's layers share nothing.
        """
        if not 0 < length <= len(self._held):
            raise ValueError(f"{length} positions asked for, {len(self._held)} read")
        config = self.model.config.get_text_config()
        shared = {
            kind: (layer.keys[:, :, :length], layer.values[:, :, :length])
            for kind, mode, layer in zip(
                getattr(config, "layer_types", None) or (),
                getattr(config, "kv_sharing_modes", None) or (),
                self._cache.library_cache.layers,
                strict=False,  # models that share nothing lack one or both lists
            )
            if mode == "store"
        }
        if not {"sliding_attention", "full_attention"} <= shared.keys():
            raise ValueError(f"{type(self.model).__name__} has no keys and values to share")
        return SharedKV(shared["sliding_attention"], shared["full_attention"])

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
        num_rolled_back = len(self._held) - kept
        need_features = bool(features and self._taps)
        try:
            stands = begun = self._cache.rewind(kept)
            if committed is not None and isinstance(self._cache, SnapshotCache):
                latest = min(committed - 1, len(ids) - max(want, features))
                if latest - stands > MOST_PENDING:
                    self._forward(ids[stands:latest])
                    stands = latest
                if stands <= committed:
                    self._cache.remember()
            out = self._forward(ids[stands:], want=want, output_hidden_states=need_features)
        except BaseException:
            self.forget()  # the first layers may hold the new tokens already, the last ones not
            raise
        self._held = ids
        return Reading(
            logits=out.logits[0, -want:],
            features=self._features(out.hidden_states, features) if need_features else _NOTHING,
            num_rolled_back=num_rolled_back,
            num_forwarded=len(ids) - begun,
        )

    def _forward(self, fresh: list[int], *, want: int = 1, **options: Any) -> Any:
        """Run the model on tokens behind what the cache holds."""
        with self._watched_norm() as before_norm:
            out = self.model(
                input_ids=torch.tensor([fresh], device=self.device),  # [1, n]
                cache=self._cache.library_cache,
                use_cache=True,
                logits_to_keep=want,
                **options,
            )
        self._cache.grew(len(fresh))
        self._before_norm = before_norm[0] if before_norm else None
        return out

    @contextmanager
    def _watched_norm(self) -> Iterator[list[Tensor]]:
        """Collect what the final norm is given, where that is tapped."""
        seen: list[Tensor] = []
        if "pre_norm" not in self._taps or self._norm is None:
            yield seen
            return
        hook = self._norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            yield seen
        finally:
            hook.remove()

    def _features(self, hidden_states: Sequence[Tensor], count: int) -> Tensor:
        """Return the tapped states of the last `count` positions.  -> [count, F]"""
        states = {"final": hidden_states[-1], "pre_norm": self._before_norm}
        rows = []
        for tap in self._taps:
            state = hidden_states[tap] if isinstance(tap, int) else states[tap]
            if state is None:
                raise ValueError(f"{type(self.model).__name__} has no state at {tap!r}")
            rows.append(state[0, -count:])
        return torch.cat(rows, dim=-1)


_NOTHING = torch.empty(0, 0)
