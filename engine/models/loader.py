"""Load models from checkpoint folders, ready to run on a device.

Contract: weights are fp32 on a CPU, with packed linears where those work, and the originals
dropped; matrices that two models share (embedding, tied head) are held once. Bundled weights hold
only what is ours; `assemble_draft` completes them to a standard checkpoint in the cache, which
transformers loads by itself.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from engine.errors import PlaygroundError
from engine.models import checkpoint, lean, linear, static
from engine.models.base import LanguageModel
from engine.models.checkpoint import Plan
from engine.models.graphs import CudaRecorder
from engine.models.hf import HFModel
from engine.models.hub import gguf_file
from engine.models.mtp_module import MTPModule, load_module, placed_like
from engine.models.source import appearing, cache_folder
from engine.models.static_chain import StaticChain, supports_chain
from engine.models.stored import read_folder
from engine.proposers.mtp import Chain, Depth, MTPParts
from engine.text import HFCodec

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


# Loading reports through Progress; a bar on standard error would garble the command line.
disable_progress_bar()


def load_model(folder: Path, device: torch.device) -> PreTrainedModel:
    """Load a causal model: fp32 on a CPU, bf16 elsewhere."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return checkpoint.load_model(folder, Plan(device, dtype))


def load_codec(folder: Path, model: PreTrainedModel) -> HFCodec:
    """Load the tokenizer; every EOS id the model or tokenizer names ends a text.

    Raises PlaygroundError: no_tokenizer, slow_tokenizer.
    """
    file = gguf_file(folder, folder.name)
    options = {"gguf_file": file} if file else {"config": model.config}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise PlaygroundError(
            "no_tokenizer",
            f"{folder.name} has no tokenizer that can be loaded.",
            "Put the model's tokenizer.json and tokenizer_config.json into its folder.",
            model=folder.name,
        ) from error
    named = [tokenizer.eos_token_id]
    named.append(getattr(model.config.get_text_config(), "eos_token_id", None))
    named.append(getattr(model.generation_config, "eos_token_id", None))
    ids: set[int] = set()
    for value in named:
        ids |= set(value) if isinstance(value, list) else {value} - {None}
    return HFCodec(tokenizer, frozenset(ids))


def prepare(model: PreTrainedModel) -> LanguageModel:
    """Wrap a target for reading: the fastest way that applies to it; weights may move out."""
    if lean.supports(model):
        return lean.LeanLlama(model, drop=True)
    if model.device.type == "cuda" and static.supports(model):
        return static.StaticModel(model, CudaRecorder(model.device))
    if model.device.type == "cpu" and model.dtype == torch.float32:
        linear.pack(model)
    return HFModel(model)


def prepare_draft(model: PreTrainedModel, *, int8: bool) -> LanguageModel:
    """Wrap any draft model for reading, in int8 where that is asked and the lean forward applies.

    Whatever it proposes is judged by the target, so rounding costs a little acceptance at most.
    """
    if int8 and lean.supports(model):
        return lean.LeanLlama(model, make=linear.int8, drop=True)
    return prepare(model)


def load_draft(
    bundled: Path, target_folder: Path, target: PreTrainedModel, head_weight: Tensor, *, int8: bool
) -> LanguageModel:
    """Load a bundled draft model; `head_weight` [V, D] is the target's output matrix.

    Any q is valid, so it scores only what it was trained to propose, in int8 where that is asked.
    """
    model = load_model(assemble_draft(bundled, target_folder), head_weight.device)
    share_embedding(model, target)
    vocab = draft_vocab(bundled)
    vocab = None if vocab is None else vocab.to(head_weight.device)
    head = linear.trimmed_head(head_weight, vocab, in_int8=int8)
    if lean.supports(model):
        make = linear.int8 if int8 else linear.packed
        return lean.LeanLlama(model, make=make, head=head)
    model.set_output_embeddings(head)
    return prepare(model)


def share_embedding(model: PreTrainedModel, target: PreTrainedModel) -> None:
    """Let `model` use the target's embedding (and tied head) where the two are equal."""
    ours, theirs = model.get_input_embeddings(), target.get_input_embeddings()
    if ours.weight.shape == theirs.weight.shape and torch.equal(ours.weight, theirs.weight):
        tied = model.get_output_embeddings().weight is ours.weight
        ours.weight = theirs.weight
        if tied:
            model.get_output_embeddings().weight = theirs.weight


