"""Print a table of how many conformance cases other libraries agree with: python conformance/peers.py.

Each library is given what its users would give it: excluded items have scores of -inf, or leave a list; the largest k
is the number of items. A cell has the numbers of cases with an equal mean, with another mean, and without one (an
error, or NaN); cases that a library has no metric, option or input for are not counted.
"""

import json
import math
import warnings
from collections.abc import Callable
from importlib.metadata import version
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


PEERS: dict[str, Ask] = {
    "torchmetrics": torchmetrics,
    "torch-geometric": pyg,
    "ranx": ranx,
    "recometrics": recometrics,
    "torcheval": torcheval,
    "scikit-learn": sklearn,
}


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
        or (peer not in ("torch-geometric", "ranx") and "lists" in given)
        or (peer == "torcheval" and {len(target) for target in given["target"]} != {1})
        or (peer == "torch-geometric" and graded)
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
    """Print the table, and the cases on which a library disagrees."""
    warnings.simplefilter("ignore")
    different = []
    print(f"| cases | {' | '.join(f'{peer} {version(peer)}' for peer in PEERS)} |\n|---|{'---|' * len(PEERS)}")
    for path in sorted(FOLDER.glob("*.json")):
        inputs = json.loads(path.read_text(encoding="utf-8"))["inputs"]
        cells = []
        for peer in PEERS:
            counts = {"equal": 0, "other": 0, "refused": 0}
            for given, case in ((each, case) for each in inputs for case in each["cases"]):
                if name := name_at(peer, given, case):
                    mean = mean_of(peer, name, given, case)
                    kind = "refused" if isinstance(mean, str) else "other"
                    if isinstance(mean, float) and abs(mean - case["mean"]) < 1e-5:
                        kind = "equal"
                    else:
                        different.append((peer, f"{path.stem}, {given['name']}", case, mean))
                    counts[kind] += 1
            cells.append(" / ".join(map(str, counts.values())) if any(counts.values()) else "")
        print(f"| {path.stem} | {' | '.join(cells)} |")
    print()
    for peer, where, case, mean in different:
        shown = mean if isinstance(mean, str) else f"{mean:.4f}"
        print(f"{peer}: {where}: {case['metric']}, k = {case['k']}: {shown}, not {case['mean']:.4f}")


if __name__ == "__main__":
    main()
