"""Print a table of how many conformance cases other libraries agree with: python conformance/peers.py.

Each library is given what its users would give it: excluded items have scores of -inf, or leave a list; the largest k
is the number of items. A cell has the numbers of cases with an equal mean, with another mean, and without one (an
error, or NaN); cases that a library has no metric, option or input for are not counted.
"""

import json
import math
import os
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent
METRICS = {
    "torchmetrics": {
        "HR": "hit_rate",
        "Precision": "precision",
        "Recall": "recall",
        "RPrecision": "r_precision",
        "MAP": "average_precision",
        "NDCG": "normalized_dcg",
        "MRR": "reciprocal_rank",
        "AUROC": "auroc",
    },
    "torch-geometric": {
        "HR": "HitRatio",
        "Precision": "Precision",
        "Recall": "Recall",
        "F1": "F1",
        "MAP": "MAP",
        "NDCG": "NDCG",
        "MRR": "MRR",
        "MAP min": "MAP",
    },
    "ranx": {
        "HR": "hit_rate",
        "Precision": "precision",
        "Recall": "recall",
        "F1": "f1",
        "RPrecision": "r-precision",
        "MAP": "map",
        "DCG": "dcg",
        "NDCG": "ndcg",
        "MRR": "mrr",
    },
    "recometrics": {
        "HR": "Hit@",
        "Precision": "P@",
        "Recall": "R@",
        "MAP": "AP@",
        "NDCG": "NDCG@",
        "MRR": "RR@",
        "AUROC": "ROC_AUC",
        "Precision min": "TP@",
        "MAP min": "TAP@",
    },
    "torcheval": {"HR": "hit_rate", "MRR": "reciprocal_rank"},
    "pytorch-ignite": {"HR": "HitRate", "NDCG": "NDCG"},
    "keras-rs": {
        "Precision": "PrecisionAtK",
        "Recall": "RecallAtK",
        "MAP": "MeanAveragePrecision",
        "MRR": "MeanReciprocalRank",
        "NDCG": "NDCG",
        "DCG": "DCG",
    },
    "recommenders": {
        "Precision": "precision_at_k",
        "Recall": "recall_at_k",
        "RPrecision": "r_precision_at_k",
        "MAP": "map",
        "MAP min": "map_at_k",
        "NDCG": "ndcg_at_k",
    },
    "cornac": {
        "HR": "HitRatio",
        "Precision": "Precision",
        "Recall": "Recall",
        "F1": "FMeasure",
        "NDCG": "NDCG",
        "MAP": "MAP",
        "MRR": "MRR",
        "AUROC": "AUC",
    },
    "implicit": {
        "Precision": "precision",
        "Precision min": "precision",
        "MAP": "map",
        "MAP min": "map",
        "NDCG": "ndcg",
    },
    "lenskit": {
        "HR": "Hit",
        "Precision": "Precision",
        "Recall": "Recall",
        "MAP": "AveragePrecision",
        "MAP min": "AveragePrecision",
        "MRR": "RecipRank",
        "NDCG": "NDCG",
        "DCG": "DCG",
    },
    "scikit-learn": {"NDCG": "ndcg_score", "DCG": "dcg_score", "AUROC": "roc_auc_score"},
}
"""The name of each metric in each library."""


class Row:
    """A row as arrays: scores [I], -inf where an item is excluded, gains [I], and the list of places."""

    def __init__(self, given: dict[str, Any], row: int) -> None:
        target = [item for item in given["target"][row] if item >= 0]
        gains = given["gains"][row] if "gains" in given else [1.0] * len(target)
        self.listed: list[int] | None = None
        if "lists" in given:
            self.listed = [item for item in given["lists"][row] if item >= 0]
            self.scores = np.full(given["num_items"], -np.inf)
        else:
            self.scores = np.array([float(score) for score in given["scores"][row]])
            excluded = [item for item in given.get("exclude", [[]] * (row + 1))[row] if item >= 0]
            self.scores[excluded] = -np.inf
        self.gains = np.zeros(len(self.scores))
        self.gains[target] = gains

    @property
    def places(self) -> list[int]:
        """The items, best first, without excluded ones."""
        if self.listed is not None:
            return self.listed
        order = np.argsort(-self.scores, kind="stable")
        return [int(item) for item in order if self.scores[item] > -math.inf]

    @property
    def relevant(self) -> list[int]:
        """The relevant items."""
        return [int(item) for item in (self.gains > 0).nonzero()[0]]


Ask = Callable[[str, int | None, Row], float]


def torchmetrics(name: str, k: int | None, row: Row) -> float:
    """Return the value of torchmetrics."""
    from torchmetrics.functional import retrieval

    cutoff = {} if k is None else {"top_k": k}
    target = torch.tensor(row.gains if name == "normalized_dcg" else row.gains > 0)
    return float(getattr(retrieval, f"retrieval_{name}")(torch.tensor(row.scores), target.long(), **cutoff))


