"""Mistakes in the arguments of `update` raise errors with a cure that works when it is typed as advised."""

import copy
import re

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from values import numbers

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
        assert message.startswith("scores is a DTensor: pass scores.to_local() ")
        assert "scores.full_tensor()" in message
        assert values == [3 / 4, 3 / 4, 2, 2]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("pred_scores", "scores"), ("preds", "scores"), ("y_true", "target"), ("top_k", "k"), ("topk", "k")],
)
def test_names_of_other_libraries(name, ours):
    """`get_topk_ranks` names its own argument for those that people know from elsewhere, `update` and metrics too."""
    with pytest.raises(TypeError, match=f"^get_topk_ranks has no argument '{name}'; did you mean '{ours}'"):
        trm.get_topk_ranks(**{name: SCORES})
    for call in (trm.MRR, trm.HR, trm.Seen) if ours == "k" else (trm.HR(1).update,):
        with pytest.raises((TypeError, ValueError), match=f"no (argument|option) '{name}'; did you mean '{ours}'"):
            call(**{name: 10})


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_a_single_rank_of_0_is_refused(shape, dtype):
    """A 0 in ranks [B] or [B, 1] raises an error whose two cures give the right values."""
    ranks = torch.tensor([0, 2, 1], dtype=dtype).view(shape)
    message = r"^1 of 3 rows .*: row 0 is \[0\.?0?\]: if ranks start at 0, pass Ranks\(.*; .* padding=0"
    with pytest.raises(ValueError, match=message):
        mean_reciprocal_rank(trm.Ranks(ranks, complete=True))
    assert mean_reciprocal_rank(trm.Ranks(ranks + 1, complete=True)) == (1 + 1 / 3 + 1 / 2) / 3
    assert mean_reciprocal_rank(trm.Ranks(ranks, padding=0, complete=True)) == (1 / 2 + 1) / 2


def test_a_single_rank_of_0_is_counted_where_values_are_not_waited_for(device):
    """With "deferred", rows with a single rank of 0 raise in `compute`; unchecked, and on "meta", they do not raise."""
    ranks = torch.tensor([0, 2, 0, 1], device=device)
    metric = trm.MRR(9, validate_args="deferred").to(device)
    metric.update(ranks, depth=9)
    with pytest.raises(ValueError, match=r"2 rows with invalid ranks .*since ranks start at 1"):
        metric.compute()
    metric = trm.MRR(9, validate_args=False).to(device)
    metric.update(ranks, depth=9)
    assert metric.compute() == (1 / 2 + 1) / 2
    trm.MRR(9).to("meta").update(ranks.to("meta"), depth=9)  # reads no value


def test_a_rank_of_0_is_padding_beside_others():
    """A 0 in ranks [B, T] or in the ranks of `get_topk_ranks` is padding, and a row without ranks is empty."""
    assert mean_reciprocal_rank(torch.tensor([[0, 2], [1, 0], [0, 0]]), depth=9) == (1 / 2 + 1) / 2
    ranks = trm.get_topk_ranks(SCORES, torch.tensor([2, -1]), k=9)
    assert ranks.tolist() == [[2], [0]]
    assert mean_reciprocal_rank(ranks) == 1 / 2
    metric = trm.MRR(9)
    metric.update(torch.zeros((2, 0), dtype=torch.int64), depth=9)
    metric.update(trm.Ranks(torch.tensor([1, -1, -100]), padding=-1, complete=True))
    assert (metric.compute(), metric.num_skipped) == (1, 4)


GRADES = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])
SPANS = torch.tensor([0, 2, 3])
ARRAYS = {
    "ids": ((SCORES, TARGET), {"exclude": torch.tensor([[0], [1]]), "weights": TARGET + 1.0}),
    "doubles": ((SCORES.double(), TARGET.int()), {}),
    "half precision": ((SCORES.half(), TARGET), {}),
    "flags": ((SCORES, GRADES > 2), {"exclude": torch.tensor([True, False, False])}),
    "grades": ((SCORES, GRADES), {}),
    "gains": ((SCORES, torch.tensor([[2, 1], [0, -1]])), {"gains": torch.tensor([[3, 1], [2, 0]])}),
    "tuples": ((SCORES, (torch.tensor([2, 1, 0]), SPANS)), {"exclude": (torch.tensor([[0], [1]]), GRADES[0] > 9)}),
    "ranks": ((torch.tensor([[2, 10], [1, 0]]),), {"depth": 9}),
}


def as_array(value):
    """Return a tensor, or the tensors of a tuple, as arrays of numpy, read-only as those of frames are."""
    if isinstance(value, tuple):
        return tuple(map(as_array, value))
    if not isinstance(value, torch.Tensor):
        return value
    array = value.numpy().copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("form", ARRAYS)
def test_arrays_of_numpy(form):
    """Arrays, which the Trainer of Hugging Face hands over, are taken as tensors are, all of them or some."""
    positional, named = ARRAYS[form]
    expected = mean_reciprocal_rank(*positional, **named)
    arrays = as_array(positional), {name: as_array(value) for name, value in named.items()}
    assert mean_reciprocal_rank(*arrays[0], **arrays[1]) == expected > 0
    assert mean_reciprocal_rank(positional[0], *arrays[0][1:], **arrays[1]) == expected
    assert trm.MRR(9)(*arrays[0], **arrays[1]) == expected


