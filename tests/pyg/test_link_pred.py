"""`LinkPredCollection` takes the arguments of PyG's link-prediction metrics and gives their values."""

import warnings

import pytest
import torch
from values import near, numbers

import torchrecmetrics as trm

pytest.importorskip("torch_geometric")
from torch_geometric.metrics import (
    LinkPredMetricCollection,
    LinkPredNDCG,
    LinkPredPrecision,
    LinkPredRecall,
)

from torchrecmetrics import pyg

# PyG's own tests recommend fewer items than the cut-off
pytestmark = pytest.mark.filterwarnings("ignore:pred_index_mat holds")


def test_link_pred_arguments(generator):
    """With the arguments of PyG's collection and -1 padding, the metrics that both have give PyG's values."""
    lists = torch.rand(8, 30, generator=generator).argsort(1)[:, :6]
    lists[2, 4:] = -1  # as KNNIndex.search pads
    labels = torch.stack(
        [torch.arange(8).repeat_interleave(3), torch.rand(8, 30, generator=generator).argsort(1)[:, :3].flatten()]
    )
    theirs = LinkPredMetricCollection(
        {f"{c.__name__[8:]}@{k}": c(k) for c in (LinkPredPrecision, LinkPredRecall, LinkPredNDCG) for k in (2, 6)}
    )
    ours = pyg.LinkPredCollection(["Precision", "Recall", "NDCG"], k=[2, 6])
    for rows in (slice(0, 2), slice(3, 8)):  # without the padded row, which PyG gets wrong
        first, last = rows.start, rows.stop
        mine = labels[:, (labels[0] >= first) & (labels[0] < last)] - torch.tensor([[first], [0]])
        theirs.update(lists[rows], mine)
        ours.update(lists[rows], (mine[0], mine[1]))
    assert numbers(ours.compute()) == near(theirs.compute(), 1e-6)
    assert ours(lists[2:3], torch.tensor([[0, 0], [lists[2, 0], 99]]))["Recall@6"] == 0.5
    weighted = pyg.LinkPredCollection([trm.Recall(1, weighted=True)])
    weighted.update(torch.tensor([[4, 1]]), torch.tensor([[0, 0], [4, 9]]), torch.tensor([3.0, 1.0]))
    assert weighted.compute()["Recall-weighted@1"] == 0.75


# inputs and expected values are those of PyG's own tests of its metrics

PYG_LISTS = torch.tensor([[1, 0], [1, 2], [0, 2]])
PYG_LABELS = torch.tensor([[0, 0, 0, 2, 2], [0, 1, 2, 2, 1]])
PYG_ASSERTS = {
    "recall": (trm.Recall(2), PYG_LISTS, PYG_LABELS, None, (2 / 3 + 1 / 2) / 2),
    "weighted recall": (
        trm.Recall(2, weighted=True),
        PYG_LISTS,
        PYG_LABELS,
        torch.tensor([4.0, 1.0, 2.0, 3.0, 0.5]),
        (5 / 7 + 3 / 3.5) / 2,
    ),
    "f1": (trm.F1(2), PYG_LISTS, PYG_LABELS, None, 0.65),
    "map": (trm.MAP(2, normalize="min"), PYG_LISTS, PYG_LABELS, None, 0.625),  # unlike PyG's, MAP(2) divides by R
    "ndcg": (trm.NDCG(2), PYG_LISTS, PYG_LABELS, None, 0.6934264),
    "weighted ndcg": (trm.NDCG(2), PYG_LISTS, PYG_LABELS, torch.tensor([1.0, 2.0, 0.1, 3.0, 0.5]), 0.7854486),
    "mrr": (
        trm.MRR(2),
        torch.tensor([[1, 0], [1, 2], [0, 2], [0, 1]]),
        torch.tensor([[0, 0, 2, 2, 3], [0, 1, 2, 1, 2]]),
        None,
        (1 + 1 / 2 + 0) / 3,
    ),
}


@pytest.mark.parametrize("name", PYG_ASSERTS)
def test_what_pyg_asserts(name):
    """Metrics give the values of PyG's tests in any order of labels; lists shorter than k are filled with misses."""
    metric, lists, labels, weights, expected = PYG_ASSERTS[name]
    collection = pyg.LinkPredCollection([metric])
    for order in (slice(None), torch.tensor([4, 2, 0, 3, 1])):
        batch = lists, labels[:, order], None if weights is None else weights[order]
        assert collection(*batch)[metric.label].item() == pytest.approx(expected, abs=1e-6)
    assert collection.compute()[metric.label].item() == pytest.approx(expected, abs=1e-6)
    filled = torch.cat([lists[:, :1], torch.full((len(lists), 1), -1)], 1)
    assert collection(lists[:, :1], labels, weights) == collection(filled, labels, weights)
    assert collection(lists[:, :0], labels, weights)[metric.label] == 0