def pyg(name: str, k: int | None, row: Row) -> float:
    """Return the value of PyG."""
    from torch_geometric import metrics

    metric = getattr(metrics, f"LinkPred{name}")(k or len(row.scores))
    if row.listed is None:
        places = torch.tensor(row.scores).topk(min(metric.k, len(row.scores))).indices
    else:
        places = torch.tensor(row.listed)
    relevant = torch.tensor(row.gains > 0).nonzero()[:, 0]
    metric.update(places[None, : metric.k], torch.stack([torch.zeros_like(relevant), relevant]))
    return float(metric.compute())


def ranx(name: str, k: int | None, row: Row) -> float:
    """Return the value of ranx."""
    import ranx as package

    if row.listed is None:
        run = {f"{item}": score for item, score in enumerate(row.scores.tolist()) if score > -math.inf}
    else:
        run = {f"{item}": -float(place) for place, item in enumerate(row.listed)}
    relevant = {f"{item}": int(gain) for item, gain in enumerate(row.gains) if gain > 0}
    measure = name if k is None or name == "r-precision" else f"{name}@{k}"
    return float(package.evaluate(package.Qrels({"q": relevant}), package.Run({"q": run}), measure))


def recometrics(name: str, k: int | None, row: Row) -> float:
    """Return the value of recometrics."""
    import recometrics as package
    from scipy.sparse import csr_array

    test, train = csr_array(row.gains[None]), csr_array(np.isneginf(row.scores)[None].astype(float))
    scores, depth = np.where(np.isneginf(row.scores), 0.0, row.scores), k or len(row.scores)
    found = package.calc_reco_metrics(train, test, scores[None], np.eye(len(scores)), k=depth, all_metrics=True)
    return float(found[f"{name}{depth}" if name.endswith("@") else name].iloc[0])


def torcheval(name: str, k: int | None, row: Row) -> float:
    """Return the value of torcheval, which takes one relevant item."""
    from torcheval.metrics import functional

    (relevant,) = row.gains.nonzero()[0]
    return float(getattr(functional, name)(torch.tensor(row.scores)[None], torch.tensor([relevant]), k=k)[0])


def sklearn(name: str, k: int | None, row: Row) -> float:
    """Return the value of scikit-learn."""
    from sklearn import metrics

    if name == "roc_auc_score":
        return float(metrics.roc_auc_score(row.gains > 0, row.scores))
    return float(getattr(metrics, name)(row.gains[None], row.scores[None], k=k))


def ignite(name: str, k: int | None, row: Row) -> float:
    """Return the value of Ignite."""
    from ignite.metrics import rec_sys

    options = {"gain_function": "linear_rank"} if name == "NDCG" else {}
    metric = getattr(rec_sys, name)(top_k=[k or len(row.scores)], **options)
    metric.update((torch.tensor(row.scores)[None], torch.tensor(row.gains)[None]))
    return float(metric.compute()[0])


