"""Where the work lives: what an MTP module and a draft model each ask of who runs them.

Contract: `burden` is pure and counts only what the facts tell; what they do not is None.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from engine.inspecting import Facts

DECISIONS = {
    "mtp": ("gamma",),
    "draft": ("tokenizer", "size", "gamma", "download"),
}
"""What a person must settle; a module of another folder is a download too."""


@dataclass(frozen=True, slots=True)
class Burden:
    """One way's parts beside the target, its extra gigabytes and decisions."""

    way: str
    parts: tuple[str, ...]
    num_bytes: int | None
    decisions: tuple[str, ...]

    @property
    def gigabytes(self) -> float | None:
        """Return what comes on top of the target."""
        return None if self.num_bytes is None else self.num_bytes / 1e9


def burden(
    target: Facts,
    draft: Facts | None = None,
    mtp: Facts | None = None,
    *,
    bundled: Collection[str] = (),
) -> list[Burden]:
    """Return what each way that is there brings, MTP first.

    bundled: the ways whose parts lie in the repository, which nobody has to fetch.
    """
    ways = []
    holder = target if mtp is None else mtp
    if holder.found is not None:
        parts = (target.name,) if mtp is None else (target.name, mtp.name)
        more = () if mtp is None else ("download",)
        ways.append(Burden("mtp", parts, holder.mtp_bytes, DECISIONS["mtp"] + more))
    if draft is not None:
        size = draft.num_bytes or None
        ways.append(Burden("draft", (target.name, draft.name), size, DECISIONS["draft"]))
    return [_here(way) if way.way in bundled else way for way in ways]


def _here(way: Burden) -> Burden:
    left = tuple(decision for decision in way.decisions if decision != "download")
    return replace(way, decisions=left)