@pytest.mark.parametrize("k", [1, 10, 100])
def test_precision_as_pyg_tests_it(k, generator):
    """Precision over batches of shuffled users is that of counting; unlike in PyG, repeated labels need an option."""
    row, column = torch.randint(100, (3000,), generator=generator), torch.randint(1000, (3000,), generator=generator)
    scores = torch.rand(100, 1000, generator=generator)
    scores[row, column] += 0.3
    lists = scores.topk(k).indices
    collection = pyg.LinkPredCollection(["Precision"], k=k, duplicate_labels="first")
    for users in torch.randperm(100, generator=generator).split(32):
        mine = torch.isin(row, users)
        place = torch.zeros(100, dtype=torch.int64).scatter(0, users, torch.arange(len(users)))
        collection.update(lists[users], (place[row[mine]], column[mine]))
    of_user = [set(column[row == user].tolist()) for user in range(100)]
    found = [len(liked & set(items)) / k for liked, items in zip(of_user, lists.tolist(), strict=True) if liked]
    assert collection.compute()[f"Precision@{k}"].item() == pytest.approx(sum(found) / len(found))
    collection.update(lists[:, : k - 1], torch.stack([row, column]))


def test_collection_as_pyg_tests_it(generator):
    """Every member gives the value that it gives alone with its own k places; the keys are ours, unlike in PyG."""
    row, column = torch.randint(10, (200,), generator=generator), torch.randint(50, (200,), generator=generator)
    scores = torch.rand(10, 50, generator=generator)
    scores[row, column] += 0.3
    lists, labels = scores.argsort(1), torch.stack([row, column])
    metrics = [trm.MAP(10, normalize="min"), trm.Precision(100), trm.Recall(50), trm.F1(20), trm.MRR(40), trm.NDCG(80)]
    together = pyg.LinkPredCollection(metrics, duplicate_labels="first")
    assert together.max_k == 100
    alone = {}
    for metric in metrics:
        single = pyg.LinkPredCollection([metric.clone()], duplicate_labels="first")
        alone |= single(lists[:, : metric.k], labels)
    assert together(lists, labels) == {key: alone[key] for key in together}
    assert set(together) == {"MAP-min@10", "Precision@100", "Recall@50", "F1@20", "MRR@40", "NDCG@80"}


def test_where_pyg_differs():
    """The differences that the docstring lists are those between PyG's value and ours."""
    lists, labels = torch.tensor([[3, 3, 5]]), torch.tensor([[0, 0, 0], [3, 7, 7]])
    recall = {"key_format": "LinkPred{name}@{k}", "duplicate_labels": "first"}
    assert LinkPredRecall(3)(lists, labels) == pytest.approx(2 / 3)  # two hits of three
    assert pyg.LinkPredCollection("Recall", 3, duplicates="first", **recall)(lists, labels) == {"LinkPredRecall@3": 0.5}
    weights = torch.tensor([2.0, -1.0])
    assert LinkPredNDCG(2, weighted=True)(lists[:, 1:], labels[:, :2], weights) == 1
    assert pyg.LinkPredCollection("NDCG", 2)(torch.tensor([[3, 7]]), labels[:, :2], weights)["NDCG@2"] < 1
    nothing = torch.empty(2, 0, dtype=torch.int64)
    theirs, ours = LinkPredPrecision(1), pyg.LinkPredCollection("Precision", 1)
    for each in (theirs, ours):
        each.update(lists[:, 1:], nothing)
    assert theirs.compute() == 0
    with pytest.warns(UserWarning, match="no row to average over"):
        assert ours.compute()["Precision@1"].isnan()


def by_row(lists, edges, weights, duplicates):
    """Return the same ranking, made from labels that are collected in a loop."""
    found = [{} for _ in lists]
    for row, item, weight in zip(*edges.tolist(), weights.tolist(), strict=True):
        found[row].setdefault(item, weight)
    width = max([1, *map(len, found)])
    ids = [list(row) + [-1] * (width - len(row)) for row in found]
    gains = [list(row.values()) + [0.0] * (width - len(row)) for row in found]
    return trm.Lists(lists, torch.tensor(ids), gains=torch.tensor(gains), complete=True, duplicates=duplicates)


