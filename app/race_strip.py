"""RaceStrip: the lanes of a race on one clock, fed with the messages of `app.racing`.

Contract: the browser plays the recorded times; it never waits for the engine, and the engine never
for it.
"""

from __future__ import annotations

from app.fed import Fed, script_of
from engine.catalog import ASSETS

SCRIPTS = ("words.js", "race.js")


class RaceStrip(Fed):
    """Lanes, clock and verdicts of one race."""

    TEMPLATE = (ASSETS / "race.html").read_text(encoding="utf-8")
    SCRIPT = script_of(SCRIPTS)
