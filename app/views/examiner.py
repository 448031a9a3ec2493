"""Examiner: is greedy text the same as plain's, and where it is not, is it a tie or a fault?

Contract: compares token ids of the run and its baseline; why they part is told by a `Measured`
"divergence" alone. Only greedy texts are compared: drawn ones may differ and be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from app.shown import Shown
from app.views.blocks import Block, Tone, column, pieces, sentence, significant, table, visible
from engine.events import Event, Measured, Prefilled, Started, Verified
from engine.prefix import first_difference


def token_ids(events: Sequence[Event]) -> list[int]:
    """Return the ids of a run, also of one that was stopped."""
    ids: list[int] = []
    for event in events:
        if isinstance(event, Prefilled):
            ids += [token.id for token in event.output]
        elif isinstance(event, Verified):
            ids += [token.id for token in event.round.output]
    return ids


def view(shown: Shown | None) -> list[Block]:
    """Say whether the text equals plain's, and show the place where it does not."""
    if shown is None or shown.started is None:
        return [sentence("view.examiner.empty", "empty")]
    method = shown.metrics.method
    if method == "plain":
        return [sentence("examiner.plain", "empty")]
    if not (_is_greedy(shown.events) and _is_greedy(shown.baseline)):
        return [sentence("examiner.sampled")]
    examined = shown.measure_of("divergence")
    if examined and method not in cast(list[str], examined.data["methods"]):
        examined = None
    if not shown.baseline:
        return _why(examined) if examined else [sentence("examiner.no_baseline", "empty")]
    return _compared(shown, examined)


def _is_greedy(events: Sequence[Event]) -> bool:
    return all(e.settings.temperature == 0 for e in events if isinstance(e, Started))


def _compared(shown: Shown, examined: Measured | None) -> list[Block]:
    own, plain = token_ids(shown.events), token_ids(shown.baseline)
    place = first_difference(own, plain)
    facts: dict[str, Any] = {"tokens": len(own), "method": shown.metrics.method}
    if place is None:
        return [sentence("examiner.identical", "good", **facts)]
    if place == min(len(own), len(plain)):
        return [sentence("examiner.prefix", tokens=place)]
    harmless = examined is not None and examined.data["verdict"] == "tie"
    tone: Tone = "plain" if harmless else "warn"
    parts = sentence("examiner.parts", tone, position=place + 1, same=place, **facts)
    if examined is None:
        return [parts, sentence("examiner.not_examined", "empty")]
    return [parts, *_why(examined)]


def _why(examined: Measured) -> list[Block]:
    data: dict[str, Any] = examined.data
    return [_verdict(data), *_texts(data), _logits(data), _difference(data)]


def _verdict(data: dict[str, Any]) -> Block:
    gap = data.get("gap", min(data["one"]["gap"], data["wide"]["gap"]))
    facts = {
        "gap": significant(gap),
        "difference": significant(data["difference"]),
        "position": data["position"] + 1,
    }
    if data["verdict"] == "tie":
        # Both logits move, so a gap of up to twice the difference can close.
        near = gap <= data["difference"]
        return sentence("examiner.tie" if near else "examiner.tie_twice", **facts)
    return sentence("examiner.fault", "warn", **facts)


def _texts(data: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for method, text, look in zip(
        data["methods"], data["texts"], ("dl-parted", "dl-parted other"), strict=True
    ):
        blocks.append({**sentence("examiner.text_of", method=method), "tone": "empty"})
        blocks.append(pieces((data["context"], "dl-shared"), (text, look)))
    return blocks


def _logits(data: dict[str, Any]) -> Block:
    rows = []
    for name in ("one", "wide"):
        reading = data[name]
        # A table shows text as text, so blanks are all that needs spelling out.
        first, second = (visible(text) for text in reading["labels"])
        rows.append(
            [
                sentence(f"examiner.{name}", width=data["width"]),
                first,
                reading["logits"][0],
                second,
                reading["logits"][1],
                reading["gap"],
            ]
        )
    columns = [
        column("examiner.read"),
        column("examiner.first"),
        column("examiner.logit", 5),
        column("examiner.second"),
        column("examiner.logit", 5),
        column("examiner.gap", 6),
    ]
    return table(columns, rows)


def _difference(data: dict[str, Any]) -> Block:
    return sentence(
        "examiner.difference",
        difference=significant(data["difference"]),
        dtype=data["dtype"],
    )
