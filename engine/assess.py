"""Whether a target and its drafter can work together, judged from facts alone.

Contract: `assess` is pure: the same facts give the same checks, and nothing is read or loaded.
Every check is ok, warn or fail; the others say what to do. `predicted` marks what
a stored machine profile foretells; it is never a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.check import Check, check
from engine.inspecting import Facts
from engine.outlook import Machine, memory, predicted
from engine.vocabularies import compare

RATIO = 0.25  # of the target's parameters: drafts above it rarely pay


def assess(
    target: Facts,
    draft: Facts | None = None,
    mtp: Facts | None = None,
    machine: Machine | None = None,
    eagle3: Facts | None = None,
) -> list[Check]:
    """Return the checks; `mtp` is a folder with the module alone, where the target's is lost."""
    parts = [part for part in (target, draft, mtp, eagle3) if part is not None]
    checks = [found for part in parts for found in _loading(part)]
    models = [part for part in (target, draft) if part is not None]
    checks += [_engine(part) for part in models]
    checks += [_rollback(part) for part in models]
    if draft is not None:
        checks += [vocabulary(target, draft), *_same(target, draft), *_sizes(target, draft)]
    checks += _module(target, mtp)
    if machine is not None:
        checks += [memory(parts, machine), *predicted(target, draft, mtp, machine)]
    return checks


def _loading(part: Facts) -> Iterator[Check]:
    name = part.name
    if part.quantised:
        yield check(
            "warn",
            "format_quantised",
            f"{name} is quantised ({part.quantised})",
            "Use the unquantised checkpoint unless the kernels are installed.",
            model=name,
            method=part.quantised,
        )
    elif "safetensors" in part.formats:
        yield check("ok", "format_safetensors", f"{name} is in safetensors", model=name)
    elif "gguf" in part.formats:
        yield check(
            "warn",
            "format_gguf",
            f"{name} is GGUF only",
            "It is unpacked to full size on loading, where its family is known.",
            model=name,
        )
    elif "pickle" in part.formats:
        yield check(
            "fail",
            "format_pickle",
            f"{name} holds pickled weights only",
            "A pickle can run code: convert it to safetensors.",
            model=name,
        )
    else:
        yield check("fail", "format_none", f"{name} holds no weights", "Fetch them.", model=name)
    if part.remote_code:
        yield check(
            "warn",
            "remote_code",
            f"{name} brings code of its own, which is never run",
            "It loads only if the library knows its model type.",
            model=name,
        )


def _engine(part: Facts) -> Check:
    facts: dict[str, object] = {"model": part.name, "type": part.model_type}
    if part.known:
        return check("ok", "type_known", f"{part.name} is of a known type", **facts)
    return check(
        "fail",
        "type_unknown",
        f"{part.name} is of the type {part.model_type!r}, which the library does not know",
        "Choose another model, or update transformers.",
        **facts,
    )


def _rollback(part: Facts) -> Check:
    facts: dict[str, object] = {"model": part.name, "type": part.model_type}
    if part.rollback == "crop":
        return check("ok", "rollback_crop", f"{part.name}: caches are cut back exactly", **facts)
    if part.rollback == "snapshot":
        return check(
            "warn",
            "rollback_snapshot",
            f"{part.name} keeps a recurrent state",
            "Rejected tokens cost a replay; other engines may refuse it.",
            **facts,
        )
    return check(
        "warn",
        "rollback_unknown",
        f"{part.name}: how it rolls back is not known",
        "It is found out on loading.",
        **facts,
    )


