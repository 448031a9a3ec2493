"""Measure speed on this machine: every method against plain decoding, in one process.

Contract: everything that is compared runs interleaved, repeat by repeat, after a warm-up, on the
page's preset prompts (one per domain), greedily. A speed-up is the ratio of tokens per second to
our own plain decoding of the same repeat; reported are the median over repeats and their range.
transformers' `generate` on the same weights has rows of its own. Nothing is taken from elsewhere.

Times start at the first token, so the prompt's own pass is in none of them. For methods with a
draft length, every length asked for is measured; the row is that of the best pooled one, and
`provenance.tried` holds the others.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine import catalog
from engine.budget import streaming_ms
from engine.device import peak_memory_gb
from engine.errors import PlaygroundError
from engine.events import Finished, Settings
from engine.metrics import Metrics
from engine.request import LARGEST_GAMMA
from engine.runtime import LoadedPair, load_pair

NEW_TOKENS = 64
POOLED = "all"
AUTO = "auto"
THEIRS = ("transformers-plain", "transformers-draft", "transformers-lookup")
OURS = ("plain", "mtp", "draft", "lookup")
METHODS = (*OURS, *THEIRS)

Gamma = int | str
"""A draft length; "auto": our cost-aware policy; "default": what transformers does by itself."""

GAMMAS: dict[str, tuple[Gamma, ...]] = {
    "plain": (0,),
    "mtp": (1, 2, 3, AUTO),
    "draft": (1, 2, 3, AUTO),
    "lookup": (2, 3, 5, AUTO),
    "transformers-plain": (0,),
    "transformers-draft": ("default", 1, 2, 3),
    "transformers-lookup": (3, 10),
}

Report = Callable[[str], None]


@dataclass(slots=True)
class Sample:
    """One prompt, one repeat: tokens behind the first one, their seconds, all ids, counts."""

    num_tokens: int
    seconds: float
    token_ids: tuple[int, ...]
    metrics: Metrics | None = None


@dataclass(slots=True)
class Entry:
    """One method at one draft length: [repeat][domain]."""

    method: str
    gamma: Gamma
    samples: list[dict[str, Sample]] = field(default_factory=list)

    def speed(self, repeat: int, domains: Sequence[str]) -> float:
        """Return tokens per second over some domains."""
        chosen = [self.samples[repeat][domain] for domain in domains]
        return sum(s.num_tokens for s in chosen) / sum(s.seconds for s in chosen)

    def ratios(self, other: Entry, domains: Sequence[str]) -> list[float]:
        """Return the speed over another entry's, repeat by repeat."""
        repeats = range(len(self.samples))
        return [self.speed(r, domains) / other.speed(r, domains) for r in repeats]


