"""Which device to run on, when its work is done, and how much memory the process holds."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

import torch

from engine.errors import PlaygroundError


def choose_device(wanted: str | None = None) -> torch.device:
    """Return the device to use: `wanted`, or cuda, mps or cpu by what is there.

    Raises PlaygroundError("no_device") when `wanted` is not available.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted is None or wanted == "auto":
        return torch.device(next(name for name, there in available.items() if there))
    kind = wanted.split(":")[0]
    if not available.get(kind, False):
        here = ", ".join(name for name, there in available.items() if there)
        raise PlaygroundError(
            "no_device",
            f"The device {wanted!r} is not available.",
            f"Choose one of: {here}.",
            device=wanted,
            known=here,
        )
    return torch.device(wanted)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given, so that a clock read after is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def use_cores(spare: int = 0) -> int:
    """Use the cores this process may run on but `spare` ones, at least one; return how many.

    Whoever set OMP_NUM_THREADS has chosen: then nothing is spared.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    if "OMP_NUM_THREADS" in os.environ:
        spare = 0
    torch.set_num_threads(max(1, min(torch.get_num_threads(), allowed - spare)))
    return torch.get_num_threads()


def processor_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor as far as the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def free_bytes(device: torch.device) -> int | None:
    """Return what models may take on a device, on all GPUs together; None where it is hidden."""
    if device.type == "cuda":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    free = free_memory_gb()
    return None if free is None else int(free * 1e9)


def free_memory_gb() -> float | None:
    """Return the memory that new processes may take, in GB; None where the system hides it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) / 1e6
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory_gb() -> float:
    """Return the peak resident memory of this process in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)
