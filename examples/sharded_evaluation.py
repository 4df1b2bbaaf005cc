"""PureSVD with the items split over processes: each process learns, scores and keeps only its own items.

    export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
    torchrun --standalone --nproc-per-node 2 examples/sharded_evaluation.py    # generated data: a few seconds

`--data` is a folder of train.txt and test.txt with lines "user item item ...", such as LightGCN-PyTorch's gowalla. The
model is the truncated singular value decomposition of the train matrix (Cremonesi, Koren, Turrin, RecSys 2010): users
are its left vectors, and an item is the sum of the users who took it, so each process learns its items by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import Tensor

import torchrecmetrics as trm


def generate(num_users: int = 2000, num_items: int = 5000, length: int = 30) -> list[trm.Interactions]:
    """Generate users who prefer items of their community, and popular items; hold out a fifth for the test."""
    generator = torch.Generator().manual_seed(0)  # the same data on every process
    popularity = torch.arange(1, num_items + 1).pow(-0.6)[torch.randperm(num_items, generator=generator)]
    community = [torch.randint(25, (size,), generator=generator) for size in (num_users, num_items)]
    weights = popularity * torch.where(community[0][:, None] == community[1], 40.0, 1.0)
    taken = weights.multinomial(length, generator=generator)
    edges = torch.stack([torch.arange(num_users).repeat_interleave(length), taken.flatten()])
    held_out = torch.rand(edges.shape[1], generator=generator) < 0.2
    return [trm.Interactions.from_edge_index(edges[:, part], num_users, num_items) for part in (~held_out, held_out)]


def puresvd(train: trm.Interactions, mine: slice, width: int, steps: int = 6) -> tuple[Tensor, Tensor]:
    """Return the embeddings of all users, and of the items of this process, by subspace iteration."""
    users, items = train.to_edge_index()
    own = (items >= mine.start) & (items < mine.stop)
    users, items = users[own], items[own] - mine.start

    def of_items(vectors: Tensor) -> Tensor:
        return vectors.new_zeros(mine.stop - mine.start, width).index_add_(0, items, vectors[users])

    vectors = torch.randn(train.num_users, width, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        found = torch.zeros_like(vectors).index_add_(0, users, of_items(vectors)[items])
        dist.all_reduce(found)
        vectors = torch.linalg.qr(found).Q
    return vectors, of_items(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="a folder of train.txt and test.txt")
    parser.add_argument("--width", type=int, default=25)
    given = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"several processes start it: torchrun --standalone --nproc-per-node 2 {sys.argv[0]}")

    dist.init_process_group("gloo")  # on GPUs "nccl", and tensors on the device of this process
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if given.data is None:
        train, test = generate()
    else:
        train, test = trm.Interactions.from_text(f"{given.data}/train.txt", f"{given.data}/test.txt")
    num_items = train.num_items
    mine = slice(rank * num_items // world_size, (rank + 1) * num_items // world_size)
    users, items = puresvd(train, mine, given.width)
    names, ks = ["HR", "NDCG", "AUROC"], [10, 100]

    def show(title: str, values: trm.Evaluation | dict[str, Tensor]) -> None:
        if rank == 0:
            print(f"{title:20}" + "  ".join(f"{label} {value:.4f}" for label, value in values.items()))

    if rank == 0:
        print(f"{train.num_users:,} users on every process, {mine.stop:,} of {num_items:,} items on the first")
    found = trm.evaluate(names, users, items, target=test, exclude=train, k=ks, shard="items")
    show("evaluate", found)

    # The same in a loop of your own: scores [B, items of this process], the same users on every process.
    metrics = trm.RecMetricCollection(names, k=ks)
    for batch in test.degree.nonzero()[:, 0].split(500):
        chosen, history = test.select(batch), train.select(batch)
        scores, shard = users[batch] @ items.T, {"exclude": history.items, "offset": mine.start, "num_items": num_items}
        metrics.update(trm.ItemShard(scores, chosen.items, **shard))
    show("update(ItemShard)", metrics.compute())

    best = trm.recommend(users, items, k=3, exclude=train, shard="items")
    if rank == 0:
        print(f"for the first user   items {best.ids[0].tolist()}")
    # many items are equally popular; the mean over all orders of these is meant
    warnings.filterwarnings("ignore", ".*shares its score with other candidates")
    popularity = train.popularity[mine].float()
    common = torch.ones(train.num_users, 1)
    show(
        "popularity", trm.evaluate(names, common, popularity[:, None], target=test, exclude=train, k=ks, shard="items")
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
