"""How far the drafter would have come from every place of a greedy text.

The text is known, so one target pass gives the features of all places, and the drafter can be
*driven* along it: it proposes as in a real run of any draft length, with the same numerics and the
same pieces of context, and the text itself says what would have been accepted. A real run is
compared with its driven twin, round by round.

Words: a *round* here is [gamma asked, drafted, accepted]. A *place* is the index of the last known
token of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.costs import WIDEST
from engine.errors import PlaygroundError
from engine.events import Event, Finished, Settings, Verified
from engine.policy import Fixed, Policy
from engine.prefix import common_prefix
from engine.proposers.base import Context, Proposer
from engine.sampling import Sampler, Streams

if TYPE_CHECKING:
    from engine.runtime import LoadedPair

LONGEST = 8


def measure(
    pair: LoadedPair,
    method: str,
    prompt: str,
    settings: Settings,
    *,
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """Run the method once as `settings` say, then drive its drafter along the text.

    Raises PlaygroundError: needs_greedy (temperature above 0), needs_drafter (plain, synthetic).
    """
    _refuse(method, settings)
    settings = dataclasses.replace(settings, adaptive=False, confidence=0.0)
    real = list(pair.run(method, prompt, settings, cancelled=cancelled))
    last = real[-1]
    if not isinstance(last, Finished):
        raise RuntimeError("the run has no end")
    prompt_ids = pair.codec.encode(prompt, raw=settings.raw)
    with pair.exclusive():
        road = Road.read(pair, method, prompt_ids, last.token_ids, settings, cancelled)
        lengths, proposed = road.everywhere()
        driven = {str(gamma): road.drive(Fixed(gamma)) for gamma in range(1, LONGEST + 1)}
        auto = dataclasses.replace(settings, adaptive=True, gamma=LONGEST)
        driven["auto"] = road.drive(pair.policy(method, auto))
    checked = _rounds(real)
    return {
        "method": method,
        "longest": LONGEST,
        "token_ids": list(last.token_ids),
        "labels": [pair.codec.label(token) for token in last.token_ids],
        "lengths": lengths,
        "proposed": proposed,
        "driven": driven,
        "exact": _same(checked, driven[str(settings.gamma)], len(last.token_ids)),
        "checked": len(checked),
        "stop": last.reason in ("eos", "stop"),
    }


def _refuse(method: str, settings: Settings) -> None:
    if settings.temperature > 0:
        raise PlaygroundError(
            "needs_greedy",
            "This is exact for greedy text only.",
            "Set the temperature to 0 and run again.",
        )
    if method in ("plain", "synthetic"):
        raise PlaygroundError(
            "needs_drafter",
            f"{method} has no drafter to look at.",
            "Run a method that drafts first.",
            method=method,
        )


@dataclass(frozen=True, slots=True)
class Road:
    """A known text and the target's features along it; `new_proposer` makes a fresh drafter."""

    prompt_ids: list[int]
    text: Sequence[int]
    features: Tensor
    new_proposer: Callable[[], Proposer]
    settings: Settings
    max_length: int
    cancelled: Callable[[], bool]

    @classmethod
    @torch.inference_mode()
    def read(
        cls,
        pair: LoadedPair,
        method: str,
        prompt_ids: list[int],
        text: Sequence[int],
        settings: Settings,
        cancelled: Callable[[], bool],
    ) -> Road:
        """Let the target read everything once, in passes no wider than a run's.

        Wider ones may round differently, and the drafter would see other features.
        """

        def new_proposer() -> Proposer:
            streams = Streams.seeded(settings.seed, pair.target.device)
            return pair.proposer(method, Sampler(settings), streams.draft)

        taps = new_proposer().taps
        pair.target.forget()
        pair.target.tap(taps)
        parts: list[Tensor] = []
        for end in _ends(len(prompt_ids), len(prompt_ids) + len(text) - 1 if taps else 0):
            read, before = [*prompt_ids, *text][:end], sum(part.shape[0] for part in parts)
            parts.append(pair.target.read(read, features=end - before).features)
        features = torch.cat(parts) if parts else torch.empty(0, 0)
        longest = pair.target.max_length
        return cls(prompt_ids, text, features, new_proposer, settings, longest, cancelled)

    def everywhere(self) -> tuple[list[int], list[int]]:
        """Return how many drafts match and how many there were, from every place.  [n - 1] each"""
        lengths, proposed = [], []
        ask = _Asker(self)
        for place in range(len(self.text) - 1):
            if self.cancelled():
                break
            draft = ask(place, LONGEST)
            lengths.append(common_prefix(draft, self.text[place + 1 :]))
            proposed.append(len(draft))
        return lengths, proposed

    def drive(self, policy: Policy) -> list[list[int]]:
        """Return the rounds of a run whose draft lengths `policy` chooses, as the loop does."""
        rounds: list[list[int]] = []
        ask = _Asker(self)
        place = 0
        while place < len(self.text) - 1 and not self.cancelled():
            known = len(self.prompt_ids) + place + 1
            room = min(self.settings.max_new_tokens - place - 2, self.max_length - known)
            gamma = max(0, min(policy.next_gamma(), room))
            draft = ask(place, gamma) if gamma else []
            accepted = common_prefix(draft, self.text[place + 1 :])
            policy.observe(len(draft), accepted)
            rounds.append([gamma, len(draft), accepted])
            place += accepted + 1
        return rounds


class _Asker:
    """A fresh drafter that is asked at ever later places, with the features it has not seen."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._proposer = road.new_proposer()
        self._seen = 0
        self(0, 0)

    @torch.inference_mode()
    def __call__(self, place: int, gamma: int) -> list[int]:
        """Return the ids it proposes behind the text's token `place`."""
        road = self._road
        end = len(road.prompt_ids) + place
        new = road.features[self._seen : end]
        start, self._seen = (self._seen, end) if road.features.numel() else (0, 0)
        context = Context([*road.prompt_ids, *road.text[: place + 1]], new, start)
        ids: list[int] = self._proposer.propose(context, gamma).token_ids.tolist()
        return ids


def _ends(prompt: int, last: int) -> list[int]:
    """Return where passes end that read the prompt at once and what follows piece by piece."""
    return [*range(prompt, last, WIDEST), last] if last else []


def _rounds(events: Sequence[Event]) -> list[list[int]]:
    def each() -> Iterator[list[int]]:
        for event in events:
            if isinstance(event, Verified):
                done = event.round
                yield [done.gamma, len(done.proposal.tokens), done.verdict.num_accepted]

    return list(each())


def _same(real: list[list[int]], driven: list[list[int]], num_tokens: int) -> bool:
    """Compare rounds; a last verdict may accept more than the text keeps."""
    if len(real) != len(driven):
        return False
    place = 0
    for (gamma, drafted, accepted), twin in zip(real, driven, strict=True):
        left = num_tokens - 1 - place
        if [gamma, drafted, min(accepted, left)] != twin:
            return False
        place += accepted + 1
    return True
