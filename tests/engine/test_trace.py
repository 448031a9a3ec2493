import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import events, trace, typed
from engine.catalog import ASSETS
from engine.errors import PlaygroundError
from engine.events import Choice, Finished, Measured, Settings, Token
from tests.engine.tiny import METHODS, tiny_pair

text = st.text(max_size=6)
number = st.floats(-typed.LARGEST_FLOAT, typed.LARGEST_FLOAT)
whole = st.integers(-typed.LARGEST_INT, typed.LARGEST_INT)
st.register_type_strategy(float, number)
st.register_type_strategy(int, whole)


def any_record():
    kinds = [events.Started, events.Prefilled, events.Drafted, events.Verified, events.Finished]
    made = st.one_of(*(st.from_type(kind) for kind in kinds))
    json_values = st.recursive(
        st.none() | st.booleans() | whole | number | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=5,
    )
    measured = st.builds(Measured, kind=text, data=st.dictionaries(text, json_values, max_size=3))
    return made | measured


@given(any_record())
@settings(deadline=None, max_examples=60)
def test_every_record_survives_json(record):
    line = json.dumps(trace.encode_record(record))
    assert trace.decode_record(json.loads(line)) == record


@pytest.mark.parametrize("method", METHODS)
def test_a_real_run_survives_a_file(tmp_path, method):
    chosen = Settings(gamma=3, max_new_tokens=15, temperature=1.0, stop=("zq", "é"))
    run = [*tiny_pair().run(method, "abcab", chosen), Measured("curve", {"x": [1, 2.5, None]})]
    path = tmp_path / "run.jsonl"
    trace.write(path, run)
    assert list(trace.read(path)) == run
    header, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert json.loads(header) == {"draftlight_trace": trace.VERSION}
    assert len(lines) == len(run)


def test_line_breaks_inside_text_stay_inside_a_line(tmp_path):
    record = Finished((1,), "a\nb\u2028c\u0085", "\n", 0, "eos")
    trace.write(tmp_path / "t", [record])
    assert list(trace.read(tmp_path / "t")) == [record]


def test_what_a_source_cannot_know_stays_unknown():
    draft = events.Drafted(0, 2, events.Proposal((Token(1, "a"),)), None)
    value = trace.encode_record(draft)
    assert value["proposal"]["q"] is None
    assert value["seconds"] is None
    assert trace.decode_record(value) == draft


def test_an_unknown_tag_is_an_error():
    with pytest.raises(ValueError, match="Nonsense"):
        trace.decode_record({"event": "Nonsense"})


