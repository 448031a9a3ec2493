"""The assistant of a Gemma 4 model: a drafter without keys and values of its own.

Contract: `load_assistant` loads an `-assistant` checkpoint for a target, or says what does not fit.
`Assistant.step` drafts one token: it eats the embedding of the last token (the target's, which
scales it already) and a hidden state, and attends to the keys and values that the target shares.
The first hidden state is the target's behind its final norm; the next ones are the assistant's own,
projected back to the target's width.

Two things about positions. Every step of a draft stands at the same one, that of the last token
before it, because nothing is added to the keys. And the library's own mask narrows the sliding
layers: they see positions at most a window away from the last shared one, so all are handed over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.errors import PlaygroundError
from engine.models.base import SharedKV
from engine.models.mtp_module import bad_module

_MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
_KINDS = ("sliding_attention", "full_attention")


class Assistant:
    """An assistant model bound to its target's embedding; it holds nothing of a run."""

    def __init__(self, model: PreTrainedModel, target: PreTrainedModel) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.embedding = target.get_input_embeddings()
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.device = model.device
        if self.model.masked_embedding is not None:
            self.model.masked_embedding = ClusteredHead(self.model.masked_embedding)

    def step(
        self, token_id: int, hidden: Tensor, position: int, shared: SharedKV
    ) -> tuple[Tensor, Tensor]:
        """Return the logits behind `token_id` [1, V] and the next hidden state.  [1, D]"""
        embedded = self.embedding(torch.tensor([[token_id]], device=self.device))  # [1, 1, D]
        out = self.model(
            inputs_embeds=torch.cat([embedded, hidden[None]], dim=-1),  # [1, 1, 2 D]
            position_ids=torch.tensor([[position]], device=self.device),
            shared_kv_states=dict(zip(_KINDS, (shared.sliding, shared.full), strict=True)),
        )
        return out.logits[0].float(), out.last_hidden_state[0]


class ClusteredHead(nn.Module):
    """Scores the tokens of the most promising clusters; the others get -inf.

    The library's own gives the others the smallest score less 1. To be drawn from, that would be
    another distribution: most of a big vocabulary would share what should be nothing.
    """

    def __init__(self, library_head: Any) -> None:
        super().__init__()
        self.centroids = library_head.centroids
        self.num_scored = int(library_head.centroid_intermediate_top_k)
        ordering = library_head.token_ordering.long()
        self.clusters = nn.Buffer(ordering.view(library_head.num_centroids, -1))  # [C, V / C]

    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """hidden [..., D], weight [V, D] -> [..., V]"""
        best = self.centroids(hidden).topk(self.num_scored, dim=-1).indices  # [..., c]
        token_ids = self.clusters[best].flatten(-2)  # [..., n]
        scores = (weight[token_ids] @ hidden[..., None])[..., 0]  # [..., n]
        everywhere = scores.new_full((*scores.shape[:-1], weight.shape[0]), -torch.inf)
        return everywhere.scatter_(-1, token_ids, scores)


def is_assistant(folder: Path) -> bool:
    """Return whether a checkpoint folder holds such an assistant."""
    return _model_type(folder) in _MODEL_TYPES


def load_assistant(folder: Path, target: PreTrainedModel) -> Assistant:
    """Load an assistant in the target's dtype and on its device.

    Raises PlaygroundError: not_an_assistant, assistant_misfit, bad_module.
    """
    if not is_assistant(folder):
        raise PlaygroundError(
            "not_an_assistant",
            f"{folder.name} is no assistant of a Gemma 4 model ({_model_type(folder) or 'none'}).",
            "Name the folder of the target's -assistant checkpoint.",
            folder=folder.name,
            kind=_model_type(folder) or "none",
        )
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_fit(config, target.config, folder.name)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=target.get_input_embeddings().weight.dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
        )
    except OSError as error:
        raise _bad_module(folder, "has no readable safetensors file") from error
    for wrong, keys in (("lacks", "missing_keys"), ("holds another shape of", "mismatched_keys")):
        if info[keys]:
            first = sorted(key if isinstance(key, str) else key[0] for key in info[keys])[0]
            raise _bad_module(folder, f"{wrong} the tensor {first}")
    return Assistant(model.to(target.device), target)


def check_fit(config: Any, target_config: Any, name: str) -> None:
    """Raise PlaygroundError("assistant_misfit") that names the first value that does not fit.

    Takes the configurations of the assistant and of the target.
    """
    ours, theirs = config.get_text_config(), target_config.get_text_config()
    if not hasattr(theirs, "kv_sharing_modes"):
        raise _misfit(name, "model_type", config.model_type, theirs.model_type)
    for field, value, wanted in (
        ("backbone_hidden_size", config.backbone_hidden_size, theirs.hidden_size),
        ("vocab_size", ours.vocab_size, theirs.vocab_size),
    ):
        if value != wanted:
            raise _misfit(name, field, value, wanted)
    modes = zip(theirs.layer_types, theirs.kv_sharing_modes, strict=True)
    shared = {kind for kind, mode in modes if mode == "store"}
    if not shared >= {*ours.layer_types, *_KINDS}:
        raise _misfit(name, "layer_types", _listed(ours.layer_types), _listed(shared))
    for kind in sorted(set(ours.layer_types)):
        for field in ("head_dim", "num_key_value_heads"):
            value = getattr(ours.per_layer_config[kind], field)
            wanted = getattr(theirs.per_layer_config[kind], field)
            if value != wanted:
                raise _misfit(name, f"{field} ({kind})", value, wanted)


def _listed(kinds: Any) -> str:
    return ", ".join(sorted(set(kinds))) or "none"


def _model_type(folder: Path) -> str:
    """Return what a folder's configuration calls itself; "" without one."""
    path = folder / "config.json"
    if not path.is_file():
        return ""
    return str(json.loads(path.read_text(encoding="utf-8")).get("model_type", ""))


def _misfit(name: str, field: str, value: object, wanted: object) -> PlaygroundError:
    return PlaygroundError(
        "assistant_misfit",
        f"The assistant {name} does not fit this target: {field} is {value}, not {wanted}.",
        "Use the assistant that was made for this model and size.",
        name=name,
        field=field,
        value=value,
        wanted=wanted,
    )


def _bad_module(folder: Path, what: str) -> PlaygroundError:
    remedy = "Restore the folder from the repository."
    return bad_module(folder.name, what, part="assistant", remedy=remedy)