def test_arrays_of_columns_and_of_ranks_without_depth():
    """Columns of accumulators may be arrays; an array of ranks is refused until its depth is given."""
    kept = trm.RecMetricCollection("HR@1", accumulators=[trm.KeptRows(), trm.ByGroup("a", "b")])
    kept.update(SCORES.numpy(), TARGET.numpy(), row_ids=TARGET.numpy() + 5, groups=(TARGET == 2).numpy().astype(int))
    assert (kept.rows.ids.tolist(), numbers(kept.compute())) == ([7, 5], {"HR@1": 0.5, "HR@1/a": 1, "HR@1/b": 0})
    with pytest.raises(ValueError, match=r"the depth of these ranks is unknown.*: pass depth=10"):
        mean_reciprocal_rank(TARGET.numpy())


MASKED_IDS = np.ma.masked_equal([[2, 0], [0, 7]], 7), [[2, 0], [0, -1]]
MASKED_ROW = np.ma.masked_equal([1.0, 7.0], 7), [1.0, 0.0]
MASKED_SCORES = np.ma.masked_equal(SCORES.numpy(), SCORES[0, 1]), [[0.1, -torch.inf, 0.5], [0.4, 0.3, 0.2]]


@pytest.mark.parametrize(
    ("name", "array", "read"),
    [
        ("scores", *MASKED_SCORES),
        ("target", *MASKED_IDS),
        ("target", TARGET.numpy().astype(object), TARGET),
        ("gains", np.ma.masked_equal([[1, 7], [1, 1]], 7), [[1, 0], [1, 1]]),
        ("exclude", np.ma.masked_equal([[1], [7]], 7), [[1], [-1]]),
        ("ranks", MASKED_IDS[0] + 1, [[3, 1], [1, -1]]),
    ],
)
def test_arrays_that_torch_does_not_read(name, array, read):
    """`torch.as_tensor` drops the mask of an array, and refuses objects: the cures for both make the right tensor."""
    target = torch.tensor([[2, 1], [0, 1]]) if name == "gains" else TARGET
    arguments = {"scores": SCORES, "target": target, name: array}
    with pytest.raises(TypeError, match=rf"{name} must be a tensor, got (Masked|nd).*: torch.as_tensor\(") as error:
        trm.MRR(9).update(trm.Ranks(array, depth=9)) if name == "ranks" else trm.MRR(9).update(**arguments)
    call = re.search(r"torch\.as_tensor\([^,]*\)", str(error.value))[0]
    assert torch.equal(eval(call, {"torch": torch, name: array}).double(), torch.as_tensor(read).double())


TRIPLE = (torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))
EDGES = torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]])
OTHER_ARGUMENTS = [
    ((), {"preds": SCORES, "target": TARGET}, TypeError, "^update has no argument 'preds'; did you mean 'scores'"),
    ((SCORES, TARGET), {"sample_weight": TARGET}, TypeError, "^update has no argument 'sample_weight'"),
    (TRIPLE[:2], {"query_ids": TRIPLE[2]}, TypeError, "no argument 'query_ids'"),
    (TRIPLE, {}, TypeError, "takes from 1 to 3 positional arguments but 4 were given"),
    ((SCORES.topk(2), TARGET), {}, TypeError, r"got the .* of torch\.topk: pass Lists\(topk\.indices, t"),
    ((SCORES, SCORES.topk(1)), {}, TypeError, r"^target must be a tensor, got .* torch\.topk: pass topk\.indices"),
    (
        (SCORES.to(torch.complex64), TARGET),
        {},
        TypeError,
        r"got a torch\.complex64 .*: scores\.real or scores\.abs\(\)",
    ),
    ((SCORES.long(), TARGET), {}, TypeError, r"torch\.int64 .* lists of .* Lists\(.*scores\.double\(\)$"),
    ((SCORES[:, 0], SCORES), {}, ValueError, r"update\(Negatives\(positive, negative\)\)"),
    ((torch.rand(3, 4), EDGES), {}, ValueError, r"for edges pass target=Interactions\.from_edge_index\("),
]


@pytest.mark.parametrize(("positional", "named", "error", "message"), OTHER_ARGUMENTS)
def test_arguments_of_update_that_others_have(positional, named, error, message):
    """Names and forms of torchmetrics and others raise an error that says the name or form of this package."""
    metric, collection = trm.NDCG(2), trm.RecMetricCollection("NDCG", k=[2])
    for call in (metric.update, metric.forward, collection.update, collection.forward):
        with pytest.raises(error, match=message):
            call(*positional, **named)


def test_metric_collections_pass_on_known_names():
    with pytest.raises(TypeError, match="MetricCollection passes on only the names scores and target, not preds="):
        MetricCollection({"mrr": trm.MRR()}).update(preds=SCORES, target=TARGET)


def test_a_frame_is_no_input():
    """A frame of pandas is refused by name: its own method `rank` is not that of an input."""
    frame = pytest.importorskip("pandas").DataFrame(SCORES.numpy())
    with pytest.raises(TypeError, match=r"scores must be a tensor, got DataFrame: torch.as_tensor\(scores.to_numpy"):
        trm.HR(1).update(frame)


def test_cures_for_arguments_of_update_that_others_have():
    """The cures in the errors work: flat rows, a ranking of the indices of topk, and real or converted scores."""
    expected = (1 / 2 + 1) / 2  # item 2 of row 0 has rank 2, item 0 of row 1 rank 1
    assert mean_reciprocal_rank(trm.Lists(SCORES.topk(2).indices, TARGET, complete=True).ranking()) == expected
    for scores in (SCORES.to(torch.complex64).real, SCORES.to(torch.complex64).abs(), (10 * SCORES).long().double()):
        assert mean_reciprocal_rank(scores, TARGET) == expected
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


def test_shallow_ranks_are_not_called_lists():
    """The message about ranks that are known to a smaller depth names no other input than the one that was passed."""
    with pytest.raises(ValueError, match=r"depth 1 only.* complete=True with the lists, beams"):
        trm.HR(5).update(trm.get_topk_ranks(SCORES, TARGET, k=1))
