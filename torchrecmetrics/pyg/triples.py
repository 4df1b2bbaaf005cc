"""`pyg.evaluate_triples`: rank the head and the tail of each triple of a knowledge graph among all entities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from torchrecmetrics.base.options import MetricOptions
from torchrecmetrics.checks import check_choice, check_ids, check_k, describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.jagged import Spans
from torchrecmetrics.evaluation.models import Progress, ProgressBar
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import Budget, evaluating
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.registry import Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

Side: TypeAlias = Literal["head", "tail"]
"""The entity of a triple that is ranked."""
ScoreEntities: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of (head, relation), or of (relation, tail), all [b], that scores all entities: [b, entities]."""

_MAX_PAIRS = 2**17
"""Triples that a model scores at once."""


@torch.no_grad()
def evaluate_triples(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module | Mapping[Side, ScoreEntities],
    head: Tensor,
    relation: Tensor,
    tail: Tensor,
    *,
    known: Tensor | Sequence[Tensor] | None = None,
    sides: Sequence[Side] = ("head", "tail"),
    groups: Literal["side", "relation"] | None = "side",
    k: int | Iterable[int] | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = False,
    **options: Unpack[MetricOptions],
) -> Evaluation:
    """Rank the tail of each triple among all entities as the tail of (head, relation, ?), and its head likewise.

    Each triple and side is one row. Entities that make another known triple leave the candidates (the filtered
    setting); the tested triple stays, whether it is known or not. Scores are made for a batch of rows at a time.

    Args:
        metrics: as in `torchrecmetrics.evaluate`, such as ["MRR", "HR@10", "MeanRank", "AMRI"].
        model: a `torch_geometric.nn.kge.KGEModel`, or any module with `num_nodes` whose `forward(head, relation, tail)`
            scores triples, [n] -> [n], higher is better; or functions that score all entities, {"tail": function of
            (head, relation), "head": function of (relation, tail)}, [b] -> [b, entities]. Its training mode is
            restored.
        head: integers [n], entities of the test triples.
        relation: integers [n].
        tail: integers [n].
        known: all known triples, of training, validation and test: integers [3, M] (heads, relations, tails), or a
            tuple of these. None = the raw setting: other true triples compete.
        sides: "tail", "head" or both.
        groups: values of each "side" (keys like `MRR/tail`), of each "relation" (`MRR/relation 3`), or None.
        k: cut-off or cut-offs for names of metrics.
        batch_size: most rows that are scored together; default: as `memory_budget` allows.
        memory_budget: bytes for scores and the model's working memory; default as in `torchrecmetrics.evaluate`.
        progress: True shows a bar of tqdm, a function is called with (rows done, rows in all).
        options: keywords of all metrics made here (`ties`, ...), see `RankingMetric`; `overlap` is "keep".

    Raises:
        TypeError: for ids of another dtype, a model that cannot score.
        ValueError: for shapes that do not fit, ids outside the model's, and scores that are NaN.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import pyg
        >>> likes = torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.8, 0.3], [0.5, 0.4, 0.6]])  # one relation
        >>> functions = {"tail": lambda head, relation: likes[head], "head": lambda relation, tail: likes.T[tail]}
        >>> test, known = torch.tensor([[0], [0], [2]]), torch.tensor([[0, 0], [0, 0], [1, 2]])
        >>> found = pyg.evaluate_triples("MRR", functions, *test, known=known)
        >>> {key: value.item() for key, value in found.items()}  # entity 1 is a known tail
        {'MRR': 0.75, 'MRR/head': 0.5, 'MRR/tail': 1.0}
    """
    triples = _Triples.read("test", (head, relation, tail))
    if not len(triples.head):
        raise ValueError("there is no test triple")
    for side in sides:
        check_choice("sides", side, get_args(Side))
    if not sides or len(set(sides)) < len(sides):
        raise ValueError(f"sides must be 'head', 'tail' or both, got {sides!r}")
    check_choice("groups", groups, ("side", "relation", None))
    scorer = _Scorer.of(model, sides, Budget(batch_size, memory_budget))
    triples = triples.to(scorer.device)
    facts = None if known is None else _Triples.read("known", tuple(known)).to(scorer.device)
    for name, part in (("test", triples), ("known", facts)):
        scorer.check(name, part)
    num_relations = 1 + max(
        int(part.relation.max()) for part in (triples, facts) if part is not None and len(part.head)
    )
    names: list[str] | None = None if groups is None else list(sides)
    if groups == "relation":
        names = [f"relation {number}" for number in range(num_relations)]
    collection = RecMetricCollection.fresh(metrics, k, options, groups=names)
    rules = replace(collection.members[0].rules, overlap="keep")
    with evaluating(model), ProgressBar(progress, len(triples.head) * len(sides), unit="triple") as bar:
        for number, side in enumerate(sides):
            others = None if facts is None else _Others(facts, side, num_relations)
            rows = torch.arange(len(triples.head), device=scorer.device)
            for batch in torch.split(rows, scorer.batch_size()):
                part = triples.take(batch)
                scores = scorer.score(part, side)
                exclude = None if others is None else others.of(part)
                ranking = Ranking.rank(scores, part.side(side), None, exclude, collection.needs, rules)
                codes = part.relation if groups == "relation" else torch.full_like(batch, number)
                collection.update(ranking, groups=None if names is None else codes)
                bar.advance(batch, collection.members[0])
    return Evaluation(collection, "eager")


