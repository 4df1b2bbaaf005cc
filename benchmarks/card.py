"""Measure the kernels on a card for the first time, beside `python -m benchmarks --device cuda` and `pytest tests/gpu`.

python -m benchmarks.card versions              versions of what the other commands need
python -m benchmarks.card rates                 the card's best rates: copies, reads, products
python -m benchmarks.card updates               one update at usual sizes: host, wall, busy, kernels; others beside it
python -m benchmarks.card strategies            counts alone: eager's strategies and Triton
python -m benchmarks.card rows card-scores      rows of the GPU table, case by case: a failure costs one case
python -m benchmarks.card products              evaluations from float32 embeddings by both kernels
python -m benchmarks.card launch scores-1       one of LAUNCHES, run three times, for a profiler to look at

Every measurement is a line of JSON. `--tiny` tries the programme on small inputs, in Triton's interpreter as well.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

import torchrecmetrics as trm
from benchmarks import gpu, peers, report, timing, workloads
from benchmarks.problem import CUTOFFS, NAMES, Problem
from torchrecmetrics import kernels as counting
from torchrecmetrics.kernels import Products, Question, blocks, eager

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


def milliseconds(run: Callable[[], object], seconds: float = 0.1) -> float:
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


def versions() -> None:
    """Print the versions of what the other commands need, and whether the Triton kernels run."""
    print("python", sys.version.split()[0], "on", torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    for name in ("torch", "triton", "numpy", "torchmetrics", "torch_geometric", "pytest", "hypothesis", "scipy"):
        try:
            print(" ", name, importlib.import_module(name).__version__)
        except Exception as error:  # whatever an import raises
            print(" ", name, "is missing:", error)
    print("  kernels:", gpu.best(device()))
    print(json.dumps({"machine": timing.machine(device().type)}))


def rows(ids: list[str], tiny: bool, seconds: float = 3.0) -> None:
    """Print cases of the GPU table as lines of JSON; a case that fails is a line with its error."""
    for id in ids:
        cases = gpu.ROWS[id](tiny, workloads.DATA)
        while True:
            about: dict[str, Any] = {"id": id}
            try:
                case = next(cases, None)
                if case is None:
                    break
                about["case"] = case.name
                about |= {"skipped": case.skipped} if case.skipped else report.run_case(case, seconds=seconds)
            except Exception as error:  # a wrong value, or no memory: the other cases still count
                about["error"] = f"{type(error).__name__}: {str(error)[:400]}"
            print(json.dumps(about), flush=True)
            if "contenders" in about:
                medians = {entry["name"]: round(entry["median_ms"], 3) for entry in about["contenders"]}
                print(f"  {id} {about['case']}: {medians}", flush=True)
                print("   ", "; ".join(map(report.goal_text, about["goals"])), flush=True)
            _free()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


SHAPES = [(256, 3706, 1, 0), (512, 20_000, 1, 0), (512, 20_000, 10, 100), (4096, 20_000, 10, 0)]
SHAPES += [(512, 1_000_000, 1, 0), (512, 1_000_000, 10, 0)]
"""Rows, items, relevant items and excluded items of usual updates."""


def updates(tiny: bool) -> None:
    """Time one update of the 18 metrics by both kernels beside a loop written by hand, `torch.topk` and a graph."""
    for shape in [(4, 300, 1, 0), (4, 300, 3, 2)] if tiny else SHAPES:
        batch, items, width, excluded = shape
        scores, ids = torch.randn(batch, items, device=device()), gpu.apart(batch, width + excluded, items, device())
        target, history = ids[:, :width].contiguous(), ids[:, width:].contiguous() if excluded else None
        problem = Problem(trm.Interactions.from_padded(target, items), scores=scores)
        runs: dict[str, Callable[[], Callable[[], object]]] = {}
        for name in ("eager", "triton"):
            runs[f"ours, {name}"] = partial(_update, scores, target, history, name)
            if history is not None:
                runs[f"graph, {name}"] = partial(gpu.graph_replay, problem, target, history, name)
        runs["loop, 18 .item()"] = partial(peers.hand_written, problem, target, history)
        runs["topk 20"] = partial(partial, torch.topk, scores, 20)
        for name, make in runs.items():
            about: dict[str, Any] = {"name": name, "shape": shape}
            try:
                about |= _cost(make())
            except Exception as error:  # the other contenders still count
                about["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            print(json.dumps(about), flush=True)
        del problem, runs
        _free()


def _update(scores: Tensor, target: Tensor, history: Tensor | None, name: Any) -> Callable[[], object]:
    metrics = trm.RecMetricCollection(NAMES, k=CUTOFFS, kernels=name).to(device())
    return partial(metrics.update, scores, target, exclude=history)


def _cost(run: Callable[[], object], seconds: float = 0.25) -> dict[str, Any]:
    """Return the host's time and the time until the device is done, and number and time of the kernels, in ms."""
    for _ in range(3):
        run()
    host: list[float] = []
    wall: list[float] = []
    begin = time.perf_counter()
    while len(wall) < 5 or (time.perf_counter() - begin < seconds and len(wall) < 200):
        _wait()
        start = time.perf_counter()
        run()
        host.append(time.perf_counter() - start)
        _wait()
        wall.append(time.perf_counter() - start)
    cost = {"host_ms": round(1e3 * statistics.median(host), 4), "wall_ms": round(1e3 * statistics.median(wall), 4)}
    if not torch.cuda.is_available():
        return cost
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        run()
        _wait()
    on_card = [event for event in recorded.events() or [] if event.device_type == DeviceType.CUDA]
    return cost | {"kernels": len(on_card), "busy_ms": sum(event.time_range.elapsed_us() for event in on_card) / 1e3}


