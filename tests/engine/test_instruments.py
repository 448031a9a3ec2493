"""Instruments against brute force, and against what they must catch."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from engine import instruments
from engine.errors import PlaygroundError
from engine.events import Measured, Settings, Started
from engine.instruments import canary, lab, run_lengths
from engine.instruments.rules import RULES
from engine.trace import decode_record, encode_record
from engine.verify import verify
from tests.engine.tiny import finished, rounds, tiny_pair, toy_pair

GREEDY = Settings(gamma=3, max_new_tokens=24)
PROMPT = "abcabc"


def measured(kind, method="draft", *, pair=None, settings=GREEDY, prompt=PROMPT, **options):
    pair = pair or tiny_pair()
    return pair.measure(kind, method, prompt, settings, **options).data


@pytest.mark.parametrize("kind", ["cost_curve", "run_lengths", "lab", "canary"])
def test_what_an_instrument_measured_survives_a_trace(kind):
    record = tiny_pair().measure(kind, "draft", PROMPT, GREEDY)
    assert record.kind == kind
    assert decode_record(json.loads(json.dumps(encode_record(record)))) == record


def test_an_unknown_instrument_is_refused():
    with pytest.raises(ValueError, match="no instrument"):
        measured("nothing")


def test_every_kind_has_its_module():
    for kind in instruments.KINDS:
        assert f"`{kind}`" in instruments.__doc__


# --- the run-length map ---


@pytest.mark.parametrize("method", ["mtp", "draft", "lookup"])
def test_driven_rounds_are_those_of_real_runs_at_every_draft_length(method):
    pair = tiny_pair()
    found = measured("run_lengths", method)
    assert found["exact"] is True
    assert found["checked"] > 0
    for gamma in range(1, 7):
        real = list(pair.run(method, PROMPT, dataclasses.replace(GREEDY, gamma=gamma)))
        assert list(finished(real).token_ids) == found["token_ids"]
        expected = [
            [done.gamma, len(done.proposal.tokens), done.verdict.num_accepted]
            for done in rounds(real)
        ]
        assert found["driven"][str(gamma)] == expected, gamma


def test_the_map_of_a_text_that_ends_by_itself_agrees_too():
    pair = toy_pair(with_eos=True)
    settings = Settings(gamma=4, max_new_tokens=200)
    for start in "abcdefg":
        found = measured("run_lengths", pair=pair, settings=settings, prompt=start)
        assert found["exact"] is True
    assert any(
        measured("run_lengths", pair=pair, settings=settings, prompt=start)["stop"]
        for start in "abcdefg"
    )


def test_lengths_are_what_a_fresh_drafter_matches_at_every_place():
    pair = toy_pair(noise=1.0)
    found = measured("run_lengths", pair=pair)
    prompt, text = pair.codec.encode(PROMPT), found["token_ids"]
    for place, length in enumerate(found["lengths"]):
        ids = [*prompt, *text[: place + 1]]
        matched = 0
        while matched < found["longest"] and place + 1 + matched < len(text):
            token = int(pair.draft.read(ids).logits[-1].argmax())
            if token != text[place + 1 + matched]:
                break
            ids.append(token)
            matched += 1
        assert length == matched
    assert {0, found["longest"]} & set(found["lengths"])


def test_a_perfect_drafter_is_mapped_as_perfect():
    found = measured("run_lengths", pair=toy_pair(noise=0.0))
    left = len(found["lengths"])
    assert found["lengths"] == [min(found["longest"], left - i) for i in range(left)]


def test_the_map_calls_itself_wrong_when_a_real_run_went_another_way():
    driven = [[3, 3, 1], [3, 3, 3]]
    assert run_lengths._same([[3, 3, 1], [3, 3, 3]], driven, 10)
    assert not run_lengths._same([[3, 3, 2], [3, 3, 3]], driven, 10)
    assert not run_lengths._same([[3, 3, 1]], driven, 10)
    # What was accepted behind the end of the text is not in it.
    assert run_lengths._same([[3, 3, 1], [3, 3, 3]], [[3, 3, 1], [3, 3, 1]], 4)


@pytest.mark.parametrize(
    ("method", "settings", "code"),
    [
        ("draft", Settings(temperature=0.5), "needs_greedy"),
        ("plain", GREEDY, "needs_drafter"),
    ],
)
def test_what_cannot_be_mapped_is_refused(method, settings, code):
    with pytest.raises(PlaygroundError) as caught:
        measured("run_lengths", method, settings=settings)
    assert caught.value.code == code
    assert caught.value.remedy


# --- the cost curve ---


def test_the_cost_curve_covers_sixteen_widths_and_every_drafting_method():
    pair = tiny_pair()
    found = measured("cost_curve", pair=pair)
    assert len(found["passes"]) == 16
    assert all(seconds > 0 for seconds in found["passes"])
    assert set(found["drafts"]) == {"mtp", "draft", "lookup"}
    assert found["where"] == pair.where
    pair.costs.clear()


# --- the examiner ---


def texts_of(pair, method="draft"):
    plain = finished(list(pair.run("plain", PROMPT, GREEDY))).token_ids
    return list(plain), list(finished(list(pair.run(method, PROMPT, GREEDY))).token_ids)


def test_a_token_that_is_no_near_tie_is_a_fault():
    pair = tiny_pair()
    right, _ = texts_of(pair)
    wrong = [*right[:7], (right[7] + 1) % 97, *right[8:]]
    found = measured("divergence", token_ids=(right, wrong))
    assert (found["position"], found["verdict"]) == (7, "fault")
    assert found["one"]["gap"] > 2 * found["difference"]
    assert found["one"]["labels"][0] == pair.codec.label(right[7])


def test_two_tokens_with_equal_logits_are_a_tie():
    pair = toy_pair()
    right, _ = texts_of(pair)
    table = pair.target.table
    best = table.argmax(1)
    table[torch.arange(len(table)), (best + 1) % 8] = table.amax(1)
    right, _ = texts_of(pair)
    ids = [*pair.codec.encode(PROMPT), *right[:5]]
    top = pair.target.read(ids).logits[0]
    twins = (top == top.max()).nonzero()[:, 0].tolist()
    other = next(token for token in twins if token != right[5])
    found = measured("divergence", pair=pair, token_ids=(right, [*right[:5], other]))
    assert found["verdict"] == "tie"
    assert found["one"]["gap"] == 0


def test_equal_texts_have_nothing_to_examine():
    right, same = texts_of(tiny_pair())
    assert right == same
    with pytest.raises(ValueError, match="do not part"):
        measured("divergence", token_ids=(right, same))


# --- the losslessness lab ---


def test_exact_draws_stay_in_the_band_and_wrong_rules_leave_it():
    settings, pair = Settings(temperature=1.0), toy_pair(noise=3.0)
    for rule in RULES:
        found = measured("lab", settings=settings, pair=pair, rule=rule, num_draws=4000)
        assert found["lossless"] is (rule == "exact"), rule
        assert found["distance_without"] <= 2 * found["band"][1]
        assert abs(sum(found["with_draft"]) - 1) < 1e-6
        assert found["num_draws"] == 4000
        if rule != "greedy_accept":
            assert abs(found["acceptance"] - found["expected"]) < 0.04


@pytest.mark.parametrize("rule", [name for name in RULES if name != "exact"])
def test_a_wrong_rule_has_another_law(rule):
    """By enumeration, so that no draw decides: the law of the first token under each rule."""
    generator = torch.Generator().manual_seed(3)
    p, q = torch.rand(2, 6, generator=generator, dtype=torch.float64).softmax(-1) ** 3
    p, q = p / p.sum(), q / q.sum()

    def law(rule):
        total = torch.zeros(6, dtype=torch.float64)
        for token in range(6):
            ids = torch.tensor([token])
            share = float(min(1, p[token] / q[token]))
            for u, weight in ((share / 2, share), (share + (1 - share) / 2, 1 - share)):
                if weight <= 0:
                    continue
                uniform = torch.tensor([u], dtype=torch.float64)
                done = rule(ids, q[None], torch.stack([p, p]), uniform)
                mass = q[token] * weight
                if done.num_accepted:
                    total[token] += mass
                else:
                    total += mass * done.next_probs
        return total

    assert torch.allclose(law(verify), p, atol=1e-12)
    assert (law(RULES[rule]) - p).abs().sum() > 0.02


def test_the_lab_says_when_nothing_was_drafted():
    with pytest.raises(PlaygroundError) as caught:
        measured("lab", "lookup", settings=Settings(temperature=1.0), prompt="abcdef")
    assert caught.value.code == "nothing_drafted"


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="no rule"):
        measured("lab", rule="luck")


def test_a_cancelled_lab_counts_only_what_it_drew():
    found = lab.measure(
        toy_pair(), "draft", PROMPT, Settings(temperature=1.0), cancelled=lambda: True
    )
    assert found["num_draws"] == 0


# --- the canary ---


class Deaf:
    """A drafter that ignores what it is given."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def read(self, token_ids, **options):
        return self._model.read([*token_ids[:-1], 0], **options)


def test_the_canary_passes_a_good_drafter_and_catches_a_deaf_one():
    good = toy_pair(20, noise=0.0)
    good.codec.encode = lambda text, raw=False: [ord(c) % 20 for c in text]
    found = measured("canary", pair=good)
    assert found["ok"] is True
    assert found["accepted"] == found["drafted"] > 0
    good.draft = Deaf(good.draft)
    found = measured("canary", pair=good)
    assert found["identical"] is True
    assert found["accepted"] < canary.LEAST * found["drafted"]
    assert found["ok"] is False


def test_measured_records_carry_their_kind():
    record = tiny_pair().measure("canary", "lookup", PROMPT, GREEDY)
    assert isinstance(record, Measured)
    started = next(iter(tiny_pair().run("lookup", PROMPT, GREEDY)))
    assert isinstance(started, Started)