@pytest.mark.parametrize("max_relevant", [None, 30])
def test_labels_in_any_order(max_relevant, generator):
    """Shuffled or repeated labels, rows without a label and repeated items give what a loop over the labels gives."""
    metrics = ["NDCG", "Recall", "MAP", "HR", trm.Recall(5, weighted=True, max_relevant=max_relevant)]
    for rows in (1, 4, 50):
        lists = torch.randint(-1, 12, (rows, 5), generator=generator)
        edges = torch.stack([torch.randint(n, (3 * rows,), generator=generator) for n in (rows, 12)])
        weights = torch.rand(3 * rows, generator=generator)
        once = {"duplicates": "first", "duplicate_labels": "first"}
        got = pyg.LinkPredCollection(metrics, k=[1, 5], max_relevant=max_relevant, **once)(lists, edges, weights)
        expected = trm.RecMetricCollection(metrics, k=[1, 5], max_relevant=max_relevant)(
            by_row(lists, edges, weights, "first")
        )
        assert numbers(got) == near(expected)


def test_link_pred_without_reading_values():
    """With max_relevant an update reads no value, as it runs on "meta", which has none."""
    lists, labels = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((6, 9), (2, 20)))
    collection = pyg.LinkPredCollection(["NDCG", trm.Recall(5, weighted=True, max_relevant=4)], k=9, max_relevant=4)
    collection.to("meta").update(lists, labels, torch.empty(20, device="meta"))


LISTS, LABELS = torch.tensor([[4, 1], [2, 3]]), torch.tensor([[0, 0, 1], [4, 7, 2]])
WRONG_VALUES = {  # arguments, the error at once, and the error in compute
    "label twice": (
        {"edge_label_index": torch.tensor([[0, 1, 0], [4, 4, 4]])},
        "1 of 2 rows with an item listed twice in target: row 0 holds item 4 more than once",
        "1 row with an item listed twice in target",
    ),
    "row beyond the batch": (
        {"edge_label_index": torch.tensor([[0, 5], [4, 4]])},
        r"2 of 2 rows whose labels are no pairs .*: edge_label_index\[:, 1\] is \[5, 4\], in a batch of 2 rows",
        "2 rows whose labels are no pairs of a row of the batch and an item",
    ),
    "negative row": ({"edge_label_index": torch.tensor([[0, -1], [4, 4]])}, r"is \[-1, 4\]", "2 rows whose labels"),
    "negative item": (
        {"edge_label_index": torch.tensor([[0, 1], [4, -4]])},
        r"2 of 2 rows whose labels .*: edge_label_index\[:, 1\] is \[1, -4\]",
        "2 rows whose labels",
    ),
    "weight": (
        {"edge_label_weight": torch.tensor([1, float("nan"), 1])},
        r"1 of 2 rows with a gain that is NaN or infinite: row 0 is \[1\.0, nan\]",
        "1 row with a gain that is NaN or infinite",
    ),
    "too many": (
        {},
        r"1 of 2 rows with more relevant items than max_relevant: batch row 0: 2 > 1",
        "1 row with more relevant items",
    ),
}


def wrong(name, **options):
    changed, *said = WRONG_VALUES[name]
    if name == "too many":
        options["max_relevant"] = 1
    collection = pyg.LinkPredCollection(["HR", "NDCG"], k=[1, 2], **options)
    return collection, {"pred_index_mat": LISTS, "edge_label_index": LABELS} | changed, said


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_values(name):
    """Wrong values raise at once and change nothing, or in `compute` if deferred; unchecked, values stay in range."""
    collection, batch, (at_once, _) = wrong(name)
    for call in (collection.update, collection):
        with pytest.raises(ValueError, match=at_once):
            call(**batch)
    evaluator = collection.evaluator
    assert not evaluator.update_called
    assert not any(getattr(evaluator, name).any() for name in evaluator._defaults)
    collection, batch, (_, in_compute) = wrong(name, validate_args="deferred")
    collection.update(**batch)
    collection.update(LISTS, LABELS[:, :1])
    with pytest.raises(ValueError, match=in_compute):
        collection.compute()
    collection, batch, _ = wrong(name, validate_args=False)
    collection.update(**batch)
    assert 0 <= collection.compute()["HR@2"] <= 1


def _raised(rank, world_size):
    """Make every mistake on the last process alone, and return the error that each process raises."""
    said = {}
    for name in WRONG_VALUES:
        collection, batch, _ = wrong(name, validate_args="deferred")
        collection.update(LISTS, LABELS[:, :1])
        if rank == world_size - 1:
            collection.update(**batch)
        try:
            said[name] = f"no error: {collection.compute()}"
        except ValueError as error:
            said[name] = str(error)
    return said