def strategies(tiny: bool) -> None:
    """Time the counts alone by each of eager's strategies and by Triton, and top-k with and without blocks."""
    for batch, items in [(4, 300)] if tiny else [(256, 3706), (512, 20_000), (4096, 20_000), (512, 1_000_000)]:
        scores = torch.randn(batch, items, device=device())
        about = {"rows": batch, "items": items}
        for number in (21, 101):
            note("topk", partial(torch.topk, scores, number), number=number, **about)
            if blocks.pays(items, number):
                note("topk by blocks", partial(_by_blocks, scores, number), number=number, **about)
        for width in (1, 2, 3, 5, 10, 30, 100):
            question, more = Question(scores[:, :width].contiguous(), 20), {"width": width, **about}
            if width * batch * items <= 10**10:
                note("compare", partial(eager.compare_all, scores, question), **more)
            if items <= 20_000:
                note("bucket", partial(eager.bucket, scores, question), **more)
            note("select", partial(eager.select, scores, question), **more)
            note("triton", partial(counting.count, scores, question, "triton"), **more)
        del scores
        _free()


def _by_blocks(scores: Tensor, number: int) -> Tensor:
    chosen = blocks.maxima(scores).topk(number, dim=1, sorted=False).indices
    return blocks.take_blocks(scores, chosen).topk(number, dim=1).values


def rates(tiny: bool) -> None:
    """Time copies, reads and products, to compare the rows of the GPU table with the card's best rates."""
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


def _embeddings(rows: int, items: int, width: int, d: int, dtype: torch.dtype) -> tuple[Any, Tensor]:
    from torchrecmetrics.kernels import triton as kernels

    users, others = (torch.randn(count, d, device=device()).to(dtype) for count in (rows, items))
    products = Products(users, others)
    return products, kernels.pair_scores(products, torch.randint(items, (rows, width), device=device()))


def products(tiny: bool) -> None:
    """Time evaluations from float32 embeddings, whose products take no tensor cores at PyTorch's default precision."""
    for users, items, d, width in ((20, 300, 8, 2),) if tiny else ((10_000, 200_000, 64, 1), (20_000, 20_000, 64, 20)):
        left, right = (torch.randn(count, d, device=device()) for count in (users, items))
        target = trm.Interactions.from_padded(gpu.apart(users, width, items, device()), items)
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            for name in ("eager", "triton"):
                for names in (["HR", "NDCG"], ["AUROC"]):
                    about = {"users": users, "items": items, "width": width, "precision": precision}
                    metrics = partial(trm.RecMetricCollection, names, k=10 if len(names) > 1 else None, kernels=name)
                    run = partial(_evaluated, metrics, left, right, target)
                    note(f"{', '.join(names)} by {name}", run, **about)
        torch.set_float32_matmul_precision("highest")


def _evaluated(metrics: Callable[[], Any], left: Tensor, right: Tensor, target: Any) -> object:
    return trm.evaluate(metrics(), left, right, target=target, device=device())


def launch(name: str, tiny: bool) -> None:
    """Run one kernel three times."""
    from torchrecmetrics.kernels import triton as kernels

    rows, items, width = (5, 300, LAUNCHES[name][2]) if tiny else LAUNCHES[name]
    if name.startswith("scores"):
        scores, question = _scores(rows, items, width, torch.float32)
        run = partial(kernels.count, scores, question._replace(depth=None if width == 50 else 20))
    else:
        products, thresholds = _embeddings(rows, items, width, 64, torch.float16 if tiny else torch.bfloat16)
        run = partial(kernels.count_products, products, Question(thresholds))
    for _ in range(3):
        run()
    _wait()


COMMANDS = {
    "rates": rates,
    "updates": updates,
    "strategies": strategies,
    "products": products,
}


def main(arguments: list[str]) -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(
        "benchmarks.card", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["versions", "launch", "rows", *COMMANDS])
    parser.add_argument("names", nargs="*", help="one of LAUNCHES, or rows of the GPU table")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    if chosen.command == "versions":
        versions()
    elif chosen.command == "launch":
        launch(chosen.names[0], chosen.tiny)
    elif chosen.command == "rows":
        rows(chosen.names, chosen.tiny)
    else:
        COMMANDS[chosen.command](chosen.tiny)


if __name__ == "__main__":
    main(sys.argv[1:])
