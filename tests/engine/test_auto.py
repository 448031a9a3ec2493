"""Does "auto" keep its promise? Judged on run lengths and costs recorded from the bundled trio.

`tests/engine/data/run_lengths.json` holds how many drafts would have matched at every place of 32
texts, so every policy can be replayed exactly, without a model and without a clock. The costs are
those that were measured when the trio was loaded for it. Made with the shipped trio by
`python -m tests.benchmarks.run_lengths`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from engine.costs import Costs
from engine.policy import CostAware, Fixed
from engine.replay import RunLengths, rounds_adaptive, totals

RECORD = json.loads((Path(__file__).parent / "data" / "run_lengths.json").read_text("utf-8"))
METHODS = ("mtp", "draft", "lookup")
LARGEST = 8


def costs_of(method):
    fields = RECORD["costs"][method]
    return Costs(**{**fields, "passes": tuple(fields["passes"])})


def seconds_of(text, method, policy):
    """Replay one text: the policy asks, the record answers, the costs count."""
    lengths, proposed = text[method]
    run_map = RunLengths(tuple(lengths), tuple(proposed), LARGEST, RECORD["new_tokens"])
    played = rounds_adaptive(run_map, policy)
    return totals(run_map.num_decoded, played, costs_of(method)).seconds


def speeds(method, new_policy):
    """Return tokens per second by domain."""
    tokens, seconds = defaultdict(int), defaultdict(float)
    for text in RECORD["texts"]:
        tokens[text["domain"]] += text["num_tokens"] - 1
        seconds[text["domain"]] += seconds_of(text, method, new_policy())
    return {domain: tokens[domain] / seconds[domain] for domain in tokens}


def auto(method):
    return speeds(method, lambda: CostAware(LARGEST, costs_of(method)))


def fixed(method):
    """Return the best fixed length's speed (none included) by domain, and plain's."""
    each = [speeds(method, lambda g=g: Fixed(g)) for g in range(LARGEST + 1)]
    return {domain: max(one[domain] for one in each) for domain in each[0]}, each[0]


def test_the_record_holds_every_domain():
    assert len({text["domain"] for text in RECORD["texts"]}) == 8
    assert sum(text["num_tokens"] for text in RECORD["texts"]) > 3000
    for text in RECORD["texts"]:
        for method in METHODS:
            assert [len(part) for part in text[method]] == 2 * [text["num_tokens"] - 1]


@pytest.mark.parametrize("method", METHODS)
def test_auto_comes_within_three_percent_of_hindsight_on_six_domains(method):
    best, _ = fixed(method)
    ratios = {domain: speed / best[domain] for domain, speed in auto(method).items()}
    assert sum(ratio >= 0.97 for ratio in ratios.values()) >= 6, ratios


@pytest.mark.parametrize("method", METHODS)
def test_auto_is_never_much_slower_than_plain(method):
    _, plain = fixed(method)
    ratios = {domain: speed / plain[domain] for domain, speed in auto(method).items()}
    assert min(ratios.values()) >= 0.95, ratios


def test_a_drafter_that_never_matches_costs_at_most_its_probes():
    text = max(RECORD["texts"], key=lambda text: text["num_tokens"])
    left = text["num_tokens"] - 1
    hopeless = {**text, "mtp": [[0] * left, [LARGEST] * left]}
    own = seconds_of(hopeless, "mtp", CostAware(LARGEST, costs_of("mtp")))
    assert own <= 1.05 * seconds_of(hopeless, "mtp", Fixed(0))
