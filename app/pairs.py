"""How pairs of models are named on the page, and what is said about one before it is loaded.

Contract: texts only; nothing is loaded or looked up. `choices` is what the list offers: the pairs
of the catalogue and, where it is another one, the pair that is chosen now.
"""

from __future__ import annotations

from app.wording import Say
from engine.catalog import NATIVE, Catalog, Pair


def choices(say: Say, known: Catalog, chosen: str = "") -> list[tuple[str, str]]:
    """Return label and id of every pair to choose from."""
    pairs = dict(known.pairs)
    if chosen and chosen not in pairs:
        pairs[chosen] = known.pair(chosen)
    return [(label(say, known, pair), pair.id) for pair in pairs.values()]


def label(say: Say, known: Catalog, pair: Pair) -> str:
    """Return a pair's name with its size class; it says so where nobody ran the pair."""
    verified = known.is_verified(pair)
    drafters = [name for name in (pair.mtp, pair.draft, pair.eagle3) if name]
    if verified:  # what was made for each other needs no list of parts
        drafters = []
    parts = ["MTP" if name == NATIVE else known.model(name).name for name in drafters]
    names = " + ".join([known.model(pair.target).name, *parts])
    if not pair.size:
        return say("pair.own", names=names)
    key = "pair.label" if verified else "pair.unverified"
    return say(key, names=names, size=f"size.{pair.size}")


def note(say: Say, known: Catalog, pair: Pair) -> str:
    """Return what to know before loading a pair; "" for one that somebody ran."""
    if known.is_verified(pair):
        return ""
    if pair.id not in known.pairs:
        return say("pair.about.own")
    models = known.models_of(pair)
    notes = [say(f"expect.{pair.expect}")] if pair.expect else []
    if any(model.gated for model in models):
        notes.append(say("pair.gated"))
    return say(
        "pair.about",
        licence=", ".join(dict.fromkeys(model.licence for model in models)),
        gb=round(sum(model.memory_gb("bfloat16") for model in models), 1),
        note=" ".join(notes),
    )
