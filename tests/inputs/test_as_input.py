"""Mistakes in the arguments of `update` raise errors with a cure that works when it is typed as advised."""

import copy

import pytest
import torch
from torchmetrics import MetricCollection

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.4, 0.3, 0.2]])  # items 1, 2, 0 and items 0, 1, 2, best first
TARGET = torch.tensor([2, 0])  # ranks 2 and 1


def mean_reciprocal_rank(*arguments, **keywords):
    """Return the value of an update of one metric and of a collection, which must agree."""
    metric, collection = trm.MRR(9), trm.RecMetricCollection(["MRR@9", "HR@1"])
    metric.update(*arguments, **keywords)
    collection.update(*arguments, **keywords)
    assert torch.equal(metric.compute(), collection.compute()["MRR@9"])
    return metric.compute()


# DTensor


def updated_from_dtensor(rank, world_size):
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (world_size,))
    scores = distribute_tensor(SCORES, mesh, [Shard(1)])
    with pytest.raises(TypeError) as error:
        mean_reciprocal_rank(scores, TARGET)
    local, full = trm.MRR(), trm.MRR(sync_on_compute=False)
    local.update(scores.redistribute(placements=[Shard(0)]).to_local(), TARGET.chunk(world_size)[rank])
    full.update(scores.full_tensor(), TARGET)
    return str(error.value), float(local.compute()), float(full.compute()), local.num_users, full.num_users


@pytest.mark.parametrize("world_size", [1, 2])
def test_scores_that_are_a_dtensor_are_refused(processes, world_size):
    """A DTensor raises an error that advises `to_local()` and `full_tensor()`, and both give the right value."""
    if not hasattr(pytest.importorskip("torch.distributed.tensor"), "distribute_tensor"):
        pytest.skip("DTensor is public from torch 2.5 on")
    for message, *values in processes.run(updated_from_dtensor, world_size, timeout=60):
        assert message.startswith("scores is a DTensor: pass scores.to_local(), ")
        assert "scores.full_tensor()" in message
        assert values == [3 / 4, 3 / 4, 2, 2]


# A history with items that the catalogue does not have


@pytest.mark.parametrize("name", ["Seen", "PopularityLift"])
@pytest.mark.parametrize("in_collection", [False, True])
def test_a_history_beyond_the_catalogue_is_refused(name, in_collection):
    """A history with an item beyond the catalogue raises for every metric that reads the history."""
    catalogue = trm.Catalogue(3, popularity=torch.tensor([2, 1, 1]))
    history = torch.tensor([[0, 1], [2, 3]])

    def metric(**options):
        if in_collection:
            return trm.RecMetricCollection([name, "HR"], k=[2], catalogue=catalogue, **options)
        return getattr(trm, name)(2, catalogue=catalogue, **options)

    message = "with an item, in the list or the history, that the catalogue does not have"
    with pytest.raises(ValueError, match=rf"^1 of 2 rows {message}: row 1 had \[2, 3\] of 3 items"):
        metric().update(trm.Scores(SCORES, TARGET, history=history))
    deferred = metric(validate_args="deferred")
    deferred.update(trm.Scores(SCORES, TARGET, history=history))
    with pytest.raises(ValueError, match=rf"1 row {message}"):
        deferred.compute()
    unchecked = metric(validate_args=False)
    unchecked.update(trm.Scores(SCORES, TARGET, history=history))  # item 3 is in no list
    expected = metric()
    expected.update(trm.Scores(SCORES, TARGET, history=torch.tensor([[0, 1], [2, -1]])))
    assert unchecked.compute() == expected.compute()


def test_lists_and_scores_beyond_the_catalogue_of_a_history_are_refused():
    """`Seen` with a catalogue reads lists and scores of that catalogue's items only."""
    seen = trm.Seen(2, catalogue=trm.Catalogue(2))
    with pytest.raises(ValueError, match=r"the catalogue has 2 items, the scores have 3"):
        seen.update(trm.Scores(SCORES, history=TARGET))
    with pytest.raises(ValueError, match=r"that the catalogue does not have: row 0 lists \[1, 2\] of 2 items"):
        seen.update(trm.Lists(torch.tensor([[1, 2]]), history=torch.tensor([[0]])))


def test_a_history_without_a_catalogue_holds_any_ids():
    """`Seen` without a catalogue takes ids of any size in lists and history."""
    seen = trm.Seen(2)
    seen.update(trm.Lists(torch.tensor([[900, 7]]), history=torch.tensor([[7, 10**6]])))
    assert seen.compute() == 1 / 2


