"""Early exit: the target drafts for itself with its first layers, final norm and output head.

`first_layers` gives those layers as a `LanguageModel` with a cache of its own, and the ordinary
draft-model proposer does the rest. The weights are the target's, so this costs no memory but that
cache; the target reads drafted tokens through all of its layers again, as it does for any draft.

Models that were not trained for it rarely say anything sensible half way: expect few accepted
tokens from few layers.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from engine.models.base import LanguageModel
from engine.models.cache import attends
from engine.models.hf import HFModel
from engine.models.lean import LeanLlama
from engine.models.static import StaticModel


def exits(target: LanguageModel) -> range:
    """Return after how many layers a target can be left; an empty range if it cannot.

    One of the layers must attend: the library counts what a cache holds by those.
    """
    if isinstance(target, LeanLlama):
        return range(1, target.num_layers + 1)
    if not isinstance(target, HFModel | StaticModel):
        return range(0)
    kinds = attends(target.model)
    return range(kinds.index(True) + 1, len(kinds) + 1) if any(kinds) else range(0)


def first_layers(target: LanguageModel, count: int) -> LanguageModel:
    """Return the first `count` layers of a target as a model of its own on the same weights.

    Raises ValueError when `count` is not one of `exits(target)`.
    """
    if count not in exits(target):
        raise ValueError(f"{type(target).__name__} cannot be left after {count} layers")
    if isinstance(target, LeanLlama):
        return target.first_layers(count)
    assert isinstance(target, HFModel | StaticModel)
    return HFModel(shortened(target.model, count))


def shortened(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """Return a copy of `model` that ends after `count` layers; everything in it is shared."""
    decoder: Any = model.get_decoder()
    num_layers = len(decoder.layers)
    config = copy.deepcopy(model.config)
    text_config = config.get_text_config()
    for name, value in list(vars(text_config).items()):
        if isinstance(value, list) and len(value) == num_layers:  # one entry for each layer
            setattr(text_config, name, value[:count])
    text_config.num_hidden_layers = count
    path = next(name for name, module in model.named_modules() if module is decoder)
    short: PreTrainedModel = _twin(model)
    place: Any = short
    for name in path.split("."):
        setattr(place, name, _twin(getattr(place, name)))
        place = getattr(place, name)
    place.layers = nn.ModuleList(decoder.layers[:count])
    place.config = text_config
    short.config = config
    return short


def _twin(module: Any) -> Any:
    """Return a module with the same children; giving it other ones leaves the original alone."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