def load_mtp(
    folder: Path, target: PreTrainedModel, head_weight: Tensor, *, int8: bool = False
) -> MTPParts:
    """Load an MTP module for `target`; `head_weight` [V, D] is the target's output matrix."""
    module, vocab = load_module(folder, target.config)
    device = head_weight.device
    chain = _chain(placed_like(module, head_weight), device)
    if device.type == "cpu":
        chain = lean.LeanMTP(module, linear.int8 if int8 else linear.packed)
    vocab = None if vocab is None else vocab.to(device)
    return MTPParts(
        module=chain,
        embedding=target.get_input_embeddings(),
        head=linear.trimmed_head(head_weight, vocab, in_int8=int8),
        vocab_size=int(target.config.vocab_size),
        device=device,
        cut=partial(cut_head, head_weight, vocab, int8),
    )


def cut_head(weight: Tensor, vocab: Tensor | None, int8: bool, num_rows: int) -> nn.Module:
    """Return a head over the first rows of weight [V, D], or of those in vocab [R].

    Byte-pair tokenizers number tokens in the order they were merged: frequent ones come first.
    """
    known = torch.arange(len(weight), device=weight.device) if vocab is None else vocab.sort()[0]
    return linear.trimmed_head(weight, known[:num_rows], in_int8=int8)


def native_parts(
    modules: Sequence[MTPModule],
    target: PreTrainedModel,
    head_weight: Tensor,
    *,
    int8: bool = False,
) -> MTPParts:
    """Make the modules of `load_native` ready to draft for a prepared target.

    `head_weight` [V, D] is the target's output matrix from before that. The target's own head
    serves where it is as good: for a large vocabulary a second copy would be most of a small model.
    """
    device = head_weight.device
    shared = target.get_output_embeddings()
    packs = device.type == "cpu" and head_weight.dtype == torch.float32
    unpacked = packs and isinstance(shared, nn.Linear)
    if int8 or unpacked or next(shared.parameters(), head_weight).device != device:
        shared = linear.trimmed_head(head_weight, None, in_int8=int8)
    depths = []
    for module in modules:
        if packs:
            linear.pack(module)
        own = module.head if module.head is not None else shared
        head = nn.Sequential(module.norm, own) if module.family.raw else own
        depths.append(Depth(_chain(module.to(device), device), head))
    first, *deeper = depths
    # Else the matrix that the packed one was made of would stay in memory for it.
    free = not packs or head_weight.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    cuttable = free and not deeper and first.head is shared
    return MTPParts(
        module=first.module,
        embedding=target.get_input_embeddings(),
        head=first.head,
        vocab_size=int(target.config.get_text_config().vocab_size),
        device=device,
        taps=("pre_norm",) if modules[0].family.raw else ("final",),
        deeper=tuple(deeper),
        cut=partial(cut_head, head_weight, None, int8) if cuttable else None,
    )


def _chain(module: MTPModule, device: torch.device) -> Chain:
    """Return what runs a module: passes that a GPU replays, where it has fixed shapes."""
    if device.type == "cuda" and supports_chain(module):
        return StaticChain(module, CudaRecorder(device))
    return module


def draft_vocab(bundled: Path) -> Tensor | None:
    """Return the token ids that a bundled drafter was trained to propose.  [R]"""
    vocab = stored_tensor(bundled, "draft_vocab")
    return None if vocab is None else vocab.long()


def stored_tensor(folder: Path, name: str) -> Tensor | None:
    """Return one tensor of a checkpoint folder, whichever shard holds it; None if none does."""
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 (not a dict)
                tensor: Tensor = file.get_tensor(name)
                return tensor
    return None


def assemble_draft(bundled: Path, target_folder: Path) -> Path:
    """Return a standard checkpoint of a bundled draft model: its layers, the target's embedding."""
    shards = sorted(bundled.glob("*.safetensors"))
    parts = [target_folder.name.encode(), *(shard.read_bytes() for shard in shards)]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    folder = cache_folder() / f"{bundled.name}-{digest[:8]}"
    if folder.is_dir():
        return folder
    tensors, _ = read_folder(bundled)
    name = "model.embed_tokens.weight"
    embedding = stored_tensor(target_folder, name)
    if embedding is None:
        raise ValueError(f"{target_folder.name} holds no {name}")
    tensors[name] = embedding
    with appearing(folder) as partial:
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
        (partial / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        for file in TOKENIZER_FILES:
            shutil.copyfile(target_folder / file, partial / file)
    for older in folder.parent.glob(f"{bundled.name}-*"):  # made from weights we no longer have
        if older != folder:
            shutil.rmtree(older, ignore_errors=True)
    return folder
