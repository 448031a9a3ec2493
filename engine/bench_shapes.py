"""What speculation is worth at a size: random weights in a model's shape, acceptance set by hand.

    python -m engine bench --shape 8b [--device cuda] [--json FILE]

Contract: the layout of `engine.bench`; a row's domain is the acceptance that was asked for. Time is
measured; acceptance is counted, and set beforehand. Everything runs interleaved, after a warm-up.

Random weights agree with nobody, so the target's blocks add nothing to its residual stream (their
last matrices are zero, at full cost): the next token then depends on the last one alone. A table of
it lets `Scripted` propose the right token with a chance of alpha. It asks the real drafter first,
and drops what that says, so a proposal costs what it costs. A draft model reads accepted tokens
again that it did not say itself: a little too dear, never too cheap.

`transformers-compiled` is its static cache with the forward compiled. Its assisted generation has
no row: nobody can set what it accepts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from engine.bench import Entry, Report, Sample, provenance, rows_of
from engine.costs import pass_seconds
from engine.decode import decode
from engine.device import choose_device, synchronise
from engine.errors import PlaygroundError
from engine.events import Finished, Settings, Started
from engine.metrics import Metrics
from engine.models import checkpoint, loader
from engine.models.base import LanguageModel, Tap
from engine.models.mtp_families import DEEPSEEK, QWEN
from engine.models.mtp_module import MTPModule
from engine.models.native_mtp import kinds_of
from engine.models.static import MOST_ROWS
from engine.models.toy import ToyCodec
from engine.proposers.base import Context, Draft, Proposer, certain_draft
from engine.proposers.draft_model import DraftModel
from engine.proposers.mtp import MTP
from engine.proposers.nothing import Nothing
from engine.runtime import describe_place
from engine.sampling import Sampler, Streams

ALPHAS = (0.6, 0.8, 0.9)
GAMMAS = (2, 4, 6)
NEW_TOKENS = 128
PROMPT = 64

_WIDE = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "head_dim": 128}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "8b": (
        {
            **_WIDE,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
        {
            **_WIDE,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
}
"""Target and draft model: those of Qwen3-8B and Qwen3-0.6B (their configurations)."""


@dataclass(frozen=True, slots=True)
class Made:
    """A shape in memory: the target, what drafts for it, and which token follows which.

    follows [V]; num_bytes: what a one-token pass of the target reads.
    """

    network: PreTrainedModel
    target: LanguageModel
    draft: LanguageModel
    modules: dict[str, Any]
    follows: list[int]
    num_bytes: int

    def proposer(self, method: str, alpha: float) -> Proposer:
        """Return a scripted proposer that costs what `method` costs."""
        sampler, generator = Sampler(Settings()), torch.Generator(self.target.device)
        vocab, device = self.target.vocab_size, self.target.device
        inner: Proposer
        if method == "plain":
            return Nothing(vocab_size=vocab, device=device)
        if method == "draft":
            inner = DraftModel(self.draft, sampler, generator, vocab_size=vocab)
        else:
            inner = MTP(self.modules[method], sampler, generator)
        return Scripted(inner, self.follows, alpha, device)


class Scripted:
    """Lets a drafter work, then proposes what the table says, right with a chance of alpha."""

    def __init__(
        self, inner: Proposer, follows: Sequence[int], alpha: float, device: torch.device
    ) -> None:
        self.taps: tuple[Tap, ...] = inner.taps
        self._inner = inner
        self._follows = follows
        self._alpha = alpha
        self._device = device
        self._luck = random.Random(0)

    def propose(self, context: Context, gamma: int) -> Draft:
        """Propose as many tokens as the drafter did."""
        count = len(self._inner.propose(context, gamma))
        vocab = len(self._follows)
        tokens: list[int] = []
        last = context.token_ids[-1]
        for _ in range(count):
            right = self._follows[last]
            last = right if self._luck.random() < self._alpha else (right + 1) % vocab
            tokens.append(last)
        return certain_draft(tokens, vocab, self._device)


def run_shape(
    shape: str, *, repeats: int = 3, device: str | None = None, report: Report = print
) -> dict[str, Any]:
    """Return {rows, limit, provenance}.  Raises PlaygroundError: unknown_shape, no_device."""
    if shape not in SHAPES:
        raise PlaygroundError(
            "unknown_shape",
            f"There is no shape {shape!r}.",
            f"Choose among: {', '.join(SHAPES)}.",
            shape=shape,
            known=", ".join(SHAPES),
        )
    place = choose_device(device)
    report("making random weights")
    begun = time.perf_counter()
    made = make(*SHAPES[shape], place)
    ready = time.perf_counter() - begun
    domains = [f"alpha {alpha}" for alpha in ALPHAS]
    methods = ("draft", *made.modules)
    entries = [Entry("plain", 0), *(Entry(m, g) for m in methods for g in GAMMAS)]
    entries += [Entry(name, 0) for name in ("transformers-plain", "transformers-compiled")]
    for repeat in range(-1, repeats):
        report(f"repeat {repeat + 1} of {repeats}" if repeat >= 0 else "warm-up")
        for entry in entries if repeat % 2 else entries[::-1]:
            samples = dict(_samples(made, entry, domains))
            if repeat >= 0:
                entry.samples.append(samples)
    passes = pass_seconds(made.target, MOST_ROWS)
    found = provenance(shape, describe_place(place, made.network.dtype, torch.get_num_threads()))
    return {
        "rows": rows_of(entries, domains),
        "limit": {
            "weights_mb": round(made.num_bytes / 1e6, 1),
            "streaming_ms": round(_streaming_ms(made.num_bytes, place), 3),
            "plain_pass_ms": round(passes[0] * 1e3, 3),
            "five_token_pass_ms": round(passes[4] * 1e3, 3),
            "passes_ms": [round(seconds * 1e3, 3) for seconds in passes],
        },
        "provenance": {**found, "repeats": repeats, "ready_seconds": round(ready, 1)},
    }


@torch.inference_mode()
def make(target: dict[str, Any], draft: dict[str, Any], device: torch.device) -> Made:
    """Make random models of these sizes, and a table of what follows what."""
    dtype = checkpoint.dtype_for(device)
    network, small = (_random(sizes, device, dtype) for sizes in (target, draft))
    _silence(network)
    num_bytes = _read_bytes(network)
    modules = {}
    head = network.get_output_embeddings().weight
    follows = _follows(network)
    for family in (QWEN, DEEPSEEK):
        kinds, config = kinds_of(network, family)
        with torch.device(device):
            module = MTPModule(config, kinds=kinds, family=family)
        module = module.to(dtype).eval().requires_grad_(False)
        modules[f"mtp-{family.id}"] = (module,)
    ready = loader.prepare(network)
    parts = {name: loader.native_parts(module, network, head) for name, module in modules.items()}
    return Made(network, ready, loader.prepare(small), parts, follows, num_bytes)


def _random(sizes: dict[str, Any], device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    with torch.device(device):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, dtype=dtype)).to(dtype)
    return model.eval().requires_grad_(False)


def _read_bytes(network: PreTrainedModel) -> int:
    """Return the bytes of the weights that a pass reads: of a separate embedding one row."""
    embedding = network.get_input_embeddings().weight
    total = int(sum(p.numel() * p.element_size() for p in network.parameters()))
    if embedding is not network.get_output_embeddings().weight:
        total -= int(embedding.numel() * embedding.element_size())
    return total


def _silence(network: PreTrainedModel) -> None:
    """Let every block add nothing, at full cost."""
    decoder: Any = network.get_decoder()
    for layer in decoder.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _follows(network: PreTrainedModel, rows: int = 1024) -> list[int]:
    """Return the next token after each token, of a network whose blocks are silent.  [V]"""
    decoder: Any = network.get_decoder()
    embedding = network.get_input_embeddings().weight
    head = network.get_output_embeddings()
    found: list[int] = []
    for part in embedding.split(rows):
        states: Tensor = decoder.norm(part)
        found += head(states).argmax(-1).tolist()
    return found


def _samples(made: Made, entry: Entry, domains: Sequence[str]) -> Iterator[tuple[str, Sample]]:
    """Yield a sample per acceptance; what drafts nothing is the same at each, and measured once."""
    prompt = [(7 * i) % len(made.follows) for i in range(PROMPT)]
    if entry.method.startswith("transformers"):
        sample = _theirs(made, entry.method, prompt)
    elif entry.method == "plain":
        sample = _ours(made, entry, prompt, 0.0)
    else:
        for domain, alpha in zip(domains, ALPHAS, strict=True):
            yield domain, _ours(made, entry, prompt, alpha)
        return
    yield from ((domain, sample) for domain in domains)


def _ours(made: Made, entry: Entry, prompt: list[int], alpha: float) -> Sample:
    settings = Settings(gamma=int(entry.gamma), max_new_tokens=NEW_TOKENS)
    codec = ToyCodec(len(made.follows))
    started = Started("", "", "", "", settings, "", tuple(prompt), {})
    metrics = Metrics()
    ids: tuple[int, ...] = ()
    streams = Streams.seeded(0, made.target.device)
    proposer = made.proposer(entry.method, alpha)
    for event in decode(made.target, proposer, codec, started, streams=streams):
        metrics.add(event)
        if isinstance(event, Finished):
            ids = event.token_ids
    count = metrics.num_emitted - metrics.num_prefill_tokens
    return Sample(count, metrics.decode_seconds, ids, metrics)


def _theirs(made: Made, method: str, prompt: list[int]) -> Sample:
    device = made.target.device
    ids = torch.tensor([prompt], device=device)
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if method == "transformers-compiled":
        options["cache_implementation"] = "static"
    seconds = {}
    network = made.network
    ours = network.config._attn_implementation
    network.set_attn_implementation("sdpa")
    for count in (1, NEW_TOKENS):  # the difference is the decoding; the first has the prompt
        synchronise(device)
        begun = time.perf_counter()
        out = network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options
        )
        synchronise(device)
        seconds[count] = time.perf_counter() - begun
    network.set_attn_implementation(ours)
    new = tuple(out[0, len(prompt) :].tolist())
    return Sample(len(new) - 1, seconds[NEW_TOKENS] - seconds[1], new)


def _streaming_ms(num_bytes: int, device: torch.device) -> float:
    """Return the milliseconds that reading this many bytes takes at best."""
    data = torch.ones(num_bytes // 4, device=device)
    times = []
    for _ in range(7):
        synchronise(device)
        begun = time.perf_counter()
        data.sum()
        synchronise(device)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)
