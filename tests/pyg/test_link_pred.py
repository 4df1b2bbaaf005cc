"""`LinkPredCollection` takes the arguments of PyG's link-prediction metrics and gives their values."""

import math

import pytest
import torch
from states import same, snapshot
from values import near, numbers

import torchrecmetrics as trm

pytest.importorskip("torch_geometric")
from torch_geometric import metrics as link

from torchrecmetrics import pyg

IS_OLD = not hasattr(link, "LinkPredMetricCollection")
compares_with_pyg = pytest.mark.skipif(IS_OLD, reason="PyG has its collection, and weights, from 2.7 on")

PLAIN = [
    ("LinkPredPrecision", trm.Precision),
    ("LinkPredRecall", trm.Recall),
    ("LinkPredF1", trm.F1),
    ("LinkPredMAP", lambda k: trm.MAP(k, normalize="min")),  # MAP(k) divides by R
    ("LinkPredNDCG", trm.NDCG),
    ("LinkPredMRR", trm.MRR),
]
WEIGHTED = [("LinkPredRecall", lambda k: trm.Recall(k, weighted=True)), ("LinkPredNDCG", trm.NDCG)]


@compares_with_pyg
@pytest.mark.parametrize(("kinds", "options"), [(PLAIN, {}), (WEIGHTED, {"weighted": True})])
@pytest.mark.parametrize("as_labels", [torch.stack, tuple])
def test_values_are_those_of_pyg(kinds, options, as_labels, generator):
    pairs = [(make(k), getattr(link, peer)(k, **options)) for peer, make in kinds for k in (2, 6)]
    theirs = link.LinkPredMetricCollection({metric.label: peer for metric, peer in pairs})
    ours = pyg.LinkPredCollection([metric for metric, _ in pairs])
    for _ in range(2):
        lists, labelled = (torch.rand(4, 30, generator=generator).argsort(1)[:, :width] for width in (6, 3))
        labels = [torch.arange(4).repeat_interleave(3), labelled.flatten()]
        weights = torch.rand(12, generator=generator) if options else None
        theirs.update(lists, torch.stack(labels), weights)
        ours.update(lists, as_labels(labels), weights)

    assert numbers(ours.compute()) == near(theirs.compute(), 1e-6)
    assert ours.max_k == 6


@compares_with_pyg
def test_pyg_counts_repeated_items_and_labels():
    """Of two labels, PyG's recall counts the first twice, as a hit each, and the second one twice as relevant."""
    lists, labels = torch.tensor([[3, 3, 5]]), torch.tensor([[0, 0, 0], [3, 7, 7]])
    ours = pyg.LinkPredCollection("Recall", 3, duplicates="first", duplicate_labels="first")

    assert link.LinkPredRecall(3)(lists, labels) == pytest.approx(2 / 3)
    assert ours(lists, labels) == {"Recall@3": 1 / 2}


@compares_with_pyg
def test_pyg_drops_negative_weights():
    lists, labels, weights = torch.tensor([[3, 7]]), torch.tensor([[0, 0], [3, 7]]), torch.tensor([2.0, -1.0])
    ours = pyg.LinkPredCollection("NDCG", 2)(lists, labels, weights)["NDCG@2"]

    assert link.LinkPredNDCG(2, weighted=True)(lists[:, :1], labels, weights) == 1
    assert ours.item() == pytest.approx((2 - 1 / math.log2(3)) / 2)


@compares_with_pyg
def test_pyg_has_a_value_of_no_labels():
    theirs, ours = link.LinkPredPrecision(1), pyg.LinkPredCollection("Precision", 1)
    for metric in (theirs, ours):
        metric.update(torch.tensor([[3]]), torch.zeros(2, 0, dtype=torch.int64))

    assert theirs.compute() == 0
    with pytest.warns(UserWarning, match="no row to average over"):
        assert ours.compute()["Precision@1"].isnan()


