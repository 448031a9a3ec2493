import datetime
import tomllib

from engine.burden import burden
from engine.catalog import ASSETS, load
from engine.inspecting import inspect
from engine.support import OURS, support_for
from tests.engine.test_assess import QWEN, TRUNK, folder


def test_a_shipped_module_asks_for_less_than_a_second_model(tmp_path):
    target = inspect(folder(tmp_path / "t", keys=TRUNK + QWEN))
    draft = inspect(folder(tmp_path / "d", size=3_000_000_000))
    mtp, pair = burden(target, draft)
    assert (mtp.parts, mtp.gigabytes, mtp.decisions) == (("t",), None, ("gamma",))
    assert (pair.parts, pair.gigabytes) == (("t", "d"), 3.0)
    assert {"tokenizer", "size", "download"} < set(pair.decisions)


def test_a_borrowed_module_is_one_more_download(tmp_path):
    target, lender = (inspect(folder(tmp_path / n, keys=k)) for n, k in (("t", TRUNK), ("m", QWEN)))
    (mtp,) = burden(target, mtp=lender)
    assert mtp.decisions == ("gamma", "download")
    assert burden(target) == []


def test_every_row_on_engine_support_is_dated_sourced_and_unique():
    rows = tomllib.loads((ASSETS / "support.toml").read_text(encoding="utf-8"))["support"]
    assert rows
    for row in rows:
        assert set(row) == {"method", "family", "engine", "answer", "note", "source", "date"}
        assert row["engine"] in {"ours", "transformers", "vLLM", "SGLang", "llama.cpp", "LM Studio"}
        assert row["answer"] in {"yes", "no", "partly"}
        assert row["source"]
        assert row["note"] or row["answer"] == "yes"
        assert row["method"] in load().methods
        datetime.date.fromisoformat(row["date"])
    assert len({(r["method"], r["family"], r["engine"]) for r in rows}) == len(rows)


def test_a_row_of_ours_names_a_test_that_is_there():
    rows = support_for({"mtp": "qwen", "draft": "recurrent", "lookup": "attention"})
    ours = [row for row in rows if row.engine == OURS]
    assert [row.method for row in ours] == ["mtp", "draft", "lookup"]
    for row in ours:
        assert (ASSETS.parent / row.source).is_file()
        assert row.answer == "yes"


def test_what_nobody_looked_up_has_no_answer():
    assert support_for({"mtp": "novel"}) == []


def test_a_bundled_part_is_no_download(tmp_path):
    target, draft = (inspect(folder(tmp_path / name)) for name in ("t", "d"))
    (way,) = burden(target, draft, bundled={"draft"})
    assert "download" not in way.decisions
    assert "size" in way.decisions
