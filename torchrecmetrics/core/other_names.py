"""Names of metrics, arguments and cut-offs in other libraries, and their equivalents here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torchrecmetrics.core.options import OPTIONS

Function = TypeVar("Function", bound=Callable[..., Any])

CUTOFFS = dict.fromkeys(("top_k", "topk", "K", "cutoff", "cutoffs"), "k")
"""Names of the cut-off, `k`."""

ARGUMENTS = {
    **dict.fromkeys(("preds", "pred", "pred_scores", "y_pred", "y_score", "input", "logits", "predictions"), "scores"),
    **dict.fromkeys(("y_true", "targets", "labels", "ground_truth"), "target"),
    **dict.fromkeys(("weight", "sample_weight"), "weights"),
}
"""Names of the arguments of `update`."""

SESSIONS = "pass entries of sessions, one per (session, candidate), as update(Sessions(scores, labels, session_ids))"
CALLS = {
    **dict.fromkeys(
        ("indexes", "query_ids", "query_id", "qid", "session_ids", "group_ids", "group_id"),
        f"{SESSIONS}; for several batches use trm.CollectSessions(metrics)",
    ),
    "candidates": "pass scores of some items as update(Candidates(scores, target, items=items))",
    "history": "pass earlier items, which some metrics of lists read, as update(Scores(scores, target, history=))",
    "ranks": "pass ranks as update(ranks, depth=), or update(Ranks(ranks, depth=))",
    **dict.fromkeys(
        ("negative", "negatives", "y_pred_pos"), "pass positives and negatives as update(Negatives(positive, negative))"
    ),
    **dict.fromkeys(OPTIONS, "pass options to the metric itself, such as HR(10, overlap='keep')"),
    "groups": "groups of rows are read by RecMetricCollection(..., accumulators=[trm.ByGroup('cold', 'warm')])",
    **dict.fromkeys(
        ("row_ids", "clusters"),
        "ids of rows are read by KeptRows: RecMetricCollection(..., accumulators=[trm.KeptRows()])",
    ),
}
"""Arguments that `update` does not take, and the call that does."""

METRICS = {
    **dict.fromkeys(("rmse", "mse", "mae"), "errors of predicted ratings are torchmetrics.MeanSquaredError, ..."),
    "logloss": "the log loss of predicted probabilities is torch.nn.functional.binary_cross_entropy",
    "ne": "normalized entropy is a log loss divided by that of the mean click rate (torchrec.metrics); Entropy here is "
    "that of the recommended items",
    **dict.fromkeys(("auc", "rocauc"), "AUROC is the mean of each row's AUC; one AUC of all pairs: torchmetrics"),
    "gauc": "the name has three meanings: AUROC() weighs rows equally, AUROC(weight='candidates') by impressions (DIN, "
    "FuxiCTR), AUROC(weight='relevant') by clicks (RecBole)",
    **dict.fromkeys(("acc", "accuracy"), "the share of rows whose best item is relevant is HR@1"),
    "bpref": "it is in ir_measures; NDCG and MRR are the closest here",
    "fallout": "the share of irrelevant items that are recommended is torchmetrics.retrieval.RetrievalFallOut",
    **dict.fromkeys(("precisionrecallcurve", "recallatfixedprecision"), "curves are in torchmetrics.retrieval"),
    **dict.fromkeys(("rbp", "err", "epc", "fbeta", "srecall"), "docs/how-to/own-metric.md has its code"),
    "awrf": "attention-weighted rank fairness: exposure of groups of items; StatisticalParity is the closest here",
    "ee": "expected exposure, compared with that by relevance; ExposureGini and EqualOpportunity are the closest here",
    **dict.fromkeys(("se", "shannonentropy"), "Entropy is Shannon's, of the recommended items"),
    "efd": "Novelty is the mean of -log2 of popularity, without discount and relevance",
    **dict.fromkeys(("ils", "diversity"), "IntraListDiversity is 1 - intra-list similarity"),
}
"""Metrics that have no alias here, in lower case without spaces, '-' and '_', with the closest alternative."""


def is_called(name: str) -> str:
    """Return the message for another library's name of a cut-off or argument, with the name here."""
    if name in CUTOFFS:
        return f"{name}= is called k here: k=10, or several cut-offs of a collection k=[5, 10]"
    calls = "update(scores, target), get_topk_ranks(scores, target, k)"
    return f"{name}= is called {ARGUMENTS[name]} here: {calls}, or by these names"


def explains_names(function: Function) -> Function:
    """Make a function raise for other libraries' names of its required parameters, such as `top_k`, and name `k`."""
    parameters = inspect.signature(function).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    explained = {name for name, ours in (CUTOFFS | ARGUMENTS).items() if ours in required} - parameters.keys()

    @wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        if names := [name for name in arguments if name in explained]:
            raise TypeError("; ".join(map(is_called, names)))
        return function(*args, **arguments)

    return cast(Function, call)