TWO_LISTS, THREE_LABELS = torch.tensor([[4, 1], [2, 3]]), torch.tensor([[0, 0, 1], [4, 7, 2]])


@pytest.mark.parametrize(
    ("labels", "weights", "rule"),
    [
        ([[1, 0, 0, 1], [2, 7, 4, 4]], [1.0, 2, 3, 1], "error"),
        ([[1, 0, 0, 1, 1, 0], [2, 7, 4, 4, 2, 4]], [1.0, 2, 3, 1, 9, 9], "first"),  # the last two are repeats
    ],
)
def test_labels_in_any_order_count_once_in_their_rows(labels, weights, rule):
    """Row 0 finds item 4 of weight 3, but not item 7 of weight 2; row 1 finds one of two of weight 1."""
    collection = pyg.LinkPredCollection(trm.Recall(2, weighted=True), duplicate_labels=rule).clone()
    result = collection(TWO_LISTS, torch.tensor(labels), torch.tensor(weights))

    assert result == {"Recall-weighted@2": pytest.approx((3 / (3 + 2) + 1 / (1 + 1)) / 2)}


def test_with_max_relevant_an_update_reads_no_value():
    """On "meta", where reading a value raises."""
    lists, labels = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((6, 9), (2, 20)))
    collection = pyg.LinkPredCollection(["NDCG", trm.Recall(5, weighted=True, max_relevant=4)], k=9, max_relevant=4)

    collection.to("meta").update(lists, labels, torch.empty(20, device="meta"))


WRONG_LABELS = [  # labels, weights, the error of update, and that of compute if checks are deferred
    ([[0, 1, 0], [4, 4, 4]], None, "row 0 holds item 4 more than once", "an item listed twice in target"),
    ([[0, 5], [4, 4]], None, r"is \[5, 4\], in a batch of 2 rows", "2 rows whose labels are not pairs of"),
    ([[0, 1], [4, -4]], None, r"is \[1, -4\]", "2 rows whose labels"),
    ([[0, 0, 1], [4, 7, 2]], torch.tensor([1, math.nan, 1]), r"row 0 is \[1\.0, nan\]", "a gain that is NaN"),
    ([[0, 0, 0], [4, 7, 8]], None, "max_relevant: row 0 has 3 > 2", "1 row with more relevant items than"),
]


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize(("labels", "weights", "error"), [row[:3] for row in WRONG_LABELS])
def test_wrong_labels_raise_and_change_nothing(labels, weights, error, call):
    collection = pyg.LinkPredCollection(["HR", "NDCG"], k=[1, 2], max_relevant=2)
    before = snapshot(collection)

    with pytest.raises(ValueError, match=error):
        getattr(collection, call)(TWO_LISTS, torch.tensor(labels), weights)
    assert same(snapshot(collection), before)


@pytest.mark.parametrize(
    ("labels", "weights", "max_relevant", "recall"),
    [
        ([[0, 1, 0], [4, 4, 4]], None, None, (1 / 2 + 0 / 1) / 2),  # row 0 finds one of two labels, both item 4
        ([[0, 5], [4, 4]], None, None, 1 / 1),  # there is no row 5
        ([[0, 1], [4, -4]], None, None, 1 / 1),  # there is no item -4
        ([[0, 0, 1], [4, 7, 2]], torch.tensor([1, math.nan, 1]), None, (1 / 1 + 1 / 1) / 2),
        ([[0, 0, 0], [4, 7, 8]], None, 2, 1 / 2),  # the third label is one too many
    ],
)
def test_unchecked_labels_that_are_wrong_do_not_count(labels, weights, max_relevant, recall):
    collection = pyg.LinkPredCollection("Recall@2", max_relevant=max_relevant, validate_args=False)
    assert collection(TWO_LISTS, torch.tensor(labels), weights) == {"Recall@2": recall}


