"""Contenders: this package, bare PyTorch, and other packages, each in its fastest use.

Every function returns a `Run` that does the whole work once and returns the metrics' means by our labels, or None if it
computes no metrics. Imports, and inputs in the form that a package wants, are made beforehand. A label that the
reference does not know (`MAP-found`) stands for another definition and is not compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

import torchrecmetrics as trm
from benchmarks.problem import Array, Problem, Run, Values
from torchrecmetrics.kernels import KernelChoice


def _floats(found: dict[str, Any]) -> Values:
    return {label: float(value) for label, value in found.items()}


# ------------------------------------------------------------------------------------------------------------- ours


def ours_from_scores(
    problem: Problem,
    target: Tensor,
    exclude: Tensor | None = None,
    kernels: KernelChoice = "auto",
    weights: Tensor | None = None,
) -> Run:
    """Run one collection with validation on: reset, update for each batch, compute."""
    metrics = trm.RecMetricCollection(problem.names, k=problem.cutoffs, kernels=kernels).to(problem.device)

    def run() -> Values:
        metrics.reset()
        for _ in range(problem.times):
            metrics.update(problem.scores, target, exclude=exclude, weights=weights)
        return _floats(metrics.compute())

    return run


def ours_in_metric_collection(problem: Problem, target: Tensor, how: str) -> Run:
    """Run a `MetricCollection` of torchmetrics, from "tensors", "ranks" or "a ranking"."""
    collection = trm.RecMetricCollection(problem.names, k=problem.cutoffs)
    descriptions = collection.metrics.items()
    metrics = MetricCollection({key: one.metric_class(one.k, **one.options) for key, one in descriptions})
    scores, depth = problem.scores, max(problem.cutoffs)
    assert scores is not None

    def run() -> Values:
        metrics.reset()
        if how == "tensors":
            metrics.update(scores, target)
        elif how == "ranks":
            metrics.update(trm.get_topk_ranks(scores, target, depth))
        else:
            metrics.update(trm.Scores(scores, target).ranking(depth))
        return _floats(metrics.compute())

    return run


def ours_from_embeddings(problem: Problem, kernels: KernelChoice = "auto") -> Run:
    """Run `evaluate`, which includes the computation of the scores."""

    def run() -> Values:
        assert problem.users is not None
        return _floats(
            trm.evaluate(
                problem.names,
                problem.users,
                problem.items,
                target=problem.target,
                exclude=problem.history,
                k=problem.cutoffs,
                kernels=kernels,
            )
        )

    return run


def ours_from_ranks(ranks: Tensor, names: Sequence[str], cutoffs: Sequence[int]) -> Run:
    """Update one collection with ranks."""
    metrics = trm.RecMetricCollection(names, k=cutoffs)

    def run() -> Values:
        metrics.reset()
        metrics.update(ranks, depth=max(cutoffs))
        return _floats(metrics.compute())

    return run


def ours_from_lists(lists: Tensor, target: Tensor, names: Sequence[str], cutoffs: Sequence[int]) -> Run:
    """Update one collection with recommended lists, in which it finds the relevant items itself."""
    metrics = trm.RecMetricCollection(names, k=cutoffs)

    def run() -> Values:
        metrics.reset()
        metrics.update(trm.Lists(lists, target))
        return _floats(metrics.compute())

    return run


def ours_streaming(problem: Problem, target: Tensor, k: int, how: str) -> Run:
    """Run one hit rate on batches of one row: `metric(...)`, one `update`, or one update per row and a compute."""
    assert problem.scores is not None
    metric = trm.HitRate(k)
    rows = list(zip(torch.split(problem.scores, 1), torch.split(target, 1), strict=True))

    def forward() -> Values:
        return {f"HR@{k}": float(metric(*rows[0]))}

    def update() -> None:
        metric.update(*rows[0])

    def stream() -> Values:
        metric.reset()
        for scores, relevant in rows:
            metric.update(scores, relevant)
        return {f"HR@{k}": float(metric.compute())}

    return {"forward": forward, "update": update, "stream": stream}[how]


# ----------------------------------------------------------------------------------------------------- bare PyTorch


def hand_written(problem: Problem, target: Tensor, exclude: Tensor | None = None) -> Run:
    """Run the code that a project writes for itself: `torch.topk`, a match, the formulas in float32, and no checks.

    Every row has the same number of relevant items, none is padding, and all batches have the same size, which favours
    the hand-written code.
    """
    assert problem.scores is not None
    scores, relevant = problem.scores, target.shape[1]
    place = torch.arange(1, problem.depth + 1, dtype=torch.float32, device=scores.device)
    discount = 1 / torch.log2(1 + place)
    ideal = discount.cumsum(0).tolist()

    def one_batch() -> Values:
        candidates = scores if exclude is None else scores.scatter(1, exclude, -torch.inf)
        best = candidates.topk(problem.depth).indices
        found = (best[:, :, None] == target[:, None, :]).any(-1).float()
        number = found.cumsum(1)
        precision = found * number / place
        values: dict[str, Callable[[int], Tensor]] = {
            "HR": lambda k: (number[:, k - 1] > 0).float(),
            "NDCG": lambda k: (found[:, :k] * discount[:k]).sum(1) / ideal[min(k, relevant) - 1],
            "MRR": lambda k: (found[:, :k] / place[:k]).amax(1),
            "Precision": lambda k: number[:, k - 1] / k,
            "Recall": lambda k: number[:, k - 1] / relevant,
            "MAP": lambda k: precision[:, :k].sum(1) / relevant,
        }
        return {f"{name}@{k}": values[name](k).mean().item() for name in problem.names for k in problem.cutoffs}

    def run() -> Values:
        every = [one_batch() for _ in range(problem.times)]
        return {label: sum(batch[label] for batch in every) / problem.times for label in every[0]}

    return run


def one_read(problem: Problem) -> Run:
    """Sum the scores, which reads each of them once."""

    def run() -> None:
        assert problem.scores is not None
        problem.scores.sum()

    return run


def topk(problem: Problem) -> Run:
    """Run `torch.topk` and nothing else."""

    def run() -> None:
        assert problem.scores is not None
        for _ in range(problem.times):
            problem.scores.topk(problem.depth)

    return run


def product(problem: Problem) -> Run:
    """Score all users in batches, into one buffer that is kept."""
    loop = problem.scorer(mask=False)

    def run() -> None:
        for _ in loop():
            pass

    return run


# ---------------------------------------------------------------------------------------------------- other packages


def _pyg_collection(names: Sequence[str], cutoffs: Sequence[int]) -> Any:
    from torch_geometric import metrics as link

    known = {
        "HR": ("HR", link.LinkPredHitRatio),
        "NDCG": ("NDCG", link.LinkPredNDCG),
        "MRR": ("MRR", link.LinkPredMRR),
        "Precision": ("Precision", link.LinkPredPrecision),
        "Recall": ("Recall", link.LinkPredRecall),
        "MAP": ("MAP-min", link.LinkPredMAP),
    }
    members = {f"{known[name][0]}@{k}": known[name][1](k) for name in names for k in cutoffs}
    return link.LinkPredMetricCollection(members)


def pyg(problem: Problem) -> Run:
    """Update PyG's collection with the result of one `torch.topk` per batch."""
    metrics, loop = _pyg_collection(problem.names, problem.cutoffs).to(problem.device), problem.scorer()

    def run() -> Values:
        metrics.reset()
        for batch, scores in loop():
            metrics.update(scores.topk(problem.depth).indices, batch.relevant)
        return _floats(metrics.compute())

    return run


