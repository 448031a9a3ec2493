"""What watching costs: engine time of a run that is streamed to the page, over one that is not.

    python -m tests.benchmarks.ui_cost [--browser] [--repeats 7] [--method mtp] [--toy]

Contract: runs alternate, watched and alone, in one process on an otherwise quiet machine. Only the
time inside the engine's iterator counts, so that what is measured is what the page takes from it
(interpreter lock, processor), never the waiting for a message. The goal is at most 3 % with the
headless reader, which reads the same stream as a browser and draws nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx

from app.controls import FIELDS
from app.main import build, launch_options
from app.session import Session, load_with_engine
from engine import catalog
from engine.events import Event, Settings

GOAL = 1.03
PRESET = "prose"
NEW_TOKENS = 96


class Clocked:
    """A pair that notes how long each of its runs kept the engine."""

    def __init__(self, pair: Any) -> None:
        self.pair = pair
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pair, name)

    def run(
        self, method: str, prompt: str, settings: Settings, *, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """Yield the events of a run; the consumer's time is not counted."""
        events = self.pair.run(method, prompt, settings, cancelled=cancelled)
        total, begun = 0.0, time.perf_counter()
        for event in events:
            total += time.perf_counter() - begun
            yield event
            begun = time.perf_counter()
        self.seconds.append(total + time.perf_counter() - begun)


def values(method: str, prompt: str) -> dict[str, Any]:
    """Return what the page's fields hold, by the names of `FIELDS`."""
    return {
        "pair": "smollm2", "method": method, "prompt": prompt, "gamma": 3, "adaptive": False,
        "temperature": 0, "seed": 0, "max_new_tokens": NEW_TOKENS, "compare": False, "stop": "",
        "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "confidence": 0,
        "head_rows": 0,
    }  # fmt: skip


def run_alone(pair: Clocked, method: str, prompt: str) -> None:
    """Run in a thread of its own, as the page does, with nobody watching."""

    def work() -> None:
        settings = Settings(gamma=3, max_new_tokens=NEW_TOKENS)
        for _ in pair.run(method, prompt, settings, cancelled=lambda: False):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def headless_reader(url: str, demo: Any) -> Callable[[str, str], None]:
    """Return a function that runs once through the page's own stream and reads every message."""
    handlers = {getattr(fn.fn, "__name__", ""): fn._id for fn in demo.fns.values()}
    client = httpx.Client(base_url=url, timeout=300)

    def watch(method: str, prompt: str) -> None:
        who = {"session_hash": uuid.uuid4().hex[:11]}
        fields = values(method, prompt)
        form = [None, *(fields[name] for name in FIELDS)]
        arm = {"data": form, "fn_index": handlers["arm"], **who}
        client.post("/gradio_api/run/predict", json=arm).raise_for_status()
        run = {"data": [None], "fn_index": handlers["run"], **who}
        client.post("/gradio_api/queue/join", json=run).raise_for_status()
        with client.stream("GET", "/gradio_api/queue/data", params=who) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:") and json.loads(line[5:])["msg"] == "process_completed":
                    return

    return watch


@contextlib.contextmanager
def browser_reader(url: str) -> Iterator[Callable[[str, str], None]]:
    """Give a function that runs once in Chromium, with charts and all, on this same machine."""
    import shutil

    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1366, "height": 640}, locale="en-GB")
        page.goto(url + "?lang=en")
        page.wait_for_function("window.Plotly !== undefined")
        page.locator("#compare input").uncheck()
        page.fill("#max_new_tokens input", str(NEW_TOKENS))

        def watch(method: str, prompt: str) -> None:
            page.fill("#prompt textarea", prompt)
            page.locator(f"#method input[value={method}]").check(force=True)
            page.click("#run")
            said = "document.querySelector('.dl-status').textContent"
            page.wait_for_function(f"{said}.startsWith('Decoding')", timeout=300_000)
            page.wait_for_function(f"{said}.startsWith('Finished')", timeout=300_000)

        yield watch
        browser.close()


def measure(
    pair: Clocked, watch: Callable[[str, str], None], method: str, repeats: int
) -> list[float]:
    """Return watched / alone of every repeat, after one unmeasured run of each."""
    prompt = catalog.load().presets[PRESET].prompt
    ratios = []
    for repeat in range(repeats + 1):
        order = ("alone", "watched") if repeat % 2 else ("watched", "alone")
        seconds = {}
        for kind in order:
            num_runs = len(pair.seconds)
            if kind == "alone":
                run_alone(pair, method, prompt)
            else:
                watch(method, prompt)
            if len(pair.seconds) != num_runs + 1:
                raise RuntimeError(f"the {kind} run did not reach the engine exactly once")
            seconds[kind] = pair.seconds[-1]
        if repeat:
            ratios.append(seconds["watched"] / seconds["alone"])
    return ratios


def load(pair_id: str, **options: Any) -> Any:
    """Load what runs behind the page, as the page does: in its thread, with its cores."""
    return Clocked(load_with_engine(pair_id, **options))


def load_toy(pair_id: str, **options: Any) -> Any:
    """Load a toy instead."""
    from tests.app.fakes import FakePair

    return Clocked(FakePair(pause=0.02))


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description="Engine time of a watched run over one alone.")
    parser.add_argument("--browser", action="store_true", help="watch in Chromium, charts drawn")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--method", default="mtp")
    parser.add_argument("--toy", action="store_true", help="check this script without a model")
    args = parser.parse_args()
    session = Session(load_toy if args.toy else load)
    loading = session.start_loading(session.default_pair)
    loading.done.wait()
    if loading.error is not None:
        raise loading.error
    pair = cast(Clocked, loading.pair)
    demo = build(session)
    options = {**launch_options(), "server_name": "127.0.0.1", "prevent_thread_lock": True}
    _, url, _ = demo.launch(**options)
    with contextlib.ExitStack() as stack:
        if args.browser:
            watch = stack.enter_context(browser_reader(url))
        else:
            watch = headless_reader(url, demo)
        ratios = sorted(measure(pair, watch, args.method, args.repeats))
    demo.close(verbose=False)
    middle = statistics.median(ratios)
    reader = "browser" if args.browser else "headless reader"
    print(f"{reader}: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), goal {GOAL}")


if __name__ == "__main__":
    main()
