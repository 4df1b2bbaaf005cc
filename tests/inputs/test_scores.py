"""Scores against sorting one user at a time: ties, padding, dtypes, shapes, top-k ranks, and refused arguments."""

import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from rankings import rank_scores
from torch import tensor

import torchrecmetrics as trm
from torchrecmetrics.inputs import targets
from torchrecmetrics.inputs.scores import INVALID_RANK
from torchrecmetrics.kernels import eager

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_topk_ranks_are_k_plus_1_beyond_k_and_0_for_padding(dtype, device):
    scores = tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]], device=device)
    ranks = trm.get_topk_ranks(scores, tensor([[0, 2, -1], [0, 1, 3]], dtype=dtype, device=device), 2)

    assert ranks.tolist() == [[2 + 1, 2, 0], [1, 2, 2 + 1]]
    assert (ranks.dtype, ranks.depth, ranks.device) == (torch.int64, 2, scores.device)


def test_topk_ranks_are_among_the_items_that_are_not_excluded():
    scores, target, best_item = tensor([[0.1, 0.9, 0.5], [0.4, 0.3, 0.2]]), tensor([2, 2]), tensor([1, 0])

    assert trm.get_topk_ranks(scores, target, k=3, exclude=best_item).tolist() == [[2 - 1], [3 - 1]]


def test_topk_ranks_of_no_target_have_no_column():
    assert trm.get_topk_ranks(torch.rand(2, 4), torch.zeros(2, 0, dtype=torch.int64), 2).shape == (2, 0)


def test_topk_ranks_of_a_bad_row_that_cannot_raise_are_the_smallest_int64():
    ranks = trm.get_topk_ranks(tensor([[NAN, 0.2], [0.3, 0.2]]), tensor([1, 1]), 2, validate_args="deferred")

    assert ranks.tolist() == [[INVALID_RANK], [2]]


@pytest.mark.parametrize(
    ("ties", "expected"),
    [("optimistic", [2, 4, 3]), ("pessimistic", [4, 6, 5]), ("realistic", [3, 6, 4])],  # realistic: ceil(1 + i * 6 / 4)
)
def test_topk_ranks_number_ties_by_item(ties, expected, device):
    """Three targets among five equal scores behind one better item are numbered by item id, whatever their order."""
    scores = tensor([[9.0, 1, 1, 1, 1, 1]], device=device)

    assert trm.get_topk_ranks(scores, tensor([[1, 5, 3]], device=device), 6, ties=ties).tolist() == [expected]