def pyg_from_lists(lists: Tensor, relevant: Tensor, names: Sequence[str], cutoffs: Sequence[int]) -> Run:
    """Update PyG's collection with lists [B, K] and edges [2, E]."""
    metrics = _pyg_collection(names, cutoffs)

    def run() -> Values:
        metrics.reset()
        metrics.update(lists, relevant)
        return _floats(metrics.compute())

    return run


def recbole_style(problem: Problem) -> Run:
    """Evaluate as RecBole does: history to -inf, `torch.topk`, matrix of positives, gather, cumulative numpy metrics.

    RecBole's own loops over users (MRR, NDCG, MAP) are left out, which favours it.
    """
    loop = problem.scorer()

    def run() -> Values:
        found, relevant = [], []
        for batch, scores in loop():
            best = scores.topk(problem.depth).indices
            positive = torch.zeros_like(scores, dtype=torch.int)
            positive[batch.relevant[0], batch.relevant[1]] = 1
            found.append(positive.gather(1, best))
            relevant.append(positive.sum(1))
        values = _cumulative(torch.cat(found).cpu().numpy(), torch.cat(relevant).cpu().numpy(), problem.names)
        return {f"{label}@{k}": float(value[k - 1]) for label, value in values.items() for k in problem.cutoffs}

    return run


