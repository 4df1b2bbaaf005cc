"""`evaluate(shard="items")` beside one process that has all items."""

import pytest
import torch
from values import numbers

import torchrecmetrics as trm

USERS, ITEMS, NAMES = 30, 23, ["HR", "NDCG", "AUROC", "MAP", "MRR"]


def problem():
    """Embeddings and bias of small whole numbers: products are exact, and many are equal."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(-2, 3, (n, 4), generator=generator).float() for n in (USERS, ITEMS))
    target, exclude = (
        trm.Interactions.from_dense(torch.rand(USERS, ITEMS, generator=generator) < share) for share in (0.1, 0.2)
    )
    return users, items, torch.randint(-1, 2, (ITEMS,), generator=generator).float(), target, exclude


def options(bias, target, exclude):
    return {"target": target, "exclude": exclude, "item_bias": bias, "overlap": "miss", "k": [1, 5]}


def shared(rank, world_size, batch_size):
    users, items, bias, target, exclude = problem()
    border = [0, 4, ITEMS] if world_size == 2 else [0, 9, 9, ITEMS]
    mine = slice(*border[rank : rank + 2])
    given = options(bias[mine], target, exclude)
    found = trm.evaluate(NAMES, users, items[mine], shard="items", batch_size=batch_size, **given)
    with pytest.raises(ValueError, match="target is 30 x 23; there are 30 users and, on all processes together, "):
        trm.evaluate(NAMES, users, items[:3], target=target, k=5, shard="items")
    return {key: value.item() for key, value in found.items()}, found.num_users, found.num_unreachable


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_equals_one_process(processes, world_size, batch_size):
    """Uneven and empty shards, ties across borders, bias and history."""
    users, items, bias, target, exclude = problem()
    single = trm.evaluate(NAMES, users, items, **options(bias, target, exclude))
    for found, num_users, num_unreachable in processes.run(shared, world_size, batch_size):
        assert found == pytest.approx(numbers(single), abs=1e-12)
        assert (num_users, num_unreachable) == (single.num_users, single.num_unreachable)


def test_one_process_alone():
    """There is nobody to share items with."""
    users, items, bias, target, exclude = problem()
    with pytest.raises(ValueError, match='shard="items" is for several processes'):
        trm.evaluate(NAMES, users, items, shard="items", **options(bias, target, exclude))
    with pytest.raises(ValueError, match='keep_rows was given beside shard="items"'):
        trm.evaluate("HR@5", users, items, shard="items", target=target, keep_rows=True)