LAYOUTS = {
    "by row": torch.clone,
    "by column": lambda scores: scores.T.contiguous().T,
    "with gaps": lambda scores: scores.repeat_interleave(2, 1)[:, ::2],
    "one row expanded": lambda scores: scores[:1].expand(len(scores), -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_random_scores_are_compared_in_their_dtype_and_layout(dtype, layout, device, generator):
    scores = LAYOUTS[layout](torch.randn(7, 301, generator=generator).to(device, dtype))
    target = torch.randint(0, 301, (7, 1), generator=generator).to(device)
    better = (scores > scores.gather(1, target)).sum(1, keepdim=True)
    equal = (scores == scores.gather(1, target)).sum(1, keepdim=True)

    assert torch.equal(trm.Scores(scores, target).ranking().ranks, better + (equal + 1).double() / 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_never_modified(layout, device):
    scores = LAYOUTS[layout](torch.rand(7, 301, device=device))
    before, target = scores.clone(), torch.arange(7, device=device)
    trm.Scores(scores, target, exclude=(torch.arange(301, device=device) < 9, target)).ranking(overlap="miss")

    assert torch.equal(scores, before)


@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("max_relevant", [None, 40])
def test_random_scores_rank_the_same_however_they_are_cut_into_tiles(height, max_relevant, monkeypatch, generator):
    scores = torch.randint(0, 30, (11, 97), generator=generator).float()
    dense = torch.rand(11, 97, generator=generator) < 0.1
    exclude = torch.rand(11, 97, generator=generator) < 0.2
    expected = trm.Scores(scores, dense, exclude=exclude).ranking(overlap="miss")

    def tiny(matrix, wide):
        width = 10 if matrix.is_floating_point() or height == 1 else matrix.shape[1]
        for top in range(0, len(matrix), height):
            for left in range(0, matrix.shape[1], width):
                here = slice(top, top + height), slice(left, left + width)
                yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", tiny)
    monkeypatch.setattr(targets, "tiles", tiny)
    ranking = trm.Scores(scores, dense, exclude=exclude).ranking(overlap="miss", max_relevant=max_relevant)

    assert torch.equal(ranking.ranks[:, : expected.ranks.shape[1]], expected.ranks)
    assert torch.equal(ranking.num_ranked, expected.num_ranked)


@pytest.mark.nightly
def test_items_beyond_2_to_the_31_are_ranked(monkeypatch):
    """The scores are one number seen through an expanded view, of which only the last 100 columns are counted."""
    items = 2**31 + 10

    def last_tile(matrix, *_):
        here = slice(0, 1), slice(items - 100, items)
        yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", last_tile)
    scores = torch.zeros(1, 1).expand(1, items)
    ranking = trm.Scores(scores, tensor([2**31 + 5]), exclude=tensor([[2**31 + 6]])).ranking()

    assert (ranking.num_ranked.tolist(), ranking.ranks.tolist()) == ([99], [[(1 + 99) / 2]])
    with pytest.raises(ValueError, match=f"row 0 holds {items} of {items} items"):
        trm.Scores(scores, tensor([items])).ranking()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "width"), [(500, 1), (100, 100)])
def test_memory_beside_the_scores_stays_below_64_mb(rows, width):
    """As whole matrices the scores would take 600 MB for 500 rows, and 120 MB for 100.

    The C allocator gives freed tensors back to the system, so that only memory in use at one time counts.
    """
    program = f"""
import resource, torch, torchrecmetrics as trm
scores = torch.rand(1, 300_000).expand(500, 300_000)
target = torch.randint(0, 300_000, (500, 1)) + torch.arange({width})
exclude = torch.zeros(300_000, dtype=torch.bool)
metric = trm.RecMetricCollection(["HR", "NDCG", "AUROC"], k=10)
metric.update(scores[:8], target[:8] % 300_000, exclude=exclude)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
metric.update(scores[:{rows}], target[:{rows}] % 300_000, exclude=exclude)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    call = [sys.executable, "-c", program]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=120)

    assert int(done.stdout) < 64


@pytest.mark.parametrize("gains", [None, torch.empty(2, 0)])
def test_no_target_columns_are_rows_without_a_relevant_item(gains):
    target = torch.empty(2, 0, dtype=torch.int64)

    assert trm.Scores(torch.rand(2, 5), target, gains).ranking().ranks.tolist() == [[INF], [INF]]


@pytest.mark.parametrize("exclude", [None, tensor([[0], [0]])])
@pytest.mark.parametrize("strategy", [eager.sort, eager.compare_all])
def test_an_unchecked_nan_is_worse_than_every_number_and_never_a_hit(strategy, exclude, monkeypatch, device):
    """(torch.topk ranks it first.)"""
    monkeypatch.setattr(eager, "choose_strategy", lambda *_: strategy)
    scores, target = tensor([[NAN, 0.2, 0.9], [0.1, NAN, -INF]], device=device), tensor([[0, 1]] * 2, device=device)
    batch = trm.Scores(scores, target, exclude=None if exclude is None else exclude.to(device))
    ranking = batch.ranking(3, items=True, overlap="keep", validate_args=False)

    assert ranking.ranks.tolist() == [[2.0, INF], [1.0, INF]]
    assert ranking.items.tolist() == [[2, 1, -1], [0, -1, -1]]
    assert ranking.num_ranked.tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threshold", [0.1, -0.1, 3.5, 0.0])
def test_scores_are_compared_with_a_threshold_that_is_not_rounded(dtype, threshold):
    near = tensor(threshold, dtype=dtype)
    below, above = (torch.nextafter(near, tensor(limit, dtype=dtype)) for limit in (-INF, INF))
    scores = torch.stack([below, near, above])[None]
    ranking = trm.Scores(scores, tensor([0])).ranking(score_threshold=threshold)

    assert ranking.num_recommended.item() == sum(score >= threshold for score in scores[0].tolist())


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16])
@pytest.mark.parametrize("max_relevant", [3, 40])
def test_random_dense_targets_rank_the_same_where_values_are_not_read(dtype, max_relevant, monkeypatch, generator):
    dense = (torch.rand(300, 97, generator=generator) < 0.05).to(dtype)
    dense[0] = 0
    scores = torch.rand(dense.shape, generator=generator)
    read = partial(rank_scores, scores, dense, max_relevant=max_relevant, validate_args="deferred")
    expected = read()
    monkeypatch.setattr(targets, "can_sync", lambda _: False)
    ranking = read()

    assert torch.equal(ranking.ranks, expected.ranks)
    assert torch.equal(ranking.rows.valid, dense.bool().sum(1) <= max_relevant)
    assert torch.equal(ranking.num_relevant[ranking.rows.valid], expected.num_relevant[expected.rows.valid])


GRADED = tensor([[0.0, 2, 0, 0, 0, 3], [0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 0, 5, 0, 1]])
GRADED_IDS, GRADED_GAINS = tensor([[5, 1], [-1, -1], [0, -1], [3, 5]]), tensor([[3, 2], [0, 0], [1, 0], [5, 1]])


@pytest.mark.parametrize("max_relevant", [None, 3, 50])
@pytest.mark.parametrize("target", [GRADED, GRADED > 0], ids=["grades", "flags"])
def test_dense_targets_rank_as_item_ids(target, max_relevant, device, generator):
    scores = torch.randn(4, 6, generator=generator).to(device)
    ranking = trm.Scores(scores, target.to(device)).ranking(max_relevant=max_relevant)

    assert torch.equal(ranking.ranks[:, :2], trm.Scores(scores, GRADED_IDS.to(device)).ranking().ranks)
    assert ranking.num_relevant.tolist() == [2, 0, 1, 2]


RATINGS_OF_ITEMS_1_AND_2 = trm.Interactions.from_edge_index(tensor([[0, 0], [1, 2]]), 1, 3, tensor([3, 1])).select([0])


def test_a_selection_is_its_items_with_their_values_as_gains():
    dcg, ideal = 1 + 3 / math.log2(3), 3 + 1 / math.log2(3)

    assert trm.NDCG()(tensor([[0.1, 0.5, 0.9]]), RATINGS_OF_ITEMS_1_AND_2).item() == pytest.approx(dcg / ideal)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(trm.get_topk_ranks, k=3), TypeError, r"takes no gains, but target has values: pass target\.items"),
        (partial(trm.NDCG(3).update, gains=torch.ones(1, 2)), ValueError, "gains= needs a target without values"),
    ],
    ids=["get_topk_ranks", "update"],
)
def test_values_of_a_selection_beside_gains_or_in_topk_ranks_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.rand(1, 3), RATINGS_OF_ITEMS_1_AND_2)


@pytest.mark.parametrize("gain", [-INF, NAN, -1.0])
def test_gains_of_padding_are_not_read(gain):
    """A hit at rank 1, a penalty at rank 2 or 3, and no more."""
    target, gains = tensor([[0, 1, -1]]), tensor([[1.0, -1.0, gain]])
    ranking = trm.Scores(tensor([[0.9, 0.8, 0.8]]), target, gains=gains).ranking()

    assert trm.functional.ndcg(ranking).item() == pytest.approx(1 - (1 / math.log2(3) + 1 / math.log2(4)) / 2)


@pytest.mark.parametrize("layout", ["by row", "by column"])
@pytest.mark.parametrize("width", [1, 12, 120])
def test_many_rows_rank_as_a_few_at_a_time_with_another_default_device(width, layout, generator):
    scores = torch.randn(300, 2000, generator=generator)
    target = torch.stack([torch.randperm(2000, generator=generator)[:width] for _ in range(300)])
    options = {"depth": 9, "items": True, "score_threshold": 0.2}
    with torch.device("meta"):  # which would raise if a tensor were made there
        whole = trm.Scores(LAYOUTS[layout](scores), LAYOUTS[layout](target)).ranking(**options)
    few = [trm.Scores(scores[i : i + 3], target[i : i + 3]).ranking(**options) for i in range(0, 300, 3)]

    assert torch.equal(whole.ranks, torch.cat([rows.ranks for rows in few]))
    assert torch.equal(whole.items, torch.cat([rows.items for rows in few]))
    assert torch.equal(whole.num_recommended, torch.cat([rows.num_recommended for rows in few]))


OF_ALL_ITEMS = {
    "grades": tensor([[3, 1, 4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]),
    "grades of one row": tensor([[0, 1, 2, 3, 4]], dtype=torch.int16),
    "flags of two items": tensor([[0, 1], [1, 0]]),
}
HOLDS_ALL = r"holds every item in every row \(.*target.float\(\), .*target.bool\(\); .* -1\): row 0 is \["


@pytest.mark.parametrize("target", OF_ALL_ITEMS.values(), ids=OF_ALL_ITEMS)
@pytest.mark.parametrize(
    "call",
    [
        lambda *batch: trm.NDCG(3).update(*batch),
        lambda *batch: trm.NDCG(3)(*batch),
        lambda *batch: trm.RecMetricCollection("NDCG", k=3).update(*batch),
        lambda *batch: trm.get_topk_ranks(*batch, k=3),
    ],
    ids=["update", "forward", "collection", "get_topk_ranks"],
)
def test_ids_of_all_items_in_all_rows_are_refused(call, target):
    """They could be grades, and every metric would be 1."""
    with pytest.raises(ValueError, match=HOLDS_ALL):
        call(torch.rand(target.shape), target)


def test_unchecked_ids_of_all_items_in_all_rows_are_taken():
    assert trm.NDCG(3, validate_args=False)(torch.rand(2, 3), tensor([[0, 1, 2], [2, 0, 1]])) == 1


def test_ids_of_all_items_are_not_looked_for_on_a_device():
    """On "meta", reading a value raises."""
    trm.NDCG(3).to("meta").update(torch.rand(2, 3, device="meta"), torch.zeros(2, 3, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize(
    ("target", "gains"),
    [
        (tensor([[0, 1, 2, -1], [0, 1, 2, -1]]), None),
        ((tensor([0, 1, 2, 0, 1, 2]), tensor([0, 3, 6])), None),
        (trm.Interactions.from_edge_index(tensor([[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]), 2, 3).select([0, 1]), None),
        (tensor([[0, 1, 2], [0, 1, -1]]), None),
        (torch.ones(2, 3, dtype=torch.bool), None),
        (tensor([[0, 1, 2], [0, 1, 2]]), tensor([[3, 2, 1], [1, 1, 1]])),
    ],
    ids=["padded", "jagged", "selected", "one row has fewer", "flags", "with gains"],
)
def test_ids_of_all_items_are_taken_where_they_are_certain(target, gains):
    scores = tensor([[0.9, 0.8, 0.7]] * 2)

    assert trm.NDCG(3)(scores, target, gains=gains).item() == pytest.approx(1)


def test_the_only_item_is_relevant_in_a_catalogue_of_one():
    assert trm.HR(1)(torch.rand(2, 1), tensor([[0], [0]])) == 1


SCORES = tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
TARGET = tensor([[2, 0], [1, -1]])
BAD_ROWS = [  # with words of the message, and the bad rows
    ({"target": tensor([0, 3])}, "1 of 2 rows with a target id beyond.*row 1 holds 3", [1]),
    ({"target": tensor([[1, 1], [0, 2]])}, "twice in target: row 0 holds item 1", [0]),
    ({"target": tensor([[1, 2], [0, 0]])}, "twice in target: row 1 holds item 0", [1]),
    ({"target": tensor([[2, 2, 0]] * 2)}, r"pass grades .* as target.float\(\)", [0, 1]),
    ({"target": tensor([[0, 1, 1], [1, 0, 0]])}, r"0/1 matrix: pass target.bool\(\)", [0, 1]),
    ({"scores": SCORES[:, :2], "target": tensor([[0, 1], [1, 0]])}, "2 of 2 rows whose target holds every", [0, 1]),
    ({"target": tensor([[1, -2.0, 0], [1, 0, 0]])}, r"1 of 2 rows with a label below 0.*row 0 holds", [0]),
    ({"target": tensor([[1, 0, NAN]] * 2)}, "with a gain that is NaN or infinite", [0, 1]),
    ({"target": SCORES > 0, "max_relevant": 2}, "more relevant items than max_relevant: row 0 has 3 > 2", [0, 1]),
    ({"gains": tensor([[1, NAN], [1, 1]])}, "with a gain that is NaN or infinite", [0]),
    ({"scores": SCORES.where(SCORES < 0.9, NAN)}, "NaN or .inf: the highest of row 0 is nan", [0]),
    ({"exclude": tensor([[0], [7]])}, "excluded id beyond.*row 1 excludes 7 of 3", [0, 1]),
    ({"exclude": tensor([[2], [1]])}, "2 of 2 rows .* excluded: 2 pairs, such as item 2 in row 0.*keep.*miss", [0, 1]),
]


@pytest.mark.parametrize(("change", "message"), [case[:2] for case in BAD_ROWS])
def test_a_bad_row_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        rank_scores(**{"scores": SCORES, "target": TARGET} | change)


@pytest.mark.parametrize(("change", "bad_rows"), [(change, bad_rows) for change, _, bad_rows in BAD_ROWS])
def test_a_bad_row_that_cannot_raise_is_counted_once_and_has_no_value(change, bad_rows):
    ranking = rank_scores(**{"scores": SCORES, "target": TARGET} | change, validate_args="deferred")

    assert ranking.rows.violations.sum() == len(bad_rows)
    assert trm.functional.recall(ranking, 1).isnan().nonzero()[:, 0].tolist() == bad_rows


BYTES = (SCORES > 0).to(torch.uint8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scores": SCORES[0]}, ValueError, r"scores must be \[rows, items\].*got shape \[3\]"),
        ({"scores": SCORES[None]}, ValueError, r"scores\[:, -1\]"),
        ({"scores": SCORES[:, :0]}, ValueError, "at least one item"),
        ({"scores": SCORES.long()}, TypeError, r"got a torch.int64 tensor.*Lists\(item_ids, target\)"),
        ({"target": TARGET[:1]}, ValueError, r"target ids must be \[2\] or \[2, T\].*got \[1, 2\]"),
        ({"target": BYTES}, TypeError, r"pass target.bool\(\), target.float\(\)"),
        ({"target": TARGET.to(torch.uint8)}, TypeError, "int64, int32 or int16, got a torch.uint8"),
        ({"target": torch.ones(2, 4)}, ValueError, r"dense and must have the scores' shape \[2, 3\]"),
        ({"target": SCORES > 0, "gains": SCORES}, ValueError, "gains= is for id targets"),
        ({"target": TARGET.to("meta")}, ValueError, "target is on meta, but the scores .* are on cpu"),
        ({"gains": torch.ones(2)}, ValueError, r"gains must be numbers in the shape of target \[2, 2\]"),
        ({"exclude": SCORES}, TypeError, "exclude must hold int64, int32 or int16, got a torch.float32"),
        ({"exclude": BYTES}, TypeError, r"uint8.*ids are exclude.long\(\), a mask is exclude.bool\(\)"),
        ({"exclude": torch.ones(2, 4).bool()}, ValueError, r"bool exclude must be \[3\] or \[2, 3\].*\[2, 4\]"),
        ({"padding_idx": 3}, ValueError, r"padding_idx must be an item id in 0..2, got 3"),
        ({"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        ({"score_threshold": -INF}, ValueError, "score_threshold must be finite"),
        ({"validate_args": 1}, ValueError, "validate_args must be True, False or 'deferred'"),  # though 1 == True
    ],
)
def test_a_bad_argument_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        rank_scores(**{"scores": SCORES, "target": TARGET} | change)


@pytest.mark.parametrize(
    ("k", "target", "error", "message"),
    [
        *((k, TARGET, ValueError, f"k must be at least 1, got {k}") for k in (0, -3)),
        *((k, TARGET, TypeError, "k must be an integer >= 1, got") for k in (True, 2.0, "5", None)),
        (2**53, TARGET, ValueError, f"k must be below 2\\^53, .*, got {2**53}"),  # k + 1 and k are one float64
        (2, SCORES > 0, TypeError, "target with scores of get_topk_ranks must be item ids"),
    ],
)
def test_a_bad_argument_of_get_topk_ranks_is_refused(k, target, error, message):
    with pytest.raises(error, match=message):
        trm.get_topk_ranks(SCORES, target, k)


def nested(layout):
    return torch.nested.nested_tensor([tensor([1.0, 2.0]), tensor([0.0])], layout=layout)


CALLS_OF_INPUTS = {
    "target of get_topk_ranks": lambda target: trm.get_topk_ranks(SCORES, target, 2),
    "target of Lists": lambda target: trm.Lists(TARGET, target).ranking(),
    "item_ids of Lists": lambda ids: trm.Lists(ids, TARGET).ranking(),
    "exclude of Lists": lambda exclude: trm.Lists(TARGET, TARGET, exclude=exclude).ranking(),
}
CALLS_WITH_IDS = CALLS_OF_INPUTS | {
    "target of update": lambda target: trm.HR(2).update(SCORES, target),
    "exclude of update": lambda exclude: trm.HR(2).update(SCORES, TARGET, exclude=(exclude, TARGET)),
}
CALLS_WITH_NUMBERS = {
    "scores of update": lambda scores: trm.HR(2).update(scores, TARGET),
    "weights of update": lambda weights: trm.HR(2).update(SCORES, TARGET, weights=weights),
    "ranks of Ranks": lambda ranks: trm.HR(2).update(trm.Ranks(ranks, complete=True)),
}
CALLS_WITH_GAINS = {"gains of update": lambda gains: trm.HR(2).update(SCORES, TARGET, gains=gains)}
ALL_CALLS = CALLS_WITH_IDS | CALLS_WITH_NUMBERS | CALLS_WITH_GAINS
SCIPY = r"got csr_matrix: pass Interactions.from_scipy\(NAME\).select\(user_ids\).items"
FRAME = r"got DataFrame: pass Interactions.from_columns\(NAME\['user'\], .*\).select\(user_ids\).items"
INTERACTIONS = r"must be a tensor, got Interactions: pass NAME.select\(user_ids\).items"
NESTED = r"NAME is a nested tensor.*: pass torch.nested.to_padded_tensor\(NAME, PADDING\)"
PADDING = {"scores": "-torch.inf", "gains": "0", "weights": "0"}  # of others -1
CONTAINERS = {
    "nested": (lambda: nested(torch.strided), ALL_CALLS, NESTED),
    "jagged": (lambda: nested(torch.jagged), CALLS_WITH_NUMBERS, NESTED),
    "sparse": (TARGET.to_sparse, ALL_CALLS, r"NAME is sparse \(torch.sparse_coo\): pass .*NAME.to_dense\(\)"),
    # update takes arrays
    "numpy": (TARGET.numpy, CALLS_OF_INPUTS, r"NAME must be a.* tensor, got ndarray.* torch.as_tensor\(NAME\)"),
    "list": (TARGET.tolist, ALL_CALLS, r"NAME must be a.* tensor, got list.* torch.as_tensor\(NAME\)"),
    "scipy": (lambda: pytest.importorskip("scipy.sparse").csr_matrix((2, 3)), CALLS_WITH_IDS, SCIPY),
    "frame": (lambda: pytest.importorskip("pandas").DataFrame({"user": [0], "item": [1]}), CALLS_WITH_IDS, FRAME),
    "interactions": (lambda: trm.Interactions.from_padded(TARGET, 3), CALLS_WITH_IDS, INTERACTIONS),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("container", "argument"), [(name, argument) for name, (_, calls, _) in CONTAINERS.items() for argument in calls]
)
def test_what_is_no_tensor_is_refused_with_the_way_to_convert_it(container, argument):
    (make, _, message), name = CONTAINERS[container], argument.split()[0]

    with pytest.raises(TypeError, match=message.replace("NAME", name).replace("PADDING", PADDING.get(name, "-1"))):
        ALL_CALLS[argument](make())
