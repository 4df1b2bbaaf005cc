"""`evaluate` and `recommend` with items on several processes give the results of one process."""

import math
import re

import pytest
import torch
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.evaluation import scoring
from torchrecmetrics.evaluation.embeddings import TargetDevice
from torchrecmetrics.evaluation.scoring import ShardScorer

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


def options(target, exclude, **others):
    catalogue = trm.Catalogue.from_interactions(exclude)
    given = {"target": target, "exclude": exclude, "overlap": "miss", "catalogue": catalogue}
    return given | {"k": [1, 5]} | others


def borders(world_size):
    """Return the borders of uneven shards, one of which is empty for three and for four processes."""
    return {1: [0, ITEMS], 2: [0, 4, ITEMS], 3: [0, 9, 9, ITEMS], 4: [0, 9, 9, 10, ITEMS]}[world_size]


def shared(rank, world_size, how, dtype):
    users, items, bias, target, exclude = problem(dtype)
    first, last = borders(world_size)[rank : rank + 2]
    if how == "both":
        borders_of_users = [0, 11, 11, 20, USERS]
        users = users[borders_of_users[rank] : borders_of_users[rank + 1] if rank + 1 < world_size else USERS]
    mine = trm.Embeddings(users, items[first:last], bias[first:last], allowed=ALLOWED[first:last])
    groups = trm.group_users(exclude, [0, 3, 6])
    found = trm.evaluate(NAMES, mine, shard=how, groups=groups, keep_rows=True, **options(target, exclude))
    top = trm.recommend(mine, k=6, exclude=exclude, shard=how, user_ids=[5, 2, 5, 29])
    counts = found.num_users, found.num_skipped, found.num_unreachable
    return numbers(found), counts, found.rows.to_dict(), top.ids, top.scores


ALLOWED = torch.arange(ITEMS) % 7 != 3


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("how", "dtype"), [("items", torch.float32), ("both", torch.float64), ("items", torch.bfloat16)]
)
def test_equals_one_process(processes, world_size, how, dtype):
    """Uneven and empty shards give the values, groups and rows of one process, with ties across borders."""
    users, items, bias, target, exclude = problem(dtype)
    whole = trm.Embeddings(users, items, bias, allowed=ALLOWED)
    groups = trm.group_users(exclude, [0, 3, 6])
    single = trm.evaluate(NAMES, whole, groups=groups, keep_rows=True, **options(target, exclude))
    top = trm.recommend(whole, k=6, exclude=exclude, user_ids=[5, 2, 5, 29])
    for found, counts, rows, ids, scores in processes.run(shared, world_size, how, dtype):
        assert found == pytest.approx(numbers(single), abs=1e-12)
        assert counts == (single.num_users, single.num_skipped, single.num_unreachable)
        assert rows_by_id(rows) == rows_by_id(single.rows.to_dict())
        assert torch.equal(ids, top.ids)
        assert torch.equal(scores, top.scores)


def rows_by_id(columns):
    """Return the kept rows as text, sorted: processes keep them in another order."""
    return sorted(str(row) for row in zip(*columns.values(), strict=True))


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


def on_some_processes(rank, world_size):
    """Let processes 0 and 1 share items; process 2 takes no part."""
    group = torch.distributed.new_group([0, 1])
    if rank == 2:
        return None
    users, items, _, target, exclude = problem()
    mine, given = items[slice(*borders(2)[rank : rank + 2])], options(target, exclude)
    found = trm.evaluate(NAMES, users, mine, shard="items", process_group=group, **given)
    edges = given | {"target": target.to_edge_index(), "exclude": exclude.to_edge_index()}
    assert numbers(found) == numbers(trm.evaluate(NAMES, users, mine, shard="items", process_group=group, **edges))
    by_users = trm.evaluate(NAMES, users, items, shard="users", process_group=group, **given)
    return numbers(found), numbers(by_users), numbers(trm.evaluate(NAMES, users, items, **given))