def _cumulative(found: Array, relevant: Array, names: Sequence[str]) -> dict[str, Array]:
    """Return means at every cut-off up to K, given which items of the lists are hits [B, K]."""
    place = np.arange(1, found.shape[1] + 1)
    hits = found.cumsum(1)
    capped = np.minimum(place, relevant[:, None])
    discount = 1 / np.log2(1 + place)

    def mrr() -> Array:
        first, any_hit = found.argmax(1)[:, None], hits[:, -1:] > 0
        return np.where(any_hit & (place > first), 1 / (1 + first), 0)

    values: dict[str, tuple[str, Callable[[], Array]]] = {
        "HR": ("HR", lambda: hits > 0),
        "NDCG": ("NDCG", lambda: np.where(found, discount, 0).cumsum(1) / discount.cumsum()[capped - 1]),
        "MRR": ("MRR", mrr),
        "Precision": ("Precision", lambda: hits / place),
        "Recall": ("Recall", lambda: hits / relevant[:, None]),
        "MAP": ("MAP-min", lambda: (hits / place * found).cumsum(1) / capped),
    }
    return {values[name][0]: values[name][1]().mean(0) for name in names}


def recometrics(problem: Problem) -> Run:
    """Run recometrics (C++) on as many threads as torch has; one call gives all cut-offs."""
    from recometrics import calc_reco_metrics
    from scipy.sparse import csr_array

    assert problem.users is not None
    assert problem.items is not None
    known = {"HR": "Hit", "NDCG": "NDCG", "MRR": "RR", "Precision": "P", "Recall": "R", "MAP": "AP"}
    wanted = {
        "precision": "Precision",
        "recall": "Recall",
        "average_precision": "MAP",
        "ndcg": "NDCG",
        "hit": "HR",
        "rr": "MRR",
    }
    train, test = (
        None if part is None else csr_array(part.to_scipy().astype(np.float32))
        for part in (problem.history, problem.target)
    )
    users, items = problem.users.numpy(), problem.items.numpy()
    options = {flag: name in problem.names for flag, name in wanted.items()}

    def run() -> Values:
        found = calc_reco_metrics(
            train,
            test,
            users,
            items,
            k=problem.depth,
            cumulative=True,
            as_df=False,
            nthreads=torch.get_num_threads(),
            **options,
        )
        values: Values = {}
        for name in problem.names:
            means = found[f"{known[name]}@K"].mean(0)
            values |= {f"{name}@{k}": float(means[k - 1]) for k in problem.cutoffs}
        return values

    return run


def torcheval(problem: Problem) -> Run:
    """Run hit rate and reciprocal rank, the only two in torcheval, at each cut-off; one relevant item per row."""
    from torcheval.metrics.functional import hit_rate, reciprocal_rank

    assert problem.scores is not None
    scores, target = problem.scores, problem.target.items
    functions = {"HR": hit_rate, "MRR": reciprocal_rank}

    def run() -> Values:
        return {
            f"{name}@{k}": float(function(scores, target, k=k).mean())
            for name, function in functions.items()
            for k in problem.cutoffs
        }

    return run


