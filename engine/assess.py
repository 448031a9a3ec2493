"""Whether a target and its drafter can work together, judged from facts alone.

Contract: `assess` is pure: the same facts give the same checks, and nothing is read or loaded.
Every check is ok, warn or fail; the others say what to do. `predicted` marks what
a stored machine profile foretells; it is never a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.inspecting import Facts
from engine.preflight import Check, State
from engine.theory import speed_up
from engine.vocabularies import compare

LIBRARIES_BYTES = 600_000_000
CONTEXT = 4096  # tokens of cache to make room for
DEVICE_BYTES = {"cpu": 4, "cuda": 2, "mps": 2}  # fp32 on a CPU, bf16 elsewhere
RATIO = 0.25  # of the target's parameters: drafts above it rarely pay

ACCEPTANCE: Mapping[str, tuple[float, float]] = {
    "code": (0.90, 0.92),
    "factual": (0.60, 0.62),
    "prose": (0.48, 0.50),
}
"""Acceptance at one draft by domain: others' figure for Qwen3.8-27B, give or take a point.

Source: tenstorrent/vllm #442, as quoted in the project's notes. The spread over domains is larger
than that over models.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine profile, measured once: where, when, how.

    passes: v(k), a pass over k tokens in one-token passes, for k = 1, 2, ...
    """

    device: str
    free_bytes: int | None
    bytes_per_second: float | None = None
    passes: tuple[float, ...] = ()
    date: str = ""
    provenance: str = ""


def assess(
    target: Facts,
    draft: Facts | None = None,
    mtp: Facts | None = None,
    machine: Machine | None = None,
) -> list[Check]:
    """Return the checks; `mtp` is a folder with the module alone, where the target's is lost."""
    parts = [part for part in (target, draft, mtp) if part is not None]
    checks = [check for part in parts for check in _loading(part)]
    checks += [_rollback(part) for part in (target, draft) if part is not None]
    if draft is not None:
        checks += [vocabulary(target, draft), *_same(target, draft), *_sizes(target, draft)]
    checks += _module(target, mtp)
    if machine is not None:
        checks += [_memory(parts, machine), *_predicted(target, draft, machine)]
    return checks


def _check(state: State, code: str, text: str, remedy: str = "", /, **facts: object) -> Check:
    return Check(code, state != "fail", text, facts, state, remedy)


def _loading(part: Facts) -> Iterator[Check]:
    name = part.name
    if part.quantised:
        yield _check(
            "warn",
            "format_quantised",
            f"{name} is quantised ({part.quantised})",
            "Use the unquantised checkpoint unless the kernels are installed.",
            model=name,
            method=part.quantised,
        )
    elif "safetensors" in part.formats:
        yield _check("ok", "format_safetensors", f"{name} is in safetensors", model=name)
    elif "gguf" in part.formats:
        yield _check(
            "warn",
            "format_gguf",
            f"{name} is GGUF only",
            "It is unpacked to full size on loading, where its family is known.",
            model=name,
        )
    elif "pickle" in part.formats:
        yield _check(
            "fail",
            "format_pickle",
            f"{name} holds pickled weights only",
            "A pickle can run code: convert it to safetensors.",
            model=name,
        )
    else:
        yield _check("fail", "format_none", f"{name} holds no weights", "Fetch them.", model=name)
    if part.remote_code:
        yield _check(
            "warn",
            "remote_code",
            f"{name} brings code of its own, which is never run",
            "It loads only if the library knows its model type.",
            model=name,
        )


