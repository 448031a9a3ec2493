"""The line at the engine: who runs now, who is next.

Contract: first come, first served; `ahead` is how many go before a ticket, 0 for whoever may run.
Whoever joined must `leave`, however it ends. The page words the place in the visitor's language,
which Gradio's own queue cannot.
"""

from __future__ import annotations

import threading
from typing import NewType

from engine.errors import PlaygroundError

Ticket = NewType("Ticket", int)
MOST_WAITING = 40
"""About two workshops' worth."""


class Line:
    """One line of one process."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._tickets: list[Ticket] = []
        self._next = 0
        self._guard = threading.Lock()

    def join(self) -> Ticket:
        """Take the last place.  Raises PlaygroundError("too_busy")."""
        with self._guard:
            if len(self._tickets) > self._most:
                raise PlaygroundError(
                    "too_busy",
                    f"{self._most} runs wait already.",
                    "Please try again in a minute.",
                    waiting=self._most,
                )
            self._next += 1
            ticket = Ticket(self._next)
            self._tickets.append(ticket)
            return ticket

    def ahead(self, ticket: Ticket) -> int:
        """Return how many go first.  Raises ValueError for a ticket that left."""
        with self._guard:
            return self._tickets.index(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Give the place up; those behind move on."""
        with self._guard:
            self._tickets.remove(ticket)