def run_bench(
    pair_id: str,
    *,
    methods: Sequence[str] = METHODS,
    gammas: Sequence[Gamma] = (),
    domains: Sequence[str] = (),
    repeats: int = 3,
    device: str | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Return {rows, limit, provenance}.

    `gammas` replaces the draft lengths to try with our own methods. Raises PlaygroundError:
    unknown_method, unknown_domain, bad_setting, and those of `load_pair`.
    """
    prompts = _prompts(domains)
    _check(methods, gammas, repeats)
    report("loading")
    pair = load_pair(pair_id, device=device)
    memory = peak_memory_gb()  # before the reference models join
    wanted = ("plain", *(m for m in methods if m != "plain" and m in (*pair.methods, *THEIRS)))
    entries = [Entry(m, g) for m in wanted for g in _lengths(m, gammas)]
    theirs = Reference(pair) if any(m in THEIRS for m in wanted) else None
    for repeat in range(-1, repeats):  # the first one warms up
        report(f"repeat {repeat + 1} of {repeats}" if repeat >= 0 else "warm-up")
        order = entries if repeat % 2 else entries[::-1]
        for entry in order:
            chosen = dict(list(prompts.items())[:1]) if repeat < 0 else prompts
            samples = {d: _sample(pair, theirs, entry, text) for d, text in chosen.items()}
            if repeat >= 0:
                entry.samples.append(samples)
    return {
        "rows": rows_of(entries, list(prompts)),
        "limit": _limit(pair),
        "provenance": _provenance(pair, entries, list(prompts), repeats, memory),
    }


def _prompts(domains: Sequence[str]) -> dict[str, str]:
    presets = catalog.load().presets
    unknown = [name for name in domains if name not in presets]
    if unknown:
        raise PlaygroundError(
            "unknown_domain",
            f"There is no domain {unknown[0]!r}.",
            f"Choose among: {', '.join(presets)}.",
            domain=unknown[0],
            known=", ".join(presets),
        )
    return {name: presets[name].prompt for name in domains or presets}


def _check(methods: Sequence[str], gammas: Sequence[Gamma], repeats: int) -> None:
    for method in methods:
        if method not in METHODS:
            known = ", ".join(METHODS)
            raise PlaygroundError(
                "unknown_method",
                f"The benchmark has no method {method!r}.",
                f"Choose among: {known}.",
                method=method,
                known=known,
            )
    for gamma in gammas:
        if gamma != AUTO and not (isinstance(gamma, int) and 1 <= gamma <= LARGEST_GAMMA):
            raise _bad_number("gamma", gamma, f"1 to {LARGEST_GAMMA}, or {AUTO}")
    if repeats < 1:
        raise _bad_number("repeats", repeats, "at least 1")


def _bad_number(name: str, value: object, allowed: str) -> PlaygroundError:
    return PlaygroundError(
        "bad_setting",
        f"{name} is {value}.",
        f"It must be {allowed}.",
        name=name,
        value=value,
        allowed=allowed,
    )


def _lengths(method: str, gammas: Sequence[Gamma]) -> Sequence[Gamma]:
    drafts = method in OURS and method != "plain"
    return gammas if gammas and drafts else GAMMAS[method]


def _sample(pair: LoadedPair, theirs: Reference | None, entry: Entry, prompt: str) -> Sample:
    if entry.method in THEIRS:
        if theirs is None:
            raise ValueError("the reference models are not loaded")
        return theirs.sample(entry.method, entry.gamma, prompt)
    auto = entry.gamma == AUTO
    settings = Settings(
        gamma=LARGEST_GAMMA if auto else int(entry.gamma),
        adaptive=auto,
        max_new_tokens=NEW_TOKENS,
    )
    metrics = Metrics()
    ids: tuple[int, ...] = ()
    for event in pair.run(entry.method, prompt, settings):
        metrics.add(event)
        if isinstance(event, Finished):
            ids = event.token_ids
    count = metrics.num_emitted - metrics.num_prefill_tokens
    return Sample(count, metrics.decode_seconds, ids, metrics)


class Reference:
    """transformers' own greedy decoding on the same weights, in fp32."""

    def __init__(self, pair: LoadedPair) -> None:
        from transformers import AutoModelForCausalLM

        from engine.loading import find
        from engine.models.loader import assemble_draft

        known = catalog.load()
        names = known.pair(pair.id)
        folder = find(known.model(names.target))
        load = AutoModelForCausalLM.from_pretrained
        self._pair = pair
        self._model = load(folder, dtype=torch.float32, local_files_only=True).eval()
        self._draft = None
        if names.draft:
            draft = known.model(names.draft)
            whole = find(draft)
            if draft.source == "bundled":
                whole = assemble_draft(whole, folder)
            self._draft = load(whole, dtype=torch.float32, local_files_only=True).eval()
            stock = self._draft.generation_config
            self._default = (stock.num_assistant_tokens, stock.num_assistant_tokens_schedule)

    def sample(self, method: str, gamma: Gamma, prompt: str) -> Sample:
        """Time one greedy `generate`; the clock starts at the first token it gives."""
        ids = torch.tensor([self._pair.codec.encode(prompt)])
        options: dict[str, Any] = {}
        if method == "transformers-lookup":
            options["prompt_lookup_num_tokens"] = gamma
        if method == "transformers-draft":
            if self._draft is None:
                raise ValueError("the pair has no draft model")
            options["assistant_model"] = self._draft
            length, schedule = self._default if gamma == "default" else (gamma, "constant")
            self._draft.generation_config.num_assistant_tokens = length
            self._draft.generation_config.num_assistant_tokens_schedule = schedule
        watch = _Stopwatch()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            streamer=watch,
            **options,
        )
        new = tuple(out[0, ids.shape[1] :].tolist())
        return Sample(len(new) - watch.num_first, watch.seconds, new)


