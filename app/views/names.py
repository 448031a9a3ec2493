"""Names: what other tools call the playground's numbers.

Contract: only names that the tools' own sources, documents or logs use; None is "it has none, or
none is known". The notes say where a number of the same name counts something else.
"""

from __future__ import annotations

from app.views.blocks import Block, column, sentence, table

TOOLS = ("vLLM", "SGLang", "llama.cpp", "LM Studio", "EAGLE", "Spec-Bench")

_Row = tuple[str | None, ...]
NAMES: dict[str, _Row] = {
    "speed_up": (None, None, None, None, None, "speedup"),
    "per_second": (
        *("tokens_per_second", "gen throughput", "eval time, tokens per second"),
        *("tokensPerSecond", "Speed", "tokens/s"),
    ),
    "rate": (
        *("draft acceptance rate", "accept rate", "draft acceptance"),
        *("draft tokens accepted", None, None),
    ),
    "length": (
        *("mean acceptance length", "accept length", "mean acceptance length", None),
        *("compression ratio", "#Mean accepted tokens"),
    ),
    "ttft": ("time_to_first_token_ms", None, None, "timeToFirstTokenSec", None, None),
    "drafted": ("num_draft_tokens", "spec_num_proposed_drafts", "draft_n, generated",
                "totalDraftTokensCount", None, None),
    "accepted": ("num_accepted_tokens", "spec_num_correct_drafts", "draft_n_accepted, n_accept",
                 "acceptedDraftTokensCount", None, None),
    "rounds": ("num_drafts", "spec_verify_ct", "#gen drafts", None, None, None),
    "by_position": ("per-position acceptance rate", None, "acceptance rate per position",
                    None, None, None),
    "saved": (None, None, None, None, None, None),
}  # fmt: skip
"""Our number -> its name in each of `TOOLS`."""

NOTED = ("per_second", "rate", "length", "speed_up")
"""Numbers whose namesakes are not all computed alike."""


def also(number: str) -> str:
    """Return the names of a number, each behind its tool, on one line; "" where it has none."""
    pairs = zip(TOOLS, NAMES.get(number, ()), strict=False)
    return " · ".join(f"{tool}: {name}" for tool, name in pairs if name)


def view(_shown: object = None) -> list[Block]:
    """Show the whole table, and where the same name hides another count."""
    columns = [column("names.column.here"), *(column(tool) for tool in TOOLS)]
    rows = [[sentence(f"names.{number}"), *names] for number, names in NAMES.items()]
    notes = [sentence(f"names.note.{number}") for number in NOTED]
    return [table(columns, rows), *notes]
