"""Cells: one token on screen each, as plain JSON values.

Contract: what a source does not know is left out of a cell, never filled in. `run_view` lays cells
out in rows; its words apply here. A cut cell keeps the fate it had otherwise as `was`; a choice is
[label, probability, id], because two tokens can look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.events import Choice, Drafted, Round

Cell = dict[str, Any]
MOST_CHOICES = 6
"""Choices of one law that a cell takes along."""


def pending_cells(event: Drafted) -> list[Cell]:
    """Return the cells of a proposal that waits for its verdict."""
    proposal = event.proposal
    return [
        with_numbers(
            new_cell(token.id, token.text, "pending"),
            position=i + 1,
            q=at(proposal.q, i),
            proposed=top_choices(proposal.top[i] if i < len(proposal.top) else ()),
            note=proposal.note or None,
        )
        for i, token in enumerate(proposal.tokens)
    ]


def fate_of(i: int, num_accepted: int, num_output: int) -> str:
    """Return what became of proposed token i."""
    if i < num_accepted:
        return "accepted" if i < num_output else "cut"
    return "rejected" if i == num_accepted else "unjudged"


def judged(done: Round, i: int) -> dict[str, Any]:
    """Return the card's numbers of a proposed token; u only where it decided something."""
    verdict, proposal = done.verdict, done.proposal
    return {
        "p": at(verdict.p, i),
        "q": at(proposal.q, i),
        "accept": at(verdict.accept_prob, i),
        "u": at(verdict.u, i) if i <= verdict.num_accepted else None,
        "overlap": at(verdict.overlap, i),
        "entropy": at(verdict.entropy, i),
        "top": top_choices(verdict.top[i] if i < len(verdict.top) else ()),
        "proposed": top_choices(proposal.top[i] if i < len(proposal.top) else ()),
        "note": proposal.note or None,
    }


def own_numbers(done: Round) -> dict[str, Any]:
    """Return the numbers of the target's own token, and the draft's law where one was refused."""
    verdict, proposal = done.verdict, done.proposal
    n, own = verdict.num_accepted, verdict.next_token.id
    top = verdict.top[n] if n < len(verdict.top) else ()
    drafted = proposal.top[n] if n < len(proposal.top) else ()
    return {
        "p": next((choice.prob for choice in top if choice.id == own), None),
        "q": next((choice.prob for choice in drafted if choice.id == own), None),
        "overlap": at(verdict.overlap, n),
        "entropy": at(verdict.entropy, n),
        "top": top_choices(top),
        "proposed": top_choices(drafted),
        "residual": top_choices(verdict.residual_top),
    }


def new_cell(
    token_id: int, label: str, fate: str, *, text: str | None = None, at: int | None = None
) -> Cell:
    """Return a cell; without `text` it is a ghost."""
    cell: Cell = {
        "id": token_id,
        "label": label,
        "fate": fate,
        "ghost": text is None,
        "text": label if text is None else text,
    }
    return cell if at is None else {**cell, "at": at}


def with_numbers(cell: Cell, **numbers: Any) -> Cell:
    """Add what is known; five digits are plenty on screen and keep the messages small."""
    for name, value in numbers.items():
        if value is None or value == []:
            continue
        cell[name] = round(value, 5) if isinstance(value, float) else value
    return cell


def at(values: Sequence[float] | None, i: int) -> float | None:
    """Return item i where it is known."""
    return values[i] if values is not None and i < len(values) else None


def top_choices(choices: Sequence[Choice]) -> list[list[Any]]:
    """Return the most likely choices; four digits that count keep even a tiny one from being 0."""
    return [
        [choice.text, float(f"{choice.prob:.4g}"), choice.id] for choice in choices[:MOST_CHOICES]
    ]
