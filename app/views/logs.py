"""Logs: what a pasted line of another engine says, in the playground's words.

Contract: a pure function of the pasted text; what the line does not say is "—". Sums appear only
where the reports count separate stretches and can be added exactly.
"""

from __future__ import annotations

from app.views.blocks import Block, column, sentence, table
from engine.errors import PlaygroundError
from engine.foreign_logs import read_logs
from engine.foreign_record import ForeignRecord, total

LONGEST = 20_000
"""Characters that may be pasted at once."""


def view(pasted: str) -> list[Block]:
    """Show a table of the reports in `pasted`."""
    if not pasted.strip():
        return [sentence("view.logs.empty", "empty")]
    try:
        records = read_logs(pasted)
    except PlaygroundError as error:
        return [sentence(f"error.{error.code}", "warn")]
    rows = [_row(record) for record in records]
    together = total(records) if len(records) > 1 else None
    if together is not None and together.drafted is not None:
        rows.append([sentence("logs.together"), *_row(together)[1:]])
    return [_table(rows), *_doubts(records), *_notes(records)]


def _table(rows: list[list[object]]) -> Block:
    columns = [
        column("logs.column.engine"),
        column("logs.column.drafted", 0),
        column("logs.column.accepted", 0),
        column("logs.column.rounds", 0),
        column("number.rate", 1, "%"),
        column("number.mean_length", 2),
        column("logs.column.by_position"),
        column("logs.column.per_second", 1),
    ]
    return table(columns, rows)


def _row(record: ForeignRecord) -> list[object]:
    percent = None if record.rate is None else 100 * record.rate
    by_position = record.by_position
    return [
        record.engine,
        record.drafted,
        record.accepted,
        record.rounds,
        percent,
        record.length,
        None if by_position is None else " · ".join(f"{100 * rate:.0f}" for rate in by_position),
        record.tokens_per_second,
    ]


def _doubts(records: tuple[ForeignRecord, ...]) -> list[Block]:
    found = dict.fromkeys(doubt for record in records for doubt in record.doubts())
    return [sentence(f"logs.doubt.{doubt}", "warn") for doubt in found]


def _notes(records: tuple[ForeignRecord, ...]) -> list[Block]:
    kinds = dict.fromkeys(record.kind for record in records)
    noted = ("sglang", "llama_server", "vllm", "llama_run")
    return [sentence(f"logs.note.{kind}") for kind in kinds if kind in noted]
