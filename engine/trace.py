"""Traces: runs and measurements as JSON lines, and back.

Contract: `decode_record(encode_record(x)) == x` for every record of `engine.events`. `read` yields
the records of a file or raises a PlaygroundError that names the line; what it yields has the types
it says, finite numbers and lists that fit together (`engine.sound`): no reader has to look again.

The format, version 1 (`assets/traces/README.md` lists every field; a test keeps it true):

* UTF-8 text, one JSON object per line, at most `MOST_BYTES` in all and `LONGEST_LINE` per line.
* The first line is `{"draftlight_trace": 1}`.
* Every other line is a record: `"event"` names its type, the rest are that type's fields, in any
  order. Tuples are lists, dataclasses are objects, what a source cannot know is null.
* A run is `Started`, `Prefilled`, then per round `Drafted` (only when something was proposed) and
  `Verified`, and `Finished`. A file may hold several runs, measurements anywhere between them, and
  may end anywhere: a run without `Finished` was cut off.

Version 1 stays readable for ever. A later writer may add fields with a default: this reader leaves
out fields that it does not know, and a missing field takes its dataclass default. Anything else, a
new kind of record or a field that changes its meaning, makes version 2, which is refused by name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from engine import events
from engine.errors import PlaygroundError
from engine.events import Record
from engine.sound import Order, UnsoundError, check
from engine.typed import record_reader

VERSION = 1
HEADER = json.dumps({"draftlight_trace": VERSION})
MOST_BYTES = 50_000_000
LONGEST_LINE = 2_000_000
"""Bytes; one record of a run takes a few thousand, a measurement rarely more."""

RECORDS = {
    kind.__name__: kind
    for kind in (
        events.Started,
        events.Prefilled,
        events.Drafted,
        events.Verified,
        events.Finished,
        events.Measured,
    )
}


def encode_record(record: Record) -> dict[str, Any]:
    """Return `record` as plain JSON values, tagged with its type name."""
    return {"event": type(record).__name__, **dataclasses.asdict(record)}


def decode_record(value: dict[str, Any]) -> Record:
    """Return the record that `encode_record` made.  Raises `UnsoundError`, a ValueError."""
    if not isinstance(value, dict):
        raise UnsoundError("type", "event")
    tag = value.get("event")
    if not isinstance(tag, str) or tag not in RECORDS:
        raise UnsoundError("event", str(tag)[:40])
    record: Record = record_reader(RECORDS[tag])(value)
    return record


def lines(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of a trace, header first, each with its line break."""
    yield HEADER + "\n"
    for record in records:
        yield json.dumps(encode_record(record), ensure_ascii=False, allow_nan=False) + "\n"


def write(path: Path, records: Iterable[Record]) -> None:
    """Write a trace file: a header line, then one line per record."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines(records))


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file, as far as they can be read.

    Raises PlaygroundError: trace_too_big, before anything is read; bad_trace with the line.
    """
    for _, record in _records(path):
        yield record


def read_runs(path: Path) -> list[Record]:
    """Return the records of a file that holds at least one run, each in its place.

    Raises what `read` raises.
    """
    order, found, number = Order(), [], 1
    for number, record in _records(path):
        try:
            order.check(record)
        except UnsoundError as error:
            raise bad_trace(path.name, number, error) from error
        found.append(record)
    if not order.num_runs:
        raise bad_trace(path.name, number, UnsoundError("no_run"))
    return found


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise PlaygroundError(
            "trace_too_big",
            f"{path.name} has {size / 1e6:.0f} MB; a trace has at most {MOST_BYTES / 1e6:.0f}.",
            "Record a shorter run, or cut the file after any line.",
            file=path.name,
            size=round(size / 1e6),
            limit=MOST_BYTES // 1_000_000,
        )
    with path.open("rb") as file:
        for number, line in _numbered(file):
            try:
                if number == 1:
                    _check_header(line)
                    continue
                record = decode_record(_parse(line))
                check(record)
            except UnsoundError as error:
                raise bad_trace(path.name, number, error) from error
            yield number, record


def bad_trace(name: str, line: int, why: UnsoundError) -> PlaygroundError:
    """Return the error that says what is wrong with a file, and where."""
    return PlaygroundError(
        "bad_trace",
        f"{name} cannot be read as a trace: line {line}, {why}.",
        "Record the run again, or cut the file before that line.",
        file=name,
        line=line,
        reason=f"trace.{why.reason}",
        place=why.place,
    )


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers and lines; an empty file has one empty line. Nothing is read ahead."""
    number = 1
    line = file.readline(LONGEST_LINE + 1)
    while line or number == 1:
        yield number, line
        number += 1
        line = file.readline(LONGEST_LINE + 1)


def _check_header(line: bytes) -> None:
    try:
        header = _parse(line)
    except UnsoundError as error:
        raise UnsoundError("header") from error
    version = header.get("draftlight_trace") if isinstance(header, dict) else None
    if version is None or isinstance(version, bool):
        raise UnsoundError("header")
    if version != VERSION:
        raise UnsoundError("version", str(version)[:20])


def _parse(line: bytes) -> Any:
    """Return a line's JSON value.  Raises `UnsoundError` for whatever is none."""
    if len(line) > LONGEST_LINE:
        raise UnsoundError("long")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnsoundError("text") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise UnsoundError("deep") from error
    except ValueError as error:  # also numbers of thousands of digits
        raise UnsoundError("json") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
