"""Items on several processes give the results of one; inputs that functions return; scores that must be kept."""

import math
import re

import pytest
import torch
import torch.distributed as dist
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics.evaluation import scorers as scoring
from torchrecmetrics.evaluation.scorers import ShardScorer
from torchrecmetrics.evaluation.test_set import TargetDevice

USERS, ITEMS = 30, 23
NAMES = ["HR", "NDCG", "AUROC", "MAP", "MRR", "Novelty", "Coverage", "Seen"]
ALLOWED = torch.arange(ITEMS) % 7 != 3


def problem(dtype=torch.float32):
    """Return embeddings and bias of small whole numbers, whose products are exact and often equal, and interactions."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(-2, 3, (n, 4), generator=generator).to(dtype) for n in (USERS, ITEMS))
    target, exclude = (
        trm.Interactions.from_dense(torch.rand(USERS, ITEMS, generator=generator) < share) for share in (0.1, 0.2)
    )
    return users, items, torch.randint(-1, 2, (ITEMS,), generator=generator).float(), target, exclude


def options(target, exclude, **others):
    catalogue = trm.Catalogue.from_interactions(exclude)
    return {"target": target, "exclude": exclude, "overlap": "miss", "catalogue": catalogue, "k": [1, 5]} | others


def share_of_items(rank, world_size):
    """Return the items of a process: uneven shards, one of which is empty for three and for four processes."""
    borders = {1: [0, ITEMS], 2: [0, 4, ITEMS], 3: [0, 9, 9, ITEMS], 4: [0, 9, 9, 10, ITEMS]}[world_size]
    return slice(*borders[rank : rank + 2])


def results(embeddings, target, exclude, shard=None):
    """Return values, counts, kept rows as text, since NaN is not equal to itself, and lists."""
    arguments = options(target, exclude, groups=trm.group_users(exclude, [0, 3, 6]), keep_rows=True, shard=shard)
    result = trm.evaluate(NAMES, embeddings, **arguments)
    rules = {"empty_target_action": "pos", "overlap": "miss"}
    metrics = [trm.AUROC(weight="candidates", **rules), trm.Seen(5, catalogue=arguments["catalogue"], **rules)]
    weighed = trm.evaluate(metrics, embeddings, target=target, exclude=exclude, shard=shard)
    rows = str(result.rows.to_dict())
    top = trm.recommend(embeddings, k=6, exclude=exclude, shard=shard, user_ids=[5, 2, 5, 29])
    return numbers(result) | numbers(weighed), result.counts(), rows, top.ids.tolist(), top.scores.tolist()


def shared(rank, world_size, how, dtype):
    users, items, bias, target, exclude = problem(dtype)
    mine = share_of_items(rank, world_size)
    if how == "both":
        borders = [*[0, 11, 11, 20][:world_size], USERS]
        users = users[borders[rank] : borders[rank + 1]]
    embeddings = trm.Embeddings(users, items[mine], bias[mine], allowed=ALLOWED[mine])
    return results(embeddings, target, exclude, how)


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("how", "dtype"), [("items", torch.float32), ("both", torch.float64), ("items", torch.bfloat16)]
)
def test_items_on_several_processes_have_the_results_of_one(processes, world_size, how, dtype):
    """Shards are uneven and empty, with ties across their borders."""
    users, items, bias, target, exclude = problem(dtype)
    values, *expected = results(trm.Embeddings(users, items, bias, allowed=ALLOWED), target, exclude)

    for result, *others in processes.run(shared, world_size, how, dtype):
        assert result == pytest.approx(values, abs=1e-12)
        assert others == expected


def on_some_processes(rank, world_size):
    """Let processes 0 and 1 share items, or users; process 2 takes no part."""
    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    users, items, _, target, exclude = problem()
    mine, arguments = items[share_of_items(rank, 2)], options(target, exclude)
    edges = arguments | {"target": target.to_edge_index(), "exclude": exclude.to_edge_index()}
    by_items = [
        trm.evaluate(NAMES, users, mine, shard="items", process_group=group, **how) for how in (arguments, edges)
    ]
    by_users = trm.evaluate(NAMES, users, items, shard="users", process_group=group, **arguments)
    return [*map(numbers, [*by_items, by_users, trm.evaluate(NAMES, users, items, **arguments)])]


def test_two_of_three_processes_share_the_work_without_the_third(processes):
    """An `edge_index` is read against the items of both."""
    *of_two, other = processes.run(on_some_processes, 3)

    assert other is None
    for *result, expected in of_two:
        assert result == [pytest.approx(expected, abs=1e-12)] * 3


def out_of_memory(rank, world_size):
    """Let process 1 have memory for 4 users at most; return the values and how many users were scored at once."""
    users, items, bias, target, exclude = problem()
    sizes, real = [], ShardScorer.product

    def product(self, vectors):
        sizes.append(len(vectors))
        if rank == 1 and len(vectors) > 4:
            raise torch.cuda.OutOfMemoryError("none left")
        return real(self, vectors)

    mine = share_of_items(rank, 2)
    embeddings = trm.Embeddings(users, items[mine], bias[mine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardScorer, "product", product)
        result = trm.evaluate(NAMES, embeddings, shard="items", **options(target, exclude, batch_size=16))
    return numbers(result), sizes


def test_all_processes_halve_the_batch_where_one_runs_out_of_memory(processes):
    """No row is counted twice."""
    users, items, bias, target, exclude = problem()
    expected = near(trm.evaluate(NAMES, trm.Embeddings(users, items, bias), **options(target, exclude)))
    (result, sizes), other = processes.run(out_of_memory, 2)

    assert (result, sizes) == other
    assert result == expected
    assert sizes[:3] == [16, 8, 4]


_, _, _, TARGET, EXCLUDE = problem()
CODES = torch.arange(USERS) % 2
GRADED = trm.Interactions(TARGET.offsets, TARGET.items, ITEMS, torch.full((len(TARGET),), 2.0))
MORE_USERS = trm.Interactions.from_dense(torch.ones(USERS + 1, ITEMS, dtype=torch.bool))
OF_OPTIONS = {
    "k": ("differ in metrics", {"k": [1, 6]}),
    "metrics": ("differ in metrics", {"metrics": ["HR", "MRR"]}),
    "name": ("unknown metric", {"metrics": ["HR", "NDCH"]}),
    "options": ("differ in options", {"ties": "pessimistic"}),
    "target": ("differ in target", {"target": EXCLUDE}),
    "values": ("differ in values of target", {"target": GRADED}),
    "no_target": ("target must be Interactions", {"target": 3}),
    "history": ("differ in history", {"exclude": TARGET}),
    "history of others": ("exclude has 31 users, expected 30", {"exclude": MORE_USERS}),
    "unknown option": ("ndgc", {"ndgc": 1}),
    "user_ids": ("differ in user_ids", {"user_ids": [1, 2]}),
    "batch_sizes": ("differ in batch_size", {"batch_size": 7}),
    "progress": ("progress must be", {"progress": 3}),
    "k_of_lists": ("differ in k", {}),
    "function": ("take embeddings, not a score function", {}),
}
OF_USERS = {
    "keep_rows": ("differ in keep_rows", {"keep_rows": True}),
    "all_users": ("differ in all_users", {"all_users": True}),
    "groups": ("differ in groups", {"groups": trm.Groups(1 - CODES, ["a", "b"])}),
}
OF_EMBEDDINGS = {
    "width": ("widths differ|differ in width of embeddings", lambda u, v, b: (u[:, :3], v[:, :3], b)),
    "dtype": ("differ in dtype of items", lambda u, v, b: (u, v.double(), b)),
    "half_users": ("differ in dtype of users", lambda u, v, b: (u.half(), v, b)),
    "other_users": ("differ in users, which must be the same", lambda u, v, b: (-u, v, b)),
    "bias": ("differ in whether bias is given", lambda u, v, b: (u, v)),
    "cosine": ("differ in similarity", lambda u, v, b: (u, v, b, "cosine")),
    "allowed": ("differ in whether allowed is given", lambda u, v, b: (u, v, b, "dot", b < 9)),
    "allowed_of_users": ("allowed= as bool", lambda u, v, b: (u, v, b, "dot", EXCLUDE)),
    "missing": ("target is 30 x 23; there are 30 users and, on all processes", lambda u, v, b: (u, v[:-1], b[:-1])),
    "nan": ("with a score that is NaN", lambda u, v, b: (u, v.index_fill(0, torch.tensor([0]), torch.nan), b)),
}


def with_fault(rank, world_size, kind, on):
    """Return the error of a process, where process `on` differs from the other."""
    users, items, bias, target, exclude = problem()
    shard, mine = ("users", slice(None)) if kind in OF_USERS else ("items", share_of_items(rank, 2))
    parts, arguments = (users, items[mine], bias[mine]), {"metrics": ["HR", "NDCG"]} | options(target, exclude)
    arguments |= {"groups": trm.Groups(CODES, ["a", "b"]), "shard": shard}
    if rank == on and kind in OF_EMBEDDINGS:
        parts = OF_EMBEDDINGS[kind][1](*parts)
    elif rank == on:
        arguments |= (OF_OPTIONS | OF_USERS)[kind][1]
    try:
        embeddings = len if kind == "function" and rank == on else trm.Embeddings(*parts)
        if kind == "k_of_lists":
            trm.recommend(embeddings, k=4 + (rank == on), exclude=exclude, shard="items")
        else:
            trm.evaluate(arguments.pop("metrics"), embeddings, **arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("on", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", [*OF_OPTIONS, *OF_USERS, *OF_EMBEDDINGS])
def test_a_fault_or_difference_of_one_process_is_raised_on_all(processes, kind, on):
    expected = (OF_OPTIONS | OF_USERS | OF_EMBEDDINGS)[kind][0]
    messages = processes.run(with_fault, 2, kind, on)

    assert [re.search(expected, message) is not None for message in messages] == [True, True], messages


def scores_of(ids):
    users, items, *_ = problem()
    return (users @ items.T)[ids]


def ordered(ids):
    """Return lists of all items with their scores, best first."""
    scores, items = scores_of(ids).sort(dim=1, descending=True, stable=True)
    return trm.Lists(items, scores=scores, complete=True)


INPUTS = {
    "an array": lambda ids: scores_of(ids).numpy(),
    "Scores": lambda ids: trm.Scores(scores_of(ids)),
    "a part of the history": lambda ids: trm.Scores(scores_of(ids), exclude=EXCLUDE.select(ids).items[:, :1]),
    "Candidates": lambda ids: trm.Candidates(scores_of(ids).flip(1), None, items=torch.arange(ITEMS).flip(0)),
    "Lists": ordered,
}


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("target", [TARGET, GRADED], ids=["bool", "graded"])
def test_an_input_that_a_function_returns_gets_truth_exclusions_and_history(form, target):
    arguments = options(target, EXCLUDE, keep_rows=True, groups=trm.Groups(CODES, ["a", "b"]), batch_size=7)
    metrics = ["HR", "NDCG", "MRR", "Seen", "Coverage"]
    expected = trm.evaluate(metrics, scores_of, **arguments)
    result = trm.evaluate(metrics, INPUTS[form], **arguments)

    assert numbers(result) == near(expected)
    assert result.counts() == expected.counts()
    assert result.rows.ids.tolist() == expected.rows.ids.tolist()


WANTED = torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(0)) < 0.3


def places(ids):
    target, exclude = TARGET.select(ids).items, EXCLUDE.select(ids).items
    return trm.get_topk_ranks(scores_of(ids), target, 5, exclude=exclude, overlap="miss", ties="optimistic")


HAVE_TRUTH = {
    "Scores": lambda ids: trm.Scores(scores_of(ids), ids),
    "Scores with gains": lambda ids: trm.Scores(scores_of(ids), gains=ids),
    "Ranks": lambda ids: trm.Ranks(places(ids)),
    "Hits": lambda ids: trm.Hits((places(ids)[..., None] == torch.arange(1, 6)).any(1), TARGET.degree[ids]),
    "Ranking": lambda ids: trm.Ranks(places(ids)).ranking(),
    "Negatives": lambda ids: trm.Negatives(-places(ids)[:, 0].float(), -torch.arange(1.0, 6), pool=True),
    "Sessions": lambda ids: trm.Sessions(scores_of(ids).view(-1), WANTED[ids].view(-1), ids.repeat_interleave(ITEMS)),
}


@pytest.mark.parametrize("form", HAVE_TRUTH)
@pytest.mark.parametrize("options", [{}, {"exclude": EXCLUDE, "overlap": "miss"}])
def test_an_input_with_a_truth_of_its_own_is_refused(form, options):
    message = f"target= of evaluate .*, but the function returned {form.split()[0]} with its own: "
    with pytest.raises(ValueError, match=message):
        trm.evaluate(["HR", "MRR"], HAVE_TRUTH[form], target=TARGET, k=3, **options)


def test_an_input_of_fewer_rows_than_users_is_refused():
    with pytest.raises(ValueError, match="target ids must be"):
        trm.evaluate("HR@1", lambda ids: trm.Lists(ids[:3, None]), target=TARGET)


def stops_at(done, total):
    raise ValueError(f"{done} of {total} users are enough")


def stopped(rank, world_size, shard, call):
    """Return the error of a process, where the function that shows progress raises on the first process alone."""
    users, items, bias, target, exclude = problem()
    mine = share_of_items(rank, 2) if shard == "items" else slice(None)
    embeddings, shared = trm.Embeddings(users, items[mine], bias[mine]), {"batch_size": 8, "shard": shard}
    run = {
        "evaluate": lambda: trm.evaluate(NAMES, embeddings, progress=stops_at, **shared, **options(target, exclude)),
        "recommend": lambda: trm.recommend(embeddings, exclude=exclude, progress=stops_at, **shared),
    }[call]
    with pytest.raises((ValueError, RuntimeError)) as error:
        run()
    return str(error.value)


@pytest.mark.parametrize(("shard", "call"), [("users", "evaluate"), ("items", "evaluate"), ("items", "recommend")])
def test_an_error_of_the_progress_function_is_raised_on_all_processes(processes, shard, call):
    """The first process alone calls it."""
    messages = processes.run(stopped, 2, shard, call, timeout=30)

    assert ["users are enough" in message for message in messages] == [True, True]


def dies(rank, world_size, at):
    """End process 1 in the middle of an evaluation, and return the error of the other process."""
    users, items, bias, target, exclude = problem()
    mine, real, calls = share_of_items(rank, 2), dist.all_reduce, []

    def all_reduce(*args, **kwargs):
        calls.append(None)
        if rank == 1 and len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    embeddings = trm.Embeddings(users, items[mine], bias[mine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", all_reduce)
        try:
            trm.evaluate(NAMES, embeddings, shard="items", **options(target, exclude))
        except (RuntimeError, KeyboardInterrupt) as error:
            dist.destroy_process_group()
            return str(error)


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_process_that_dies_is_an_error_of_the_other(processes, at):
    message, _ = processes.run(dies, 2, at, timeout=60)

    assert "onnection" in message


def count_bytes(rank, world_size):
    """Return the bytes that all-reduces carry for 2,000 users with one target each, and all-gathers for lists."""
    users, items = torch.eye(4).repeat(500, 1), torch.rand(50, 4, generator=torch.Generator().manual_seed(rank))
    target = trm.Interactions.from_columns(torch.arange(2000), torch.arange(2000) % 100, num_users=2000, num_items=100)
    carried = {"all_reduce": 0, "all_gather": 0}

    def counting(name):
        real = getattr(dist, name)

        def collective(*tensors, **others):
            carried[name] += tensors[-1].nbytes
            return real(*tensors, **others)

        return collective

    with pytest.MonkeyPatch.context() as patch:
        for name in carried:
            patch.setattr(dist, name, counting(name))
        trm.evaluate(["HR", "AUROC"], users, items, target=target, k=10, shard="items")
        counts = carried["all_reduce"]
        trm.recommend(users, items, 10, shard="items")
    return counts, carried["all_gather"]


def test_counts_take_20_bytes_of_traffic_and_lists_12(processes):
    """At most 20 per user, target and process, and 12 per listed item, ten of 2,000 users each."""
    for counts, listed in processes.run(count_bytes, 2):
        assert counts <= 20 * 2000 + 512  # 512 bytes: errors of each batch, and the sums of the metrics
        assert listed == 12 * 10 * 2000


CPU = TargetDevice(torch.device("cpu"), False)


def are_kept(users, items, **options):
    """Return whether scores must be kept, because one of them might not be finite."""
    scorer = scoring.EmbeddingScorer(trm.Embeddings(users, items, **options), CPU)
    return scorer.why_stored(check_values=True) is not None


@pytest.mark.parametrize(
    ("of_users", "of_items", "similarity", "is_kept"),
    [
        (2.0**70, 2.0**-70, "dot", False),
        (2.0**70, 2.0**55, "dot", False),  # 4 x 2^70 x 2^55 = 2^127
        (2.0**70, 2.0**56, "dot", True),
        (2.0**-70, 2.0**127, "cosine", True),  # a norm of 2^128
        (2.0**70, 2.0**126, "cosine", False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_kept_if_a_product_or_a_norm_may_be_infinite(of_users, of_items, similarity, is_kept, dtype):
    users, items = torch.ones(9, 4, dtype=dtype) * of_users, torch.ones(11, 4, dtype=dtype) * of_items

    assert are_kept(users, items, similarity=similarity) == is_kept


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_scores_of_embeddings_that_are_not_finite_are_kept(number, similarity):
    finite, wrong = torch.ones(9, 4), torch.ones(9, 4)
    wrong[-1, -1] = number

    assert are_kept(wrong, finite, similarity=similarity)
    assert are_kept(finite, wrong, similarity=similarity)


@pytest.mark.parametrize(
    ("number", "is_kept"), [(math.inf, True), (math.nan, True), (2.0**127, True), (-math.inf, False)]
)
def test_scores_are_kept_if_their_bias_may_be_infinite(number, is_kept):
    """An item with the bias -inf is no candidate."""
    users, items = torch.full((9, 4), 2.0**70), torch.full((9, 4), 2.0**55)

    assert are_kept(users, items, bias=torch.full((9,), number)) == is_kept


def test_scores_of_embeddings_of_width_0_are_not_kept():
    assert not are_kept(torch.ones(9, 0), torch.ones(11, 0))
