"""`evaluate` and `recommend` with items on several processes or in pieces, beside one process that has all items."""

import re
import weakref

import numpy as np
import pytest
import torch
from distributed import TORCH
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.evaluation import item_pieces, item_shards

USERS, ITEMS = 30, 23
NAMES = ["HR", "NDCG", "AUROC", "MAP", "MRR", "Novelty", "Coverage", "Seen"]


def problem(dtype=torch.float32):
    """Embeddings and bias of small whole numbers: products are exact, and many are equal."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(-2, 3, (n, 4), generator=generator).to(dtype) for n in (USERS, ITEMS))
    target, exclude = (
        trm.Interactions.from_dense(torch.rand(USERS, ITEMS, generator=generator) < share) for share in (0.1, 0.2)
    )
    return users, items, torch.randint(-1, 2, (ITEMS,), generator=generator).float(), target, exclude


def options(bias, target, exclude, **others):
    catalogue = trm.Catalogue.from_interactions(exclude)
    given = {"target": target, "exclude": exclude, "item_bias": bias, "overlap": "miss", "catalogue": catalogue}
    return given | {"k": [1, 5]} | others


def borders(world_size):
    """Uneven shards, one of them empty where there are three or four."""
    return {1: [0, ITEMS], 2: [0, 4, ITEMS], 3: [0, 9, 9, ITEMS], 4: [0, 9, 9, 10, ITEMS]}[world_size]


def shared(rank, world_size, how, dtype):
    users, items, bias, target, exclude = problem(dtype)
    first, last = borders(world_size)[rank : rank + 2]
    mine, shard = items[first:last], how
    if how == "both":
        users = users[
            [0, 11, 11, 20, USERS][rank] : ([0, 11, 11, 20, USERS][rank + 1] if rank + 1 < world_size else USERS)
        ]
    if how == "pieces":
        mine, shard = [mine[:2], mine[2:]], "items"
    given = options(bias[first:last], target, exclude)
    found = trm.evaluate(NAMES, users, mine, shard=shard, **given)
    top = trm.recommend(users, mine, 6, exclude=exclude, item_bias=bias[first:last], shard=shard, user_ids=[5, 2, 29])
    return (
        {key: value.item() for key, value in found.items()},
        found.num_users,
        found.num_unreachable,
        top.ids,
        top.scores,
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("how", "dtype"), [("items", torch.float32), ("both", torch.float64), ("pieces", torch.bfloat16)]
)
def test_equals_one_process(processes, world_size, how, dtype):
    """Uneven and empty shards, ties across borders, bias and history, metrics of lists: the same bits everywhere."""
    users, items, bias, target, exclude = problem(dtype)
    single = trm.evaluate(NAMES, users, items, **options(bias, target, exclude))
    top = trm.recommend(users, items, 6, exclude=exclude, item_bias=bias, user_ids=[5, 2, 29])
    for found, num_users, num_unreachable, ids, scores in processes.run(shared, world_size, how, dtype):
        assert found == numbers(single)
        assert (num_users, num_unreachable) == (single.num_users, single.num_unreachable)
        assert torch.equal(ids, top.ids)
        assert torch.equal(scores, top.scores)


def of_floats(rank, world_size):
    generator = torch.Generator().manual_seed(1)
    users, items = torch.randn(USERS, 16, generator=generator), torch.randn(400, 16, generator=generator)
    target = trm.Interactions.from_dense(torch.rand(USERS, 400, generator=generator) < 0.02)
    part = slice(100 * rank, 100 * rank + 100) if world_size == 4 else slice(130 * rank, 400 if rank else 130)
    found = trm.evaluate(NAMES[:5], users, items[part], target=target, k=10, shard="items")
    return {key: value.item() for key, value in found.items()}, numbers(
        trm.evaluate(NAMES[:5], users, items, target=target, k=10)
    )


def test_floats(processes):
    """Products of other shapes may round differently, which moves a value only where two scores nearly tie."""
    for found, expected in processes.run(of_floats, 2):
        assert found == pytest.approx(expected, abs=2e-4)


def with_dtensors(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh

    if TORCH >= (2, 5):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    else:
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (world_size,))
    users, items, _, target, exclude = problem()
    given = options(None, target, exclude)
    by_row = distribute_tensor(items, mesh, [Shard(0)])
    found = [
        trm.evaluate(NAMES, users, by_row, shard="items", **given),
        trm.evaluate(NAMES, distribute_tensor(users, mesh, [Shard(0)]), by_row, shard="both", **given),
        trm.evaluate(NAMES, distribute_tensor(users, mesh, [Replicate()]), by_row, shard="items", **given),
    ]
    with pytest.raises(ValueError, match=r'items as a DTensor must be sharded by row .* shard="items"'):
        trm.evaluate(NAMES, users, distribute_tensor(items, mesh, [Shard(1)]), shard="items", **given)
    with pytest.raises(ValueError, match=r'items as a DTensor must be sharded by row .* shard="items"'):
        trm.evaluate(NAMES, users, by_row, **given)
    return [numbers(one) for one in found], numbers(trm.evaluate(NAMES, users, items, **given))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dtensor(processes):
    """A row-sharded DTensor is taken as it is, and says which processes share it."""
    for found, expected in processes.run(with_dtensors, 2):
        assert found == [expected] * 3


def out_of_memory(rank, world_size):
    """Process 1 has memory for 4 users at most; it says how many each process scored."""
    users, items, bias, target, exclude = problem()
    sizes, real = [], item_shards.SharedItems._scores

    def scores(self, vectors):
        sizes.append(len(vectors))
        if rank == 1 and len(vectors) > 4:
            raise torch.cuda.OutOfMemoryError("none left")
        return real(self, vectors)

    item_shards.SharedItems._scores = scores
    mine = slice(*borders(2)[rank : rank + 2])
    found = trm.evaluate(
        NAMES, users, items[mine], shard="items", **options(bias[mine], target, exclude, batch_size=16)
    )
    item_shards.SharedItems._scores = real
    return numbers(found), sizes


def test_memory_is_agreed(processes):
    """Where one process runs out of memory, all halve the batch; no row is counted twice."""
    users, items, bias, target, exclude = problem()
    expected = numbers(trm.evaluate(NAMES, users, items, **options(bias, target, exclude)))
    (found, sizes), (others, other_sizes) = processes.run(out_of_memory, 2)
    assert found == others == pytest.approx(expected, abs=1e-12)
    assert sizes == other_sizes
    assert sizes[:3] == [16, 8, 4]


FAULTS = {
    "k": "differ in metrics",
    "metrics": "differ in metrics",
    "options": "differ in options",
    "target": "differ in target",
    "history": "differ in history",
    "user_ids": "differ in user_ids",
    "no_target": "target must be Interactions",
    "name": "unknown metric",
    "width": "embedding widths differ|differ in width of embeddings",
    "dtype": "differ in dtype of scores",
    "bias": "item_bias must be float",
    "missing": "target is 30 x 23; there are 30 users and, on all processes together, ",
    "nan": "with a score that is NaN",
    "k_of_lists": "differ in k",
    "users": "users beside items in pieces or shards must be embeddings|is callable",
    "pieces": "of one width and dtype",
}


def fault(rank, world_size, kind, on):
    users, items, bias, target, exclude = problem()
    mine = slice(*borders(2)[rank : rank + 2])
    names, items, given = ["HR", "NDCG"], items[mine], options(bias[mine], target, exclude)
    if rank == on:
        if kind == "k_of_lists":
            names = None
        changes = {
            "k": {"k": [1, 6]},
            "options": {"ties": "pessimistic"},
            "target": {"target": exclude},
            "history": {"exclude": target},
            "user_ids": {"user_ids": [1, 2]},
            "no_target": {"target": 3},
            "bias": {"item_bias": bias},
        }
        given |= changes.get(kind, {})
        names = {"metrics": ["HR", "MRR"], "name": ["HR", "NDCH"]}.get(kind, names)
        users = {"width": users[:, :3], "users": len}.get(kind, users)
        items = {"width": items[:, :3], "dtype": items.double(), "missing": items[:-1], "pieces": [items, 3]}.get(
            kind, items
        )
        if kind == "bias":
            given["item_bias"] = bias[:1].expand(2 * ITEMS)
        elif kind == "missing":
            given["item_bias"] = None
        elif kind == "nan":
            items = items.clone()
            items[0, 0] = torch.nan
    try:
        if kind == "k_of_lists":
            trm.recommend(users, items, 4 + (rank == on), exclude=exclude, shard="items")
        else:
            trm.evaluate(names, users, items, shard="items", **given)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("on", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", FAULTS)
def test_faults(processes, kind, on):
    """An error of one process, or a difference between them, is an error of all, before anything is counted."""
    for message in processes.run(fault, 2, kind, on):
        assert message is not None
        assert re.search(FAULTS[kind], message)


def dies(rank, world_size, at):
    """Process 1 is gone in the middle; return the error of the other one."""
    users, items, bias, target, exclude = problem()
    mine, real, calls = slice(*borders(2)[rank : rank + 2]), torch.distributed.all_reduce, []

    def all_reduce(*args, **kwargs):
        calls.append(None)
        if rank == 1 and len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", all_reduce)
        try:
            trm.evaluate(NAMES, users, items[mine], shard="items", **options(bias[mine], target, exclude))
        except (RuntimeError, KeyboardInterrupt) as error:
            torch.distributed.destroy_process_group()
            return str(error)


@pytest.mark.parametrize("at", [2, 6, 8])
def test_a_process_that_dies(processes, at):
    """The other one raises as soon as the connection is lost, at the latest after the timeout of its group."""
    message, _ = processes.run(dies, 2, at, timeout=60)
    assert "onnection" in message


def count_bytes(rank, world_size):
    """Return bytes that all-reduces carry for 2,000 users of one target each, and those of lists beside."""
    generator = torch.Generator().manual_seed(rank)
    users, items = torch.rand(2000, 4), torch.rand(50, 4, generator=generator)
    target = trm.Interactions.from_columns(torch.arange(2000), torch.arange(2000) % 100, num_users=2000, num_items=100)
    reduced, listed = [], []
    real, gather = torch.distributed.all_reduce, torch.distributed.all_gather
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.distributed, "all_reduce", lambda t, **others: (reduced.append(t.nbytes), real(t, **others))
        )
        patch.setattr(
            torch.distributed,
            "all_gather",
            lambda told, t, **others: (listed.append(t.nbytes), gather(told, t, **others)),
        )
        trm.evaluate(["HR", "AUROC"], users, items, target=target, k=10, shard="items")
        counts, reduced[:] = sum(reduced), []
        trm.recommend(users, items, 10, shard="items")
    return counts, sum(listed)


def test_traffic(processes):
    """At most 20 bytes per user, target and process for counts, 12 per listed place."""
    for counts, listed in processes.run(count_bytes, 2):
        assert counts <= 20 * 2000 + 64  # what is agreed on, per batch
        assert listed == 12 * 10 * 2000


# -------------------------------------------------------------------------------------------- in pieces, one process


@pytest.mark.parametrize("memory_budget", [None, 5000])
def test_in_pieces(tmp_path, memory_budget):
    """A file, an array and tensors give what the whole tensor gives; 5,000 bytes hold few items and users at once."""
    users, items, bias, target, exclude = problem()
    given = options(bias, target, exclude, items_allowed=torch.arange(ITEMS) % 5 > 0, similarity="cosine")
    expected = trm.evaluate(NAMES, users, items, **given)
    ids, scores = trm.recommend(users, items, 6, exclude=exclude, item_bias=bias)
    np.save(tmp_path / "items.npy", items.numpy())
    for pieces in (np.load(tmp_path / "items.npy", mmap_mode="r"), [items[:9], items[9:9], items[9:]], items.numpy()):
        found = trm.evaluate(NAMES, users, pieces, **given | {"memory_budget": memory_budget})
        assert numbers(found) == pytest.approx(numbers(expected), abs=1e-12)
        assert (found.num_users, found.num_tied) == (expected.num_users, expected.num_tied)
        top = trm.recommend(users, pieces, 6, exclude=exclude, item_bias=bias, memory_budget=memory_budget)
        assert torch.equal(top.ids, ids)
        assert torch.equal(top.scores, scores)


def test_two_pieces_in_memory():
    """While one piece is used the next one is read; the one before is gone."""
    users, items, bias, target, exclude = problem()
    alive, most, real = [], [], item_pieces.ItemPieces._read

    def noted(self, part):
        most.append(1 + sum(piece() is not None for piece in alive))
        piece = real(self, part)
        alive.append(weakref.ref(piece))
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_pieces.ItemPieces, "_read", noted)
        trm.evaluate(NAMES, users, items.numpy(), memory_budget=320, **options(bias, target, exclude))
    assert len(most) >= 10
    assert max(most) <= 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"items": []}, ValueError, "items are an empty list"),
        ({"items": [torch.zeros(2, 4), torch.zeros(2, 3)]}, ValueError, "of one width and dtype"),
        ({"items": [torch.zeros(2, 4), torch.zeros(21, 4).double()]}, ValueError, "of one width and dtype"),
        ({"items": [[1.0, 2.0]]}, ValueError, "of one width and dtype"),
        ({"items": np.zeros((23, 3), "float32")}, ValueError, "embedding widths differ: users 4, items 3"),
        ({"items": np.zeros((9, 4), "float32")}, ValueError, "target is 30 x 23; there are 30 users"),
        ({"items": np.zeros((23, 4), "int64")}, ValueError, "must be float"),
        ({"keep_rows": True}, ValueError, "evaluate does not take keep_rows together with items in pieces"),
        ({"shard": "users"}, ValueError, 'shard beside items in pieces must be None, "items" or "both"'),
        ({"shard": "items"}, ValueError, 'shard="items" is for several processes'),
        ({"shard": "item"}, ValueError, 'must be None, "items" or "both", got \'item\''),
        ({"users": len}, TypeError, "users beside items in pieces or shards must be embeddings"),
    ],
)
def test_refused(change, error, message):
    """Each names what was given and what is accepted."""
    users, items, _, target, _ = problem()
    given = {"users": users, "items": [items], "target": target} | change
    with pytest.raises(error, match=message):
        trm.evaluate("HR@5", given.pop("users"), given.pop("items"), **given)
