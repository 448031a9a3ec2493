"""Traces: events as JSON lines, and back.

Contract: `decode_record(encode_record(x)) == x` for every record; the first line of a file is a
header with the format's version. A reader refuses other versions instead of guessing.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine import events
from engine.errors import PlaygroundError
from engine.events import Record

VERSION = 1
_RECORDS = {
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
    """Return the record that `encode_record` made.  Raises ValueError on an unknown tag."""
    fields = dict(value)
    tag = fields.pop("event", None)
    if tag not in _RECORDS:
        raise ValueError(f"unknown event {tag!r}")
    record: Record = _build(_RECORDS[tag], fields)
    return record


def write(path: Path, records: Iterable[Record]) -> None:
    """Write a trace file: a header line, then one line per record."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"draftlight_trace": VERSION}) + "\n")
        for record in records:
            file.write(json.dumps(encode_record(record), ensure_ascii=False) + "\n")


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file.

    Raises PlaygroundError("bad_trace") when the file is not a trace of this version.
    """
    with path.open(encoding="utf-8") as file:
        try:
            header = json.loads(file.readline())
            known = isinstance(header, dict) and header.get("draftlight_trace") == VERSION
        except ValueError:
            known = False
        if not known:
            raise PlaygroundError(
                "bad_trace",
                f"{path.name} is not a version {VERSION} trace.",
                "Record the run again with this version.",
                file=path.name,
            )
        while True:
            try:
                line = file.readline()
                if not line:
                    return
                record = decode_record(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise PlaygroundError(
                    "bad_trace",
                    f"{path.name} holds a line that is not an event ({error}).",
                    "Record the run again with this version.",
                    file=path.name,
                ) from error
            yield record


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(hint: Any, value: Any) -> Any:
    """Turn plain JSON values into what the type hint says."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return _build(inner, value)
    if origin is tuple:
        return tuple(_build(get_args(hint)[0], item) for item in value)
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{value!r} is none of {get_args(hint)}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise TypeError(f"{hint.__name__} expected, got {type(value).__name__}")
        hints = _hints(hint)
        return hint(**{name: _build(hints[name], item) for name, item in value.items()})
    if hint is float and isinstance(value, int):
        return float(value)
    return value
