"""Measure a cost model of items on several processes, and check it: `python -m benchmarks.sharded`.

The programme prints nanoseconds per score (product and counts of embeddings of width 64), the time per collective and
per byte with gloo on loopback, the time of `evaluate(shard="items")` beside the predicted one, and a table of
predictions for catalogues of 10^6 to 10^9 items on 1 to 64 devices. Each process computes on one thread.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from torch import multiprocessing

import torchrecmetrics as trm
from benchmarks.timing import seconds

WIDTH, USERS, BATCH, ITEMS = 64, 512, 128, 240_000
COLLECTIVES = 6
"""Per batch: own scores, counts, and four that tell errors."""
BYTES = 20
"""Sent per user with one target."""


def evaluate(num_items: int, rank: int, world_size: int) -> None:
    """Rank the items of all processes for every user, with one target per user."""
    users = torch.randn(USERS, WIDTH, generator=torch.Generator().manual_seed(99))
    items = torch.randn(num_items // world_size, WIDTH, generator=torch.Generator().manual_seed(rank))
    everyone = torch.arange(USERS)
    target = trm.Interactions.from_columns(everyone, everyone * 7 % num_items, num_users=USERS, num_items=num_items)
    metrics = ["HR", "NDCG"]
    torch.distributed.barrier()
    trm.evaluate(metrics, users, items, target=target, k=10, shard="items", batch_size=BATCH)


def process(rank: int, world_size: int, store: str, results: Any) -> None:
    """Measure collectives and an evaluation on one of several processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    small, large = torch.zeros(1), torch.zeros(2**20, dtype=torch.int32)

    def reduced(numbers: torch.Tensor, times: int) -> float:
        torch.distributed.barrier()
        return seconds(lambda: [torch.distributed.all_reduce(numbers) for _ in range(times)]) / times

    latency, whole = reduced(small, 50), reduced(large, 3)
    evaluate(1000 * world_size, rank, world_size)  # warm-up
    spent = seconds(lambda: evaluate(ITEMS, rank, world_size))
    if rank == 0:
        results.put((latency, (whole - latency) / large.nbytes, spent))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def several(world_size: int) -> tuple[float, float, float]:
    """Return seconds per collective, per byte and per evaluation on `world_size` processes."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = world_size, f"{folder}/store", results
        started = [context.Process(target=process, args=(rank, *arguments)) for rank in range(world_size)]
        for worker in started:
            worker.start()
        found: tuple[float, float, float] = results.get()
        for worker in started:
            worker.join()
    return found


def predicted(users: int, num_items: float, per_score: float, latency: float, per_byte: float, batch: int) -> float:
    """Return the predicted seconds for `users`: scores of one device's items, collectives, and bytes sent."""
    return users * num_items * per_score + -(-users // batch) * COLLECTIVES * latency + BYTES * users * per_byte


def main() -> None:
    """Print the measured constants, the check of the model, and the table of predictions."""
    spent = several(1)[2]
    per_score = spent / USERS / ITEMS
    print(f"1 process, {USERS} users x {ITEMS:,} items: {spent:.2f} s, {per_score * 1e9:.2f} ns per score")
    latency, per_byte = 0.0, 0.0
    for world_size in (2, 3, 4):
        each, byte, spent = several(world_size)
        latency, per_byte = max(latency, each / (world_size - 1)), max(per_byte, byte)
        cores = min(world_size, os.cpu_count() or 1)
        model = predicted(USERS, ITEMS / cores, per_score, each, byte, BATCH)
        print(
            f"{world_size} processes: {each * 1e6:.0f} us per collective, {byte * 1e9:.2f} ns per byte, "
            f"{cores} cores: {spent:.2f} s, the model says {model:.2f} s"
        )
    print("\n| items | 1 device | 8 devices, each | 64 devices, each |\n|---|---|---|---|")
    for num_items in (10**6, 10**7, 10**8, 10**9):
        cells = []
        for devices in (1, 8, 64):
            spent = predicted(1000, num_items / devices, per_score, latency * (devices - 1), per_byte, 1000)
            cells.append(f"{spent:,.1f} s, {4 * WIDTH * num_items / devices / 1e6:,.0f} MB")
        print(f"| {num_items:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
