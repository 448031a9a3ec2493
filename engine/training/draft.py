"""Train the draft model: a few layers of the target, distilled on the target's distributions."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.training.data import Batch
from engine.training.loop import soft_cross_entropy

LAYERS = (0, 1, 29)  # of the target; where the draft's layers start from
OTHER_ROWS = 2048  # rows outside the frequent ones that each step also scores


def pruned(target: LlamaForCausalLM, layers: tuple[int, ...] = LAYERS) -> LlamaForCausalLM:
    """Return a model with some of the target's layers; embedding and head stay frozen."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    model = LlamaForCausalLM(config)
    model.model.embed_tokens.weight = target.model.embed_tokens.weight
    model.lm_head.weight = target.model.embed_tokens.weight
    model.model.norm.load_state_dict(target.model.norm.state_dict())
    for new, old in enumerate(layers):
        model.model.layers[new].load_state_dict(target.model.layers[old].state_dict())
    model.requires_grad_(True)
    model.model.embed_tokens.weight.requires_grad_(False)
    return model.float()


def loss_of(model: LlamaForCausalLM, embedding: Tensor, vocab: Tensor, batch: Batch) -> Tensor:
    """Return the loss of a batch: cross-entropy over frequent rows and a sample of the others.

    The sample keeps rare rows from growing unseen, so that the full head stays usable too.
    """
    others = torch.randint(0, embedding.shape[0], (OTHER_ROWS,), device=vocab.device)
    head = embedding[torch.unique(torch.cat([vocab, others]))]
    out = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    wanted = batch.mask[:, :-1] & batch.answer[:, 1:]  # position i predicts token i + 1
    ours, theirs = out[:, :-1][wanted], batch.hidden[:, :-1][wanted]
    return soft_cross_entropy(ours @ head.T, theirs @ head.T)


@torch.no_grad()
def run_lengths(
    model: LlamaForCausalLM,
    embedding: Tensor,
    vocab: Tensor,
    batch: Batch,
    longest: int = 4,
    *,
    head: Tensor | None = None,
) -> Tensor:
    """Return how many greedy drafts in a row match the target's choices, per reply position.  [n]

    Exact for greedy text, where the drafted tokens are the text as long as they match. `head` is
    the model's own where it is not the target's `embedding`.
    """
    out = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    rows = embedding if head is None else head
    guess = vocab[(out @ rows[vocab].T).argmax(-1)]
    same = guess == (batch.hidden @ embedding.T).argmax(-1)  # [B, T]
    ends = same.shape[1] - longest
    alive = batch.answer[:, 1 : ends + 1] & batch.mask[:, longest : longest + ends]
    matched = torch.ones_like(alive)
    lengths = torch.zeros(alive.shape, dtype=torch.long, device=alive.device)
    for depth in range(longest):
        matched = matched & same[:, depth : depth + ends]
        lengths += matched
    return lengths[alive]
