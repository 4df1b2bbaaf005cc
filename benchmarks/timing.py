"""Time contenders side by side, and measure the memory that they add."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

import torch

MIN_ROUNDS, MAX_ROUNDS = 5, 30
QUICK_SECONDS, QUICK_ROUNDS = 1.0, 1_000  # a run of microseconds is repeated for this long, in at most this many rounds
PACKAGES = (
    "torchrecmetrics", "torch", "numpy", "torchmetrics", "torch-geometric", "torcheval", "recometrics", "ranx", "numba",
)  # fmt: skip


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the fastest of some runs."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def interleave(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int | None = None,
    seconds: float = 8.0,
    limits: Mapping[str, int] | None = None,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Run all contenders in turn, round by round, and return the seconds of each, by round.

    Every second round draws a new order, and the round after it reverses that order, so that every contender sometimes
    meets the caches and memory that each of the others has left.
    Without `rounds`, there are at least 5 rounds, then more until `seconds` are spent, but at most 30, or as many as
    fit into a second. `limits` gives the number of first rounds in which a contender takes part. The garbage collector
    is off meanwhile. `wait` is called before and after each run, and the time includes the call after it.
    """
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    limits = limits or {}
    least = rounds or MIN_ROUNDS

    def goes_on(done: int, spent: float) -> bool:
        return not rounds and spent < seconds and (done < MAX_ROUNDS or (done < QUICK_ROUNDS and spent < QUICK_SECONDS))

    gc.collect()
    gc.disable()
    try:
        begin, done = time.perf_counter(), 0
        while done < least or goes_on(done, time.perf_counter() - begin):
            order = Random(done // 2).sample(names, len(names))
            for name in reversed(order) if done % 2 else order:
                if name not in limits or done < limits[name]:
                    wait()
                    start = time.perf_counter()
                    runs[name]()
                    wait()
                    times[name].append(time.perf_counter() - start)
            done += 1
    finally:
        gc.enable()
    return times


def ratio(top: list[float], bottom: list[float]) -> float:
    """Return the median over rounds of top / bottom: two runs of a round met the same load, so drifts cancel."""
    return statistics.median(a / b for a, b in zip(top, bottom, strict=False))


def peak_memory(run: Callable[[], object]) -> float | None:
    """Return by how many MB a run raises the resident memory at most; None where Linux's counter cannot be reset."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = _status("VmRSS")
        run()
        return (_status("VmHWM") - before) / 1024
    except OSError:
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def peak_cuda_memory(run: Callable[[], object]) -> float:
    """Return how many MB of tensors a run adds on the card at most, including those that it keeps for the next run."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def free_cuda_memory() -> int:
    """Return the bytes of the card's memory that are still free for tensors."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the hardware, the system and the versions of packages."""
    if device == "cuda":
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        here = machine()
        here["versions"]["triton"] = _version("triton")
        return here | {
            "device": card.name,
            "capability": f"{card.major}.{card.minor}",
            "memory_gb": card.total_memory / 1e9,
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    return {
        "device": "cpu",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str:
    """Return the commit that is measured, or "unknown" outside a checkout."""
    return _printed("git", "rev-parse", "--short=7", "HEAD")


def _driver() -> str:
    return _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _printed(*command: str) -> str:
    """Return the first line that a command prints, or "unknown"."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