class _Triples(NamedTuple):
    head: Tensor  # int64 [n]
    relation: Tensor
    tail: Tensor

    @classmethod
    def read(cls, name: str, parts: Sequence[Tensor]) -> _Triples:
        """Return triples, checked."""
        if len(parts) != 3:
            raise ValueError(f"{name} triples must be (head, relation, tail), or [3, n], got {len(parts)} rows")
        for column, part in zip(cls._fields, parts, strict=True):
            check_ids(f"{column} of the {name} triples", part)
            if part.dim() != 1 or len(part) != len(parts[0]):
                raise ValueError(
                    f"{name} triples must be three tensors of one length [n], got "
                    f"{', '.join(str(list(other.shape)) for other in parts)}"
                )
            if len(part) and int(part.min()) < 0:
                raise ValueError(f"{column} of the {name} triples must be ids from 0, got {int(part.min())}")
        return cls(*(part.long() for part in parts))

    def side(self, side: Side) -> Tensor:
        """Return heads or tails."""
        return self.head if side == "head" else self.tail

    def to(self, device: torch.device) -> _Triples:
        return _Triples(*(part.to(device) for part in self))

    def take(self, rows: Tensor) -> _Triples:
        return _Triples(*(part[rows] for part in self))


class _Others:
    """The known triples, sorted by the two parts that are given where one side is ranked."""

    def __init__(self, facts: _Triples, side: Side, num_relations: int) -> None:
        self._given: Side = "tail" if side == "head" else "head"
        self._num_relations = num_relations
        order = self._key(facts).argsort(stable=True)
        self._keys = self._key(facts)[order]
        self._entities = facts.side(side)[order]

    def _key(self, triples: _Triples) -> Tensor:
        return triples.side(self._given) * self._num_relations + triples.relation

    def of(self, triples: _Triples) -> Spans:
        """Return the entities that make a known triple, a row per triple."""
        keys = self._key(triples)
        start, stop = torch.searchsorted(self._keys, keys), torch.searchsorted(self._keys, keys, right=True)
        longest = int((stop - start).max())
        return Spans(self._entities, start, stop, longest, torch.zeros_like(keys, dtype=torch.bool))


class _Scorer:
    """Scores of all entities for a batch of triples."""

    def __init__(
        self, functions: Mapping[Any, ScoreEntities], sizes: tuple[Any, Any], device: torch.device, budget: Budget
    ) -> None:
        self._functions = functions
        self._sizes = sizes  # of entities and relations, as far as known
        self._budget = budget
        self.device: torch.device = device

    @classmethod
    def of(cls, model: Any, sides: Sequence[Side], budget: Budget) -> _Scorer:
        """Read a model, or functions by side."""
        if isinstance(model, Mapping):
            if missing := [side for side in sides if not callable(model.get(side))]:
                raise TypeError(f"model has no function {missing[0]!r}: functions are given by side, one for each")
            return cls(model, (None, None), torch.device("cpu"), budget)
        num_entities = getattr(model, "num_nodes", None)
        if not isinstance(model, nn.Module) or not isinstance(num_entities, int):
            raise TypeError(
                "model must be a KGEModel, a module with num_nodes and forward(head, relation, tail), or functions "
                f'{{"tail": ..., "head": ...}}, got {describe(model)}'
            )
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        pair_bytes = 40 * getattr(model, "hidden_channels", 256)  # three embeddings and what is made of them
        at_once = min(_MAX_PAIRS, max(1, budget.bytes_on(device) // pair_bytes))

        def score(given: Tensor, relation: Tensor, side: Side) -> Tensor:
            """Call the model on pairs of a row and an entity, some at a time."""
            parts = []
            for start in range(0, len(given) * num_entities, at_once):
                pair = torch.arange(start, min(start + at_once, len(given) * num_entities), device=device)
                row, entity = pair // num_entities, pair % num_entities
                head, tail = (given[row], entity) if side == "tail" else (entity, given[row])
                parts.append(model(head, relation[row], tail))
            return torch.cat(parts).view(len(given), num_entities)

        functions = {
            "tail": lambda head, relation: score(head, relation, "tail"),
            "head": lambda relation, tail: score(tail, relation, "head"),
        }
        return cls(functions, (num_entities, getattr(model, "num_relations", None)), device, budget)

    def check(self, name: str, triples: _Triples | None) -> None:
        """Refuse ids that the model does not have."""
        if triples is None or not len(triples.head):
            return
        entities = torch.maximum(triples.head, triples.tail)
        for what, ids, number in (("entity", entities, self._sizes[0]), ("relation", triples.relation, self._sizes[1])):
            if number is not None and (highest := int(ids.max())) >= number:
                raise ValueError(f"{name} triples hold {what} {highest}; the model has {number}")

    def batch_size(self) -> int:
        """Return how many rows are scored together."""
        fitting = max(1, self._budget.bytes_on(self.device) // (8 * (self._sizes[0] or 100_000)))
        largest = self._budget.batch_size
        return fitting if largest is None else min(fitting, check_k(largest, "batch_size"))

    def score(self, triples: _Triples, side: Side) -> Tensor:
        """Return the scores of all entities, [b, entities]."""
        given = (triples.head, triples.relation) if side == "tail" else (triples.relation, triples.tail)
        scores = self._functions[side](*given)
        if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(triples.head):
            raise ValueError(
                f"the function of the {side} must return scores [{len(triples.head)}, entities], got {describe(scores)}"
            )
        return scores