# Ranks that start at 0


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_a_single_rank_of_0_is_refused(shape, dtype):
    """A 0 in ranks [B] or [B, 1] raises an error whose two cures give the right values."""
    ranks = torch.tensor([0, 2, 1], dtype=dtype).view(shape)
    with pytest.raises(
        ValueError,
        match=r"^1 of 3 rows .*: row 0 is \[0\]: if ranks start at 0, say Ranks\(.*; .* padding=0",
    ):
        mean_reciprocal_rank(ranks)
    assert mean_reciprocal_rank(ranks + 1) == (1 + 1 / 3 + 1 / 2) / 3
    assert mean_reciprocal_rank(trm.Ranks(ranks, padding=0).ranking()) == (1 / 2 + 1) / 2


@pytest.mark.parametrize("given", [[0.0, 2.5], [0, 1]])
def test_from_ranks_refuses_a_single_rank_of_0(given):
    """`Ranks` refuses a 0 in whole or float ranks [B] unless `padding=0` says that it is padding."""
    ranks = torch.tensor(given)
    with pytest.raises(ValueError, match=r"1 of 2 rows with ranks that are no places .* say Ranks.ranks, padding=0"):
        trm.Ranks(ranks).ranking()
    assert trm.Ranks(ranks, padding=0).ranking().num_relevant.tolist() == [0, 1]
    with pytest.raises(ValueError, match="padding must be one of None, 0, -1, got 1"):
        trm.Ranks(ranks, padding=1).ranking()


def test_a_single_rank_of_0_is_counted_where_values_are_not_waited_for(device):
    """With "deferred", rows with a single rank of 0 raise in `compute`; unchecked, and on "meta", they do not raise."""
    ranks = torch.tensor([0, 2, 0, 1], device=device)
    metric = trm.MRR(9, validate_args="deferred").to(device)
    metric.update(ranks)
    with pytest.raises(ValueError, match=r"2 rows with ranks that are no places .*for ranks start at 1"):
        metric.compute()
    metric = trm.MRR(9, validate_args=False).to(device)
    metric.update(ranks)
    assert metric.compute() == (1 / 2 + 1) / 2
    trm.MRR(9).to("meta").update(ranks.to("meta"))  # reads no value


def test_a_rank_of_0_is_padding_beside_others():
    """A 0 in ranks [B, T] or in the ranks of `get_topk_ranks` is padding, and a row without ranks is empty."""
    assert mean_reciprocal_rank(torch.tensor([[0, 2], [1, 0], [0, 0]])) == (1 / 2 + 1) / 2
    ranks = trm.get_topk_ranks(SCORES, torch.tensor([2, -1]), k=9)
    assert ranks.tolist() == [[2], [0]]
    assert mean_reciprocal_rank(ranks) == 1 / 2
    metric = trm.MRR(9)
    metric.update(torch.zeros((2, 0), dtype=torch.int64))
    metric.update(trm.Ranks(torch.tensor([1, -1, -100]), padding=-1))
    assert (metric.compute(), metric.num_skipped) == (1, 4)


# Arguments and options under the names of others

UPDATES = {
    "metric": lambda: trm.NDCG(2).update,
    "metric, forward": lambda: trm.NDCG(2).forward,
    "collection": lambda: trm.RecMetricCollection("NDCG", k=[2]).update,
    "collection, forward": lambda: trm.RecMetricCollection("NDCG", k=[2]).forward,
}
TRIPLE = (torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ((), {"preds": SCORES, "target": TARGET}, r"^preds= is called scores here: update\(scores, target\)"),
        ((SCORES,), {"y_true": TARGET}, "^y_true= is called target here"),
        ((SCORES, TARGET), {"sample_weight": TARGET}, "^sample_weight= is called weights here"),
        ((SCORES, TARGET), {"excluded": TARGET}, "^update has no argument 'excluded'; did you mean 'exclude'"),
        (
            (*TRIPLE[:2],),
            {"query_ids": TRIPLE[2]},
            r"^update has no argument 'query_ids'; entries of sessions.* update\(Sessions\(scores, labels, sess",
        ),
        (
            (SCORES, TARGET),
            {"overlap": "keep"},
            r"options are given where the metric is made.* HR\(10, overlap=",
        ),
        ((), {"y_pred_pos": SCORES}, r"update\(Negatives\(positive, negative\)\)"),
        (
            TRIPLE,
            {},
            r"got a torch\.int64 tensor of shape \[3\] as the third: .* update\(Sessions\(scores, labels, ses",
        ),
        ((SCORES.topk(2), TARGET), {}, r"got what torch\.topk returns, .*: pass Lists\(topk\.indices, t"),
        ((SCORES.topk(2),), {}, r"got what torch\.topk returns"),
        (
            (SCORES, SCORES.topk(1)),
            {},
            r"^target must be a tensor, got what torch\.topk .*: pass topk\.indices",
        ),
        (
            (SCORES.to(torch.complex64), TARGET),
            {},
            r"got a torch\.complex64 .*: scores\.real or scores\.abs\(\)",
        ),
        ((SCORES.long(), TARGET), {}, r"torch\.int64 .* lists of .* Lists\(.*scores\.double\(\)$"),
    ],
)
def test_arguments_of_update_that_others_have(update, positional, named, message):
    """Names and forms of torchmetrics and others raise an error that says the name or form of this package."""
    with pytest.raises(TypeError, match=message):
        update()(*positional, **named)


