"""Tiny Gemma 4 models with random weights, and their assistants."""

from __future__ import annotations

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

from engine.models.gemma_assistant import Assistant

VOCAB = 40
WINDOW = 6
WIDTH = 32
KINDS = ("sliding_attention", "full_attention")


def text_config(**changes) -> Gemma4TextConfig:
    """Two layers compute keys and values of each kind; the last two layers reuse them."""
    values = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "layer_types": list(KINDS) * 3,
        "num_kv_shared_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "sliding_window": WINDOW,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": None,
        **changes,
    }
    return Gemma4TextConfig(**values)


def assistant_config(*, masked=False, clusters=8, scored=2, width=WIDTH, **changes):
    values = {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        **changes,
    }
    return Gemma4AssistantConfig(
        text_config=text_config(**values),
        backbone_hidden_size=width,
        use_ordered_embeddings=masked,
        num_centroids=clusters,
        centroid_intermediate_top_k=scored,
    )


@torch.no_grad()
def _random(build, seed):
    """Build a model; noise moves norms and scalars away from 1, which would hide their lack."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build().eval().requires_grad_(False)
        for weight in model.parameters():
            weight += torch.randn_like(weight) * 0.2
    return model


def gemma(*, seed=0, **changes) -> Gemma4ForCausalLM:
    return _random(lambda: Gemma4ForCausalLM(text_config(**changes)), seed)


def library_assistant(*, seed=1, **changes) -> Gemma4AssistantForCausalLM:
    """The library's own class, untouched."""
    model = _random(lambda: Gemma4AssistantForCausalLM(assistant_config(**changes)), seed)
    if model.masked_embedding is not None:
        order = torch.randperm(model.vocab_size, generator=torch.Generator().manual_seed(seed))
        model.masked_embedding.token_ordering.copy_(order)
    return model


def assistant_of(target: Gemma4ForCausalLM, **changes) -> Assistant:
    return Assistant(library_assistant(**changes), target)
