"""What a run tells the world: frozen records of ids and floats.

Contract: `decode` yields exactly one `Started`, one `Prefilled`, then per round a `Drafted` (only
when something was proposed) and a `Verified`, and one `Finished`. `Measured` carries results of
instruments beside a run. Everything here survives a JSON round trip (`engine.trace`). What a source
cannot know is `None` or empty, never invented.

Words: a *round* is one proposal and the target pass that judges it; p is the target's probability,
q the proposer's, u the uniform number the decision used. `num_accepted` counts proposed tokens
only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Source = Literal["target", "draft", "recovered", "bonus"]
"""Where an emitted token came from. `target` is used when nothing was proposed."""

FinishReason = Literal["eos", "stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its id and a visible label of just this token (`⟨e4bd⟩` for partial UTF-8)."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the most likely tokens of a distribution."""

    id: int
    text: str
    prob: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the proposer offered.

    tokens: [g].  q: [g], the probability each token was drawn with; None if unknown.
    top: [g], the most likely choices of each draft distribution, best first; may be empty.
    note: where it came from, e.g. the matched n-gram; English, for experts.
    """

    tokens: tuple[Token, ...]
    q: tuple[float, ...] | None = None
    top: tuple[tuple[Choice, ...], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the target judged a proposal of g tokens. It is never cut, whatever the text keeps.

    p, accept_prob, u, overlap: [g] for the proposed tokens (None if unknown). Entries behind the
    first loss are true probabilities but were never used (those tokens are *unjudged*).
    overlap is sum(min(p, q)), the acceptance to expect at that position.
    entropy (nats, of p after processors) and top2_gap (raw logits, first minus second): [g + 1].
    top: [g + 1], most likely choices of p.  residual_top: what a recovered token was drawn from.
    """

    num_accepted: int
    next_token: Token
    next_source: Source
    p: tuple[float, ...] | None = None
    accept_prob: tuple[float, ...] | None = None
    u: tuple[float, ...] | None = None
    overlap: tuple[float, ...] | None = None
    entropy: tuple[float, ...] | None = None
    top2_gap: tuple[float, ...] | None = None
    top: tuple[tuple[Choice, ...], ...] = ()
    residual_top: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall seconds of one round, by phase. `draft` is None where the split is unknown.

    sampling: logits to distributions and draws.  rule: the acceptance test.  text: detokenising,
    stop strings.  bookkeeping: building the records.  total: the whole round, without the time the
    consumer of the events took.
    """

    draft: float | None
    verify: float
    sampling: float
    rule: float
    text: float
    bookkeeping: float
    total: float

    @property
    def overhead(self) -> float:
        """Everything that is neither drafting nor the target pass, unaccounted time included."""
        return self.total - (self.draft or 0.0) - self.verify

    @property
    def unaccounted(self) -> float:
        """What no phase claims."""
        return self.overhead - self.sampling - self.rule - self.text - self.bookkeeping


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round.

    output: the tokens the text gained, after cutting at EOS, stop strings or length; at most
    `num_accepted + 1` of them.  pieces: [len(output)] the text each output token added when its
    characters became complete ("" while they are not); stop text is included.
    text: what this round released: text that could still become a stop string is held back, so it
    may be shorter or longer than the pieces. All released texts and `Finished.tail` make the text.
    num_rolled_back, num_forwarded: cache entries the target dropped, tokens it read, this round.
    gamma: the draft length that the policy asked for (the proposal may be shorter).
    """

    index: int
    gamma: int
    proposal: Proposal
    verdict: Verdict
    output: tuple[Token, ...]
    pieces: tuple[str, ...]
    text: str
    seconds: Timings
    num_rolled_back: int
    num_forwarded: int

    @property
    def num_cut(self) -> int:
        """Tokens the round produced that the text did not take."""
        return self.verdict.num_accepted + 1 - len(self.output)

    @property
    def source(self) -> tuple[Source, ...]:
        """The source of each output token.  [len(output)]"""
        accepted = self.verdict.num_accepted
        return tuple(
            "draft" if i < accepted else self.verdict.next_source for i in range(len(self.output))
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for; the same for every method, so that runs can be compared.

    gamma: 1..8, 0 for plain; `adaptive` lets the policy choose up to that many.
    alpha: only for the synthetic proposer, the acceptance to aim at.
    confidence: a model that drafts stops after a token it gave less than this; 0 never does.
    head_rows: an MTP module scores only so many tokens, those with the lowest ids; 0: all it can.
    """

    gamma: int = 3
    adaptive: bool = False
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    raw: bool = False
    alpha: float = 0.8
    confidence: float = 0.0
    head_rows: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins. `where` holds what a reader needs to judge its times (device, dtype, ...)."""

    method: str
    pair: str
    target: str
    proposer: str
    settings: Settings
    prompt: str
    prompt_ids: tuple[int, ...]
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt was read (one target pass) and the first token drawn from the target.

    output and pieces are empty only when `max_new_tokens` is 0. `proposer_seconds` is the
    proposer's own prefill. `seconds` is the target pass and the draw.
    """

    num_prompt_tokens: int
    output: tuple[Token, ...]
    pieces: tuple[str, ...]
    text: str
    seconds: float
    proposer_seconds: float
    p: float | None = None
    entropy: float | None = None
    top: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafted:
    """A proposal waits for the target. `seconds` is None where the split is unknown."""

    index: int
    gamma: int
    proposal: Proposal
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The round is over."""

    round: Round


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over.

    token_ids: all new tokens, EOS and the token that completed a stop string included.
    text: final text, stop string excluded.  tail: text released only now.
    num_hidden: how many of the last `token_ids` show no (or not all of their) text because they are
    the stop string or EOS; they may lie in earlier rounds, and a view marks them as cut.
    """

    token_ids: tuple[int, ...]
    text: str
    tail: str
    num_hidden: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of an instrument (a cost curve, say), in the same versioned trace."""

    kind: str
    data: dict[str, object]


Event = Started | Prefilled | Drafted | Verified | Finished
Record = Event | Measured
