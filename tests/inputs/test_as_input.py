"""Mistakes in the arguments of `update` raise errors with a cure that works when it is typed as advised."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import tensor
from torchmetrics import MetricCollection
from values import numbers

import torchrecmetrics as trm

SCORES = tensor([[0.1, 0.9, 0.5], [0.4, 0.3, 0.2]])  # items 1, 2, 0 and items 0, 1, 2, best first
TARGET = tensor([2, 0])  # ranks 2 and 1


def mean_reciprocal_rank(*arguments, **keywords):
    """Return the value of an update of one metric and of a collection, which must agree."""
    metric, collection = trm.MRR(9), trm.RecMetricCollection(["MRR@9", "HR@1"])
    metric.update(*arguments, **keywords)
    collection.update(*arguments, **keywords)
    assert torch.equal(metric.compute(), collection.compute()["MRR@9"])
    return metric.compute()


def message_and_cures_of_dtensor(rank, world_size):
    """Return the message, and MRR and number of users of the two cures."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (world_size,))
    scores = distribute_tensor(SCORES, mesh, [Shard(1)])
    with pytest.raises(TypeError) as error:
        mean_reciprocal_rank(scores, TARGET)
    local, full = trm.MRR(), trm.MRR(sync_on_compute=False)
    local.update(scores.redistribute(placements=[Shard(0)]).to_local(), TARGET.chunk(world_size)[rank])
    full.update(scores.full_tensor(), TARGET)
    return str(error.value), *((metric.compute().item(), metric.num_users) for metric in (local, full))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_dtensor_is_refused_and_its_cures_give_the_value(processes, world_size):
    if not hasattr(pytest.importorskip("torch.distributed.tensor"), "distribute_tensor"):
        pytest.skip("DTensor is public from torch 2.5 on")
    for message, local, full in processes.run(message_and_cures_of_dtensor, world_size, timeout=60):
        assert re.match(r"scores is a DTensor: pass scores\.to_local\(\) .*scores\.full_tensor\(\)", message)
        assert local == full == ((1 / 2 + 1) / 2, 2)


DID_YOU_MEAN = "no (argument|option) '{}'; did you mean '{}'"


@pytest.mark.parametrize("call", [trm.get_topk_ranks, trm.HR(1).update])
@pytest.mark.parametrize(("name", "ours"), [("pred_scores", "scores"), ("preds", "scores"), ("y_true", "target")])
def test_an_argument_of_another_library_is_refused_with_its_name_here(call, name, ours):
    with pytest.raises(TypeError, match=DID_YOU_MEAN.format(name, ours)):
        call(**{name: SCORES})


@pytest.mark.parametrize("call", [trm.get_topk_ranks, trm.MRR, trm.HR, trm.Seen])
@pytest.mark.parametrize("name", ["top_k", "topk"])
def test_other_names_of_k_are_refused(call, name):
    with pytest.raises((TypeError, ValueError), match=DID_YOU_MEAN.format(name, "k")):
        call(**{name: 10})


@pytest.mark.parametrize("ranks", [[0, 2, 1], [[0], [2], [1]], [0.0, 2.0, 1.0]], ids=str)
def test_a_single_rank_of_0_is_refused_with_two_cures(ranks):
    message = r"^1 of 3 rows .*: row 0 is \[0\.?0?\]: if ranks start at 0, pass Ranks\(.* zero_based.*; .* padding=0"

    with pytest.raises(ValueError, match=message):
        mean_reciprocal_rank(trm.Ranks(tensor(ranks), complete=True))


@pytest.mark.parametrize("ranks", [[0, 2, 1], [[0], [2], [1]], [0.0, 2.0, 1.0]], ids=str)
@pytest.mark.parametrize(
    ("cure", "value"), [({"zero_based": True}, (1 + 1 / 3 + 1 / 2) / 3), ({"padding": 0}, (1 / 2 + 1) / 2)], ids=str
)
def test_a_single_rank_of_0_is_the_best_rank_or_padding_as_the_caller_says(ranks, cure, value):
    assert mean_reciprocal_rank(trm.Ranks(tensor(ranks), complete=True, **cure)) == value


def test_a_single_rank_of_0_is_counted_where_it_cannot_raise(device):
    metric = trm.MRR(9, validate_args="deferred").to(device)
    metric.update(tensor([0, 2, 0, 1], device=device), depth=9)

    with pytest.raises(ValueError, match=r"2 rows with invalid ranks .*since ranks start at 1"):
        metric.compute()


def test_an_unchecked_single_rank_of_0_is_padding():
    assert trm.MRR(9, validate_args=False)(tensor([0, 2, 0, 1]), depth=9) == (1 / 2 + 1) / 2


