"""Log lines of other engines, as they write them."""

from __future__ import annotations

import pytest

from engine.errors import PlaygroundError
from engine.foreign_logs import read_log, read_logs

STAMP = "(APIServer pid=12) INFO 08-04 20:51:08 "
VLLM_SPEED = (
    STAMP + "[loggers.py:310] Engine 000: Avg prompt throughput: 93.9 tokens/s, Avg generation "
    "throughput: 13.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%"
)
VLLM = (
    STAMP + "[metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.50, Accepted "
    "throughput: 15.00 tokens/s, Drafted throughput: 20.00 tokens/s, Accepted: 150 tokens, "
    "Drafted: 200 tokens, Per-position acceptance rate: 0.850, 0.650, Avg Draft acceptance rate: "
    "75.0%"
)
VLLM_OLDER = (
    "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens"
)
VLLM_V0 = (
    "Speculative metrics: Draft acceptance rate: 0.607, System efficiency: 0.510, Number of "
    "speculative tokens: 4, Number of accepted tokens: 32594, Number of draft tokens: 53716, "
    "Number of emitted tokens: 34244."
)
SGLANG = (
    "[2026-07-04 04:32:35 TP0] Decode batch, #running-req: 68, #full token: 321920, full token "
    "usage: 0.49, accept len: 2.99, accept rate: 0.66, cuda graph: True, gen throughput "
    "(token/s): 2499.67, #queue-req: 0"
)
SGLANG_OLDER = (
    "[2025-03-14 02:16:14] Decode batch. #running-req: 1, #token: 180, token usage: 0.00, accept "
    "len: 2.41, gen throughput (token/s): 120.30, #queue-req: 0, "
)
LLAMA = "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)"
SLOT = "I slot print_timing: id  1 | task 0 | "
LLAMA_NEWER = "\n".join(
    [
        f"0.06.895.980 {SLOT}prompt eval time =     300.11 ms /    20 tokens "
        "(   15.01 ms per token,    66.64 tokens per second)",
        f"0.06.895.998 {SLOT}       eval time =    2296.72 ms /   256 tokens "
        "(    8.97 ms per token,   111.46 tokens per second)",
        f"0.06.896.015 {SLOT}draft acceptance = 0.64479 (  167 accepted /   259 generated), mean "
        "acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)\n",
    ]
)
LLAMA_STATISTICS = (
    "0.06.896.057 I statistics     draft-eagle3: #calls(b,g,a) =    1     87     87, #gen drafts = "
    "    87, #acc drafts =    70, #gen tokens =    259, #acc tokens =   167, #mean acc len = 2.92, "
    "#acc rate/pos = (0.805, 0.632, 0.483), dur(b,g,a) = 0.005, 325.555, 0.114 ms"
)
LLAMA_RUN = """\
encoded   13 tokens in    0.080 seconds, speed:  161.654 t/s
decoded  259 tokens in    4.123 seconds, speed:   62.819 t/s

n_draft   = 16
n_predict = 259
n_drafted = 128
n_accept  = 84
accept    = 65.625%
"""


def test_vllm_says_counts_rates_and_positions() -> None:
    record = read_log(VLLM)
    assert (record.engine, record.drafted, record.accepted, record.rounds) == (
        "vLLM",
        200,
        150,
        None,
    )
    assert record.acceptance_rate == pytest.approx(0.75)
    assert record.mean_acceptance_length == 2.5
    assert record.by_position == (0.85, 0.65)
    assert record.tokens_per_second is None
    assert record.doubts() == ()


def test_the_accepted_throughput_is_not_the_speed_but_the_line_before_tells_it() -> None:
    assert read_log(f"{VLLM_SPEED}\n{VLLM}").tokens_per_second == 13.0
    assert read_logs(f"{VLLM_SPEED}\n{VLLM}\n{VLLM}")[1].tokens_per_second is None


def test_a_vllm_line_may_be_wrapped() -> None:
    assert read_log(VLLM.replace(", ", ",\n")) == read_log(VLLM)


