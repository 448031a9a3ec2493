"""One question about a pair, answered before anything is loaded.

Contract: a check has a code, which the page words as `check.<code>`, and facts for that sentence;
`text` and `remedy` are its English. Only a fail means that the pair cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """A question and its answer; what is not ok says in `remedy` what to do."""

    state: State
    code: str
    text: str
    remedy: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether the pair may be tried; a warning has passed."""
        return self.state != "fail"


def check(state: State, code: str, text: str, remedy: str = "", /, **facts: object) -> Check:
    """Return a check; what is named are its facts."""
    return Check(state, code, text, remedy, facts)