def test_some_processes(processes):
    """Some of the processes may share the work; an `edge_index` is read against the items of all of them."""
    *of_two, other = processes.run(on_some_processes, 3)
    assert other is None
    for found, by_users, expected in of_two:
        assert found == pytest.approx(expected, abs=1e-12)
        assert by_users == pytest.approx(expected, abs=1e-12)


def out_of_memory(rank, world_size):
    """Let process 1 have memory for 4 users at most; return the values and how many users were scored at once."""
    users, items, bias, target, exclude = problem()
    sizes, real = [], ShardScorer.product

    def product(self, vectors):
        sizes.append(len(vectors))
        if rank == 1 and len(vectors) > 4:
            raise torch.cuda.OutOfMemoryError("none left")
        return real(self, vectors)

    mine = slice(*borders(2)[rank : rank + 2])
    embeddings = trm.Embeddings(users, items[mine], bias[mine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardScorer, "product", product)
        found = trm.evaluate(NAMES, embeddings, shard="items", **options(target, exclude, batch_size=16))
    return numbers(found), sizes


def test_memory_is_agreed(processes):
    """Where one process runs out of memory, all processes halve the batch, and no row is counted twice."""
    users, items, bias, target, exclude = problem()
    expected = numbers(trm.evaluate(NAMES, trm.Embeddings(users, items, bias), **options(target, exclude)))
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
    "batch_sizes": "differ in batch_size",
    "no_target": "target must be Interactions",
    "name": "unknown metric",
    "width": "embedding widths differ|differ in width of embeddings",
    "dtype": "differ in dtype of items",
    "one_bias": "differ in whether bias is given",
    "one_allowed": "differ in whether allowed is given",
    "missing": "target is 30 x 23; there are 30 users and, on all processes together, ",
    "nan": "with a score that is NaN",
    "k_of_lists": "differ in k",
    "function": "take embeddings, not a score function",
    "cosine": "differ in similarity",
    "values": "differ in values of target",
    "other_users": "differ in users, which must be the same",
    "half_users": "differ in dtype of users",
    "progress": "progress must be",
    "history_of_others": "exclude has 31 users, expected 30",
    "typo": "ndgc",
    "allowed_of_users": "allowed= as bool",
}


def graded(target, gain):
    return trm.Interactions.from_columns(
        target.users, target.items, values=torch.full((len(target),), gain), num_users=USERS, num_items=ITEMS
    )


def fault(rank, world_size, kind, on):
    users, items, bias, target, exclude = problem()
    mine = slice(*borders(2)[rank : rank + 2])
    names, given = ["HR", "NDCG"], options(target, exclude)
    parts = {"users": users, "items": items[mine], "bias": bias[mine]}
    if kind == "values":
        given["target"] = graded(target, 1.0)
    if rank == on:
        part = parts["items"]
        given |= {
            "k": {"k": [1, 6]},
            "options": {"ties": "pessimistic"},
            "target": {"target": exclude},
            "history": {"exclude": target},
            "user_ids": {"user_ids": [1, 2]},
            "no_target": {"target": 3},
            "values": {"target": graded(target, 2.0)},
            "batch_sizes": {"batch_size": 7},
            "progress": {"progress": 3},
            "history_of_others": {"exclude": trm.Interactions.from_dense(torch.ones(31, ITEMS, dtype=torch.bool))},
            "typo": {"ndgc": 1},
        }.get(kind, {})
        parts |= {
            "one_bias": {"bias": None},
            "one_allowed": {"allowed": torch.ones(len(part)).bool()},
            "cosine": {"similarity": "cosine"},
            "width": {"users": users[:, :3], "items": part[:, :3]},
            "other_users": {"users": -users},
            "half_users": {"users": users.half()},
            "dtype": {"items": part.double()},
            "missing": {"items": part[:-1], "bias": parts["bias"][:-1]},
            "nan": {"items": part.index_fill(0, torch.tensor([0]), torch.nan)},
            "allowed_of_users": {"allowed": exclude},
        }.get(kind, {})
        names = {"metrics": ["HR", "MRR"], "name": ["HR", "NDCH"]}.get(kind, names)
    try:
        embeddings = len if kind == "function" and rank == on else trm.Embeddings(**parts)
        if kind == "k_of_lists":
            trm.recommend(embeddings, k=4 + (rank == on), exclude=exclude, shard="items")
        else:
            trm.evaluate(names, embeddings, shard="items", **given)
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
            trm.evaluate(
                NAMES, trm.Embeddings(users, items[mine], bias[mine]), shard="items", **options(target, exclude)
            )
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
        assert counts <= 20 * 2000 + 512  # 512 bytes: errors of each batch, and the sums of the metrics
        assert listed == 12 * 10 * 2000


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shard": "items"}, ValueError, 'shard="items" is for several processes'),
        ({"shard": "item"}, ValueError, "shard must be one of None, 'users', 'items', 'both', got 'item'"),
        ({"items": [torch.ones(9, 4), torch.ones(14, 4)]}, TypeError, r"items must be a tensor \[n, d\], got list"),
        ({"items": torch.ones(9, 4)}, ValueError, "9 items have embeddings, but target has 23 items"),
    ],
)
def test_refused(change, error, message):
    """The error message says which value was given and which ones are accepted."""
    users, items, _, target, _ = problem()
    given = {"users": users, "items": items, "target": target} | change
    with pytest.raises(error, match=message):
        trm.evaluate("HR@5", given.pop("users"), given.pop("items"), **given)