def deferred_error(rank, world_size, labels, weights):
    """Add wrong labels on process 1 and right ones on process 0, and return the error of this process."""
    collection = pyg.LinkPredCollection("NDCG@2", max_relevant=2, validate_args="deferred")
    collection.update(TWO_LISTS, *((labels, weights) if rank == 1 else (THREE_LABELS,)))
    with pytest.raises(ValueError, match="bad input since the last reset") as caught:
        collection.compute()
    return str(caught.value)


@pytest.mark.parametrize(("labels", "weights", "_", "error"), WRONG_LABELS)
def test_labels_that_are_wrong_on_one_process_raise_on_both(labels, weights, _, error, processes):
    errors = processes.run(deferred_error, 2, torch.tensor(labels), weights)

    assert [error in text for text in errors] == [True, True]


@pytest.mark.parametrize(("items", "value"), [([3, 5, 6, -1], 1 / 2), ([], 0)])
def test_a_list_with_padding_or_nothing_is_not_warned_of(items, value):
    """One of two labels, 3 and 7, is in the list; warnings are errors here."""
    lists, labels = torch.tensor([items], dtype=torch.int64), torch.tensor([[0, 0], [3, 7]])
    assert pyg.LinkPredCollection("Recall@4")(lists, labels) == {"Recall@4": value}


def test_a_list_that_is_shorter_than_the_cutoff_is_warned_of():
    with pytest.warns(UserWarning, match=r"holds 2 items per row, the largest cut-off is 4.* pad with -1"):
        assert pyg.LinkPredCollection("Recall@4")(TWO_LISTS, THREE_LABELS) == {"Recall@4": (1 / 2 + 1 / 1) / 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "MRR", "k": None}, "MRR reads the whole ranking, but pred_index_mat is its top"),
        ({"metrics": "AUROC", "k": None}, "AUROC reads the whole ranking"),
        ({"duplicates": "merge"}, "duplicates must be one of 'error', 'first', 'keep_place', got 'merge'"),
        ({"duplicate_labels": True}, "duplicate_labels must be one of 'error', 'first', got True"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pyg.LinkPredCollection(**({"metrics": "HR", "k": 5} | options))


BATCH = {"pred_index_mat": TWO_LISTS, "edge_label_index": THREE_LABELS, "edge_label_weight": torch.ones(3)}
INTERACTIONS = trm.Interactions.from_edge_index(THREE_LABELS, 2, 9)
MISTAKES = [
    ({"edge_label_weight": None}, ValueError, r"edge_label_weight is missing: Recall\(weighted=True\)"),
    ({"pred_index_mat": TWO_LISTS.float()}, TypeError, "pred_index_mat must hold int64, .* got a torch.float32 tensor"),
    ({"edge_label_index": THREE_LABELS.T}, ValueError, r"must be .* \[3, 2\]; pass edge_label_index.T"),
    ({"edge_label_index": THREE_LABELS.tolist()}, TypeError, "edge_label_index must be a tensor .* got list"),
    ({"edge_label_index": INTERACTIONS}, TypeError, "edge_label_index must be .* got Interactions"),
    ({"edge_label_index": THREE_LABELS.to("meta")}, ValueError, "edge_label_index is on meta"),
    ({"pred_index_mat": TWO_LISTS[:0]}, ValueError, "edge_label_index holds 3 labels, but pred_index_mat has no rows"),
    ({"edge_label_weight": torch.ones(2)}, ValueError, r"edge_label_weight must be .* \[3\], got .* \[2\]"),
    ({"edge_label_weight": [1, 2, 3]}, ValueError, "edge_label_weight must be a tensor .* got list"),
]


@pytest.mark.parametrize(("changed", "error", "message"), MISTAKES)
def test_bad_arguments_of_a_batch_are_refused(changed, error, message):
    collection = pyg.LinkPredCollection([trm.Recall(1, weighted=True), "HR@1"], validate_args=True)

    with pytest.raises(error, match=message):
        collection.update(**(BATCH | changed))
    assert not collection.evaluator.update_called