def _rollback(part: Facts) -> Check:
    facts: dict[str, object] = {"model": part.name, "type": part.model_type}
    if part.rollback == "crop":
        return _check("ok", "rollback_crop", f"{part.name}: caches are cut back exactly", **facts)
    if part.rollback == "snapshot":
        return _check(
            "warn",
            "rollback_snapshot",
            f"{part.name} keeps a recurrent state",
            "Rejected tokens cost a replay; other engines may refuse it.",
            **facts,
        )
    return _check(
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
        return _check(
            "warn",
            "vocabulary_unknown",
            f"{lost} has no tokenizer.json",
            "Add the file: vocabularies cannot be compared without it.",
            model=lost,
        )
    found = compare(ours, theirs, target.rows or len(ours), draft.rows or len(theirs))
    if found.kind == "different":
        number, a, b = found.first or (found.num_rows, "", "")
        return _check(
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
        return _check(
            "ok",
            "vocabulary_padded",
            f"{len(found.masked)} of {found.num_rows} ids are not shared and never drafted",
            target=target.rows,
            draft=draft.rows,
            masked=len(found.masked),
        )
    return _check("ok", "vocabulary_equal", f"the same {len(ours)} tokens", tokens=len(ours))


def _same(target: Facts, draft: Facts) -> Iterator[Check]:
    differ = [n for n, value in target.special.items() if value != draft.special.get(n)]
    if differ:
        yield _check(
            "warn",
            "special_different",
            f"{', '.join(differ)} differ",
            "The target's are used.",
            names=", ".join(differ),
        )
    else:
        yield _check("ok", "special_equal", "special ids are the same")
    if target.template and draft.template and target.template != draft.template:
        yield _check(
            "warn",
            "template_different",
            "chat templates differ",
            "The target's is used; the draft model may agree less.",
        )
    if draft.context and target.context and draft.context < target.context:
        yield _check(
            "warn",
            "context_shorter",
            f"{draft.name} reads {draft.context} tokens only",
            "Longer texts are decoded without drafts.",
            model=draft.name,
            draft=draft.context,
            target=target.context,
        )
    if target.dtype != draft.dtype:
        yield _check(
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
        yield _check("warn", "ratio_large", text, "Choose a smaller one.", percent=100 * ratio)
    else:
        yield _check("ok", "ratio", text, percent=100 * ratio)


def _module(target: Facts, mtp: Facts | None) -> Iterator[Check]:
    holder = target if mtp is None else mtp
    if holder.found is None:
        if target.claimed or mtp is not None:
            yield _check(
                "fail",
                "mtp_missing",
                f"{holder.name}: the configuration speaks of an MTP module, no file holds it",
                "Name a folder that holds it with --mtp.",
                model=holder.name,
                claimed=target.claimed,
            )
        else:
            yield _check("ok", "mtp_none", f"{target.name} ships no MTP module", model=target.name)
        return
    wanted = {"projection.weight", "enorm.weight", "hnorm.weight"}
    wanted |= {"norm.weight"} if holder.found.family.normed else set()
    wanted |= {f"block.{place}" for place in target.block}
    for number, module in enumerate(holder.found.modules):
        lost = sorted(wanted - set(module))
        if lost:
            yield _check(
                "fail",
                "mtp_incomplete",
                f"module {number} lacks {lost[0]}",
                "Use the original checkpoint.",
                module=number,
                place=lost[0],
                missing=len(lost),
            )
            return
    yield _check(
        "ok",
        "mtp_here",
        f"an MTP module of the {holder.found.family.id} layout",
        family=holder.found.family.id,
        modules=len(holder.found.modules),
    )


def _memory(parts: list[Facts], machine: Machine) -> Check:
    width = DEVICE_BYTES.get(machine.device.split(":")[0], 4)
    known = all(part.parameters for part in parts) and machine.free_bytes is not None
    if not known:
        return _check(
            "warn",
            "fits_unknown",
            "how much memory it needs or finds is not known",
            "Watch the memory while it loads.",
        )
    values = sum(part.num_kv_values or 0 for part in parts) * CONTEXT
    weights = sum(part.parameters or 0 for part in parts)
    needed, free = (weights + values) * width + LIBRARIES_BYTES, machine.free_bytes or 0
    text = f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    facts: dict[str, object] = {"needed": needed / 1e9, "free": free / 1e9}
    if needed > free:
        return _check("fail", "fits_not", text, "Free memory, or choose a smaller model.", **facts)
    return _check("ok", "fits", text, **facts)


def _predicted(target: Facts, draft: Facts | None, machine: Machine) -> Iterator[Check]:
    """Foretell the speed-up of one draft per round; a step costs what its weights do."""
    if draft is None or not (target.parameters and draft.parameters and len(machine.passes) > 1):
        return
    c, v = draft.parameters / target.parameters, machine.passes[1] / machine.passes[0]
    low, high = (
        speed_up(pick(edge for edges in ACCEPTANCE.values() for edge in edges), 1, c=c, v=v)
        for pick in (min, max)
    )
    yield _check(
        "ok" if low > 1 else "warn",
        "predicted",
        f"predicted, not measured: {low:.2f}x to {high:.2f}x at one draft per round",
        "" if low > 1 else "Measure it: some texts may become slower.",
        low=low,
        high=high,
        date=machine.date,
        provenance=machine.provenance,
    )
