"""The line at the engine: first come, first served, and never endless."""

from __future__ import annotations

import pytest

from app.line import Line
from engine.errors import PlaygroundError


def test_those_behind_move_on_when_one_leaves() -> None:
    line = Line()
    first, second, third = (line.join() for _ in range(3))
    assert [line.ahead(ticket) for ticket in (first, second, third)] == [0, 1, 2]
    line.leave(second)
    assert [line.ahead(ticket) for ticket in (first, third)] == [0, 1]
    line.leave(first)
    assert line.ahead(third) == 0


def test_a_full_line_says_so() -> None:
    line = Line(most=2)
    tickets = [line.join() for _ in range(3)]  # one runs, two wait
    with pytest.raises(PlaygroundError) as caught:
        line.join()
    assert caught.value.code == "too_busy"
    line.leave(tickets[0])
    line.join()
