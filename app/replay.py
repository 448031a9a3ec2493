"""A run as one HTML file that plays in any browser, with no server and no network.

Contract: `page_of(shown)` is a whole page. It holds the page's own messages, frame by frame, made
by the same `RunView`, and the page's own scripts for numbers and text, so that its numbers are the
page's numbers. Its policy forbids every request and every script but its own; text of a model is
data in it, never markup. `python -m app.replay TRACE FILE` writes the same file; a trace that
cannot be read leaves FILE as it was.

Words: a *frame* is what one event changed, and the run's own clock when it happened.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app import charts, i18n, theme
from app.run_view import RunView
from app.series import COLUMNS
from app.shown import Shown, shown_of
from app.views import names
from engine import trace
from engine.catalog import ASSETS
from engine.errors import PlaygroundError
from engine.events import Drafted, Event, Prefilled, Started, Verified
from engine.metrics import fold

SCRIPTS = (
    *("replay_start.js", "words.js", "numbers.js"),
    *("replay_charts.js", "coin.js", "microscope.js", "token_strip.js", "replay.js"),
)
"""Parts of one function, in this order; `replay_charts.js` stands in for plotly's."""

WORDS = (
    *("fate.", "number.", "unit.", "formula.", "counters.", "chart.", "series.", "axis."),
    *("card.", "foot.", "strip.", "tool.", "stamp.", "verdict.", "value.", "method.", "label."),
    *("micro.", "replay.", "language."),
)
"""Beginnings of the texts that the file takes along."""

_ONCE = ("method", "prompt", "where", "greedy", "text", "full", "numbers")
"""Parts of a message that do not change, or that a frame holds more briefly."""


def page_of(shown: Shown) -> str:
    """Return the page that replays a run."""
    script = "\n".join(
        ["(() => {", *((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS), "})();"]
    )
    look = (
        f":root {theme.variables(dark=False)}"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {theme.variables(dark=True)} }}\n"
        f"{theme.style()}{(ASSETS / 'replay.css').read_text(encoding='utf-8')}"
    )
    script, look = f"\n{script}\n", f"\n{look}\n"
    parts = {
        "policy": (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(look)}; "
            "base-uri 'none'; form-action 'none'"
        ),
        "strip": (ASSETS / "token_strip.html").read_text(encoding="utf-8"),
        "style": look,
        "script": script,
        "data": _as_data(content(shown)),
    }
    template = (ASSETS / "replay.html").read_text(encoding="utf-8")
    # One pass: what is filled in is never searched for places itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def content(shown: Shown) -> dict[str, Any]:
    """Return everything the page's script needs, as plain JSON values."""
    view = RunView(fold(shown.baseline) if shown.baseline else None)
    started = shown.started
    frames = []
    for event, at in _timed(shown.events):
        view.add(event)
        if isinstance(event, Started):
            continue
        delta = view.delta()
        changed = {name: value for name, value in delta.items() if name not in _ONCE}
        frames.append(
            {"at": round(at, 6), "numbers": list(delta["numbers"].values()), "message": changed}
        )
    last = view.snapshot()
    return {
        "words": {
            language: {
                key: text for key, text in i18n.words(language).items() if key.startswith(WORDS)
            }
            for language in i18n.LANGUAGES
        },
        "languages": i18n.LANGUAGES,
        "fates": [mark.fate for mark in theme.LEGEND],
        "names": {number: names.also(number) for number in names.NAMES},
        "charts": {"columns": list(COLUMNS), "facts": charts.FACTS},
        "head": {name: last[name] for name in ("method", "prompt", "where", "greedy")},
        "about": {
            "target": started.target if started else "",
            "gamma": started.settings.gamma if started else 0,
            "temperature": started.settings.temperature if started else 0,
            "seed": started.settings.seed if started else 0,
            "origin": shown.origin,
        },
        "numbers": list(last["numbers"]),
        "frames": frames,
        "text": last["text"],
    }


def _timed(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """Return each event with the seconds from the start of the run."""
    timed, before, now = [], 0.0, 0.0
    for event in events:
        match event:
            case Prefilled():
                before = now = before + event.seconds + event.proposer_seconds
            case Drafted():
                now = before + (event.seconds or 0.0)
            case Verified():
                before = now = before + event.round.seconds.total
            case _:
                pass
        timed.append((event, now))
    return timed


def _as_data(value: Any) -> str:
    """Return JSON that cannot end the script tag around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(inline: str) -> str:
    digest = base64.b64encode(hashlib.sha256(inline.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a file of a trace; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m app.replay", description="Make an HTML file that replays a recorded run."
    )
    parser.add_argument("trace", type=Path, metavar="TRACE.jsonl")
    parser.add_argument("file", type=Path, metavar="FILE.html")
    options = parser.parse_args(arguments)
    try:
        shown = shown_of(trace.read_runs(options.trace), options.trace.name)
        if shown is None:
            raise ValueError("a readable trace holds a run")
        _replace(options.file, page_of(shown))
    except (PlaygroundError, OSError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    return 0


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    raise SystemExit(main())
