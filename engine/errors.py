"""Errors a user can fix.

`PlaygroundError` carries a stable `code` (the page translates by it), an English sentence that says
what happened, and the remedy. Programming mistakes stay `ValueError`/`TypeError`.
"""

from __future__ import annotations


class PlaygroundError(Exception):
    """Something the user can mend: `code` names it, `remedy` says how, `facts` fill the text."""

    def __init__(self, code: str, message: str, remedy: str, **facts: object) -> None:
        super().__init__(f"{message} {remedy}")
        self.code = code
        self.message = message
        self.remedy = remedy
        self.facts = facts
