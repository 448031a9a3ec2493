"""Record how far the bundled drafters come on real texts, and what they cost on this machine.

    python -m tests.benchmarks.run_lengths tests/engine/data/run_lengths.json

Contract: greedy texts of the eight presets and of three held-out prompts per domain, plain, up to
`NEW_TOKENS` tokens; for every place of each text and every method how many drafts match and how
many there were. `tests/engine/test_auto.py` judges the policy on this record, without a clock. Run
it on an otherwise quiet machine: the costs are of now.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from engine import catalog
from engine.decode import never
from engine.events import Finished, Settings
from engine.instruments.run_lengths import Road
from engine.runtime import LoadedPair, load_pair, measure
from engine.training.evaluate import PROMPTS

NEW_TOKENS = 192
METHODS = ("mtp", "draft", "lookup")
SETTINGS = Settings(gamma=8, max_new_tokens=NEW_TOKENS)


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    pair = load_pair("smollm2")
    costs = {name: dataclasses.asdict(each) for name, each in measure(pair).items()}
    texts = []
    for domain, prompts in prompts_by_domain().items():
        for prompt in prompts:
            texts.append({"domain": domain, **along(pair, prompt)})
            print(domain, texts[-1]["num_tokens"], flush=True)
    record = {"where": pair.where, "new_tokens": NEW_TOKENS, "costs": costs, "texts": texts}
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


def prompts_by_domain() -> dict[str, list[str]]:
    """Return the presets' domains with their preset first."""
    presets = catalog.load().presets
    return {name: [preset.prompt, *PROMPTS.get(name, ())] for name, preset in presets.items()}


def along(pair: LoadedPair, prompt: str) -> dict[str, object]:
    """Return the run lengths of every method along the target's own text."""
    events = list(pair.run("plain", prompt, dataclasses.replace(SETTINGS, gamma=0)))
    last = events[-1]
    if not isinstance(last, Finished):
        raise RuntimeError("the run has no end")
    ids = pair.codec.encode(prompt)
    found: dict[str, object] = {"num_tokens": len(last.token_ids)}
    for method in METHODS:
        with pair.exclusive():
            road = Road.read(pair, method, ids, last.token_ids, SETTINGS, never)
            found[method] = road.everywhere()
    return found


if __name__ == "__main__":
    main()
