"""A collection on a GPU: update never waits, is deterministic, and can be recorded except for its last line."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch.utils._pytree import tree_map_only
from values import numbers

import torchrecmetrics as trm

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP", "F1"]
KERNELS = ["eager", "triton"]


def collection(kernels, device, whole=True, **options):
    """Return metrics with cut-offs and, if `whole`, metrics that need the whole list."""
    options |= {"kernels": kernels}
    further = ["RPrecision", "AUROC", *(cls(**options) for cls in (trm.MAP, trm.NDCG, trm.MRR))]
    return trm.RecMetricCollection([*NAMES, *(further if whole else [])], k=[1, 20], **options).to(device)


def batch(place, rows=None, targets=5):
    """Return scores with ties, and ids of targets and history that are distinct in each row."""
    rows, items = rows or place.pick(512, 4), place.pick(3000, 120)
    scores = (torch.randn(rows, items, device=place.device) * 64).round()
    ids = torch.rand(rows, items, device=place.device).argsort(1)
    return scores, ids[:, :targets].contiguous(), ids[:, targets : targets + 9].contiguous()


# every form of input: the arguments of update for (scores, target, history)
FORMS = {
    "ids": lambda s, t, h: ((s, t), {}),
    "ids [B]": lambda s, t, h: ((s, t[:, 0]), {}),
    "bfloat16": lambda s, t, h: ((s.bfloat16(), t), {}),
    "exclude ids": lambda s, t, h: ((s, t), {"exclude": h}),
    "exclude mask": lambda s, t, h: ((s, t), {"exclude": torch.zeros_like(s, dtype=torch.bool).scatter(1, h, True)}),
    "exclude items": lambda s, t, h: ((s, t), {"exclude": s[0] > 99}),
    "exclude several": lambda s, t, h: ((s, t), {"exclude": (h, s[0] > 99)}),
    "gains": lambda s, t, h: ((s, t), {"gains": t % 4}),
    "weights": lambda s, t, h: ((s, t), {"weights": s[:, 0].abs()}),
    "dense": lambda s, t, h: ((s, torch.zeros_like(s, dtype=torch.bool).scatter(1, t, True)), {}),
    "graded": lambda s, t, h: ((s, torch.zeros_like(s).scatter(1, t, 2.0)), {"exclude": h}),
}


def jagged(ids):
    """Return the rows as values and offsets."""
    return trm.Jagged(ids.flatten(), torch.arange(0, ids.numel() + 1, ids.shape[1], device=ids.device), ids.shape[1])


FORMS["jagged"] = lambda s, t, h: ((s, jagged(t)), {"exclude": jagged(h), "gains": jagged(t % 4)})
OTHERS = {
    "ranks": lambda s, t, h, kernels: trm.get_topk_ranks(s, t, 20, exclude=h, kernels=kernels),
    "ranking": lambda s, t, h, kernels: trm.Scores(s, t, exclude=h).ranking(kernels=kernels),
    "lists": lambda s, t, h, kernels: trm.Lists(s.topk(40).indices, t),
}


@contextmanager
def without_waiting(device):
    """Raise inside the block if an operation makes the host wait for the GPU."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_update_never_waits(form, many, kernels, place):
    """An update never waits, with few or many targets (eager counts them differently); values are those of the CPU."""
    overlap = "keep" if form in ("exclude items", "exclude several") else "error"
    options = {"max_relevant": 100, "overlap": overlap}
    args, kwargs = FORMS[form](*batch(place, targets=90 if many else 5))
    metrics = collection(kernels, place.device, **options)
    metrics.update(*args, **kwargs)  # compiles
    metrics.reset()
    with without_waiting(place.device):
        metrics.update(*args, **kwargs)

    args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
    wanted = collection("eager", "cpu", **options)
    wanted.update(*args, **kwargs)
    assert numbers(metrics.compute()) == pytest.approx(numbers(wanted.compute()), abs=1e-12)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", OTHERS)
def test_nothing_else_waits(form, kernels, place):
    """Ranks, rankings and lists do not wait when they are made or when they are added."""
    inputs = batch(place)
    metrics = collection(kernels, place.device, whole=False)
    for _ in range(2):
        metrics.reset()
        with without_waiting(place.device):
            metrics.update(OTHERS[form](*inputs, kernels))
    assert 0 < numbers(metrics.compute())["HR@20"] < 1


