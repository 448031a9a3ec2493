"""Carries events from a blocking iterator in one thread to an async reader, a few times a second.

Contract: the iterator is made, consumed and closed in one thread (torch keeps its modes per
thread). The reader gets every event, in batches whose pace falls as more readers are active. When
the reader ends for any reason, `cancelled()` turns true for the iterator: an engine never outlives
its page by more than a round.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

Source = Callable[[Callable[[], bool]], Iterator[Any]]

MOST_HZ, LEAST_HZ, BUDGET_HZ = 20.0, 4.0, 120.0
_active = 0  # only touched on the event loop


def pace() -> float:
    """Return the seconds between two messages of one stream."""
    return 1 / min(MOST_HZ, max(LEAST_HZ, BUDGET_HZ / max(1, _active)))


async def batches(source: Source, cancelled: Callable[[], bool]) -> AsyncGenerator[list[Any], None]:
    """Yield what `source` produced since the last batch; raise what it raised."""
    global _active
    stop, done = threading.Event(), threading.Event()
    buffer: list[Any] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with closing(_as_generator(source(lambda: stop.is_set() or cancelled()))) as events:
                for event in events:
                    buffer.append(event)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    # The copied context carries Gradio's request, which hosted GPUs read.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="engine-pump", daemon=True).start()
    _active += 1
    num_sent = 0
    try:
        while True:
            over = done.is_set()
            num_ready = len(buffer)
            if num_ready > num_sent:
                yield buffer[num_sent:num_ready]
                num_sent = num_ready
            if over:
                break
            await asyncio.sleep(pace())
        if failures:
            raise failures[0]
    finally:
        stop.set()
        _active -= 1


async def each(source: Source, cancelled: Callable[[], bool]) -> AsyncGenerator[Any, None]:
    """Yield the same one by one, for a reader that sends nothing."""
    async with aclosing(batches(source, cancelled)) as together:
        async for batch in together:
            for item in batch:
                yield item


def _as_generator(events: Iterator[Any]) -> Any:
    """Return something with `close()`, whatever kind of iterator came."""
    return events if hasattr(events, "close") else (event for event in events)
