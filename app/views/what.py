"""What is shown: the run that every view below is about, in a few words."""

from __future__ import annotations

from app.shown import Shown
from app.views.blocks import Block, pieces, sentence

MOST_CHARACTERS = 90


def view(shown: Shown | None) -> list[Block]:
    """Say which run it is, where it comes from and how it begins."""
    if shown is None or shown.started is None:
        return [sentence("view.shown.empty", "empty")]
    started, metrics = shown.started, shown.metrics
    settings = started.settings
    length = "plain" if not settings.gamma else "auto" if settings.adaptive else "fixed"
    run = sentence(
        f"view.shown.{length}",
        method=started.method,
        pair=started.target or started.pair,
        gamma=settings.gamma,
        temperature=settings.temperature,
        tokens=metrics.num_emitted,
        rounds=metrics.num_rounds,
    )
    origin = sentence("view.shown.file", file=shown.origin) if shown.origin else _live()
    return [
        pieces((_beginning(started.prompt), "")),
        run,
        origin,
        *([] if metrics.finish_reason else [sentence("view.shown.unfinished", "warn")]),
    ]


def _live() -> Block:
    return sentence("view.shown.live")


def _beginning(prompt: str) -> str:
    """Return a prompt's first words on one line."""
    line = " ".join(prompt[: 4 * MOST_CHARACTERS].split())
    if len(line) <= MOST_CHARACTERS:
        return line
    return line[:MOST_CHARACTERS].rsplit(" ", 1)[0] + " …"
