"""The benchmark of the page's cost runs: each measured run reaches the engine exactly once."""

from __future__ import annotations

from app.main import build, launch_options
from app.session import Session
from tests.app.fakes import FakePair
from tests.benchmarks.ui_cost import Clocked, headless_reader, measure


def test_the_headless_reader_reads_a_run_through_the_page() -> None:
    pair = Clocked(FakePair(pause=0.002))
    session = Session(lambda pair_id, **_: pair)
    session.start_loading(session.default_pair).done.wait(10)
    demo = build(session)
    options = {**launch_options(), "server_name": "127.0.0.1", "prevent_thread_lock": True}
    _, url, _ = demo.launch(**options)
    try:
        ratios = measure(pair, headless_reader(url, demo), "mtp", repeats=1)
    finally:
        demo.close(verbose=False)
    assert len(ratios) == 1
    assert pair.pair.ended == ["eos"] * 4
