"""Reads what other engines log about speculative decoding: vLLM, SGLang, llama.cpp.

Contract: `read_logs(text)` returns one `ForeignRecord` per report it finds, in order; it holds what
the report says and None where it does not say it. Nothing is clamped or corrected: `doubts` names
what cannot be. `read_log(text)` is the one report, or the sum where several of a kind can be added.
Raises PlaygroundError("bad_log") where nothing is found.

Words, each engine's own translated into ours: vLLM's and llama.cpp's "mean acceptance length" and
SGLang's "accept len" hold the bonus token; llama.cpp's "generated" are drafted tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace

from engine.errors import PlaygroundError
from engine.foreign_record import ForeignRecord, total

_NUMBER = r"(\d+(?:\.\d+)?)"
_LIST = r"[\[(]?((?:\d*\.?\d+,\s*)*\d*\.?\d+)"
_SPEEDS = {"vllm_speed": "vllm", "eval_speed": "llama_request", "decoded_speed": "llama_run"}
"""A line that tells the speed of the report after it, and of which kind that is."""

_REPORTS = {
    "vllm": r"SpecDecoding metrics:",
    "vllm_v0": r"Speculative metrics:",
    "sglang": r"Decode batch\b",
    "llama_request": r"draft acceptance(?: rate)?\s*=",
    "llama_server": r"\bstatistics\s+[\w-]+:\s*#",
    "llama_run": r"\bn_drafted\s*=",
    "llama_percent": r"\baccept\s*=\s*[\d.]+\s*%",
    "vllm_speed": r"Avg generation throughput:",
    "eval_speed": r"(?<!prompt )\beval time\s*=",
    "decoded_speed": r"\bdecoded\s+\d+ tokens in",
}
_START = re.compile("|".join(f"(?P<{kind}>{start})" for kind, start in _REPORTS.items()))
_MANY_LINES = {"vllm", "vllm_v0", "llama_run"}
"""These reports go on until the next one starts; the others end with their line."""

ENGINES = {"vllm": "vLLM", "vllm_v0": "vLLM", "sglang": "SGLang"}
"""Kind of report -> engine; the others are llama.cpp's."""


def read_log(text: str) -> ForeignRecord:
    """Return the one report of `text`, or the sum of several.  Raises PlaygroundError: bad_log."""
    records = read_logs(text)
    return records[0] if len(records) == 1 else total(records)


def read_logs(text: str) -> tuple[ForeignRecord, ...]:
    """Return every report of `text`, in order.  Raises PlaygroundError: bad_log."""
    starts = list(_START.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)] * bool(starts)
    records: list[ForeignRecord] = []
    speeds: dict[str, float] = {}
    for start, end in zip(starts, ends, strict=True):
        kind = str(start.lastgroup)
        part = text[start.start() : end]
        part = part if kind in _MANY_LINES else part.split("\n", 1)[0]
        if kind in _SPEEDS:
            speed = _first(_NUMBER + r"\s*(?:tokens/s|tokens per second|t/s)", part)
            if speed is not None:
                speeds[_SPEEDS[kind]] = speed
            continue
        read = _READERS[kind](part)
        if kind in speeds:
            read = replace(read, tokens_per_second=speeds.pop(kind))
        _join(records, read)
    if not any(_says_something(record) for record in records):
        raise PlaygroundError(
            "bad_log",
            "No line here tells how many drafted tokens vLLM, SGLang or llama.cpp accepted.",
            "Paste one that does, for example one with “SpecDecoding metrics:”, “accept len:” or "
            "“draft acceptance”.",
        )
    return tuple(record for record in records if _says_something(record))


def _join(records: list[ForeignRecord], read: ForeignRecord) -> None:
    """Append a report, or complete the one before it that tells of the same tokens."""
    last = records[-1] if records else None
    pair = (last.kind, read.kind) if last is not None else ("", "")
    if last is None:
        records.append(read)
    elif pair == ("llama_run", "llama_percent") and last.acceptance_rate is None:
        records[-1] = replace(last, acceptance_rate=read.acceptance_rate)
    elif pair == ("llama_request", "llama_server") and last.same_tokens(read):
        records[-1] = replace(last, rounds=read.rounds)
    else:
        records.append(read)