def keras_rs(name: str, k: int | None, row: Row) -> float:
    """Return the value of Keras Recommenders."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras_rs import metrics

    options = {"gain_fn": lambda gain: gain} if name.endswith("DCG") else {}
    metric = getattr(metrics, name)(k=k, seed=0, **options)
    metric.update_state(row.gains[None], row.scores[None])
    return float(metric.result())


def recommenders(name: str, k: int | None, row: Row) -> float:
    """Return the value of Recommenders."""
    import pandas as pd
    from recommenders.evaluation import python_evaluation

    true = pd.DataFrame({"userID": 0, "itemID": row.relevant, "rating": row.gains[row.relevant]})
    scores = -np.arange(len(row.places), dtype=float) if row.listed is not None else row.scores[row.places]
    pred = pd.DataFrame({"userID": 0, "itemID": row.places, "prediction": scores})
    options = {"score_type": "raw"} if name == "ndcg_at_k" else {}
    return float(getattr(python_evaluation, name)(true, pred, k=k or len(row.scores), **options))


def cornac(name: str, k: int | None, row: Row) -> float:
    """Return the value of Cornac, whose MAP, MRR and AUC have no cut-off."""
    from cornac import metrics

    metric = getattr(metrics, name)(**({"k": k or -1} if name not in ("MAP", "MRR", "AUC") else {}))
    items = np.array(row.places)
    return float(
        metric.compute(gt_pos=np.array(row.relevant), pd_rank=items, item_indices=items, pd_scores=row.scores[items])
    )


def implicit(name: str, k: int | None, row: Row) -> float:
    """Return the value of implicit, which asks a model for lists."""
    from implicit.evaluation import ranking_metrics_at_k
    from scipy.sparse import csr_matrix

    class Model:
        """A model whose lists are those of the row."""

        def recommend(self, users: Any, items: Any, N: int) -> tuple[Any, None]:  # implicit's name
            places = row.places[:N] + [-1] * (N - len(row.places))
            return np.array([places] * len(users), dtype=np.int32), None

    test = csr_matrix(row.gains[None] * (row.gains > 0))
    test.eliminate_zeros()
    depth = k or len(row.scores)
    return float(ranking_metrics_at_k(Model(), csr_matrix(test.shape), test, K=depth, show_progress=False)[name])


def lenskit(name: str, k: int | None, row: Row) -> float:
    """Return the value of LensKit."""
    from lenskit.data import ItemList
    from lenskit.metrics import ranking

    options = {"weight": ranking.LogRankWeight(offset=1)} if name.endswith("DCG") else {}
    if name.endswith("DCG") and set(row.gains) - {0, 1}:
        options["gain"] = "rating"
    metric = getattr(ranking, name)(k, **options)
    test = ItemList(item_ids=row.relevant, rating=row.gains[row.relevant])
    return float(metric.measure_list(ItemList(item_ids=row.places, ordered=True), test))


PEERS: dict[str, Ask] = {
    "torchmetrics": torchmetrics,
    "torch-geometric": pyg,
    "ranx": ranx,
    "recometrics": recometrics,
    "torcheval": torcheval,
    "pytorch-ignite": ignite,
    "keras-rs": keras_rs,
    "recommenders": recommenders,
    "cornac": cornac,
    "implicit": implicit,
    "lenskit": lenskit,
    "scikit-learn": sklearn,
}


ONLY_SCORES = ("torchmetrics", "recometrics", "torcheval", "pytorch-ignite", "keras-rs", "scikit-learn")
"""Libraries that rank scores themselves, and take no lists."""
ONLY_BINARY = ("torch-geometric", "cornac", "implicit")
"""Libraries without gains, as they are called here."""


def name_at(peer: str, given: dict[str, Any], case: dict[str, Any]) -> str | None:
    """Return a library's name of a case's metric, or None if it has no such metric, option or input."""
    options = dict(case["options"])
    metric = case["metric"] + " min" * (options.pop("normalize", None) == "min")
    if options.get("overlap") == "miss":
        del options["overlap"]  # what users get who exclude items by their scores
    options.pop("duplicates", None)
    graded = "gains" in given and case["metric"] in ("DCG", "NDCG")
    if (
        options
        or case["mean"] is None
        or (peer in ONLY_SCORES and "lists" in given)
        or (peer == "cornac" and (case["k"] is not None or "lists" in given) and metric in ("MAP", "MRR", "AUROC"))
        or (peer == "torcheval" and {len(target) for target in given["target"]} != {1})
        or (peer in ONLY_BINARY and graded)
    ):
        return None
    return METRICS[peer].get(metric)


def mean_of(peer: str, name: str, given: dict[str, Any], case: dict[str, Any]) -> float | str:
    """Return the library's mean over the rows that have a value, or in words that it has none."""
    try:
        rows = [Row(given, row) for row, value in enumerate(case["values"]) if value is not None]
        mean = math.fsum(PEERS[peer](name, case["k"], row) for row in rows) / len(rows)
    except Exception as error:  # any: it is what their users would see
        return f"{type(error).__name__}: {error}"
    return "no value (nan)" if math.isnan(mean) else mean


def main() -> None:
    """Print a row of the table for each library that is installed, and the cases on which a library disagrees."""
    warnings.simplefilter("ignore")
    different = []
    topics = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["inputs"] for path in sorted(FOLDER.glob("*.json"))
    }
    print(f"| library | {' | '.join(topics)} |\n|---|{'---|' * len(topics)}")
    for peer in PEERS:
        if not any(metadata.distributions(name=peer)):
            continue
        cells = []
        for topic, inputs in topics.items():
            counts = {"equal": 0, "other": 0, "refused": 0}
            for given, case in ((each, case) for each in inputs for case in each["cases"]):
                if name := name_at(peer, given, case):
                    mean = mean_of(peer, name, given, case)
                    kind = "refused" if isinstance(mean, str) else "other"
                    if isinstance(mean, float) and abs(mean - case["mean"]) < 1e-5:
                        kind = "equal"
                    else:
                        different.append((peer, f"{topic}, {given['name']}", case, mean))
                    counts[kind] += 1
            cells.append(" / ".join(map(str, counts.values())) if any(counts.values()) else "")
        print(f"| {peer} {metadata.version(peer)} | {' | '.join(cells)} |")
    print()
    for peer, where, case, mean in different:
        shown = mean if isinstance(mean, str) else f"{mean:.4f}"
        print(f"{peer}: {where}: {case['metric']}, k = {case['k']}: {shown}, not {case['mean']:.4f}")


if __name__ == "__main__":
    main()
