"""A loaded pair, and how a request becomes a run.

Contract: `load_pair` loads a pair of the catalogue or any other; `LoadedPair.run` gives the events
of one run. A pair runs one request at a time; a second one waits. To offer a new proposer, add it
to the catalogue and to `LoadedPair.proposer`.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from engine import catalog, instruments
from engine.costs import WIDEST, Costs, Pace, pass_seconds
from engine.decode import decode, never
from engine.device import choose_device, processor_name, use_cores
from engine.errors import PlaygroundError
from engine.events import Event, Measured, Round, Settings, Started, Verified
from engine.loading import all_or_nothing, load_parts, release
from engine.memory import held_bytes
from engine.models import linear
from engine.models.base import LanguageModel
from engine.models.checkpoint import ran_out
from engine.models.gemma_assistant import Assistant
from engine.models.source import Progress, Report, silent
from engine.models.static import StaticModel
from engine.policy import Fixed, Policy, policy_for
from engine.proposers.base import Proposer
from engine.proposers.draft_model import DraftModel
from engine.proposers.eagle3 import Eagle3, Eagle3Parts
from engine.proposers.early_exit import exits, first_layers
from engine.proposers.gemma_assistant import GemmaAssistant
from engine.proposers.mtp import MTP, MTPParts
from engine.proposers.mtp_depths import MTPDepths
from engine.proposers.nothing import Nothing
from engine.proposers.prompt_lookup import PromptLookup
from engine.proposers.synthetic import Synthetic
from engine.proposers.universal import Universal
from engine.request import check_request, empty_prompt
from engine.sampling import Sampler, Streams
from engine.text import Codec, HFCodec

EXIT_AFTER = 3
"""Early exit leaves after one in so many of the layers."""

_UNMEASURED = ("synthetic", "early_exit")
"""Methods for teaching: *auto* has no costs for them."""

MEASURE_PROMPT = "one two three one two three one two"


@dataclasses.dataclass
class LoadedPair:
    """A target and its drafters in memory. Models are read-only; a run owns all that changes."""

    id: str
    target: LanguageModel
    codec: Codec
    target_name: str
    draft: LanguageModel | None = None
    draft_name: str = ""
    draft_codec: HFCodec | None = None
    draft_masked: Tensor | None = None
    mtp: MTPParts | Assistant | None = None
    mtp_name: str = ""
    eagle3: Eagle3Parts | None = None
    eagle3_name: str = ""
    where: dict[str, str] = dataclasses.field(default_factory=dict)
    costs: dict[str, Costs] = dataclasses.field(default_factory=dict)
    pace: Pace = dataclasses.field(default_factory=Pace)
    _slot: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the ids of the methods that this pair can run."""
        return tuple(
            method.id
            for method in catalog.load().methods.values()
            if not method.uses or getattr(self, method.uses) is not None
            if method.id != "early_exit" or exits(self.target)
        )

    def check(self, method: str, prompt: str, settings: Settings) -> None:
        """Raise PlaygroundError when this request cannot run; say nothing otherwise.

        Codes: unknown_method, empty_prompt, bad_setting, head_whole, prompt_too_long.
        """
        if method not in self.methods:
            known = ", ".join(self.methods)
            raise PlaygroundError(
                "unknown_method",
                f"The pair {self.id} has no method {method!r}.",
                f"Choose one of: {known}.",
                method=method,
                known=known,
            )
        check_request(prompt, settings)
        if method == "mtp" and settings.head_rows and getattr(self.mtp, "cut", None) is None:
            raise PlaygroundError(
                "head_whole",
                f"The head of {self.mtp_name} cannot be cut: it is its own, or packed.",
                "Set the scored tokens to 0.",
                model=self.mtp_name,
            )
        length = len(self.codec.encode(prompt, raw=settings.raw))
        if length == 0:
            raise empty_prompt()
        if length >= self.target.max_length:
            raise PlaygroundError(
                "prompt_too_long",
                f"The prompt has {length} tokens; {self.target_name} reads at most "
                f"{self.target.max_length - 1}.",
                "Shorten the prompt.",
                length=length,
                limit=self.target.max_length - 1,
            )

    def run(
        self,
        method: str,
        prompt: str,
        settings: Settings,
        *,
        policy: Policy | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> Iterator[Event]:
        """Run one request and yield its events; consume it in one thread.

        `cancelled` is asked once a round. Raises what `check` raises, before the first event, and
        memory_ran_out; the pair can be run again after either.
        """
        self.check(method, prompt, settings)
        if method == "plain":
            settings = dataclasses.replace(settings, gamma=0, adaptive=False)
        started = Started(
            method=method,
            pair=self.id,
            target=self.target_name,
            proposer=self._proposer_name(method),
            settings=settings,
            prompt=prompt,
            prompt_ids=tuple(self.codec.encode(prompt, raw=settings.raw)),
            where=self.where,
        )
        if policy is None:
            policy = self.policy(method, settings)
        with self._slot:
            streams = Streams.seeded(settings.seed, self.target.device)
            try:
                run = decode(
                    self.target,
                    self.proposer(method, Sampler(settings), streams.draft),
                    self.codec,
                    started,
                    streams=streams,
                    policy=policy,
                    cancelled=cancelled,
                )
                with closing(run):
                    for event in run:
                        if isinstance(event, Verified):
                            self._follow(method, event.round)
                        yield event
                return
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error):
                    raise
            # Out here, where the error and with it every frame's tensors are gone.
            raise self._without_memory()

    def policy(self, method: str, settings: Settings) -> Policy:
        """Return what chooses the draft lengths of a run with these settings."""
        costs = self.costs.get(method)
        now = None if costs is None else partial(self.pace.now, method, costs)
        return policy_for(settings, costs, now)

    def _follow(self, method: str, done: Round) -> None:
        """Let a finished round tell how fast the machine is now."""
        if method in self.costs:
            self.pace.see(method, self.costs[method], done)
        elif self.costs:
            self.pace.see_pass(next(iter(self.costs.values())).passes, done)

    def recost(self, costs: Mapping[str, Costs]) -> None:
        """Take over costs that were just measured."""
        self.costs.update(costs)
        self.pace.forget()

    def memory(self, method: str) -> int:
        """Return the bytes of the weights and caches that a method needs, the target's included."""
        drafter = {"mtp": self.mtp, "draft": self.draft, "eagle3": self.eagle3}.get(method)
        return held_bytes(self.target, drafter)

    def exclusive(self) -> AbstractContextManager[bool]:
        """Return what keeps every run away while it is open: for reading the models directly."""
        return self._slot

    def measure(
        self,
        kind: str,
        method: str,
        prompt: str,
        settings: Settings,
        *,
        cancelled: Callable[[], bool] = never,
        **options: Any,
    ) -> Measured:
        """Run an instrument of `engine.instruments`; consume nothing else of this pair meanwhile.

        Raises what `check` raises, memory_ran_out, and ValueError for an unknown kind.
        """
        if kind not in instruments.KINDS:
            raise ValueError(f"no instrument {kind!r}")
        self.check(method, prompt, settings)
        instrument = importlib.import_module(f"engine.instruments.{kind}")
        try:
            data = instrument.measure(
                self, method, prompt, settings, cancelled=cancelled, **options
            )
            return Measured(kind, data)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
        raise self._without_memory()

    def _without_memory(self) -> PlaygroundError:
        """Let go of what a run held, and return the error for memory that ran out in it."""
        self.target.forget()
        release()
        return PlaygroundError(
            "memory_ran_out",
            f"The memory ran out while {self.target_name} was running.",
            "Ask for fewer tokens or shorten the prompt, close what else uses memory, or choose a "
            "smaller pair.",
            model=self.target_name,
        )

    def proposer(self, method: str, sampler: Sampler, generator: torch.Generator) -> Proposer:
        """Build the proposer of one run."""
        vocab_size, device = self.target.vocab_size, self.target.device
        match method:
            case "plain":
                return Nothing(vocab_size=vocab_size, device=device)
            case "lookup":
                return PromptLookup(vocab_size=vocab_size, device=device)
            case "synthetic":
                alpha = sampler.settings.alpha
                return Synthetic(self.target, sampler, generator, alpha=alpha)
            case "draft" if self.draft is not None:
                return self._draft_proposer(self.draft, sampler, generator)
            case "mtp" if isinstance(self.mtp, Assistant):
                return GemmaAssistant(self.mtp, sampler, generator)
            case "mtp" if isinstance(self.mtp, MTPParts):
                parts = self.mtp.with_rows(sampler.settings.head_rows)
                return (MTPDepths if parts.deeper else MTP)(parts, sampler, generator)
            case "eagle3" if self.eagle3 is not None:
                return Eagle3(self.eagle3, sampler, generator)
            case "early_exit":
                possible = exits(self.target)
                short = first_layers(self.target, possible[len(possible) // EXIT_AFTER])
                return DraftModel(short, sampler, generator, vocab_size=vocab_size)
        raise ValueError(f"no proposer for {method!r}")

    def _draft_proposer(
        self, draft: LanguageModel, sampler: Sampler, generator: torch.Generator
    ) -> Proposer:
        """Let a draft model propose ids, or text where its tokenizer is another one."""
        vocab_size, device = self.target.vocab_size, self.target.device
        if isinstance(self.codec, HFCodec) and self.draft_codec is not None:
            return Universal(
                draft, self.draft_codec, self.codec, vocab_size=vocab_size, device=device
            )
        masked = self.draft_masked
        return DraftModel(draft, sampler, generator, vocab_size=vocab_size, masked=masked)

    def _proposer_name(self, method: str) -> str:
        names = {"draft": self.draft_name, "mtp": self.mtp_name, "eagle3": self.eagle3_name}
        return {**names, "early_exit": self.target_name}.get(method, "")


def load_pair(
    pair_id: str,
    *,
    device: str | None = None,
    int8: bool | None = None,
    spare_cores: int = 0,
    report: Report = silent,
) -> LoadedPair:
    """Find, load, test and measure a pair of the catalogue.

    `int8` says whether drafters run in int8 on a CPU; None: where that measures faster.
    `spare_cores` is how many cores are left to others, such as a browser that draws meanwhile.
    `pair_id` may be an ad hoc one (`catalog.pair_of`). Raises PlaygroundError: unknown_pair,
    no_device, target_missing, bad_checksum, out_of_memory, cannot_roll_back, and what
    `hub.folder_of`, `checkpoint.plan_for`, `checkpoint.load_model`, `loader.load_codec` and
    `load_native` raise. After a failure nothing stays in memory.
    """
    known = catalog.load()
    pair = known.pair(pair_id)
    place = choose_device(device)
    threads = use_cores(spare_cores)
    name = known.model(pair.target).name

    def load() -> LoadedPair:
        parts = load_parts(known, pair, place, int8=int8, report=report)
        report(Progress("pack", 0.9, name))
        loaded = LoadedPair(
            id=pair.id,
            target=parts.target,
            codec=parts.codec,
            target_name=parts.target_name,
            draft=parts.draft,
            draft_name=parts.draft_name,
            draft_codec=parts.draft_codec,
            draft_masked=parts.draft_masked,
            mtp=parts.mtp,
            mtp_name=parts.mtp_name,
            eagle3=parts.eagle3,
            eagle3_name=parts.eagle3_name,
            where=describe_place(place, parts.plan.dtype, threads),
        )
        loaded.where["drafters"] = "int8" if parts.drafters_in_int8 else loaded.where["dtype"]
        loaded.where["identity"] = "bit-identical" if parts.bit_identical else "up to rounding"
        if parts.wiring is not None:
            loaded.where["mtp_agreement"] = f"{parts.wiring.agreement:.2f}"
            loaded.where["mtp_wiring"] = parts.wiring.verdict
        held = held_bytes(loaded.target, loaded.draft, loaded.mtp, loaded.eagle3)
        loaded.where["memory_gb"] = f"{held / 1e9:.2f}"
        loaded.recost(measure(loaded))
        if isinstance(parts.target, StaticModel):  # measuring has run passes of every width
            loaded.where["passes"] = parts.target.describe()
        report(Progress("ready", 1.0, name))
        return loaded

    return all_or_nothing(load, name)


def bundled_folder(known: catalog.Catalog, model_id: str) -> Path:
    """Return the folder of weights that lie in the repository."""
    return catalog.ASSETS / known.models[model_id].folder


def describe_place(device: torch.device, dtype: torch.dtype, threads: int) -> dict[str, str]:
    """Return what a reader needs to judge times measured here."""
    packed = device.type == "cpu" and linear.is_supported()
    return {
        "device": device.type,
        "processor": processor_name(device),
        "threads": str(threads),
        "dtype": str(dtype).removeprefix("torch."),
        "linears": "packed" if packed else "stock",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def measure(pair: LoadedPair, *, widest: int = WIDEST) -> dict[str, Costs]:
    """Measure what passes and drafts cost, per method that drafts with a model; about a second.

    It runs every method, so no first-time cost lands in a measured run either.
    """
    with pair.exclusive():
        passes = pass_seconds(pair.target, widest)
    costs = {}
    for method in pair.methods:
        if method in _UNMEASURED:
            continue
        runs = {}
        for gamma in (1, 4):
            settings = Settings(gamma=gamma, max_new_tokens=16, raw=True)
            events = pair.run(method, MEASURE_PROMPT, settings, policy=Fixed(gamma))
            runs[gamma] = [event.round for event in events if isinstance(event, Verified)]
        if method not in ("plain", *_UNMEASURED):
            costs[method] = Costs.of(passes, runs[1] + runs[4])
    return costs
