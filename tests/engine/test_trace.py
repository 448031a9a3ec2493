import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import events, trace
from engine.errors import PlaygroundError
from engine.events import Choice, Finished, Measured, Settings, Token
from tests.engine.tiny import METHODS, tiny_pair

text = st.text(max_size=6)
number = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, number)  # NaN is not equal to itself


def any_record():
    kinds = [events.Started, events.Prefilled, events.Drafted, events.Verified, events.Finished]
    made = st.one_of(*(st.from_type(kind) for kind in kinds))
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | number | text,
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
    "an unknown field": GOOD + json.dumps({**FINISHED, "more": 1}).encode(),
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