# ----------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize(("dtype", "number"), [(torch.float32, 256), (torch.float16, 256), (torch.float64, 448)])
def test_memory_of_scores(dtype, number):
    """The scores of a user are counted in the dtype that they are made in, up to the end of a cache line."""
    users, items = torch.ones(3, 2, dtype=dtype), torch.ones(50, 2, dtype=dtype)
    assert scoring.EmbeddingScorer(trm.Embeddings(users, items), CPU).row_bytes == number
    assert scoring.FunctionScorer(len, 50, CPU.device).row_bytes == 50 * 4


CPU = TargetDevice(torch.device("cpu"), False)


def refused(users, items, **options):
    """Return whether the scores must be kept because one of them might not be finite."""
    scorer = scoring.EmbeddingScorer(trm.Embeddings(users, items, **options), CPU)
    return isinstance(scorer.without_memory(True), str)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_that_may_be_infinite(dtype):
    """Embeddings are refused if a product, or for cosine a norm, could be beyond float32, and if they hold NaN."""
    users, items = torch.ones(9, 4, dtype=dtype), torch.ones(11, 4, dtype=dtype)
    assert not refused(users[:, :0], items[:, :0])
    assert not refused(users * 2.0**70, items * 2.0**-70)
    assert not refused(users * 2.0**70, items * 2.0**55)  # 4 x 2^70 x 2^55 = 2^127
    assert refused(users * 2.0**70, items * 2.0**56)
    assert refused(users * 2.0**-70, items * 2.0**127, similarity="cosine")  # a norm of 2^128
    assert not refused(users * 2.0**70, items * 2.0**126, similarity="cosine")
    for embeddings, other, swap in ((users, items, False), (items, users, True)):
        for number in (math.inf, math.nan):
            last = embeddings.clone()
            last[-1, -1] = number
            for similarity in ("dot", "cosine"):
                assert refused(*((other, last) if swap else (last, other)), similarity=similarity)
    for number in (math.inf, math.nan, 2.0**127):
        assert refused(users * 2.0**70, items * 2.0**55, bias=torch.full((11,), number))
    assert not refused(users, items, bias=torch.full((11,), -math.inf))  # not a candidate


def test_no_copy_of_embeddings_is_made():
    """The check that scores are finite takes at most 8 MB at once; a copy of all embeddings is 13 MB."""
    users, items = torch.ones(10, 64), torch.ones(100_000, 64, dtype=torch.float16)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        assert not refused(users, items)
    assert 0 < max(event.cpu_memory_usage for event in seen.events()) <= 8 * 2**20