@pytest.mark.parametrize(
    ("line", "drafted", "accepted", "rate"),
    [(VLLM_OLDER, 66, 66, 1.0), (VLLM_V0, 53716, 32594, 0.607), (LLAMA, 297, 171, 0.57576)],
)
def test_older_lines_say_less(line: str, drafted: int, accepted: int, rate: float) -> None:
    record = read_log(line)
    assert (record.drafted, record.accepted) == (drafted, accepted)
    assert record.acceptance_rate == pytest.approx(rate)
    assert record.by_position is record.mean_acceptance_length is record.length is None


def test_sglang_says_rates_without_counts() -> None:
    record = read_log(SGLANG)
    assert (record.engine, record.drafted, record.accepted) == ("SGLang", None, None)
    assert (record.acceptance_rate, record.mean_acceptance_length) == (0.66, 2.99)
    assert record.tokens_per_second == 2499.67
    older = read_log(SGLANG_OLDER)
    assert (older.length, older.rate, older.tokens_per_second) == (2.41, None, 120.3)


def test_llama_cpp_tells_the_speed_of_a_request_and_of_its_reading_apart() -> None:
    record = read_log(LLAMA_NEWER)
    assert record.tokens_per_second == 111.46
    assert (record.mean_acceptance_length, record.rounds) == (2.92, None)
    assert record.by_position == (0.805, 0.632, 0.483)


def test_statistics_of_the_same_tokens_complete_the_request_and_do_not_count_twice() -> None:
    (record,) = read_logs(LLAMA_NEWER + LLAMA_STATISTICS)
    assert (record.drafted, record.accepted, record.rounds) == (259, 167, 87)
    later = LLAMA_STATISTICS.replace("259", "999")
    assert [each.kind for each in read_logs(LLAMA_NEWER + later)] == [
        "llama_request",
        "llama_server",
    ]
    assert read_log(LLAMA_NEWER + later).drafted is None


def test_the_length_of_statistics_without_one_follows_from_their_counts() -> None:
    record = read_log(LLAMA_STATISTICS.replace("#mean acc len = 2.92, ", ""))
    assert record.mean_acceptance_length is None
    assert record.length == pytest.approx(2.92, abs=0.005)
    assert record.rate == pytest.approx(167 / 259)


def test_llama_speculative_prints_a_block() -> None:
    record = read_log(LLAMA_RUN)
    assert (record.drafted, record.accepted) == (128, 84)
    assert record.acceptance_rate == pytest.approx(0.65625)
    assert record.tokens_per_second == 62.819
    assert read_log("accept    = 65.6%").rate == pytest.approx(0.656)


def test_reports_that_count_their_own_stretch_add_up_and_rates_do_not() -> None:
    both = read_log(f"{VLLM}\n{VLLM_OLDER}")
    assert (both.drafted, both.accepted) == (266, 216)
    assert both.rate == pytest.approx(216 / 266)
    assert both.mean_acceptance_length is None
    assert read_log(f"{SGLANG}\n{SGLANG_OLDER}").rate is None
    assert read_log(f"{VLLM}\n{LLAMA}").drafted is None


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        (VLLM.replace("75.0%", "55.0%"), "rate_disagrees"),
        (VLLM.replace("0.850, 0.650", "0.650, 0.850"), "positions_rise"),
        (VLLM.replace("Accepted: 150", "Accepted: 250"), "accepted_over_drafted"),
        (SGLANG.replace("rate: 0.66", "rate: 1.63"), "rate_over_1"),
    ],
)
def test_what_cannot_be_is_named_and_not_repaired(line: str, doubt: str) -> None:
    assert read_log(line).doubts() == (doubt,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        VLLM_SPEED,
        "[2026-04-08] Decode batch, #running-req: 5, gen throughput (token/s): 144.95",
        "SpecDecoding metrics:",
        "n_drafted = many",
        "eval time = 1.2.3.4 tokens per second",
    ],
)
def test_anything_else_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(PlaygroundError) as caught:
        read_log(text)
    assert caught.value.code == "bad_log"
    assert "accept len:" in caught.value.remedy
