"""The command line: `python -m engine generate | check | bench | budget`.

Text goes to standard output, progress and errors to standard error. What a user can mend is one
line and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine import catalog
from engine.errors import PlaygroundError
from engine.events import Finished, Prefilled, Settings, Verified


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    # The hub is asked for what was named, and told nothing else.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    options = _parser().parse_args(arguments)
    try:
        result: int = options.command(options)
    except PlaygroundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return result


def _generate(options: argparse.Namespace) -> int:
    """Print the text of one run; optionally its events and its statistics."""
    from engine.metrics import Metrics
    from engine.request import check_request
    from engine.runtime import load_pair
    from engine.trace import write

    settings = Settings(
        gamma=options.gamma,
        adaptive=options.adaptive,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        stop=tuple(options.stop),
        seed=options.seed,
        raw=options.raw,
        alpha=options.alpha,
        confidence=options.confidence,
        head_rows=options.head_rows,
    )
    check_request(options.prompt, settings)  # before a minute of loading
    pair = load_pair(_pair_id(options), device=options.device, report=_report)
    pair.check(options.method, options.prompt, settings)
    metrics = Metrics()
    events = []
    for event in pair.run(options.method, options.prompt, settings):
        metrics.add(event)
        events.append(event)
        match event:
            case Prefilled():
                print(event.text, end="", flush=True)
            case Verified():
                print(event.round.text, end="", flush=True)
            case Finished():
                print(event.tail, flush=True)
    if options.jsonl:
        write(options.jsonl, events)
    if options.stats:
        print(json.dumps(metrics.stats()))
    return 0


def _check(options: argparse.Namespace) -> int:
    """Print whether a target and its drafters can work together; exit code 1 where they cannot."""
    from engine.preflight import preflight

    known = catalog.load()
    found = preflight(
        known,
        known.pair(_pair_id(options)),
        device=options.device,
        ask_hub=not options.offline,
        measure=options.measure,
    )
    width = max(len(check.code) for check in found.checks)
    for check in found.checks:
        print(f"{check.state:4} {check.code:{width}}  {check.text}")
        if check.remedy:
            print(f"{'':{width + 6}} {check.remedy}")
    for way in found.ways:
        size = "size unknown" if way.gigabytes is None else f"{way.gigabytes:.2f} GB more"
        parts, decisions = " + ".join(way.parts), ", ".join(way.decisions)
        print(f"{way.way:5} {parts}: {size}; to decide: {decisions}")
    for row in found.support:
        print(f"{row.method:6} {row.engine}: {row.answer} ({row.source}; {row.date})")
    if found.unread:
        print(f"not looked at: {', '.join(found.unread)}")
    return 0 if found.passed else 1


def _bench(options: argparse.Namespace) -> int:
    """Print what every method is worth here, measured interleaved in this process."""
    from engine import bench, bench_shapes

    def report(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if options.shape:
        result = bench_shapes.run_shape(
            options.shape, repeats=options.repeats, device=options.device, report=report
        )
    else:
        result = bench.run_bench(
            _pair_id(options),
            methods=options.methods,
            gammas=options.gamma,
            domains=options.domains,
            repeats=options.repeats,
            device=options.device,
            report=report,
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(bench.table(result))
    return 0


def _budget(options: argparse.Namespace) -> int:
    """Print where the time of a target pass goes."""
    from engine.budget import pass_budget, table

    print(table(*pass_budget(options.pair)))
    return 0


def _pair_id(options: argparse.Namespace) -> str:
    """Return the id of the pair that was asked for: one of the catalogue, or named by its parts.

    Raises PlaygroundError("no_target") for a drafter without a target.
    """
    named = {part: getattr(options, part) for part in catalog.PARTS}
    if not any(named.values()):
        return str(options.pair)
    if getattr(options, "method", "") == "mtp" and not named["mtp"]:
        named["mtp"] = catalog.NATIVE
    return catalog.pair_of(**named).id


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _lengths(text: str) -> list[int | str]:
    return [int(name) if name.isdigit() else name for name in _names(text)]


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and exit with code 2."""
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    known = catalog.load()
    first = next(iter(known.pairs))
    parser = _Parser(prog="python -m engine", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = _Parser(add_help=False)
    shared.add_argument("--pair", default=first, help=f"one of: {', '.join(known.pairs)}")
    name = "hub id or local folder"
    shared.add_argument("--target", default="", metavar="MODEL", help=f"{name}, instead of --pair")
    shared.add_argument("--draft", default="", metavar="MODEL", help=f"{name} of a draft model")
    shared.add_argument(
        "--mtp",
        default="",
        metavar="MODEL",
        help=f"{name} of an MTP module; {catalog.NATIVE}: the one in the target's checkpoint",
    )
    shared.add_argument("--eagle3", default="", metavar="MODEL", help=f"{name} of an EAGLE-3 head")
    shared.add_argument("--device", default=None, help="cuda, mps or cpu; by what is there")

    generate = commands.add_parser("generate", parents=[shared], help="answer one prompt")
    generate.add_argument("--method", default="mtp", choices=list(known.methods))
    generate.add_argument("--prompt", required=True)
    generate.add_argument("--gamma", type=int, default=3, help="most tokens proposed per round")
    generate.add_argument("--adaptive", action="store_true", help="choose up to --gamma per round")
    generate.add_argument("--max-new-tokens", type=int, default=128)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--top-k", type=int, default=0, help="0: off")
    generate.add_argument("--top-p", type=float, default=1.0)
    generate.add_argument("--min-p", type=float, default=0.0)
    generate.add_argument("--repetition-penalty", type=float, default=1.0)
    generate.add_argument("--stop", nargs="+", default=[], help="strings that end the text")
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--alpha", type=float, default=0.8, help="for --method synthetic")
    generate.add_argument("--confidence", type=float, default=0.0, help="stop drafting below")
    generate.add_argument(
        "--head-rows", type=int, default=0, help="tokens that an MTP module scores; 0: all"
    )
    generate.add_argument("--raw", action="store_true", help="skip the chat template")
    generate.add_argument("--jsonl", type=Path, metavar="FILE", help="write the events")
    generate.add_argument("--stats", action="store_true", help="print counts and times, one line")
    generate.set_defaults(command=_generate)

    check = commands.add_parser("check", parents=[shared], help="what can be said before loading")
    check.add_argument("--offline", action="store_true", help="do not ask the hub")
    check.add_argument("--measure", action="store_true", help="time this machine for a prediction")
    check.set_defaults(command=_check)

    bench = commands.add_parser("bench", parents=[shared], help="measure speed on this machine")
    default = "plain,mtp,draft,lookup,transformers-plain,transformers-draft,transformers-lookup"
    bench.add_argument("--methods", type=_names, default=_names(default), help=default)
    bench.add_argument("--gamma", type=_lengths, default=[], help="lengths to try, e.g. 1,2,auto")
    bench.add_argument("--domains", type=_names, default=[], help="preset ids; all by default")
    bench.add_argument("--repeats", type=int, default=3)
    bench.add_argument("--shape", help="random weights in a model's shape instead of a pair: 8b")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write rows, limit, provenance")
    bench.set_defaults(command=_bench)

    budget = commands.add_parser("budget", help="split the time of a target pass into parts")
    budget.add_argument("--pair", default=first, help=f"one of: {', '.join(known.pairs)}")
    budget.set_defaults(command=_budget)
    return parser


def _report(progress: Any) -> None:
    share = "" if progress.fraction is None else f" {progress.fraction:.0%}"
    print(f"{progress.stage}{share} {progress.detail}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
