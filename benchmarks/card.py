"""Measure the kernels on a card for the first time, beside `python -m benchmarks --device cuda` and `pytest tests/gpu`.

python -m benchmarks.card rates                 the card's best rates: copies, reads, products
python -m benchmarks.card sweep                 the kernels under other constants: which are best on this card
python -m benchmarks.card profile               launches and time of whole updates and evaluations
python -m benchmarks.card launch scores-1       one of LAUNCHES, run three times, for a profiler to look at

Every measurement is a line of JSON. `--tiny` tries the programme on small inputs, in Triton's interpreter as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torchrecmetrics as trm
from benchmarks.problem import CUTOFFS, NAMES
from torchrecmetrics.kernels import Products, Question

LAUNCHES = {
    "scores-1": (2048, 1_000_000, 1),
    "scores-10": (2048, 1_000_000, 10),
    "scores-50": (2048, 20_108, 50),
    "products-1": (67_584, 200_000, 1),
    "products-20": (136_677, 20_108, 20),
}
"""Rows, items and thresholds a row of what `launch` runs."""


def device() -> torch.device:
    """Return the device of the measurements: CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def milliseconds(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Return the median time of a call in milliseconds, the device synchronised before and after each run."""
    run()
    begin = time.perf_counter()
    times: list[float] = []
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() - begin < seconds):
        _wait()
        start = time.perf_counter()
        run()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def note(name: str, run: Callable[[], object], **about: Any) -> None:
    """Print how long a call takes, or the error that it raises."""
    try:
        about["ms"] = round(milliseconds(run), 4)
    except Exception as error:  # a tile that does not fit on this card is a result, too
        about["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    print(json.dumps({"name": name, **about}), flush=True)


def rates(tiny: bool) -> None:
    """Time copies, reads and products, to compare the rows G1 to G5 with the card's best rates."""
    here, numbers = device(), 2**12 if tiny else 2**31
    x = torch.empty(numbers, device=here).normal_()
    y = torch.empty_like(x)
    note("copy", partial(y.copy_, x), bytes=8 * numbers)
    note("read", x.sum, bytes=4 * numbers)
    del x, y
    for kind in (torch.bfloat16, torch.float32):
        for width in (64, 128, 8192):
            rows = 64 if tiny else 8192
            a, b = (torch.randn(rows, width, device=here).to(kind) for _ in range(2))
            note("product", partial(torch.mm, a, b.T), dtype=str(kind), width=width, flop=2 * rows * rows * width)


def _scores(rows: int, items: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Question]:
    """Return scores and thresholds; every other row has one threshold among its best 20 scores, the rest are random."""
    scores = torch.randn(rows, items, device=device(), dtype=dtype)
    thresholds = scores[:, torch.randint(items, (width,), device=device())]
    thresholds[::2, 0] = scores[::2].topk(12).values[:, -1]
    return scores, Question(thresholds, 20)


def _products(rows: int, items: int, width: int, d: int, dtype: torch.dtype) -> tuple[Any, Tensor]:
    from torchrecmetrics.kernels import triton as kernels

    users, others = (torch.randn(count, d, device=device()).to(dtype) for count in (rows, items))
    products = Products(users, others)
    return products, kernels.pair_scores(products, torch.randint(items, (rows, width), device=device()))


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Set constants of a module, and restore them at the end of the `with` block."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def sweep(tiny: bool) -> None:
    """Time the kernels as they are, and with some constants changed."""
    from torchrecmetrics.kernels import triton as kernels

    rows, items = (3, 2_000) if tiny else (4096, 1_000_000)
    others: list[dict[str, Any]] = [{}, {"_WAVES": 4}, {"_WAVES": 64}]
    for dtype in (torch.float32,) if tiny else (torch.float32, torch.bfloat16):
        for width in (1, 10, 50):
            scores, question = _scores(rows, items, width, dtype)
            more: list[dict[str, Any]] = (
                [{"_COUNTERS_PER_THREAD": 16}, {"_COUNTERS_PER_THREAD": 64}] if width == 1 else []
            )
            if width > 1:
                more = [{"_TILE": 2048}, {"_TILE": 8192}, {"_PART": 256}, {"_PART": 1024}]
                more += [{"_SHARES": (64,)}, {"_SHARES": (16,)}, {"_SHARES": (256, 32, 4)}, {"_LONG": 2**40}]
            for values in (others + more)[: 2 if tiny else None]:
                about = {"dtype": str(dtype), "width": width, "bytes": scores.nbytes, **values}
                with changed(kernels, **values):
                    note("scores", partial(kernels.count, scores, question), **about)
            del scores, question
    shapes = [(20, 90, 1, 16)] if tiny else [(100_000, 1_000_000, 1, 128), (16_384, 10_000_000, 1, 64)]
    cut = kernels._tile_sizes
    for rows, items, width, d in shapes:
        products, own = _products(rows, items, width, d, torch.float16 if tiny else torch.bfloat16)
        question = Question(own)
        cuts: list[dict[str, Any]] = [{}]
        if not tiny:
            cuts += [
                {"stages": 2},
                {"stages": 4},
                {"rows": 128},
                {"rows": 128, "items": 128},
                {"items": 128},
                {"share": 1},
            ]
        for values in cuts:

            def other(*args: Any, values: dict[str, Any] = values) -> Any:
                return cut(*args) if args[3] == 0 else cut(*args)._replace(**values)

            with changed(kernels, _tile_sizes=other):
                flop = 2 * rows * items * d
                note("products", partial(kernels.count_products, products, question), width=d, flop=flop, **values)
        del products, own, question


def launch(name: str, tiny: bool) -> None:
    """Run one kernel three times."""
    from torchrecmetrics.kernels import triton as kernels

    rows, items, width = (5, 300, LAUNCHES[name][2]) if tiny else LAUNCHES[name]
    if name.startswith("scores"):
        scores, question = _scores(rows, items, width, torch.float32)
        run = partial(kernels.count, scores, question._replace(depth=None if width == 50 else 20))
    else:
        products, own = _products(rows, items, width, 64, torch.float16 if tiny else torch.bfloat16)
        run = partial(kernels.count_products, products, Question(own))
    for _ in range(3):
        run()
    _wait()


def profile(tiny: bool) -> None:
    """Print the kernel launches of whole updates, and their time on the host and on the card."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for rows, items, width in (
        ((4, 300, 2),) if tiny else ((4096, 1_000_000, 1), (4096, 1_000_000, 10), (16_384, 20_108, 50))
    ):
        scores, _ = _scores(rows, items, width, torch.float32)
        target = (torch.randint(items, (rows, 1), device=device()) + torch.arange(width, device=device()) * 7) % items
        metrics = trm.RecMetricCollection(NAMES, k=CUTOFFS, kernels="triton").to(device())
        run = partial(metrics.update, scores, target)
        run()
        begin = time.perf_counter()
        run()
        returned = time.perf_counter() - begin
        _wait()
        wall = time.perf_counter() - begin
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        with profiler(activities=activities) as found:
            run()
            _wait()
        on_card = [event for event in found.events() or [] if event.device_type == DeviceType.CUDA]
        about = {"rows": rows, "items": items, "width": width, "launches": len(on_card)}
        print(json.dumps({"name": "update", "host_ms": returned * 1e3, "wall_ms": wall * 1e3, **about}))
        sort = "cuda_time_total" if on_card else "cpu_time_total"
        print(found.key_averages().table(sort_by=sort, row_limit=15, max_name_column_width=50))


def main(arguments: list[str]) -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(
        "benchmarks.card", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["rates", "sweep", "profile", "launch"])
    parser.add_argument("name", nargs="?", choices=LAUNCHES, default="scores-1")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    if chosen.command == "launch":
        launch(chosen.name, chosen.tiny)
    else:
        {"rates": rates, "sweep": sweep, "profile": profile}[chosen.command](chosen.tiny)


if __name__ == "__main__":
    main(sys.argv[1:])