GOOD = json.dumps({"draftlight_trace": trace.VERSION}).encode() + b"\n"
FINISHED = {"event": "Finished", **dataclasses.asdict(Finished((1,), "a", "", 0, "eos"))}
BAD_FILES = {
    "empty": b"",
    "not json": b"hello\n",
    "another version": b'{"draftlight_trace": 999}\n',
    "another kind of json": b"[1, 2]\n",
    "binary": b"\xff\xfe\x00\x01\n",
    "binary behind the header": GOOD + b"\xff\xfe\x00\x01\n",
    "binary far behind the header": GOOD + (json.dumps(FINISHED).encode() + b"\n") * 999 + b"\xff",
    "a broken line": GOOD + b"{\n",
    "a number": GOOD + b"5\n",
    "a list": GOOD + b"[1]\n",
    "an unknown event": GOOD + b'{"event": "Nonsense"}\n',
    "a missing field": GOOD + b'{"event": "Finished"}\n',
    "an unknown reason": GOOD + json.dumps({**FINISHED, "reason": "boredom"}).encode(),
    "a number for a list": GOOD + json.dumps({**FINISHED, "token_ids": 3}).encode(),
    "a number for a record": GOOD + b'{"event": "Verified", "round": 3}\n',
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_says_so(tmp_path, name):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(BAD_FILES[name])
    with pytest.raises(PlaygroundError) as caught:
        list(trace.read(path))
    assert caught.value.code == "bad_trace"
    assert "bad.jsonl" in str(caught.value)


ROUND = trace.encode_record(
    events.Verified(
        events.Round(
            index=0,
            gamma=2,
            proposal=events.Proposal((Token(1, "a"), Token(2, "b")), (0.5, 0.5)),
            verdict=events.Verdict(1, Token(3, "c"), "recovered", p=(0.9, 0.1)),
            output=(Token(1, "a"), Token(3, "c")),
            pieces=("a", "c"),
            text="ac",
            seconds=events.Timings(0.01, 0.02, 0.0, 0.0, 0.0, 0.0, 0.03),
            num_rolled_back=1,
            num_forwarded=3,
        )
    )
)
DELETE = object()


def changed(value, place, new):
    """Return a copy of a JSON value with another value at a path."""
    if not place:
        return new
    first, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if new is DELETE and not rest:
        del copy[first]
    else:
        copy[first] = changed(copy[first], rest, new)
    return copy


def lines_of(*values):
    return GOOD + b"".join(json.dumps(value).encode() + b"\n" for value in values)


@pytest.mark.parametrize(
    ("place", "new", "reason", "named"),
    [
        (("round", "seconds", "total"), "0.3", "type", "round.seconds.total"),
        (("round", "seconds", "total"), True, "type", "round.seconds.total"),
        (("round", "seconds", "total"), None, "type", "round.seconds.total"),
        (("round", "seconds", "total"), -0.1, "range", "round.seconds.total"),
        (("round", "seconds", "total"), 1e-300, "range", "round.seconds.total"),
        (("round", "seconds", "total"), 10**400, "type", "round.seconds.total"),
        (("round", "index"), 1.5, "type", "round.index"),
        (("round", "index"), False, "type", "round.index"),
        (("round", "gamma"), -1, "range", "round.gamma"),
        (("round", "num_rolled_back"), -1, "range", "round.num_rolled_back"),
        (("round", "text"), 5, "type", "round.text"),
        (("round", "text"), "\ud800", "text", "round.text"),
        (("round", "output"), "ac", "type", "round.output"),
        (("round", "output"), DELETE, "missing", "round.output"),
        (("round", "output", 1), {"id": 3}, "missing", "round.output[1].text"),
        (("round", "output", 1, "id"), "3", "type", "round.output[1].id"),
        (("round", "pieces"), ["a"], "length", "round.pieces"),
        (("round", "proposal", "tokens"), DELETE, "missing", "round.proposal.tokens"),
        (("round", "proposal", "q"), [0.5], "length", "round.proposal.q"),
        (("round", "proposal", "q"), [0.5, 2], "range", "round.proposal.q"),
        (("round", "proposal", "top"), [[]], "length", "round.proposal.top"),
        (("round", "verdict", "p"), [0.5], "length", "round.verdict.p"),
        (("round", "verdict", "entropy"), [0.5], "length", "round.verdict.entropy"),
        (("round", "verdict", "top"), [[]], "length", "round.verdict.top"),
        (("round", "verdict", "num_accepted"), 3, "range", "round.verdict.num_accepted"),
        (("round", "verdict", "num_accepted"), -1, "range", "round.num_cut"),
        (("round", "verdict", "next_source"), "draft", "range", "round.verdict.next_source"),
        (("round", "verdict", "next_source"), 3, "type", "round.verdict.next_source"),
        (("round",), [], "type", "round"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_place(tmp_path, place, new, reason, named):
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(lines_of(ROUND))
    assert len(list(trace.read(path))) == 1
    path.write_bytes(lines_of(FINISHED, changed(ROUND, place, new)))
    with pytest.raises(PlaygroundError) as caught:
        list(trace.read(path))
    facts = caught.value.facts
    assert (facts["line"], facts["reason"], facts["place"]) == (3, f"trace.{reason}", named)


@pytest.mark.parametrize(
    "data",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        '{"x": ' * 60 + "1" + "}" * 60,
        "9" * 20,
        "[" * 10**5,
    ],
)
def test_a_measurement_holds_only_what_any_reader_can_hold(tmp_path, data):
    path = tmp_path / "measured.jsonl"
    path.write_bytes(
        GOOD + b'{"event": "Measured", "kind": "k", "data": {"x": %s}}' % data.encode()
    )
    with pytest.raises(PlaygroundError) as caught:
        list(trace.read(path))
    assert caught.value.code == "bad_trace"
    path.write_bytes(GOOD + b'{"event": "Measured", "kind": "k", "data": {"x": [1, null]}}')
    assert list(trace.read(path)) == [Measured("k", {"x": [1, None]})]


def test_fields_of_a_later_writer_are_left_out_and_missing_ones_take_their_default(tmp_path):
    started = events.Started("plain", "p", "t", "", Settings(seed=4), "hi", (1,))
    newer = {**trace.encode_record(started), "weather": {"sunny": True}}
    newer["settings"] = {**newer["settings"], "mood": [1]}
    del newer["settings"]["confidence"], newer["where"]
    path = tmp_path / "newer.jsonl"
    header = {"draftlight_trace": 1, "writer": "draftlight 9"}
    path.write_bytes(json.dumps(header).encode() + b"\n" + json.dumps(newer).encode() + b"\n")
    assert list(trace.read(path)) == [started]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(trace.MOST_BYTES + 1)
    monkeypatch.setattr(type(path), "open", None)  # whoever reads, fails
    with pytest.raises(PlaygroundError) as caught:
        list(trace.read(path))
    assert caught.value.code == "trace_too_big"
    assert caught.value.facts == {"file": "huge.jsonl", "size": 50, "limit": 50}


def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(trace.MOST_BYTES)
    sizes = []

    class Watched:
        def __init__(self, inner):
            self.inner = inner

        def readline(self, size):
            sizes.append(size)
            return self.inner.readline(size)

    with path.open("rb") as file:
        numbered = trace._numbered(Watched(file))
        assert [len(next(numbered)[1]) for _ in range(2)] == [len(GOOD), trace.LONGEST_LINE + 1]
    with pytest.raises(PlaygroundError) as caught:
        list(trace.read(path))
    assert (caught.value.facts["line"], caught.value.facts["reason"]) == (2, "trace.long")


STARTED = trace.encode_record(events.Started("plain", "p", "t", "", Settings(), "hi", (1,)))
PREFILLED = trace.encode_record(events.Prefilled(1, (Token(1, "a"),), ("a",), "a", 0.1, 0.0))
MEASURED = {"event": "Measured", "kind": "k", "data": {}}
DRAFTED = trace.encode_record(events.Drafted(0, 2, events.Proposal((Token(1, "a"),)), None))


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ([PREFILLED], 2),
        ([STARTED, ROUND], 3),
        ([STARTED, PREFILLED, PREFILLED], 4),
        ([STARTED, PREFILLED, ROUND, ROUND], 5),
        ([STARTED, PREFILLED, DRAFTED, DRAFTED], 5),
        ([STARTED, PREFILLED, FINISHED, FINISHED], 5),
        ([STARTED, PREFILLED, changed(ROUND, ("round", "index"), 1)], 4),
        ([], 1),
        ([MEASURED], 2),
    ],
)
def test_events_out_of_their_place_make_no_run(tmp_path, records, line):
    path = tmp_path / "disorder.jsonl"
    path.write_bytes(lines_of(*records))
    with pytest.raises(PlaygroundError) as caught:
        trace.read_runs(path)
    assert (caught.value.code, caught.value.facts["line"]) == ("bad_trace", line)


@pytest.mark.parametrize(
    "records",
    [
        [STARTED],
        [MEASURED, STARTED, PREFILLED, DRAFTED],
        [STARTED, FINISHED, MEASURED],
        [STARTED, PREFILLED, DRAFTED, STARTED, PREFILLED, DRAFTED, ROUND, MEASURED, FINISHED],
    ],
)
def test_whole_runs_and_those_that_were_cut_off_are_read(tmp_path, records):
    path = tmp_path / "order.jsonl"
    path.write_bytes(lines_of(*records))
    assert len(trace.read_runs(path)) == len(records)


@pytest.mark.parametrize("method", METHODS)
def test_what_the_engine_records_is_sound(tmp_path, method):
    chosen = Settings(gamma=3, max_new_tokens=15, temperature=1.0, top_k=5)
    run = list(tiny_pair().run(method, "abcab", chosen))
    trace.write(tmp_path / "run.jsonl", run)
    assert trace.read_runs(tmp_path / "run.jsonl") == run


def test_the_documented_fields_are_those_of_the_records():
    text = (ASSETS / "traces" / "README.md").read_text(encoding="utf-8")
    listed = {
        kind: re.findall(r"^\| `(\w+)` \| `([^`]+)` \| .+ \|$", section, re.MULTILINE)
        for kind, section in re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    }
    kinds = [*trace.RECORDS.values(), events.Settings, events.Round, events.Proposal]
    kinds += [events.Verdict, events.Timings, events.Token, events.Choice]
    assert listed == {
        kind.__name__: [(field.name, str(field.type)) for field in dataclasses.fields(kind)]
        for kind in kinds
    }
    assert trace.HEADER in text


def test_the_lines_before_a_broken_one_can_be_read(tmp_path):
    path = tmp_path / "torn.jsonl"
    path.write_bytes(GOOD + json.dumps(FINISHED).encode() + b'\n{"event": "Fin')
    records = trace.read(path)
    assert isinstance(next(records), Finished)
    with pytest.raises(PlaygroundError):
        next(records)


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Choice(1, "a", 0.5).prob = 1.0