class _Stopwatch:
    """A streamer (transformers' protocol) that only looks at the clock."""

    def __init__(self) -> None:
        self.num_first = 0
        self.seconds = 0.0
        self._begun: float | None = None
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Take new tokens; the prompt comes first."""
        if self._prompt_seen and self._begun is None:
            self._begun = time.perf_counter()
            self.num_first = value.numel()
        self._prompt_seen = True

    def end(self) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - (self._begun or time.perf_counter())


def rows_of(entries: list[Entry], domains: list[str]) -> list[dict[str, Any]]:
    """Return a row per method (at its best draft length) and domain; plain comes first."""
    plain = entries[0]
    rows = []
    for entry in _best(entries, domains):
        for name, part in [(POOLED, domains), *((d, [d]) for d in domains)]:
            ratios = entry.ratios(plain, part)
            rows.append(
                {
                    "method": entry.method,
                    "domain": name,
                    "gamma": entry.gamma,
                    "tokens_per_second": round(
                        statistics.median(entry.speed(r, part) for r in range(len(entry.samples))),
                        2,
                    ),
                    "speedup": round(statistics.median(ratios), 3),
                    "speedup_low": round(min(ratios), 3),
                    "speedup_high": round(max(ratios), 3),
                    **_counts(entry, part),
                    "identical": all(
                        repeat[d].token_ids == plain.samples[0][d].token_ids
                        for repeat in entry.samples
                        for d in part
                    ),
                    "num_prompts": len(part),
                }
            )
    return rows


def _best(entries: list[Entry], domains: list[str]) -> Iterator[Entry]:
    """Yield every method once, at the draft length with the best pooled speed."""
    by_method: dict[str, list[Entry]] = {}
    for entry in entries:
        by_method.setdefault(entry.method, []).append(entry)
    for group in by_method.values():
        yield max(group, key=lambda e: statistics.median(e.ratios(entries[0], domains)))


def _counts(entry: Entry, domains: list[str]) -> dict[str, float | None]:
    """Return the acceptance over some domains; None where the source does not tell."""
    found = [entry.samples[0][domain].metrics for domain in domains]
    metrics = [m for m in found if m is not None]
    drafted = sum(m.num_drafted for m in metrics)
    accepted = sum(m.num_accepted for m in metrics)
    rounds = sum(m.num_rounds for m in metrics)
    return {
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_acceptance_length": round(1 + accepted / rounds, 4) if rounds else None,
    }


def _limit(pair: LoadedPair) -> dict[str, float]:
    """Return what no decoding of one token at a time could beat here."""
    known = catalog.load()
    stated = known.model(known.pair(pair.id).target).parameters_m * 1e6
    num_weights = stated or pair.memory("plain") / 4
    costs = next(iter(pair.costs.values()))
    return {
        "weights_mb": round(num_weights * 4 / 1e6, 1),
        "streaming_ms": round(streaming_ms(int(num_weights * 4)), 2),
        "plain_pass_ms": round(costs.passes[0] * 1e3, 2),
        "five_token_pass_ms": round(costs.passes[4] * 1e3, 2),
    }


def _provenance(
    pair: LoadedPair, entries: list[Entry], domains: list[str], repeats: int, memory: float
) -> dict[str, Any]:
    tried: dict[str, dict[str, dict[str, float]]] = {}
    parts = [(POOLED, domains), *((d, [d]) for d in domains)]
    for entry in entries:
        tried.setdefault(entry.method, {})[str(entry.gamma)] = {
            name: round(statistics.median(entry.ratios(entries[0], part)), 3)
            for name, part in parts
        }
    return {
        **provenance(pair.id, pair.where),
        "repeats": repeats,
        "new_tokens": NEW_TOKENS,
        "peak_gb_before_references": round(memory, 2),
        "tried": tried,
    }


def provenance(name: str, where: dict[str, str]) -> dict[str, Any]:
    """Return what was run, by which code, on what."""
    return {
        # File names only: where somebody keeps files is nobody's business.
        "command": " ".join(["python -m engine", *(Path(word).name for word in sys.argv[1:])]),
        "commit": _commit(),
        "pair": name,
        "where": where,
    }


def _commit() -> str | None:
    """Return the commit of this code; None outside a repository, "+" when files differ from it."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def table(result: dict[str, Any]) -> str:
    """Return the pooled rows, the domains of our own methods and the limit as text."""
    rows = result["rows"]
    pooled = {row["method"]: row for row in rows if row["domain"] == POOLED}
    theirs = pooled.get("transformers-plain")
    head = f"{'method':20} {'gamma':>7} {'tokens/s':>9} {'x plain':>22} {'x transformers':>15}"
    lines = [f"{head} {'accepted':>9} {'length':>7}  identical"]
    for row in pooled.values():
        spread = f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})"
        over = f"{row['speedup'] / theirs['speedup']:.2f}" if theirs else "not measured"
        rate, length = row["acceptance_rate"], row["mean_acceptance_length"]
        lines.append(
            f"{row['method']:20} {row['gamma']!s:>7} {row['tokens_per_second']:9.1f} "
            f"{spread:>22} {over:>15} "
            f"{'-' if rate is None else format(rate, '.0%'):>9} "
            f"{'-' if length is None else format(length, '.2f'):>7}  "
            f"{'yes' if row['identical'] else 'no'}"
        )
    domains = [row["domain"] for row in rows if row["method"] == "plain"][1:]
    lines.append("\nx plain by domain: " + ", ".join(domains))
    for method in pooled:
        own = {row["domain"]: row["speedup"] for row in rows if row["method"] == method}
        lines.append(f"{method:20} " + "  ".join(f"{own[domain]:.2f}" for domain in domains))
    limit = result["limit"]
    lines.append(
        f"\none-token pass {limit['plain_pass_ms']} ms; reading the weights once takes "
        f"{limit['streaming_ms']} ms"
    )
    return "\n".join(lines)