def test_waiting_would_raise(cuda):
    """Waiting is noticed: `compute` and a dense target of unknown width raise in this mode."""
    scores = torch.rand(4, 300, device=cuda)
    metrics = collection("eager", cuda)
    metrics.update(scores, torch.arange(4, device=cuda))
    for waits in (metrics.compute, lambda: metrics.update(scores, scores > 0.5), lambda: scores.sum().item()):
        with without_waiting(cuda), pytest.raises(RuntimeError, match="synchroniz"):
            waits()


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("form", ["ids", "exclude several", "gains", "weights"])
def test_deterministic_mode(form, many, kernels, place, deterministic):
    """An update has no operation that PyTorch calls nondeterministic, and the values are the same in this mode."""
    args, kwargs = FORMS[form](*batch(place, targets=90 if many else 5))
    metrics = collection(kernels, place.device, overlap="keep")
    metrics.update(*args, **kwargs)
    torch.use_deterministic_algorithms(False)
    wanted = collection(kernels, place.device, overlap="keep")
    wanted.update(*args, **kwargs)
    assert numbers(metrics.compute()) == pytest.approx(numbers(wanted.compute()), abs=1e-12)


@pytest.mark.parametrize("kernels", KERNELS)
def test_deterministic_mode_of_ranks_and_products(kernels, place, deterministic):
    """Float ranks, whose check adds up places, and an evaluation from embeddings work in deterministic mode."""
    scores, target, _ = batch(place)
    ranking = trm.Scores(scores, target).ranking(kernels=kernels)
    metrics = collection(kernels, place.device, whole=False)
    metrics.update(trm.Ranks(ranking.ranks, complete=True))
    assert 0 < numbers(metrics.compute())["HR@20"] < 1
    users, items = (torch.randn(n, 16, device=place.device) for n in scores.shape)
    interactions = trm.Interactions.from_padded(target, len(items))
    assert 0 <= trm.evaluate(["NDCG"], users, items, target=interactions, k=20, kernels=kernels)["NDCG@20"] <= 1


def record(step, device):
    """Record a function without arguments; return a function that replays it, and the outputs, tuples of tensors."""
    if device.type == "cpu":
        outputs = [tuple(part.clone() for part in one) for one in step()]

        def replay():
            for old, new in zip(outputs, step(), strict=True):
                for a, b in zip(old, new, strict=True):
                    a.copy_(b)

        return replay, outputs
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph.replay, outputs


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("targets", [5, 90])
def test_sums_can_be_recorded(targets, kernels, place):
    """An update without its last line can be recorded: its sums, replayed on new inputs, add up to equal states."""
    inputs = batch(place, targets=targets)
    metrics, wanted = (collection(kernels, place.device) for _ in range(2))
    evaluator = metrics.evaluator

    @torch.no_grad()
    def step():
        scores, target, history = inputs
        return [(evaluator._batch_rows(trm.Scores(scores, target, exclude=history)).sums(evaluator.formulas.layout),)]

    replay, ((sums,),) = record(step, place.device)
    total = torch.zeros_like(sums)
    for _ in range(3):
        fresh = batch(place, targets=targets)
        for old, new in zip(inputs, fresh, strict=True):
            old.copy_(new)
        replay()
        total += sums
        wanted.update(fresh[0], fresh[1], exclude=fresh[2])
    state = wanted.evaluator.metric_state[f"{wanted.evaluator._state_name}-sums"]
    torch.testing.assert_close(total, state, rtol=1e-14, atol=0)
    found = {key: result.value for key, result in evaluator.formulas.layout.results(total).items()}
    assert found == pytest.approx(numbers(wanted.compute()), rel=1e-14)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_recorded_update_does_not_accumulate(kernels, cuda, place):
    """States are replaced and not written to, so each replay adds its batch to the state at the time of recording."""
    inputs = batch(place)
    metrics, single = collection(kernels, cuda), collection(kernels, cuda)
    metrics.update(*inputs[:2])
    evaluator = metrics.evaluator
    before = dict(evaluator.metric_state)  # the graph reads these tensors, so they must stay alive

    def step():
        vars(evaluator).update(before)
        metrics.update(inputs[0], inputs[1], exclude=inputs[2])
        return [tuple(evaluator.metric_state.values())]

    replay, (after,) = record(step, cuda)
    for _ in range(2):
        fresh = batch(place)
        for old, new in zip(inputs, fresh, strict=True):
            old.copy_(new)
        replay()
    single.update(fresh[0], fresh[1], exclude=fresh[2])
    added = single.evaluator.metric_state.values()
    assert all(torch.equal(a + c, b) for a, b, c in zip(before.values(), after, added, strict=True))
