"""`evaluate` and `recommend` with items on several processes, or in pieces, give the results of one process."""

import re
import weakref

import numpy as np
import pytest
import torch
from distributed import TORCH
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics import kernels
from torchrecmetrics.evaluation import item_pieces, item_shards

USERS, ITEMS = 30, 23
NAMES = ["HR", "NDCG", "AUROC", "MAP", "MRR", "Novelty", "Coverage", "Seen"]


def problem(dtype=torch.float32):
    """Return interactions, and embeddings and bias of small whole numbers: products are exact, and many are equal."""
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
    """Return the borders of uneven shards, one of which is empty for three and for four processes."""
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
    """Uneven and empty shards give the bits of one process, with ties across borders, bias and history."""
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
    for refused, message in (
        ((users, distribute_tensor(items, mesh, [Shard(1)]), "items"), r"items as a DTensor must be sharded by row"),
        ((users, by_row, None), r'items as a DTensor must be given with shard="items"'),
        (
            (distribute_tensor(users, mesh, [Shard(0)]), by_row, "items"),
            r'users .* replicated, or given with shard="both"',
        ),
    ):
        with pytest.raises(ValueError, match=message):
            trm.evaluate(NAMES, *refused[:2], shard=refused[2], **given)
    return [numbers(one) for one in found], numbers(trm.evaluate(NAMES, users, items, **given))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dtensor(processes):
    """A row-sharded DTensor is taken as it is, and its mesh says which processes share it."""
    for found, expected in processes.run(with_dtensors, 2):
        assert found == [expected] * 3


