"""A toy engine of the runtime's shape: hand-made rounds, no model, any pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.errors import PlaygroundError
from engine.events import (
    Choice,
    Drafted,
    Event,
    Finished,
    Measured,
    Prefilled,
    Proposal,
    Round,
    Settings,
    Started,
    Timings,
    Token,
    Verdict,
    Verified,
)
from engine.policy import Adaptive
from engine.replay import RunLengths, rounds_adaptive, rounds_fixed
from engine.text import Transcript

XSS = "<img src=x onerror=\"document.title='injected'\"><script>document.title='injected'</script>"
STORY = (
    "The sky is blue because air scatters short waves of light far more than long ones.\n\n"
    "At sunset the light takes a longer way through the air, "
    "and what is left of it is red. "
    "```python\ndef second(numbers):\n    return sorted(set(numbers))[-2]\n```\n"
    "That is all there is to it."
)
LONG = "at great length"
"""A prompt with these words gets a text that takes many seconds."""

UNTIL_STOPPED = "until it is stopped"
"""A prompt with these words has two rounds and waits; a stop ends it after the third."""


def tokens_of(text: str) -> list[Token]:
    """Split a text into word-like tokens that join to it again."""
    pieces, current = [], ""
    for character in text:
        if character in " \n" and current.strip():
            pieces.append(current)
            current = ""
        current += character
    pieces.append(current)
    return [Token(1000 + i, piece) for i, piece in enumerate(pieces)]


@dataclass
class ToyCodec:
    """A codec of whole words; `engine.text.Transcript` needs no more of one."""

    texts: dict[int, str]
    eos_ids: frozenset[int] = frozenset()

    def pieces(self) -> ToyCodec:
        return self

    def add(self, token_id: int) -> str:
        return self.texts[token_id]

    def flush(self) -> str:
        return ""


@dataclass
class FakeProgress:
    stage: str
    fraction: float | None = None
    detail: str = ""


def timings(total: float, draft: float) -> Timings:
    return Timings(
        draft=draft, verify=total - draft - 0.0004, sampling=0.0001, rule=0.0001,
        text=0.0001, bookkeeping=0.0001, total=total,
    )  # fmt: skip


def verdict(g: int, n: int, token: Token, source: str) -> Verdict:
    p = tuple(0.1 if source == "recovered" and i == n else 0.9 - 0.1 * i for i in range(g))
    top = tuple((Choice(token.id, token.text, 0.6), Choice(7, " else", 0.25)) for _ in range(g + 1))
    return Verdict(
        num_accepted=n, next_token=token, next_source=source, p=p,  # type: ignore[arg-type]
        accept_prob=tuple(min(1.0, x / 0.5) for x in p), u=tuple(0.3 for _ in range(g)), overlap=p,
        entropy=tuple(0.5 for _ in range(g + 1)), top2_gap=tuple(1.0 for _ in range(g + 1)),
        top=top, residual_top=top[0] if source == "recovered" else (),
    )  # fmt: skip


def _driven(data: dict[str, Any]) -> dict[str, list[list[int]]]:
    run_map = RunLengths.of(data)
    ways = {str(g): rounds_fixed(run_map, g) for g in range(1, 9)}
    ways["auto"] = rounds_adaptive(run_map, Adaptive(8))
    return {name: [list(done) for done in played] for name, played in ways.items()}


_WHERE = {"device": "cpu", "processor": "Toy", "threads": "2", "dtype": "float32"}
_LAW = {"labels": [" of", " light", "<b>", ""], "target": [0.5, 0.25, 0.15, 0.1]}
MEASURED: dict[str, dict[str, Any]] = {
    "cost_curve": {
        "passes": [0.020 + 0.001 * k for k in range(16)],
        "context": 96,
        "repeats": 5,
        "drafts": {
            "mtp": {"start": 0.0005, "step": 0.0012, "overhead": 0.001},
            "draft": {"start": 0.0002, "step": 0.0020, "overhead": 0.001},
            "lookup": {"start": 0.0001, "step": 0.0, "overhead": 0.001},
        },
        "plain_overhead": 0.0005,
        "where": _WHERE,
        "date": "2026-01-01T00:00:00+00:00",
    },
    "run_lengths": {
        "longest": 8,
        "token_ids": list(range(1, 13)),
        "labels": [f" w{i}" for i in range(1, 13)],
        "lengths": [0, 2, 1, 0, 5, 4, 3, 2, 1, 0, 0],
        "proposed": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8],
        "exact": True,
        "checked": 6,
        "stop": True,
    },
    "divergence": {
        "methods": ["plain", "mtp"],
        "position": 7,
        "context": "The sky is",
        "texts": [" blue because", " bright because"],
        "width": 3,
        "one": {"labels": [" blue", " bright"], "logits": [17.25001, 17.25], "gap": 0.00001},
        "wide": {"labels": [" bright", " blue"], "logits": [17.25002, 17.25], "gap": 0.00002},
        "difference": 0.00004,
        "dtype": "float32",
        "verdict": "tie",
    },
    "lab": {
        **_LAW,
        "rule": "exact",
        "num_draws": 2000,
        "with_draft": [0.49, 0.26, 0.15, 0.1],
        "without": [0.505, 0.245, 0.15, 0.1],
        "distance": 0.012,
        "distance_without": 0.011,
        "band": [0.004, 0.03],
        "lossless": True,
        "acceptance": 0.71,
        "expected": 0.7,
    },
    "canary": {
        "rounds": 12,
        "drafted": 24,
        "accepted": 20,
        "least": 0.5,
        "identical": True,
        "ok": True,
    },
}
"""One measurement of each kind, shaped as `engine.instruments` says."""
MEASURED["run_lengths"]["driven"] = _driven(MEASURED["run_lengths"])


@dataclass
class FakePair:
    """Runs a fixed text; every third proposal loses its second token; auto rests now and then."""

    id: str = "smollm2"
    methods: tuple[str, ...] = ("plain", "mtp", "draft", "lookup")
    text: str = STORY
    pause: float = 0.02
    slow_method: str = "lookup"
    alive: int = 0
    most_alive: int = 0
    ended: list[str] = field(default_factory=list)

    def check(self, method: str, prompt: str, settings: Settings) -> None:
        if len(prompt) > 5000:
            raise PlaygroundError(
                "prompt_too_long", "The prompt is too long.", "Shorten it.",
                length=len(prompt) // 4, limit=1000,
            )  # fmt: skip

    def run(
        self, method: str, prompt: str, settings: Settings, *, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        self.alive += 1
        self.most_alive = max(self.alive, self.most_alive)
        try:
            yield from self._run(method, prompt, settings, cancelled)
        finally:
            self.alive -= 1

    def memory(self, method: str) -> int | None:
        return {"plain": 600_000_000, "mtp": 620_000_000, "draft": 700_000_000}.get(method)

    def measure(
        self,
        kind: str,
        method: str,
        prompt: str,
        settings: Settings,
        *,
        cancelled: Callable[[], bool],
        **options: Any,
    ) -> Measured:
        """Return a made-up measurement of the right shape; see `engine.instruments`."""
        time.sleep(self.pause)
        own: dict[str, Any] = {} if kind == "cost_curve" else {"method": method, **options}
        if options.get("rule", "exact") != "exact":
            own |= {"distance": 0.2, "lossless": False}
        return Measured(kind, {**MEASURED[kind], **own})

    def _run(
        self, method: str, prompt: str, settings: Settings, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        text = XSS + " " + self.text if "xss" in prompt else self.text
        if LONG in prompt:
            text = " ".join([text] * 10)
        rest = tokens_of(text)
        codec: Any = ToyCodec({token.id: token.text for token in rest})
        out = Transcript(codec, settings.max_new_tokens, settings.stop)
        yield Started(
            method, self.id, "Toy target", method, settings, prompt, (1, 2, 3),
            {
                "device": "cpu", "threads": "2", "dtype": "float32",
                "drafters": "int8", "identity": "bit-identical",
            },
        )  # fmt: skip
        first = rest.pop(0)
        _, pieces, released = out.take([first.id])
        yield Prefilled(3, (first,), tuple(pieces), released, 0.02, 0.001, 0.9, 0.4)
        index = 0
        while rest and not out.reason:
            if cancelled():
                out.end("cancelled")
                break
            if index == 2 and UNTIL_STOPPED in prompt:
                while not cancelled():
                    time.sleep(0.01)
            gamma = 0 if settings.adaptive and index % 4 == 3 else settings.gamma
            yield from self._round(index, method, gamma, rest, out)
            index += 1
        out.end("eos")
        tail = out.finish()
        reason = out.reason or "eos"
        self.ended.append(reason)
        yield Finished(tuple(out.token_ids), out.text, tail, out.num_hidden, reason)

    def _round(
        self, index: int, method: str, gamma: int, rest: list[Token], out: Transcript
    ) -> Iterator[Event]:
        g = min(gamma, len(rest) - 1, out.num_left - 1)
        proposed = rest[:g]
        lost = g > 1 and index % 3 == 1
        if lost:
            proposed = [proposed[0], Token(5, " of"), *proposed[2:]]
        proposal = Proposal(
            tuple(proposed), tuple(0.5 for _ in proposed),
            tuple((Choice(t.id, t.text, 0.5), Choice(9, " or", 0.2)) for t in proposed),
        )  # fmt: skip
        draft = 0.001 * g
        if g:
            time.sleep(self.pause / 4)
            yield Drafted(index, gamma, proposal, draft)
        time.sleep(self.pause)
        n = 1 if lost else g
        made = [rest.pop(0) for _ in range(n + 1)]
        taken, pieces, released = out.take([token.id for token in made])
        source = "recovered" if lost else "bonus" if g else "target"
        total = 0.04 + draft if method != self.slow_method else 0.2
        yield Verified(
            Round(
                index, gamma, proposal, verdict(g, n, made[-1], source), tuple(made[: len(taken)]),
                tuple(pieces), released, timings(total, draft), 0, g + 1,
            )
        )  # fmt: skip


@dataclass
class FakeLoader:
    """Loads at once, or when `gate` opens, or fails with `error`."""

    pair: FakePair = field(default_factory=FakePair)
    gate: threading.Event | None = None
    error: Exception | None = None

    def __call__(
        self, pair_id: str, *, device: str | None, report: Callable[[FakeProgress], None]
    ) -> FakePair:
        report(FakeProgress("load", 0.4, "toy"))
        if self.gate is not None:
            self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return self.pair
