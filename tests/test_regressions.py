"""Faults that were found by trying; each test fails without the correction of its fault."""

import pickle
from copy import deepcopy

import pyarrow as pa
import pytest
import torch
from torchmetrics import MetricCollection

import torchrecmetrics as trm
from torchrecmetrics import arrow

SCORES = torch.rand(6, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.fixed
def test_forward_gives_groups_the_values_of_their_own_metric():
    collection = trm.RecMetricCollection(["HR", "MRR"], k=[2], accumulators=[trm.ByGroup("a", "b")])
    given = torch.tensor([1, 2, 3])
    assert collection(given, groups=torch.tensor([0, 0, 1])) == collection.compute()


def of_state(rank, world_size, kind):
    catalogue = trm.Catalogue(7)
    if kind == "one has no rows":
        collection = trm.RecMetricCollection("ExposureGini", k=[1, 3], catalogue=catalogue)
        if rank:
            collection.update(SCORES)
    elif kind == "one has no lists that something left":
        collection = trm.RecMetricCollection(["Coverage", "Gini"], k=[2], catalogue=catalogue, validate_args="deferred")
        if rank:
            lists, excluded = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0], [3]])
            collection.update(trm.Lists(lists, exclude=excluded).ranking(validate_args="deferred"))
    else:
        collection = trm.RecMetricCollection(["Coverage", "Gini"], k=[1], catalogue=catalogue)
        collection.update(SCORES)
        if kind == "one was merged" and rank:
            collection.merge_state(collection.clone())
        elif kind == "one was loaded" and rank:
            collection.persistent(True)
            collection.load_state_dict(collection.state_dict())
        elif kind == "one member was updated alone" and rank:
            collection["Gini@1"].update(SCORES)
    return {key: value.item() for key, value in collection.compute().items()}


@pytest.mark.parametrize(
    "kind",
    [
        "one has no rows",
        "one has no lists that something left",
        "one was merged",
        "one was loaded",
        "one member was updated alone",
    ],
)
def test_processes_pack_histograms_alike(processes, kind):
    one, other = processes.run(of_state, 2, kind)
    assert one == other


@pytest.mark.fixed
def test_catalogues_of_other_data_are_told_apart():
    genres, ids = torch.tensor([0, 1, 0]), torch.tensor([0, 1, 2])
    metrics = {
        name: trm.IntraListDiversity(2, catalogue=trm.Catalogue(3, categories=codes))
        for name, codes in (("genre", genres), ("id", ids))
    }
    collection = MetricCollection(deepcopy(metrics))
    for row in ([0.9, 0.8, 0.1], [0.9, 0.1, 0.8]):
        collection.update(torch.tensor([row]))
        for metric in metrics.values():
            metric.update(torch.tensor([row]))
    assert collection.compute() == {name: metric.compute() for name, metric in metrics.items()}


@pytest.mark.fixed
def test_tallies_of_other_catalogues_do_not_add_up():
    rows, popularity = pa.table({"item_ids": [[0], [1]]}), torch.tensor([3, 2, 1])
    one, other = (trm.Catalogue(3, popularity=each, num_users=4) for each in (popularity, popularity.flip(0)))
    tallies = [arrow.tally(rows, "Novelty", k=1, target=None, catalogue=each) for each in (one, other)]
    with pytest.raises(ValueError, match="tally 1"):
        arrow.merge(tallies, "Novelty", k=1, catalogue=one)


def test_a_value_with_groups_is_updated_alone_or_says_why_not():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", "b")])
    with pytest.raises((TypeError, ValueError), match="groups"):
        collection["HR@1"].update(torch.tensor([1]))


def test_keys_of_groups_do_not_replace_others():
    with pytest.raises(ValueError, match="HR@1/cold"):
        trm.RecMetricCollection({"HR@1/cold": trm.MRR(), "HR@1": trm.HR(1)}, accumulators=[trm.ByGroup("cold")])


@pytest.mark.fixed
@pytest.mark.parametrize("metric", [trm.Gini, trm.ExposureGini])
def test_a_catalogue_of_padding_alone(metric):
    metric = metric(1, catalogue=trm.Catalogue(1), padding_idx=0)
    metric.update(torch.tensor([[0.5]]))
    assert metric.compute().isnan()


def test_group_value_alone():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a")])
    collection.update(torch.tensor([1]), groups=torch.tensor([0]))
    for copied in (deepcopy, lambda part: pickle.loads(pickle.dumps(part))):
        assert copied(collection["HR@1/a"]).compute() == 1


@pytest.mark.fixed
def test_columns_of_nothing():
    rows = pa.table({"item_ids": [[1], [2]], "target": [1, 1], "group": pa.nulls(2), "none": pa.nulls(2)})
    arrow.tally(rows, trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", column="group")]))
    arrow.tally(rows, "HR", k=1, target="none")
    untyped = pa.table({"item_ids": pa.array([[], None]), "target": [1, 2]})
    found = arrow.merge(arrow.tally(untyped, "HR", k=1, complete=True), "HR", k=1)
    assert (found["HR@1"], found.num_unserved) == (0, 2)


@pytest.mark.fixed
def test_groups_of_columns_with_missing_values():
    pandas = pytest.importorskip("pandas")
    for column in (pandas.Series(["a", None], dtype="string"), pa.chunked_array([["a", None]]), pa.array(["a", None])):
        assert trm.Groups.from_column(column).sizes == {"a": 1}


@pytest.mark.fixed
def test_slices_end_where_heads_end():
    popularity = torch.full((10,), 0.1, dtype=torch.float64)
    target = trm.Interactions.from_columns(users=[0] * 10, items=list(range(10)), num_items=10)
    head = ~trm.Catalogue(10, popularity=popularity).tail(0.8)
    assert len(trm.slice_targets(target, popularity, [0.8])["head"]) == int(head.sum()) == 8