def test_wrong_values_raise_on_all_processes(processes):
    first, second = processes.run(_raised, 2)
    assert first == second
    assert not [name for name, said in first.items() if WRONG_VALUES[name][2] not in said]


def test_lists_that_are_shorter_than_the_cutoff():
    """A list narrower than the largest cut-off is a warning; -1 at its end says that there are no more items."""
    labels = torch.tensor([[0, 0], [3, 15]])
    collection = pyg.LinkPredCollection(["Recall@20"])
    with pytest.warns(UserWarning, match=r"holds 10 items per row, the largest cut-off is 20.* fill up with -1"):
        collection.update(torch.arange(10)[None], labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collection.update(torch.nn.functional.pad(torch.arange(10)[None], (0, 10), value=-1), labels)
    assert collection.compute() == {"Recall@20": 0.5}


def test_repeats_count_once_if_asked():
    """With the option "first", a repeated item keeps its first place, and a repeated label its first weight."""
    lists, labels = torch.tensor([[4, 4, 1], [2, 3, 3]]), torch.tensor([[0, 0, 1, 1], [1, 1, 3, 5]])
    once = {"duplicates": "first", "duplicate_labels": "first"}
    collection = pyg.LinkPredCollection(["MRR", trm.Recall(3, weighted=True)], k=3, **once)
    got = numbers(collection.clone(prefix="val/")(lists, labels, torch.tensor([8.0, 1.0, 3.0, 1.0])))
    assert got == {"val/MRR@3": 0.5, "val/Recall-weighted@3": (1 + 3 / 4) / 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "MRR", "k": None}, "MRR reads the whole ranking, pred_index_mat is the top of it"),
        ({"metrics": "AUROC"}, "AUROC reads the whole ranking"),
        ({"duplicates": "merge"}, "duplicates must be one of 'error', 'first', 'keep_place', got 'merge'"),
        ({"duplicate_labels": True}, "duplicate_labels must be one of 'error', 'first', got True"),
    ],
)
def test_link_pred_refuses_when_made(options, message):
    with pytest.raises(ValueError, match=message):
        pyg.LinkPredCollection(**({"metrics": "HR", "k": 5} | options))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({}, ValueError, r"edge_label_weight is missing: Recall\(weighted=True\)"),
        ({"pred_index_mat": LISTS.float()}, TypeError, "pred_index_mat must hold int64, .* got a torch.float32 tensor"),
        ({"pred_index_mat": LISTS[0]}, ValueError, r"pred_index_mat must be \[B, K\], .* got \[2\]"),
        ({"edge_label_index": LABELS.T}, ValueError, r"edge_label_index must be .* \[3, 2\]; pass edge_label_index.T"),
        ({"edge_label_index": LABELS[0]}, ValueError, r"edge_label_index must be \[2, E\] or a pair .* got \[3\]"),
        ({"edge_label_index": tuple(LABELS.T)}, ValueError, r"got \[3, 2\]"),
        ({"edge_label_index": LABELS.tolist()}, TypeError, "edge_label_index must be a tensor .* got list"),
        (
            {"edge_label_index": trm.Interactions.from_edge_index(LABELS, 2, 9)},
            TypeError,
            "edge_label_index must be .* got Interactions",
        ),
        ({"edge_label_index": LABELS.bool()}, TypeError, "edge_label_index must hold int64"),
        ({"edge_label_index": LABELS.to("meta")}, ValueError, "edge_label_index is on meta"),
        ({"pred_index_mat": LISTS[:0]}, ValueError, "edge_label_index holds 3 labels, pred_index_mat no row"),
        ({"edge_label_weight": torch.ones(2)}, ValueError, r"edge_label_weight must be .* \[3\], got .* \[2\]"),
        ({"edge_label_weight": [1, 2, 3]}, ValueError, "edge_label_weight must be a tensor .* got list"),
        ({"edge_label_weight": torch.ones(3, device="meta")}, ValueError, "edge_label_weight is on meta"),
    ],
)
def test_link_pred_speaks_of_its_arguments(changed, error, message):
    collection = pyg.LinkPredCollection([trm.Recall(1, weighted=True), "HR@1"], validate_args=True)
    if changed and "edge_label_weight" not in changed:
        changed = changed | {"edge_label_weight": torch.ones(3)}
    with pytest.raises(error, match=message):
        collection.update(**({"pred_index_mat": LISTS, "edge_label_index": LABELS} | changed))
    assert not collection.evaluator.update_called
