"""The benchmark's arithmetic and its layout; speeds themselves decide nothing here."""

import json
from pathlib import Path

import pytest

from engine import bench, catalog
from engine.__main__ import main
from engine.bench import Entry, Sample
from engine.errors import PlaygroundError

SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "bench" / "smollm2-cpu.json"
ROW_KEYS = {
    "method",
    "domain",
    "gamma",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "acceptance_rate",
    "mean_acceptance_length",
    "identical",
    "num_prompts",
}
DOMAINS = ["a", "b"]


def entry(method, gamma, *repeats, ids=(1, 2)):
    """Return an entry from [repeat][domain] seconds for ten tokens each."""
    samples = [
        {d: Sample(10, seconds, ids) for d, seconds in zip(DOMAINS, row, strict=True)}
        for row in repeats
    ]
    return Entry(method, gamma, samples)


def test_a_pooled_speed_is_all_tokens_over_all_seconds():
    assert entry("plain", 0, (1.0, 3.0)).speed(0, DOMAINS) == pytest.approx(20 / 4)


def test_rows_give_the_median_and_the_range_of_ratios_within_a_repeat():
    plain = entry("plain", 0, (2, 2), (4, 4), (8, 8))
    fast = entry("mtp", 2, (1, 1), (1, 1), (8, 8))  # 2, 4 and 1 times as fast
    rows = bench.rows_of([plain, fast], DOMAINS)
    pooled = next(r for r in rows if r["method"] == "mtp" and r["domain"] == "all")
    assert (pooled["speedup_low"], pooled["speedup"], pooled["speedup_high"]) == (1, 2, 4)
    assert pooled["num_prompts"] == 2
    assert [r["domain"] for r in rows] == ["all", *DOMAINS] * 2
    assert all(set(row) == ROW_KEYS for row in rows)


def test_the_best_draft_length_by_pooled_speed_gets_the_row():
    plain = entry("plain", 0, (2, 2))
    rows = bench.rows_of([plain, entry("mtp", 1, (1, 9)), entry("mtp", 2, (2, 1))], DOMAINS)
    assert {row["gamma"] for row in rows if row["method"] == "mtp"} == {2}


def test_a_text_that_differs_in_any_repeat_is_not_identical():
    plain = entry("plain", 0, (1, 1), (1, 1))
    same, other = entry("mtp", 1, (1, 1), (1, 1)), entry("draft", 1, (1, 1), (1, 1))
    other.samples[1]["b"].token_ids = (1, 3)
    rows = bench.rows_of([plain, same, other], DOMAINS)
    told = {(row["method"], row["domain"]): row["identical"] for row in rows}
    assert told["mtp", "all"]
    assert told["draft", "a"]
    assert not told["draft", "all"]
    assert not told["draft", "b"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"methods": ["warp"]}, "unknown_method"),
        ({"domains": ["law"]}, "unknown_domain"),
        ({"gammas": [9]}, "bad_setting"),
        ({"gammas": ["many"]}, "bad_setting"),
        ({"repeats": 0}, "bad_setting"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_loaded(options, code, monkeypatch):
    monkeypatch.setattr(bench, "load_pair", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(PlaygroundError) as caught:
        bench.run_bench("smollm2", **options)
    assert caught.value.code == code


def test_the_command_line_says_what_is_wrong_in_one_line(capsys):
    assert main(["bench", "--domains", "law"]) == 2
    assert "no domain 'law'" in capsys.readouterr().err


def test_the_shipped_result_has_every_method_and_domain_once_and_identical_texts():
    result = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert set(result) == {"rows", "limit", "provenance"}
    listed = [(row["method"], row["domain"]) for row in result["rows"]]
    domains = ["all", *catalog.load().presets]
    assert sorted(listed) == sorted((m, d) for m in bench.METHODS for d in domains)
    assert all(set(row) == ROW_KEYS for row in result["rows"])
    assert all(row["identical"] for row in result["rows"] if row["method"] in bench.OURS)
    assert bench.table(result).count("\n") > len(bench.METHODS)


def test_each_method_starts_at_its_fastest_fixed_draft_length():
    """Among lengths that the measurement cannot tell apart (2 %), at the longest: it shows more."""
    tried = json.loads(SHIPPED.read_text(encoding="utf-8"))["provenance"]["tried"]
    for name, method in catalog.load().methods.items():
        if method.gamma and name in tried:
            fixed = {int(g): row["all"] for g, row in tried[name].items() if g != bench.AUTO}
            tied = [gamma for gamma, ratio in fixed.items() if ratio >= 0.98 * max(fixed.values())]
            assert method.gamma == max(tied), name