def _vllm(part: str) -> ForeignRecord:
    percent = _first(r"[Dd]raft acceptance rate:\s*" + _NUMBER + r"\s*%", part)
    return _record(
        "vllm",
        drafted=_first(r"Drafted:\s*(\d+) tokens", part),
        accepted=_first(r"Accepted:\s*(\d+) tokens", part),
        acceptance_rate=None if percent is None else percent / 100,
        mean_acceptance_length=_first(r"Mean acceptance length:\s*" + _NUMBER, part),
        by_position=_numbers(r"Per-position acceptance rate:\s*" + _LIST, part),
    )


def _vllm_v0(part: str) -> ForeignRecord:
    return _record(
        "vllm_v0",
        drafted=_first(r"Number of draft tokens:\s*(\d+)", part),
        accepted=_first(r"Number of accepted tokens:\s*(\d+)", part),
        acceptance_rate=_first(r"Draft acceptance rate:\s*" + _NUMBER, part),
    )


def _sglang(part: str) -> ForeignRecord:
    return _record(
        "sglang",
        acceptance_rate=_first(r"accept rate:\s*" + _NUMBER, part),
        mean_acceptance_length=_first(r"accept len:\s*" + _NUMBER, part),
        tokens_per_second=_first(r"gen throughput \(token/s\):\s*" + _NUMBER, part),
    )


def _llama_request(part: str) -> ForeignRecord:
    return _record(
        "llama_request",
        drafted=_first(r"/\s*(\d+) generated", part),
        accepted=_first(r"(\d+) accepted", part),
        acceptance_rate=_first(r"draft acceptance(?: rate)?\s*=\s*" + _NUMBER, part),
        mean_acceptance_length=_first(r"mean (?:acceptance length|len)\s*=\s*" + _NUMBER, part),
        by_position=_numbers(r"acceptance rate per position\s*=\s*" + _LIST, part),
    )


def _llama_server(part: str) -> ForeignRecord:
    return _record(
        "llama_server",
        drafted=_first(r"#gen tokens\s*=\s*(\d+)", part),
        accepted=_first(r"#acc tokens\s*=\s*(\d+)", part),
        rounds=_first(r"#gen drafts\s*=\s*(\d+)", part),
        mean_acceptance_length=_first(r"#mean acc len\s*=\s*" + _NUMBER, part),
        by_position=_numbers(r"#acc rate/pos\s*=\s*" + _LIST, part),
    )


def _llama_run(part: str) -> ForeignRecord:
    return _record(
        "llama_run",
        drafted=_first(r"n_drafted\s*=\s*(\d+)", part),
        accepted=_first(r"n_accept\s*=\s*(\d+)", part),
    )


def _llama_percent(part: str) -> ForeignRecord:
    percent = _first(r"accept\s*=\s*" + _NUMBER, part)
    return _record("llama_percent", acceptance_rate=None if percent is None else percent / 100)


_READERS = {
    "vllm": _vllm,
    "vllm_v0": _vllm_v0,
    "sglang": _sglang,
    "llama_request": _llama_request,
    "llama_server": _llama_server,
    "llama_run": _llama_run,
    "llama_percent": _llama_percent,
}


def _record(
    kind: str,
    *,
    drafted: float | None = None,
    accepted: float | None = None,
    rounds: float | None = None,
    acceptance_rate: float | None = None,
    mean_acceptance_length: float | None = None,
    by_position: tuple[float, ...] | None = None,
    tokens_per_second: float | None = None,
) -> ForeignRecord:
    return ForeignRecord(
        ENGINES.get(kind, "llama.cpp"),
        kind,
        drafted=None if drafted is None else int(drafted),
        accepted=None if accepted is None else int(accepted),
        rounds=None if rounds is None else int(rounds),
        acceptance_rate=acceptance_rate,
        mean_acceptance_length=mean_acceptance_length,
        by_position=by_position,
        tokens_per_second=tokens_per_second,
    )


def _says_something(record: ForeignRecord) -> bool:
    said = (record.drafted, record.accepted, record.rate, record.length)
    return any(value is not None for value in said)


def _first(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def _numbers(pattern: str, text: str) -> tuple[float, ...] | None:
    found = re.search(pattern, text)
    return tuple(float(part) for part in found[1].split(",")) if found else None