@pytest.mark.parametrize(
    ("ranks", "options", "value"),
    [
        (tensor([[0, 2], [1, 0], [0, 0]]), {"depth": 9}, (1 / 2 + 1) / 2),
        (trm.get_topk_ranks(SCORES, tensor([2, -1]), k=9), {}, 1 / 2),
        (trm.Ranks(tensor([1, -1, -100]), padding=-1, complete=True), {}, 1),
    ],
)
def test_a_rank_of_0_or_a_negative_one_is_padding_where_it_can_be_nothing_else(ranks, options, value):
    assert mean_reciprocal_rank(ranks, **options) == value


def test_rows_without_a_column_of_ranks_have_no_relevant_item():
    ranks = trm.Ranks(torch.zeros((2, 0), dtype=torch.int64), depth=9)

    assert ranks.ranking().num_relevant.tolist() == [0, 0]


GRADES = tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])
ARRAYS = {
    "ids": ((SCORES, TARGET), {"exclude": tensor([[0], [1]]), "weights": TARGET + 1.0}),
    "doubles": ((SCORES.double(), TARGET.int()), {}),
    "half precision": ((SCORES.half(), TARGET), {}),
    "flags": ((SCORES, GRADES > 2), {"exclude": tensor([True, False, False])}),
    "grades": ((SCORES, GRADES), {}),
    "gains": ((SCORES, tensor([[2, 1], [0, -1]])), {"gains": tensor([[3, 1], [2, 0]])}),
    "tuples": (
        (SCORES, (tensor([2, 1, 0]), tensor([0, 2, 3]))),
        {"exclude": (tensor([[0], [1]]), tensor([False, False, False]))},
    ),
    "ranks": ((tensor([[2, 10], [1, 0]]),), {"depth": 9}),
}


