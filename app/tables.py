"""Tables: a run's rounds as a data frame, for a spreadsheet or a notebook.

Contract: one row per finished round, columns as in `COLUMNS`, in that order, also without rounds.
What a source does not know is an empty cell, never 0. `csv_of` is what the page saves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.series import Series
from app.shown import Shown
from engine.events import Round, Verified
from engine.metrics import Metrics

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: dict[str, str] = {
    "round": "number of the round, from 1",
    "gamma": "draft length that was asked for",
    "proposed": "tokens the drafter proposed",
    "accepted": "of these, how many the target accepted",
    "rejected": "of these, judged and lost: 0 or 1",
    "unjudged": "of these, behind the first loss",
    "emitted": "tokens the text gained",
    "cut": "tokens produced past the end of the text",
    "next_source": "the target's own token: recovered, bonus, or target when nothing was proposed",
    "text": "what the tokens added to the text, as a JSON string",
    "draft_ms": "proposing, where it can be told apart",
    "verify_ms": "the target's pass",
    "overhead_ms": "everything else",
    "total_ms": "the whole round",
    "rolled_back": "cache entries the target dropped",
    "forwarded": "tokens the target read",
    "tokens_so_far": "tokens decoded since the start of decoding",
    "seconds_so_far": "seconds of decoding since then",
    "tokens_per_second_so_far": "their quotient",
    "speed_up_so_far": "that over the baseline's tokens per second, where it was measured",
    "rolling_acceptance": "accepted / proposed over the last rounds with a draft, 0 to 1",
}
"""Column and what it holds."""


def rounds_frame(shown: Shown) -> pd.DataFrame:
    """Return one row per round of a run."""
    import pandas as pd

    metrics, plain = Metrics(), shown.plain
    series = Series(plain.tokens_per_second if plain else None)
    rows = []
    for event in shown.events:
        metrics.add(event)
        if isinstance(event, Verified):
            series.add(metrics, event.round)
            rows.append(_row(event.round, dict(zip(_SO_FAR, series.rows[-1], strict=True))))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def csv_of(shown: Shown) -> str:
    """Return the rounds as CSV, a header first."""
    text: str = rounds_frame(shown).to_csv(index=False, lineterminator="\n")
    return text


_SO_FAR = (
    *("round", "tokens_so_far", "seconds_so_far", "tokens_per_second_so_far", "speed_up_so_far"),
    *("accepted", "proposed", "rolling_acceptance", "draft_ms", "verify_ms", "overhead_ms"),
)
"""`app.series.COLUMNS` by their names here."""


def _row(done: Round, so_far: dict[str, float | None]) -> dict[str, Any]:
    proposed, accepted = len(done.proposal.tokens), done.verdict.num_accepted
    lost = int(accepted < proposed)
    rolling = so_far["rolling_acceptance"]
    return {
        **so_far,
        "gamma": done.gamma,
        "rejected": lost,
        "unjudged": proposed - accepted - lost,
        "emitted": len(done.output),
        "cut": done.num_cut,
        "next_source": done.verdict.next_source,
        # Quoted: one line per round, and no spreadsheet takes a model's "=..." for a formula.
        "text": json.dumps("".join(done.pieces), ensure_ascii=False),
        "total_ms": round(1000 * done.seconds.total, 3),
        "rolled_back": done.num_rolled_back,
        "forwarded": done.num_forwarded,
        "rolling_acceptance": None if rolling is None else rolling / 100,
    }
