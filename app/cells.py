"""Cells: one token on screen each, as plain JSON values.

Contract: what a source does not know is left out of a cell, never filled in. `run_view` lays cells
out in rows; its words apply here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.events import Choice, Drafted, Round

Cell = dict[str, Any]


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
        "entropy": at(verdict.entropy, i),
        "top": top_choices(verdict.top[i] if i < len(verdict.top) else ()),
        "proposed": top_choices(proposal.top[i] if i < len(proposal.top) else ()),
        "note": proposal.note or None,
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
    """Return the most likely choices, few enough for a card."""
    return [[choice.text, round(choice.prob, 5)] for choice in choices[:4]]