def test_values_in_forms_that_others_have():
    """Positives beside negatives, edges, and no argument at all raise an error that names the call that takes them."""
    with pytest.raises(ValueError, match=r"update\(Negatives\(positive, negative\)\)"):
        trm.MRR().update(SCORES[:, 0], SCORES)
    with pytest.raises(ValueError, match=r"edges are target=Interactions\.from_edge_index\("):
        trm.MRR().update(torch.rand(3, 4), torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]]))
    with pytest.raises(TypeError, match="MetricCollection passes on the names scores and target alone, not preds="):
        MetricCollection({"mrr": trm.MRR()}).update(preds=SCORES, target=TARGET)


@pytest.mark.parametrize("make", [lambda: trm.HR(2), lambda: trm.RecMetricCollection(["HR", "MRR"], k=2)])
def test_a_history_that_no_metric_reads(make):
    """A history without a metric that reads it, and without `exclude`, is a warning that names `exclude`."""
    metric = make()
    with pytest.warns(UserWarning, match=r"does not read history=.* exclude= takes"):
        metric.update(trm.Scores(SCORES, TARGET, history=TARGET))
    metric.update(trm.Scores(SCORES, TARGET, history=TARGET - 1, exclude=TARGET - 1))  # both were meant


def test_cures_for_arguments_of_update_that_others_have():
    """The cures in the errors work: flat rows, a ranking of the indices of topk, and real or converted scores."""
    first = 1 / 2  # item 2 of row 0 has rank 2, item 0 of row 1 rank 1
    assert mean_reciprocal_rank(trm.Lists(SCORES.topk(2).indices, TARGET, complete=True).ranking()) == (first + 1) / 2
    for scores in (SCORES.to(torch.complex64).real, SCORES.to(torch.complex64).abs(), (10 * SCORES).long().double()):
        assert mean_reciprocal_rank(scores, TARGET) == (first + 1) / 2
    assert mean_reciprocal_rank(trm.Sessions(*TRIPLE)) == 1  # query 1 has no relevant item


@pytest.mark.parametrize(
    "transform",
    [
        lambda update: torch.func.functionalize(update)(SCORES),
        lambda update: torch.vmap(update)(SCORES[None]),
        lambda update: torch.func.grad(lambda scores: update(scores).sum())(SCORES),
        lambda update: torch.vmap(lambda rows: (update(SCORES), rows)[1])(SCORES),
    ],
    ids=["functionalize", "vmap", "grad", "tensors of outside"],
)
def test_updates_inside_torch_func_are_refused(transform):
    """Tensors of a transform, which would spoil the states, are refused, and the metric stays as it was."""
    metric = trm.HR(1)
    metric.update(SCORES, TARGET)
    before = metric.compute()
    with pytest.raises(TypeError, match="inside torch"):
        transform(lambda scores: (metric.update(scores, TARGET), scores)[1])
    assert metric.compute() == before
    copy.deepcopy(metric)


@pytest.mark.parametrize(
    "given",
    [
        lambda: trm.Vocabulary([("a", 1), ("b", 2)]),
        lambda: trm.Interactions.from_columns([("a", 1), ("b", 2)], ["x", "y"]),
        lambda: trm.Interactions.from_frame({"user": [("a", 1), ("b",)], "item": ["x", "y"]}),
        lambda: trm.evaluate_lists("NDCG", {"u": [("a", 1)]}, target={"u": [("a", 1)]}, k=1),
        lambda: trm.evaluate_lists("NDCG", {("a", 1): ["x"]}, target={("a", 1): ["x"]}, k=1),
    ],
    ids=["vocabulary", "columns", "frame", "items of lists", "users of lists"],
)
def test_tuples_are_no_ids(given):
    """Tuples as ids raise an error that names the cure; of one length they could be a matrix."""
    with pytest.raises((TypeError, ValueError), match=r"tuple: make text of each|must be one column \[E\]"):
        given()
