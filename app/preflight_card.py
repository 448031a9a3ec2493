"""The card that says before Run whether a pair works, what it costs and where else it runs.

Contract: `card` turns what `engine.preflight` found into escaped HTML in one language; nothing is
looked up here. A check is worded by `check.<code>` with its facts, what to do by
`check.<code>.remedy`; errors by their own texts.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from app import i18n
from app.wording import Say
from engine.burden import Burden
from engine.catalog import Catalog
from engine.check import Check
from engine.preflight import Preflight
from engine.support import OURS, Support

MARKS = {"ok": "✓", "warn": "!", "fail": "✕"}
_WORST_FIRST = ("fail", "warn", "ok")
_FIRST = ("fits", "predicted", "mtp", "vocabulary", "ratio")
"""What else is good to know of a pair; whatever else is in order comes behind a line of its own."""


def looking(say: Say) -> str:
    """Return the card while files are being read."""
    return f'<div class="dl-preflight"><p>{html.escape(say("preflight.looking"))}</p></div>'


def card(say: Say, known: Catalog, found: Preflight, *, unfolded: bool = False) -> str:
    """Return the card: a line, and behind it everything that was found."""
    state = worst(found)
    count = sum(check.state == state for check in found.checks)
    size = next((check for check in found.checks if check.code.startswith("fits")), None)
    line = say(f"preflight.{state}", count=count)
    if size is not None and (needed := size.facts.get("gb", size.facts.get("needed"))):
        line = f"{line} · {say('preflight.gigabytes', gb=needed)}"
    inside = [
        *_checks(say, found),
        *_not_offered(say, known, found),
        *_ways(say, found.ways),
        *_support(say, found.support),
    ]
    return (
        f'<details class="dl-preflight {state}"{" open" * unfolded}><summary><b>{MARKS[state]}</b> '
        f"{html.escape(line)}</summary>{''.join(inside)}</details>"
    )


def worst(found: Preflight) -> str:
    """Return the state of the worst check."""
    states = {check.state for check in found.checks}
    return next((state for state in _WORST_FIRST if state in states), "ok")


def worded(say: Say, check: Check) -> tuple[str, str]:
    """Return a check and what to do about it; "" for what needs nothing."""
    facts = {name: _number(fact) for name, fact in check.facts.items()}
    if check.code.startswith("error."):  # its text ends with the remedy
        return _error(say, check, facts), ""
    remedy = say(f"check.{check.code}.remedy", **facts) if check.state != "ok" else ""
    return say(f"check.{check.code}", **facts), remedy


def _error(say: Say, check: Check, facts: Mapping[str, object]) -> str:
    if check.code not in i18n.words(i18n.DEFAULT):
        return f"{check.text} {check.remedy}"
    return say(check.code, **facts)


def _checks(say: Say, found: Preflight) -> Iterator[str]:
    rows = sorted(found.checks, key=_rank)
    plain = [check for check in rows if _rank(check)[1] == len(_FIRST) and check.state == "ok"]
    yield from _list(say, [check for check in rows if check not in plain])
    if plain:
        line = html.escape(say("preflight.plain", count=len(plain)))
        yield f"<details><summary>{line}</summary>{''.join(_list(say, plain))}</details>"
    if found.unread:
        yield f"<p>{html.escape(say('preflight.unread', models=', '.join(found.unread)))}</p>"


def _rank(check: Check) -> tuple[int, int]:
    place = next((n for n, start in enumerate(_FIRST) if check.code.startswith(start)), len(_FIRST))
    return _WORST_FIRST.index(check.state), place


def _list(say: Say, checks: Sequence[Check]) -> Iterator[str]:
    yield "<ul>"
    for check in checks:
        text, remedy = worded(say, check)
        below = f"<small>{html.escape(remedy)}</small>" if remedy else ""
        yield f'<li class="{check.state}"><b>{MARKS[check.state]}</b>'
        yield f"<span>{html.escape(text)}{below}</span></li>"
    yield "</ul>"


def _not_offered(say: Say, known: Catalog, found: Preflight) -> Iterator[str]:
    """Say of every method that the pair lacks why it is not there."""
    pair = known.pair(found.pair)
    offered = known.methods_of(pair)
    lacking = [m for m in known.methods.values() if m.page and m.id not in offered]
    if not lacking:
        return
    yield f"<h4>{html.escape(say('preflight.not_offered'))}</h4><ul>"
    for method in lacking:
        key = f"why_not.{method.id}"
        if method.id == "mtp":
            codes = {check.code for check in found.checks}
            shipped = codes & {"mtp_here", "mtp_incomplete"}
            key += ".unused" if shipped else "" if "mtp_none" in codes else ".unread"
        said = say(key, method=say(f"method.{method.id}"), model=known.model(pair.target).name)
        yield f'<li class="greyed"><b>–</b><span>{html.escape(said)}</span></li>'
    yield "</ul>"


def _ways(say: Say, ways: tuple[Burden, ...]) -> Iterator[str]:
    """Set what each way brings side by side."""
    if not ways:
        return
    head = "".join(f"<th>{html.escape(say(f'method.{way.way}'))}</th>" for way in ways)
    yield f"<h4>{html.escape(say('preflight.ways'))}</h4><table><tr><td></td>{head}</tr>"
    rows = {
        "parts": [" + ".join(way.parts) for way in ways],
        "extra": [_gigabytes(say, way.gigabytes) for way in ways],
        "decisions": [", ".join(say(f"decision.{name}") for name in way.decisions) for way in ways],
    }
    for name, cells in rows.items():
        filled = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        yield f"<tr><th>{html.escape(say(f'preflight.{name}'))}</th>{filled}</tr>"
    yield "</table>"


def _gigabytes(say: Say, number: float | None) -> str:
    if number is None:
        return say("preflight.size_unknown")
    return say("preflight.gigabytes", gb=f"{number:.2f}")


def _support(say: Say, rows: tuple[Support, ...]) -> Iterator[str]:
    """Say per method which other engines run it; sources are tooltips, and on the command line."""
    others = [row for row in rows if row.engine != OURS]
    if not others:
        return
    yield f"<h4>{html.escape(say('preflight.support'))}</h4><ul>"
    for method, group in groupby(others, key=lambda row: row.method):
        said = "; ".join(_answer(say, row) for row in group)
        yield f"<li><span><b>{html.escape(say(f'method.{method}'))}</b> {said}</span></li>"
    yield "</ul>"


def _answer(say: Say, row: Support) -> str:
    note = f" ({say(f'support.note.{row.note}')})" if row.note else ""
    source = say("preflight.source", source=row.source, date=row.date)
    text = f"{row.engine} {say(f'support.answer.{row.answer}')}{note}"
    return f'<span title="{html.escape(source)}">{html.escape(text)}</span>'


def _number(fact: object) -> object:
    return f"{fact:.3g}" if isinstance(fact, float) else fact
