"""What a pair will cost on a machine, and what it may bring: memory, and a predicted speed-up.

Contract: pure. A prediction comes from a stored profile of the machine (`engine.profile`) and a
range of acceptance that others measured; it is labelled so and is never a measurement of the pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.check import Check, check
from engine.inspecting import Facts
from engine.theory import speed_up

LIBRARIES_BYTES = 600_000_000
"""Interpreter, torch, transformers, gradio: measured, see README."""

CONTEXT = 4096  # tokens of cache to make room for
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
    """Where a pair is to run, and what was measured there for models of the target's shape.

    free_bytes: None where the system hides it.  value_bytes: of one weight in memory.  has_bf16: a
    processor that multiplies bf16, which is then used where fp32 has no room.  passes: v(k), a pass
    over k tokens in one-token passes, for k = 1, 2, ...; empty: never measured.
    bytes_per_second: of weights, in a one-token pass.
    """

    device: str
    free_bytes: int | None
    value_bytes: int = 4
    has_bf16: bool = False
    bytes_per_second: float | None = None
    passes: tuple[float, ...] = ()
    date: str = ""
    provenance: str = ""


def memory(parts: Sequence[Facts], machine: Machine) -> Check:
    """Compare what all parts need with what is free."""
    if not all(part.parameters for part in parts):
        return fits_unknown()
    values = sum(part.num_kv_values or 0 for part in parts) * CONTEXT
    values += sum(part.parameters or 0 for part in parts)
    found = fits(values * machine.value_bytes + LIBRARIES_BYTES, machine.free_bytes)
    if not found.passed and machine.has_bf16 and parts[0].dtype == "bfloat16":
        return fits(values * 2 + LIBRARIES_BYTES, machine.free_bytes)
    return found


def fits_unknown() -> Check:
    """Return the check for parts of a size that nobody knows."""
    return check(
        "warn",
        "fits_unknown",
        "how much memory it needs is not known",
        "Watch the memory while it loads.",
    )


def fits(needed: float, free: float | None) -> Check:
    """Compare bytes that are needed with bytes that are free."""
    gigabytes = f"{needed / 1e9:.1f}"
    if free is None:
        text = f"needs about {gigabytes} GB; what is free is not known"
        return check("ok", "fits_perhaps", text, needed=gigabytes)
    facts: dict[str, object] = {"needed": gigabytes, "free": f"{free / 1e9:.1f}"}
    text = f"needs about {gigabytes} GB, {free / 1e9:.1f} GB are free"
    if needed > free:
        return check("fail", "fits_not", text, "Free memory, or choose a smaller model.", **facts)
    return check("ok", "fits", text, **facts)


def predicted(
    target: Facts, draft: Facts | None, mtp: Facts | None, machine: Machine
) -> Iterator[Check]:
    """Foretell the speed-up of one draft per round; a step costs what its weights do."""
    if len(machine.passes) < 2 or target.experts:  # a mixture reads more experts for more tokens
        return
    v = machine.passes[1] / machine.passes[0]
    rates = [edge for edges in ACCEPTANCE.values() for edge in edges]
    for way, share in (("mtp", _share_of_module(target, mtp)), ("draft", _share(target, draft))):
        if share is None:
            continue
        low, high = (speed_up(rate, 1, c=share, v=v) for rate in (min(rates), max(rates)))
        yield check(
            "ok" if low > 1 else "warn",
            f"predicted_{way}",
            f"predicted for {way}, not measured: {low:.2f}x to {high:.2f}x at one draft per round, "
            f"if {min(rates):.0%} to {max(rates):.0%} of the drafts are accepted",
            "" if low > 1 else "Measure it: some texts may become slower.",
            low=f"{low:.2f}",
            high=f"{high:.2f}",
            least=f"{min(rates):.0%}",
            most=f"{max(rates):.0%}",
            share=f"{share:.2f}",
            pass_of_two=f"{v:.2f}",
            date=machine.date,
            provenance=machine.provenance,
        )


def _share(target: Facts, draft: Facts | None) -> float | None:
    """Return the cost of a draft model's step in target passes."""
    if draft is None or not (target.parameters and draft.parameters):
        return None
    return draft.parameters / target.parameters


def _share_of_module(target: Facts, mtp: Facts | None) -> float | None:
    """Return the cost of a module's step: its own weights and the rows of the head it scores."""
    holder = target if mtp is None else mtp
    if holder.found is None or not (target.parameters and holder.mtp_parameters):
        return None
    head = (holder.draft_rows or target.rows or 0) * (target.hidden_size or 0)
    return (holder.mtp_parameters + head) / target.parameters
