"""Type checkers accept this file: lines that they must refuse have an ignore, and an ignore without need is an error.

mypy and pyright read the file; it is not run.
"""

from collections.abc import Iterable

from torch import Tensor
from typing_extensions import assert_type

import torchrecmetrics as trm
from torchrecmetrics.collection.collection import Value
from torchrecmetrics.lightning import CatalogueEvaluationCallback, RecMetricsCallback


def metrics() -> None:
    trm.NDCG(10, gain="exponential", ties="optimistic", sync_on_compute=False)
    trm.NDCG(10, tis="optimistic")  # type: ignore[call-arg]
    trm.NDCG(10, ties="bogus")  # type: ignore[arg-type]
    trm.NDCG(10, gain="cubic")  # type: ignore[arg-type]
    trm.Precision()  # type: ignore[call-arg]
    trm.AUROC(validate_args="defered")  # type: ignore[arg-type]
    trm.StatisticalParity(10, of="genres")  # type: ignore[arg-type]


def collections(scores: Tensor, target: Tensor) -> None:
    collection = trm.RecMetricCollection(["HR"], k=[5, 10], padding_idx=0)
    collection.update(scores, target, weights=target)
    collection.update(scores.numpy(), target.numpy(), weights=target.numpy(), groups=target.numpy())
    collection.update(scores, target, mask="other")  # type: ignore[arg-type]
    assert_type(collection["HR@5"], Value)
    assert_type(collection["HR@5"].num_users, int)
    assert_type(collection.compute(), dict[str, Tensor])
    assert_type(collection.result().floats(4), dict[str, float])
    assert_type(collection.forward(scores, target=target), dict[str, Tensor])
    assert_type(list(collection.values()), list[Value])


def rankings(scores: Tensor, target: Tensor, ids: Tensor) -> Iterable[trm.Ranking]:
    yield assert_type(trm.Scores(scores, target).ranking(overlap="keep"), trm.Ranking)
    yield assert_type(trm.Lists(ids, target).ranking(), trm.Ranking)
    yield trm.Scores(scores, target).ranking(overlap="allow")  # type: ignore[arg-type]


def catalogue(users: Tensor, items: Tensor) -> None:
    train = trm.Interactions.from_text("train.txt")
    assert_type(train, trm.Interactions)
    both = trm.Interactions.from_text("train.txt", "test.txt")
    assert_type(both, tuple[trm.Interactions, ...])
    found = trm.evaluate(["HR"], users, items, target=train, k=5, ties="pessimistic")
    assert_type(found["HR@5"], Tensor)
    assert_type(trm.agreement(users, items, k=[5, 10]), trm.Evaluation)
    trm.evaluate(["HR"], users, items, target=train, k=5, tie="pessimistic")  # type: ignore[call-arg]
    trm.evaluate("HR@5", users.numpy(), items.numpy(), target=users > 0, exclude=users.numpy())
    trm.evaluate("HR@5", lambda ids: trm.Lists(ids[:, None]), target=train)
    RecMetricsCallback(["HR"], k=5, tie="pessimistic")  # type: ignore[call-arg]
    CatalogueEvaluationCallback("HR", 5, embed=lambda _: (users, items), target=train, overlap="miss")


def logs() -> None:
    log = trm.Log.from_frame({"user": [1], "item": [1]})
    assert_type(log.leave_last_out().train, trm.Log)
    assert_type(log.split_users(0.1).fit, trm.Log)
    assert_type(log.user_ids, trm.Vocabulary)
    assert_type(log.to_interactions(4).user_ids, trm.Vocabulary | None)
    assert_type(trm.audit(log.split_random()).faults, tuple[str, ...])
    known = log.to_interactions()
    trm.evaluate(["HR"], trm.Embeddings(bias=known.popularity), k=5, target=known)
    trm.audit([log])  # type: ignore[arg-type]


def lists(users: Tensor, items: Tensor) -> None:
    had = trm.Interactions.from_text("train.txt")
    recommended = trm.recommend(users, items, 5, exclude=had)
    ids, scores = recommended
    assert_type(ids, Tensor)
    assert_type(scores, Tensor)
    assert_type(recommended.user_ids, trm.Vocabulary | None)
    found = trm.evaluate_lists(["HR"], recommended, target=had, k=5, overlap="miss", duplicates="first")
    assert_type(found, trm.Evaluation)
    assert_type(found.num_unserved, int)
    assert_type(found.to_json(), str)
    trm.evaluate_lists(["HR"], recommended, target=had, k=5, duplicates="last")  # type: ignore[arg-type]


def comparisons(rows: trm.Rows) -> None:
    found = trm.compare({"pop": rows, "gcn": [rows, rows]}, baseline="pop", margin=0.01)
    assert_type(found, trm.Comparison)
    assert_type(found["NDCG@10"].p, float)
    assert_type(found["NDCG@10", "gcn", "pop"].wins, int)
    assert_type(rows.confidence_interval(level=0.9), dict[str, tuple[float, float]])
    rows.confidence_interval(level="0.9")  # type: ignore[arg-type]
    trm.compare({"pop": rows, "gcn": rows}, alternative="better")  # type: ignore[arg-type]


def rank_biased_precision(ranking: trm.Ranking, k: int, *, p: float = 0.8) -> Tensor:
    value: Tensor = (1 - p) * (p ** (ranking.ranks - 1) * ranking.hits(k)).sum(-1)
    return value


class RBP(trm.RankingMetric):
    formula = staticmethod(rank_biased_precision)


def own() -> None:
    trm.RecMetricCollection(["NDCG", RBP(10, p=0.9)], k=[5, 10])