def on_some_processes(rank, world_size):
    """Let processes 0 and 1 share items as a DTensor of their mesh; process 2 takes no part."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    group = torch.distributed.new_group([0, 1])
    if rank == 2:
        return None
    users, items, _, target, exclude = problem()
    mine = items[slice(*borders(2)[rank : rank + 2])]
    of_two = DTensor.from_local(mine, DeviceMesh.from_group(group, "cpu"), [Shard(0)], run_check=False)
    given = options(None, target, exclude)
    found = trm.evaluate(NAMES, users, of_two, shard="items", **given)
    assert numbers(found) == numbers(trm.evaluate(NAMES, users, mine, shard="items", process_group=group, **given))
    edges = given | {"target": target.to_edge_index(), "exclude": exclude.to_edge_index()}
    assert numbers(found) == numbers(trm.evaluate(NAMES, users, of_two, shard="items", **edges))
    return numbers(found), numbers(trm.evaluate(NAMES, users, items, **given))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_some_processes(processes):
    """The mesh of a DTensor is the process group, and an `edge_index` is read against the items of the whole group."""
    if TORCH < (2, 5):
        pytest.skip("DeviceMesh.from_group of this torch warns")
    *of_two, other = processes.run(on_some_processes, 3)
    assert other is None
    for found, expected in of_two:
        assert found == expected


def out_of_memory(rank, world_size):
    """Let process 1 have memory for 4 users at most; return the values and how many users were scored at once."""
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
    """Where one process runs out of memory, all processes halve the batch, and no row is counted twice."""
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
    "dtype": "differ in dtype of items",
    "bias": "item_bias must be float",
    "one_bias": "differ in whether item_bias is given",
    "one_allowed": "differ in whether items_allowed is given",
    "missing": "target is 30 x 23; there are 30 users and, on all processes together, ",
    "nan": "with a score that is NaN",
    "k_of_lists": "differ in k",
    "users": "users beside items in pieces or shards must be embeddings|is callable",
    "pieces": "of one width and dtype",
    "cosine": "differ in similarity",
    "values": "differ in values of target",
    "other_users": "differ in users, which must be the same",
    "half_users": "differ in dtype of users",
    "batch_size": "batch_size must be",
    "progress": "progress must be",
    "history_of_others": "exclude has 31 users, expected 30",
    "typo": "ndgc",
    "keep_rows": "evaluate does not take keep_rows",
}


def graded(target, gain):
    return trm.Interactions.from_columns(
        target.users, target.items, values=torch.full((len(target),), gain), num_users=USERS, num_items=ITEMS
    )


def fault(rank, world_size, kind, on):
    users, items, bias, target, exclude = problem()
    mine = slice(*borders(2)[rank : rank + 2])
    names, items, given = ["HR", "NDCG"], items[mine], options(bias[mine], target, exclude)
    if kind == "values":
        given["target"] = graded(target, 1.0)
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
            "one_bias": {"item_bias": None},
            "one_allowed": {"items_allowed": torch.ones(len(items)).bool()},
            "cosine": {"similarity": "cosine"},
            "values": {"target": graded(target, 2.0)},
            "batch_size": {"batch_size": "x"},
            "progress": {"progress": 3},
            "history_of_others": {"exclude": trm.Interactions.from_dense(torch.ones(31, ITEMS, dtype=torch.bool))},
            "typo": {"ndgc": 1},
            "keep_rows": {"keep_rows": True},
        }
        given |= changes.get(kind, {})
        names = {"metrics": ["HR", "MRR"], "name": ["HR", "NDCH"]}.get(kind, names)
        users = {"width": users[:, :3], "users": len, "other_users": -users, "half_users": users.half()}.get(
            kind, users
        )
        items = {"width": items[:, :3], "dtype": items.double(), "missing": items[:-1], "pieces": [items, 3]}.get(
            kind, items
        )
        if kind == "bias":
            given["item_bias"] = bias[:1].expand(2 * ITEMS)
        elif kind == "missing":
            given["item_bias"] = given["item_bias"][:-1]
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
    """An error of one process, or a difference between processes, raises on all of them before anything is counted."""
    for message in processes.run(fault, 2, kind, on):
        assert message is not None
        assert re.search(FAULTS[kind], message)


def dies(rank, world_size, at):
    """End process 1 in the middle of an evaluation, and return the error of the other process."""
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


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_process_that_dies(processes, at):
    """If a process dies, the other raises once the connection is lost, at the latest after the timeout of its group."""
    message, _ = processes.run(dies, 2, at, timeout=60)
    assert "onnection" in message


def count_bytes(rank, world_size):
    """Return the bytes that all-reduces carry for 2,000 users with one target each, and all-gathers for lists."""
    users, items = torch.eye(4).repeat(500, 1), torch.rand(50, 4, generator=torch.Generator().manual_seed(rank))
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
    """Counts take at most 20 bytes per user, target and process, and lists 12 bytes per listed item."""
    for counts, listed in processes.run(count_bytes, 2):
        assert counts <= 20 * 2000 + 64  # 64 bytes: processes agree on the size of each batch
        assert listed == 12 * 10 * 2000


# -------------------------------------------------------------------------------------------- in pieces, one process


@pytest.mark.parametrize("memory_budget", [None, 5000])
def test_in_pieces(tmp_path, memory_budget):
    """A file, an array and tensors give the results of one tensor; 5,000 bytes hold few items and users at once."""
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


def test_users_without_ground_truth():
    """Users without ground truth, chosen by `user_ids` too, count as `empty_target_action` says, and are in no list."""
    users, items, _, _, exclude = problem()
    few = trm.Interactions.from_columns([1, 4, 4], [0, 3, 9], num_users=USERS, num_items=ITEMS)
    for user_ids in (None, [7, 4, 1, 8]):
        for action in ("skip", "neg", "pos"):
            given = options(None, few, exclude, empty_target_action=action, user_ids=user_ids)
            whole, found = (trm.evaluate(NAMES, users, part, **given) for part in (items, [items[:9], items[9:]]))
            assert numbers(found) == numbers(whole)
            assert (found.num_users, found.num_skipped) == (whole.num_users, whole.num_skipped)
    with pytest.raises(ValueError, match="without a relevant item"):
        trm.evaluate(NAMES, users, [items], **options(None, few, exclude, empty_target_action="error"))
    nothing = trm.Interactions.from_columns([], [], num_users=USERS, num_items=ITEMS)
    with pytest.raises(ValueError, match="target holds no interactions"):
        trm.evaluate(NAMES, users, [items], **options(None, nothing, exclude))


def test_edges_and_repeated_users():
    """Ground truth may be an edge_index, a user asked for twice has two lists, and ids from 1 on cause a warning."""
    users, items, _, target, _ = problem()
    found = trm.evaluate("HR@5", users, [items[:9], items[9:]], target=target.to_edge_index())
    assert numbers(found) == numbers(trm.evaluate("HR@5", users, items, target=target))
    ids = trm.recommend(users, [items[:9], items[9:]], 3, user_ids=[4, 2, 4]).ids
    assert torch.equal(ids, trm.recommend(users, items, 3, user_ids=[4, 2, 4]).ids)
    with pytest.raises(ValueError, match="num_items=99 was given beside 23 embeddings"):
        trm.recommend(users, [items], 3, num_items=99)
    with pytest.warns(UserWarning, match="no interaction has item 0"):
        trm.evaluate(
            "HR@1", users, [items[:9], items[9:]], target=trm.Interactions.from_columns([0], [22], num_users=USERS)
        )


def test_recommend_refuses_nan():
    """`recommend` from items in pieces refuses NaN scores and counts their rows."""
    users, items, *_ = problem()
    with pytest.raises(ValueError, match=r"30 of 30 rows with a score that is NaN or \+inf"):
        trm.recommend(users, [items[:9], items[9:].index_fill(0, torch.tensor([3]), torch.nan)], 3)


def test_two_pieces_in_memory():
    """At most two pieces are in memory: while one is used the next one is read, and the one before is freed."""
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


def test_the_kernel_that_counts_is_reported(monkeypatch):
    """`kernels` of an evaluation of items in pieces, and of its rankings, is the kernel that counted."""
    used, count = [], kernels.count
    monkeypatch.setattr(kernels, "choose", lambda asked, device, num_scores=0: "triton")
    monkeypatch.setattr(
        kernels, "count", lambda scores, question, kernel: used.append(kernel) or count(scores, question)
    )
    made = item_shards.PiecewiseRows.ranking
    reported = []

    def ranking(*arguments, **options):
        """Note the kernel of a ranking, and return the ranking."""
        reported.append(made(*arguments, **options))
        return reported[-1]

    monkeypatch.setattr(item_shards.PiecewiseRows, "ranking", ranking)
    users, items, _, target, _ = problem()
    found = trm.evaluate("HR", users, [items[:9], items[9:]], target=target, k=5, kernels="triton")
    assert {*used} == {found.kernels} == {part.kernels for part in reported} == {"triton"}


def test_arrays_of_float64(tmp_path):
    """Items may be an array of float64, also of a file, beside users of float32: scores are then float64."""
    users, items, bias, target, exclude = problem()
    expected = numbers(trm.evaluate(NAMES, users, items.double(), **options(bias, target, exclude)))
    file = np.memmap(tmp_path / "items", "float64", "w+", shape=(ITEMS, 4))
    file[:] = items.numpy()
    for given in (items.double().numpy(), file, [file[:9], file[9:]]):
        assert numbers(trm.evaluate(NAMES, users, given, **options(bias, target, exclude))) == expected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"items": [np.zeros((2, 4)), torch.zeros(21, 4)]},
            ValueError,
            r"got ndarray of float64, shape \[2, 4\], a torch.float32 tensor of shape \[21, 4\]: tensor.float\(\), or",
        ),
        ({"items": []}, ValueError, "items are an empty list"),
        ({"items": [torch.zeros(2, 4), torch.zeros(2, 3)]}, ValueError, "of one width and dtype"),
        ({"items": [torch.zeros(2, 4), torch.zeros(21, 4).double()]}, ValueError, "of one width and dtype"),
        ({"items": [[1.0, 2.0]]}, ValueError, "of one width and dtype"),
        ({"items": np.zeros((23, 3), "float32")}, ValueError, "embedding widths differ: users 4, items 3"),
        ({"items": np.zeros((9, 4), "float32")}, ValueError, "target is 30 x 23; there are 30 users"),
        ({"items": np.zeros((23, 4), "int64")}, ValueError, "must be float"),
        ({"keep_rows": True}, ValueError, "evaluate does not take keep_rows together with items in pieces"),
        ({"shard": "users"}, ValueError, 'evaluate does not take shard="users" together with items in pieces'),
        ({"shard": "items"}, ValueError, 'shard="items" is for several processes'),
        ({"shard": "item"}, ValueError, "shard must be one of None, 'users', 'items', 'both', got 'item'"),
        ({"user_ids": [1, 1]}, ValueError, "user_ids hold a user twice"),
        ({"items": {"a": 1}}, TypeError, "items"),
        ({"users": len}, TypeError, "users beside items in pieces or shards must be embeddings"),
    ],
)
def test_refused(change, error, message):
    """The error message says which value was given and which ones are accepted."""
    users, items, _, target, _ = problem()
    given = {"users": users, "items": [items], "target": target} | change
    with pytest.raises(error, match=message):
        trm.evaluate("HR@5", given.pop("users"), given.pop("items"), **given)
