"""Write the drafters as the repository carries them: int8 rows, small shards, only what is ours.

Contract: nothing of the target is written (no embedding, no head). Each folder holds `config.json`,
safetensors shards of at most 9 MB and a model card made from what was measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.models.mtp_module import MTPModule, checkpoint_name
from engine.models.stored import DRAFT_VOCAB, compact
from engine.training.data import Corpus
from engine.training.draft import LAYERS
from engine.training.evaluate import spell, table
from engine.training.loop import Spent

SHARD = "9MB"
CURVE = ("seconds", "tokens", "first", "first_2", "first_3", "first_4")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model card tells: the text, what was spent, what was reached.

    rates: acceptance on held-out prompts by domain; same_kind: on held-out training text.
    """

    corpus: Corpus
    spent: Spent
    rates: dict[str, list[float]]
    same_kind: list[float]


def write_mtp(
    folder: Path, module: MTPModule, target_config: Any, vocab: Tensor, facts: Facts
) -> None:
    """Write the MTP module in the DeepSeek layout."""
    layer = int(target_config.num_hidden_layers)
    weights = {checkpoint_name(name, layer): tensor for name, tensor in module.state_dict().items()}
    config = {
        "model_type": "draftlight_mtp",
        "num_hidden_layers": layer,
        "num_nextn_predict_layers": 1,
        "hidden_size": target_config.hidden_size,
        "vocab_size": target_config.vocab_size,
    }
    what = (
        "One Llama block over [enorm(embedding of token i + 1), hnorm(hidden state of position "
        "i)], fed with the target's states after its final norm and chained on its own normed "
        f"output. Keys follow the DeepSeek layout (`model.layers.{layer}.*`). `draft_vocab` lists "
        f"the {vocab.numel()} rows of the target's head that it was trained on."
    )
    _write(folder, weights, config, vocab, "MTP module for SmolLM2-135M-Instruct", what, facts)


def write_draft(folder: Path, model: LlamaForCausalLM, vocab: Tensor, facts: Facts) -> None:
    """Write the draft model's own weights; the loader adds the target's embedding."""
    weights = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    config = json.loads(model.config.to_json_string())
    what = (
        f"A LlamaForCausalLM with {len(LAYERS)} layers, started from layers "
        f"{', '.join(map(str, LAYERS))} of the target. Embedding and tied head are the target's "
        "and are not stored here; the loader completes the folder to a standard checkpoint in its "
        f"cache. `draft_vocab` lists the {vocab.numel()} most frequent rows."
    )
    _write(folder, weights, config, vocab, "Draft model for SmolLM2-135M-Instruct", what, facts)


def _write(
    folder: Path,
    weights: dict[str, Tensor],
    config: dict[str, Any],
    vocab: Tensor,
    title: str,
    what: str,
    facts: Facts,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    ours = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    state = {**compact(ours), DRAFT_VOCAB: vocab.to("cpu", torch.int32)}
    save_torch_state_dict(state, folder, max_shard_size=SHARD)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    curve = [",".join(CURVE), *(",".join(f"{v:g}" for v in row) for row in facts.spent.curve)]
    (folder / "curve.csv").write_text("\n".join(curve) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(title, what, weights, facts), encoding="utf-8")


def _card(title: str, what: str, weights: dict[str, Tensor], facts: Facts) -> str:
    millions = sum(tensor.numel() for tensor in weights.values()) / 1e6
    spent, text = facts.spent, facts.corpus.num_tokens
    rows = {
        "parameters": f"{millions:.1f} M; matrices in int8, a scale per row",
        "licence": "Apache-2.0, like the target's",
        "made by": "`python -m engine.training --work FOLDER`",
        "data": f"{text:,} tokens: prompts by the target or from templates, replies by the target",
        "training": f"{spent.seconds:.0f} s, {spent.tokens / 1e6:.2f} M tokens seen",
        "learning curve": "`curve.csv`, on the held-out prompts",
        "same kind of text, held out": spell(facts.same_kind),
    }
    facts_table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# {title}

{what}

| | |
|---|---|
{facts_table}

Greedy acceptance on the target's replies to prompts that are not in the training text
(`python -m engine.training --evaluate` counts them again): the share of positions at which the
first 1, 2, 3, 4 drafts all equal the target's choices.

{table(facts.rates)}
"""
