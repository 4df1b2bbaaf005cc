"""A collection on a GPU: update never waits, is deterministic, and can be recorded except for its last line."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch.utils._pytree import tree_map_only
from values import near, numbers

import torchrecmetrics as trm

KERNELS = pytest.mark.parametrize("kernels", ["eager", "triton"])
TARGETS = pytest.mark.parametrize("targets", [5, 90])  # eager counts few and many differently


def collection(kernels, device, **options):
    """Return metrics with cut-offs, and metrics that need the whole list."""
    options |= {"kernels": kernels}
    whole = ["RPrecision", "AUROC", *(cls(**options) for cls in (trm.MAP, trm.NDCG, trm.MRR))]
    names = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP", "F1"]
    return trm.RecMetricCollection([*names, *whole], k=[1, 20], **options).to(device)


def batch(place, targets=5):
    """Return scores with ties, and ids of targets and history that are distinct in each row."""
    rows, items = place.pick((512, 3000), (4, 120))
    scores = (torch.randn(rows, items, device=place.device) * 64).round()
    ids = torch.rand(rows, items, device=place.device).argsort(1)
    return scores, ids[:, :targets].contiguous(), ids[:, targets : targets + 9].contiguous()


def jagged(ids):
    """Return the rows as values and offsets."""
    return trm.Jagged(ids.flatten(), torch.arange(0, ids.numel() + 1, ids.shape[1], device=ids.device), ids.shape[1])


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
    "jagged": lambda s, t, h: ((s, jagged(t)), {"exclude": jagged(h), "gains": jagged(t % 4)}),
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


@KERNELS
@TARGETS
@pytest.mark.parametrize("form", FORMS)
def test_an_update_that_never_waits_gives_the_values_of_the_cpu(form, targets, kernels, place):
    overlap = "keep" if form in ("exclude items", "exclude several") else "error"
    options = {"max_relevant": 100, "overlap": overlap}
    args, kwargs = FORMS[form](*batch(place, targets))
    metrics = collection(kernels, place.device, **options)
    metrics.update(*args, **kwargs)  # compiles
    metrics.reset()
    with without_waiting(place.device):
        metrics.update(*args, **kwargs)
    args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
    expected = collection("eager", "cpu", **options)
    expected.update(*args, **kwargs)

    assert numbers(metrics.compute()) == near(expected.compute())


@KERNELS
@pytest.mark.parametrize(
    "make",
    [
        lambda s, t, h, kernels: trm.get_topk_ranks(s, t, 20, exclude=h, kernels=kernels),
        lambda s, t, h, kernels: trm.Scores(s, t, exclude=h).ranking(kernels=kernels),
        lambda s, t, h, kernels: trm.Lists(s.topk(40).indices, t),
    ],
)
def test_other_inputs_never_wait_when_they_are_made_and_added(make, kernels, place):
    inputs = batch(place)
    metrics = trm.RecMetricCollection(["HR", "NDCG", "F1"], k=[1, 20], kernels=kernels).to(place.device)
    with without_waiting(place.device):
        metrics.update(make(*inputs, kernels))

    assert 0 < metrics.compute()["HR@20"] < 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda metrics, scores: metrics.compute(),
        lambda metrics, scores: metrics.update(scores, scores > 0.5),  # a dense target of unknown width
        lambda metrics, scores: scores.sum().item(),
    ],
)
def test_waiting_is_noticed(wait, cuda):
    scores = torch.rand(4, 300, device=cuda)
    metrics = collection("eager", cuda)
    metrics.update(scores, torch.arange(4, device=cuda))

    with without_waiting(cuda), pytest.raises(RuntimeError, match="synchroniz"):
        wait(metrics, scores)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@KERNELS
@TARGETS
@pytest.mark.parametrize("form", ["ids", "exclude several", "gains", "weights"])
def test_deterministic_mode_changes_no_value(form, targets, kernels, place, deterministic):
    args, kwargs = FORMS[form](*batch(place, targets))
    metrics, plain = (collection(kernels, place.device, overlap="keep") for _ in range(2))
    metrics.update(*args, **kwargs)
    torch.use_deterministic_algorithms(False)
    plain.update(*args, **kwargs)

    assert numbers(metrics.compute()) == near(plain.compute())


@KERNELS
def test_float_ranks_and_embeddings_are_evaluated_in_deterministic_mode(kernels, place, deterministic):
    """The check of float ranks adds up places."""
    scores, target, _ = batch(place)
    metrics = trm.RecMetricCollection("HR", k=20, kernels=kernels).to(place.device)
    metrics.update(trm.Ranks(trm.Scores(scores, target).ranking(kernels=kernels).ranks, complete=True))
    users, items = (torch.randn(n, 16, device=place.device) for n in scores.shape)
    interactions = trm.Interactions.from_padded(target, len(items))

    assert 0 < metrics.compute()["HR@20"] < 1
    assert 0 <= trm.evaluate("NDCG@20", users, items, target=interactions, kernels=kernels)["NDCG@20"] <= 1


def record(step, device):
    """Record a function without arguments; return a function that replays it, and the outputs, tuples of tensors."""
    if device.type == "cpu":
        outputs = [tuple(part.clone() for part in parts) for parts in step()]

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


@KERNELS
@TARGETS
def test_recorded_sums_add_up_to_the_states_of_updates(targets, kernels, place):
    """An update without its last line can be recorded, and replayed on new inputs."""
    inputs = batch(place, targets)
    metrics, expected = (collection(kernels, place.device) for _ in range(2))
    evaluator = metrics.evaluator

    @torch.no_grad()
    def step():
        scores, target, history = inputs
        return [(evaluator._batch_rows(trm.Scores(scores, target, exclude=history)).sums(evaluator.formulas.layout),)]

    replay, ((sums,),) = record(step, place.device)
    total = torch.zeros_like(sums)
    for _ in range(3):
        for old, new in zip(inputs, batch(place, targets), strict=True):
            old.copy_(new)
        replay()
        total += sums
        expected.update(*inputs[:2], exclude=inputs[2])
    state = expected.evaluator.metric_state[f"{expected.evaluator._state_name}-sums"]
    values = {key: result.value for key, result in evaluator.formulas.layout.results(total).items()}

    torch.testing.assert_close(total, state, rtol=1e-14, atol=0)
    assert values == pytest.approx(numbers(expected.compute()), rel=1e-14)