def vocabulary(target: Facts, draft: Facts) -> Check:
    """Compare two vocabularies as loading does; the first id whose strings differ is named."""
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours is None or theirs is None:
        lost = target.name if ours is None else draft.name
        return check(
            "warn",
            "vocabulary_unknown",
            f"{lost} has no tokenizer.json",
            "Add the file: vocabularies cannot be compared without it.",
            model=lost,
        )
    found = compare(ours, theirs, target.rows or len(ours), draft.rows or len(theirs))
    if found.kind == "different":
        number, a, b = found.first or (found.num_rows, "", "")
        return check(
            "warn",
            "vocabulary_different",
            f"id {number} is {a!r} and {b!r}",
            "Proposals go through text, which is slower; a draft model of the "
            "target's family avoids it.",
            id=number,
            target=a,
            draft=b,
        )
    if found.kind == "padded":
        return check(
            "ok",
            "vocabulary_padded",
            f"{len(found.masked)} of {found.num_rows} ids are not shared and never drafted",
            target=target.rows,
            draft=draft.rows,
            masked=len(found.masked),
        )
    return check("ok", "vocabulary_equal", f"the same {len(ours)} tokens", tokens=len(ours))


def _same(target: Facts, draft: Facts) -> Iterator[Check]:
    differ = [n for n, value in target.special.items() if value != draft.special.get(n)]
    if differ:
        yield check(
            "warn",
            "special_different",
            f"{', '.join(differ)} differ",
            "The target's are used.",
            names=", ".join(differ),
        )
    else:
        yield check("ok", "special_equal", "special ids are the same")
    if target.template and draft.template and target.template != draft.template:
        yield check(
            "warn",
            "template_different",
            "chat templates differ",
            "The target's is used; the draft model may agree less.",
        )
    if draft.context and target.context and draft.context < target.context:
        yield check(
            "warn",
            "context_shorter",
            f"{draft.name} reads {draft.context} tokens only",
            "Longer texts are decoded without drafts.",
            model=draft.name,
            draft=draft.context,
            target=target.context,
        )
    if target.dtype != draft.dtype:
        yield check(
            "ok",
            "dtype_different",
            f"stored as {target.dtype} and {draft.dtype}",
            target=target.dtype,
            draft=draft.dtype,
        )


def _sizes(target: Facts, draft: Facts) -> Iterator[Check]:
    if not target.parameters or not draft.parameters:
        return
    ratio = draft.parameters / target.parameters
    text = f"the draft model has {ratio:.0%} of the target's parameters"
    if ratio > RATIO:
        yield check("warn", "ratio_large", text, "Choose a smaller one.", percent=100 * ratio)
    else:
        yield check("ok", "ratio", text, percent=100 * ratio)


def _module(target: Facts, mtp: Facts | None) -> Iterator[Check]:
    holder = target if mtp is None else mtp
    if holder.found is None:
        if target.claimed or mtp is not None:
            yield check(
                "fail",
                "mtp_missing",
                f"{holder.name}: the configuration speaks of an MTP module, no file holds it",
                "Name a folder that holds it with --mtp.",
                model=holder.name,
                claimed=target.claimed,
            )
        else:
            yield check("ok", "mtp_none", f"{target.name} ships no MTP module", model=target.name)
        return
    family = holder.found.family
    wanted = {"projection.weight", "enorm.weight", "hnorm.weight"}
    wanted |= {"norm.weight"} if family.norm == "own" else set()
    like_last = family.layer == -1 and not family.mlp  # else its MLP is of another kind
    wanted |= {
        f"block.{place}"
        for place in target.block
        if like_last or place.startswith(("self_attn.", "input_layernorm."))
    }
    experts = {place for place in wanted if ".experts." in place}
    for number, module in enumerate(holder.found.modules):
        lost = sorted(wanted - set(module))
        if not experts & set(module):  # stored in another way, or none: the loader knows
            lost = [place for place in lost if place not in experts]
        if lost:
            yield check(
                "fail",
                "mtp_incomplete",
                f"module {number} lacks {lost[0]}",
                "Use the original checkpoint.",
                module=number,
                place=lost[0],
                missing=len(lost),
            )
            return
    yield check(
        "ok",
        "mtp_here",
        f"an MTP module of the {family.id} layout",
        family=family.id,
        modules=len(holder.found.modules),
    )
