"""Random models of a few thousand weights, and the plain decoding that every run must equal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.decode import decode
from engine.events import Event, Finished, Prefilled, Settings, Started, Verified
from engine.models.eagle3_module import Eagle3Module, Variant
from engine.models.hf import HFModel
from engine.models.mtp_module import MTPModule, module_config
from engine.models.toy import ToyCodec, ToyModel
from engine.proposers.base import Context, Draft, certain_draft
from engine.proposers.eagle3 import Eagle3Parts, eagle3_parts
from engine.proposers.mtp import MTPParts
from engine.proposers.nothing import Nothing
from engine.runtime import LoadedPair
from engine.sampling import Sampler, Streams

CPU = torch.device("cpu")
VOCAB = 97
EAGLE3_VOCAB = torch.arange(1, 81, 2)  # the 40 tokens that the random EAGLE-3 heads score
METHODS = ("plain", "mtp", "draft", "lookup", "synthetic")


def llama(*, seed=0, vocab=VOCAB, max_length=512, noise=0.0, **changes) -> LlamaForCausalLM:
    """Return a random Llama; `noise` moves its weights a little: it then agrees sometimes.

    `changes` are other values of the config.
    """
    values = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    config = LlamaConfig(vocab_size=vocab, max_position_embeddings=max_length, **values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
        torch.manual_seed(seed + 1)
        for weight in model.parameters():
            weight += torch.randn_like(weight) * noise
    return model


def mtp_parts(target: LlamaForCausalLM, *, seed=0) -> MTPParts:
    """Return a random module on top of `target`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = MTPModule(module_config(target.config)).eval().requires_grad_(False)
        for weight in module.parameters():
            weight += torch.randn_like(weight) * 0.2
    return MTPParts(
        module=module,
        embedding=target.get_input_embeddings(),
        head=target.get_output_embeddings(),
        vocab_size=target.config.vocab_size,
        device=CPU,
    )


def eagle3_module(target: LlamaForCausalLM, *, seed=0, num_tokens=40, **variant) -> Eagle3Module:
    """Return a random EAGLE-3 head; `variant` says where its norms stand."""
    config = module_config(target.config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Eagle3Module(
            config,
            target_width=config.hidden_size,
            num_tokens=num_tokens,
            variant=Variant(**variant),
        )
        module = module.eval().requires_grad_(False)
        for weight in module.parameters():
            weight += torch.randn_like(weight) * 0.2
    return module


def tiny_eagle3_parts(target: LlamaForCausalLM, taps=(0, 1, 2)) -> Eagle3Parts:
    """Return a random head with a small vocabulary on top of `target`."""
    module = eagle3_module(target)
    return eagle3_parts(module, taps, target.get_input_embeddings(), VOCAB, EAGLE3_VOCAB)


@cache
def tiny_pair(max_length: int = 512) -> LoadedPair:
    """Return a target with every kind of drafter."""
    target = llama(max_length=max_length)
    return LoadedPair(
        id="tiny",
        target=HFModel(target),
        codec=ToyCodec(VOCAB),
        target_name="tiny target",
        draft=HFModel(llama(noise=0.03, max_length=max_length)),
        draft_name="tiny draft",
        mtp=mtp_parts(target),
        mtp_name="tiny module",
    )


def toy_pair(vocab=8, *, noise=1.0, with_eos=False) -> LoadedPair:
    """Return table models; they know no MTP."""
    return LoadedPair(
        id="toy",
        target=ToyModel(vocab),
        codec=ToyCodec(vocab, with_eos=with_eos),
        target_name="toy",
        draft=ToyModel(vocab, noise=noise),
        draft_name="noisy toy",
        where={"device": "cpu"},
    )


def started(prompt: Sequence[int], settings: Settings) -> Started:
    return Started("test", "", "", "", settings, "", tuple(prompt))


def run(target, proposer, prompt, settings, *, codec=None, streams=None, **options) -> list[Event]:
    """Decode with a hand-made proposer."""
    streams = streams or Streams.seeded(settings.seed, CPU)
    codec = codec or ToyCodec(target.vocab_size)
    return list(
        decode(target, proposer, codec, started(prompt, settings), streams=streams, **options)
    )


def argmax_decode(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """Return `count` greedy tokens, every one from a full pass without a cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def finished(events: Sequence[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def rounds(events: Sequence[Event]) -> list:
    return [event.round for event in events if isinstance(event, Verified)]


def emitted(events: Sequence[Event]) -> list[int]:
    """Return the ids as a consumer adds them up on the way."""
    ids = [t.id for event in events if isinstance(event, Prefilled) for t in event.output]
    return ids + [t.id for done in rounds(events) for t in done.output]


@dataclass
class Replay:
    """Proposes a known text, wrong at chosen places: any accept pattern can be forced."""

    text: Sequence[int]  # prompt included
    wrong_at: frozenset[int] = frozenset()
    vocab_size: int = VOCAB
    taps: tuple = ()
    gammas: list[int] = field(default_factory=list)

    def propose(self, context: Context, gamma: int) -> Draft:
        self.gammas.append(gamma)
        first = len(context.token_ids)
        places = range(first, min(first + gamma, len(self.text)))
        tokens = [(self.text[i] + (i in self.wrong_at)) % self.vocab_size for i in places]
        return certain_draft(tokens, self.vocab_size, CPU)


def nothing(vocab_size: int = VOCAB) -> Nothing:
    return Nothing(vocab_size=vocab_size, device=CPU)


def sampler(**settings) -> Sampler:
    return Sampler(Settings(**settings))
