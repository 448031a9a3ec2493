"""Do two models name the same tokens? Compared by their tokenizers, not by the sizes of their rows.

Contract: pure. Models pad their output rows, and families differ in the padding alone (151,936
against 152,064 in one family), so sizes say little; what counts is which string each id stands for.
Vocabularies that name the same strings by the same ids can be used as they are; what only one side
names, and padding, must never be drafted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["equal", "padded", "different"]
MOST_STRAY = 32
"""So many ids, and one in ten of the smaller vocabulary, may stand for other strings (special
tokens get renamed) before it is another vocabulary."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two vocabularies have in common.

    masked: ids that must not be drafted, all below `num_rows`, the draft model's rows that the
    target has, too.  first: the first id that stands for two strings, with both ("" for none).
    """

    kind: Kind
    masked: tuple[int, ...]
    num_rows: int
    num_differing: int
    first: tuple[int, str, str] | None


def compare(
    target: Mapping[str, int], draft: Mapping[str, int], target_rows: int, draft_rows: int
) -> Comparison:
    """Compare vocabularies (string -> id) of models with so many output rows each."""
    ours = {number: word for word, number in target.items()}
    theirs = {number: word for word, number in draft.items()}
    num_rows = min(target_rows, draft_rows)
    masked = [i for i in range(num_rows) if i not in ours or ours[i] != theirs.get(i)]
    differing = [i for i in masked if i in ours and i in theirs]
    first = (differing[0], ours[differing[0]], theirs[differing[0]]) if differing else None
    shared = num_rows - len(masked)
    smaller = min(len(ours), len(theirs))
    if len(differing) > min(MOST_STRAY, smaller / 10) or 2 * shared < smaller:
        kind: Kind = "different"
    elif ours == theirs and target_rows == draft_rows:
        kind = "equal"
    else:
        kind = "padded"
    return Comparison(kind, tuple(masked), num_rows, len(differing), first)
