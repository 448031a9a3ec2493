"""Content: which proposed tokens were accepted, by their kind and by how sure the target was.

Contract: only judged tokens count (a token behind the first loss was never tried), each with its
counts. Kinds are told by a token's label alone; the entropy is the target's at that place, in nats,
after the user's processors.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from app.shown import Shown
from app.views.blocks import Block, figure, sentence
from engine.events import Round

KINDS = (
    *("word_start", "word_rest", "identifier", "digit"),
    *("punctuation", "space", "other_script", "part", "special"),
)
"""In their order on the page."""

EDGES = (0.1, 0.5, 1.0, 2.0, 3.0)
"""Between the bins of entropy, in nats; ln 2 = 0.69 is a fair coin."""

Counts = tuple[int, int]
"""accepted, judged"""


def view(shown: Shown | None) -> list[Block]:
    """Show acceptance by kind of token and by the target's entropy."""
    if shown is None or not shown.rounds:
        return [sentence("view.content.empty", "empty")]
    if not shown.metrics.num_drafted:
        return [sentence("view.acceptance.none", "empty")]
    by_kind = count((kind_of(text), won) for text, _, won in judged(shown.rounds))
    known = [(entropy, won) for _, entropy, won in judged(shown.rounds) if entropy is not None]
    blocks = [_by_kind(by_kind)]
    if not known:
        return [*blocks, sentence("content.no_entropy", "empty")]
    return [*blocks, _by_entropy(count((bisect_right(EDGES, e), won) for e, won in known))]


def judged(rounds: Iterable[Round]) -> Iterator[tuple[str, float | None, bool]]:
    """Yield label, the target's entropy and whether it was accepted, for every judged token."""
    for done in rounds:
        entropy = done.verdict.entropy
        for i, token in enumerate(done.proposal.tokens[: done.verdict.num_accepted + 1]):
            known = entropy[i] if entropy is not None and i < len(entropy) else None
            yield token.text, known, i < done.verdict.num_accepted


def kind_of(label: str) -> str:
    """Return what kind of token a label is, one of `KINDS`."""
    text = label.strip()
    if label.startswith("⟨") and label.endswith("⟩"):
        return "part"
    if text.startswith("<|") and text.endswith("|>"):
        return "special"
    if not text:
        return "space"
    if text.isdecimal():
        return "digit"
    if not any(character.isalnum() or character == "_" for character in text):
        return "punctuation"
    if not all(_is_latin(character) for character in text if character.isalpha()):
        return "other_script"
    inner_capital = not text.isupper() and any(character.isupper() for character in text[1:])
    if "_" in text or inner_capital or any(character.isdecimal() for character in text):
        return "identifier"
    return "word_start" if label[0].isspace() or text[0].isupper() else "word_rest"


def _is_latin(character: str) -> bool:
    return unicodedata.name(character, "").startswith("LATIN")


def count(pairs: Iterable[tuple[str | int, bool]]) -> dict[str | int, Counts]:
    """Return accepted and judged for every key."""
    found: dict[str | int, Counts] = {}
    for key, won in pairs:
        accepted, tried = found.get(key, (0, 0))
        found[key] = (accepted + won, tried + 1)
    return found


def _by_kind(counts: dict[str | int, Counts]) -> Block:
    kinds = [kind for kind in KINDS if kind in counts]
    bars = {
        **_bars([counts[kind] for kind in kinds], along="x"),
        "orientation": "h",
        "y": [f"@kind.{kind}" for kind in kinds],
        "hovertemplate": "%{y}: %{x:.1f} % (%{text})<extra></extra>",
    }
    layout = {
        "xaxis": {"range": [0, 118], "ticksuffix": " %", "dtick": 50},
        "yaxis": {"autorange": "reversed"},
    }
    return figure("by_kind", [bars], layout, height=76 + 30 * len(kinds))


def _by_entropy(counts: dict[str | int, Counts]) -> Block:
    bins = sorted(key for key in counts if isinstance(key, int))
    bars = {
        **_bars([counts[i] for i in bins], along="y"),
        "x": [_bin_name(i) for i in bins],
        "hovertemplate": "%{x}: %{y:.1f} % (%{text})<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "@axis.entropy"}, "type": "category"},
        "yaxis": {"range": [0, 112], "ticksuffix": " %", "dtick": 25},
    }
    return figure("by_entropy", [bars], layout, height=250)


def _bin_name(i: int) -> str:
    if i == len(EDGES):
        return f"≥ {EDGES[-1]:g}"
    return f"{EDGES[i - 1] if i else 0:g}–{EDGES[i]:g}"


def _bars(counts: list[Counts], along: str) -> dict[str, object]:
    return {
        "type": "bar",
        along: [100 * accepted / tried for accepted, tried in counts],
        "text": [f"{accepted}/{tried}" for accepted, tried in counts],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": "$accepted"},
    }