def as_array(value):
    """Return a tensor, or those of a tuple, as arrays of numpy that are read-only, as those of frames are."""
    if isinstance(value, tuple):
        return tuple(map(as_array, value))
    if not isinstance(value, torch.Tensor):
        return value
    array = value.numpy().copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(("positional", "named"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_have_the_value_of_their_tensors(positional, named):
    """The Trainer of Hugging Face hands over arrays."""
    expected = mean_reciprocal_rank(*positional, **named)
    arrays, named_arrays = as_array(positional), {name: as_array(value) for name, value in named.items()}

    assert mean_reciprocal_rank(*arrays, **named_arrays) == expected
    assert trm.MRR(9)(*arrays, **named_arrays) == expected


def test_an_array_may_stand_beside_a_tensor():
    assert mean_reciprocal_rank(SCORES, TARGET.numpy()) == (1 / 2 + 1) / 2


def test_columns_of_accumulators_may_be_arrays():
    metrics = trm.RecMetricCollection("HR@1", accumulators=[trm.KeptRows(), trm.ByGroup("a", "b")])
    metrics.update(SCORES.numpy(), TARGET.numpy(), row_ids=np.array([7, 5]), groups=np.array([1, 0]))

    assert metrics.rows.ids.tolist() == [7, 5]
    assert numbers(metrics.compute()) == {"HR@1": 1 / 2, "HR@1/a": 1, "HR@1/b": 0}


CALLS_WITH = {
    "scores": lambda array: trm.MRR(9).update(array, TARGET),
    "target": lambda array: trm.MRR(9).update(SCORES, array),
    "gains": lambda array: trm.MRR(9).update(SCORES, tensor([[2, 1], [0, 1]]), gains=array),
    "exclude": lambda array: trm.MRR(9).update(SCORES, TARGET, exclude=array),
    "ranks": lambda array: trm.MRR(9).update(trm.Ranks(array, depth=9)),
}


@pytest.mark.parametrize(
    ("name", "array", "read"),
    [
        ("scores", np.ma.masked_equal(SCORES.numpy(), SCORES[0, 1]), [[0.1, -torch.inf, 0.5], [0.4, 0.3, 0.2]]),
        ("target", np.ma.masked_equal([[2, 0], [0, 7]], 7), [[2, 0], [0, -1]]),
        ("target", TARGET.numpy().astype(object), [2, 0]),
        ("gains", np.ma.masked_equal([[1, 7], [1, 1]], 7), [[1, 0], [1, 1]]),
        ("exclude", np.ma.masked_equal([[1], [7]], 7), [[1], [-1]]),
        ("ranks", np.ma.masked_equal([[3, 1], [1, 8]], 8), [[3, 1], [1, -1]]),
    ],
)
def test_masked_arrays_and_objects_are_refused_with_a_cure_that_reads_them(name, array, read):
    """`torch.as_tensor` drops the mask of an array, and refuses objects."""
    with pytest.raises(TypeError, match=rf"{name} must be a tensor, got (Masked|nd).*: torch.as_tensor\(") as error:
        CALLS_WITH[name](array)
    cure = re.search(r"torch\.as_tensor\([^,]*\)", str(error.value))[0]  # typed as advised

    assert torch.equal(eval(cure, {"torch": torch, name: array}).float(), tensor(read).float())


EDGES = tensor([[0, 0, 1, 2], [1, 2, 3, 3]])
LABELS, SESSIONS, COLLECTION = tensor([0, 1, 0]), tensor([5, 5, 5]), trm.RecMetricCollection("NDCG", k=[2])


@pytest.mark.parametrize("call", [trm.NDCG(2).update, trm.NDCG(2).forward, COLLECTION.update, COLLECTION.forward])
@pytest.mark.parametrize(
    ("positional", "named", "error", "message"),
    [
        ((), {"preds": SCORES, "target": TARGET}, TypeError, "^update has no argument 'preds'; did you mean 'scores'"),
        ((SCORES, TARGET), {"sample_weight": TARGET}, TypeError, "^update has no argument 'sample_weight'"),
        ((SCORES[0], LABELS), {"query_ids": SESSIONS}, TypeError, "no argument 'query_ids'"),
        ((SCORES[0], LABELS, SESSIONS), {}, TypeError, "takes from 1 to 3 positional arguments but 4 were given"),
        ((SCORES.topk(2), TARGET), {}, TypeError, r"got the .* of torch\.topk: pass Lists\(topk\.indices, t"),
        ((SCORES, SCORES.topk(1)), {}, TypeError, r"^target must be a tensor, got .* torch\.topk: pass topk\.indices"),
        ((SCORES.to(torch.complex64), TARGET), {}, TypeError, r"torch\.complex64 .*: scores\.real or scores\.abs\(\)"),
        ((SCORES.long(), TARGET), {}, TypeError, r"torch\.int64 .* lists of .* Lists\(.*scores\.double\(\)$"),
        ((SCORES[:, 0], SCORES), {}, ValueError, r"update\(Negatives\(positive, negative\)\)"),
        ((torch.rand(3, 4), EDGES), {}, ValueError, r"for edges pass target=Interactions\.from_edge_index\("),
    ],
    ids=["preds", "weights", "query_ids", "flat", "topk", "topk target", "complex", "whole", "negatives", "edges"],
)
def test_arguments_as_in_other_libraries_are_refused_with_words_about_them(call, positional, named, error, message):
    with pytest.raises(error, match=message):
        call(*positional, **named)


def test_metric_collections_pass_on_known_names():
    with pytest.raises(TypeError, match="MetricCollection passes on only the names scores and target, not preds="):
        MetricCollection({"mrr": trm.MRR()}).update(preds=SCORES, target=TARGET)


def test_a_frame_is_no_input_though_it_has_a_method_rank():
    frame = pytest.importorskip("pandas").DataFrame(SCORES.numpy())

    with pytest.raises(TypeError, match=r"scores must be a tensor, got DataFrame: torch.as_tensor\(scores.to_numpy"):
        trm.HR(1).update(frame)


@pytest.mark.parametrize(
    "arguments",
    [
        (trm.Lists(SCORES.topk(2).indices, TARGET, complete=True),),
        (SCORES.to(torch.complex64).real, TARGET),
        (SCORES.to(torch.complex64).abs(), TARGET),
        ((10 * SCORES).long().double(), TARGET),
    ],
    ids=["topk", "real", "abs", "double"],
)
def test_cures_for_other_forms_of_scores_give_the_value(arguments):
    """Item 2 of row 0 has rank 2, item 0 of row 1 rank 1."""
    assert mean_reciprocal_rank(*arguments) == (1 / 2 + 1) / 2


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
def test_updates_inside_torch_func_are_refused_and_keep_the_state(transform):
    """Tensors of a transform would spoil it."""
    metric = trm.HR(1)
    metric.update(SCORES, TARGET)

    with pytest.raises(TypeError, match="inside torch"):
        transform(lambda scores: (metric.update(scores, TARGET), scores)[1])
    assert copy.deepcopy(metric).compute() == 1 / 2


def test_ranks_known_to_depth_1_alone_are_refused_at_5_with_the_cure():
    with pytest.raises(ValueError, match=r"depth 1 only.* complete=True with the lists, beams"):
        trm.HR(5).update(trm.get_topk_ranks(SCORES, TARGET, k=1))