def torchmetrics(problem: Problem) -> Run:
    """Update torchmetrics' retrieval metrics with scores, labels and query ids of all candidates as flat tensors."""
    triples: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch, scores in problem.scorer()():
        relevant = torch.zeros(scores.shape, dtype=torch.int64)
        relevant[batch.relevant[0], batch.relevant[1]] = 1
        query = torch.arange(batch.rows.start, batch.rows.stop)[:, None].expand(scores.shape)
        candidate = scores > -torch.inf
        triples.append((scores[candidate], relevant[candidate], query[candidate]))
    preds, target, indexes = (torch.cat(parts) for parts in zip(*triples, strict=True))
    return torchmetrics_from_triple(preds, target, indexes, problem.names, problem.cutoffs)


def torchmetrics_streaming(problem: Problem, target: Tensor, k: int, how: str) -> Run:
    """Run the work of `ours_streaming` with torchmetrics, on flat triples made beforehand."""
    from torchmetrics.retrieval import RetrievalHitRate

    assert problem.scores is not None
    metric, size = RetrievalHitRate(top_k=k), problem.scores.shape[1]
    rows = [
        (scores, torch.zeros(size, dtype=torch.int64).scatter_(0, relevant, 1), torch.full((size,), row))
        for row, (scores, relevant) in enumerate(zip(problem.scores, target, strict=True))
    ]

    def forward() -> Values:
        metric.reset()  # the kept state would grow with every batch
        return {f"HR@{k}": float(metric(*rows[0][:2], indexes=rows[0][2]))}

    def update() -> None:
        metric.reset()
        metric.update(*rows[0][:2], indexes=rows[0][2])

    def stream() -> Values:
        metric.reset()
        for scores, relevant, query in rows:
            metric.update(scores, relevant, indexes=query)
        return {f"HR@{k}": float(metric.compute())}

    return {"forward": forward, "update": update, "stream": stream}[how]


def torchmetrics_from_triple(
    preds: Tensor, target: Tensor, indexes: Tensor, names: Sequence[str], cutoffs: Sequence[int]
) -> Run:
    """Update a MetricCollection, whose members share their state after the first batch."""
    from torchmetrics import MetricCollection, retrieval

    known = {
        "HR": ("HR", retrieval.RetrievalHitRate),
        "NDCG": ("NDCG", retrieval.RetrievalNormalizedDCG),
        "MRR": ("MRR", retrieval.RetrievalMRR),
        "Precision": ("Precision", retrieval.RetrievalPrecision),
        "Recall": ("Recall", retrieval.RetrievalRecall),
        "MAP": ("MAP-found", retrieval.RetrievalMAP),  # divided by the hits found
    }
    metrics = MetricCollection({f"{known[n][0]}@{k}": known[n][1](top_k=k) for n in names for k in cutoffs})

    def run() -> Values:
        metrics.reset()
        metrics.update(preds, target, indexes=indexes)
        return _floats(metrics.compute())

    return run


_RANX = {"HR": "hit_rate", "NDCG": "ndcg", "MRR": "mrr", "Precision": "precision", "Recall": "recall", "MAP": "map"}


def ranx(lists: Tensor, relevant: Tensor, names: Sequence[str], cutoffs: Sequence[int]) -> Run:
    """Run ranx on its own Qrels and Run objects, compiled by numba in the warm-up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ranx as package

    labels = {f"{_RANX[name]}@{k}": f"{name}@{k}" for name in names for k in cutoffs}
    judged: dict[str, dict[str, int]] = {str(row): {} for row in range(len(lists))}
    for row, item in relevant.T.tolist():
        judged[str(row)][str(item)] = 1
    scored = {
        str(row): {str(item): 1 / place for place, item in enumerate(items, 1)}
        for row, items in enumerate(lists.tolist())
    }
    qrels, ranked = package.Qrels(judged), package.Run(scored)

    def run() -> Values:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = package.evaluate(qrels, ranked, list(labels))
        return {labels[name]: float(value) for name, value in found.items()}

    return run
