"""`pyg.evaluate_triples`: rank the head and the tail of each triple of a knowledge graph among all entities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator, ByGroup, check_group_names
from torchrecmetrics.core.checks import check_choice, check_ids, check_k, describe, nearest
from torchrecmetrics.core.kept_rows import KeptRows
from torchrecmetrics.core.signature import METRIC_OPTIONS, MetricOptions, check_spelling
from torchrecmetrics.evaluation.progress import Progress, ProgressBar
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import evaluating, memory_on
from torchrecmetrics.inputs.jagged import Spans
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.names import Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

Side: TypeAlias = Literal["head", "tail"]
"""The entity of a triple that is ranked."""
ScoreEntities: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of (head, relation) or of (relation, tail), each [b], that scores all entities: [b, entities]."""

_MAX_PAIRS_CPU, _MAX_PAIRS = 2**14, 2**17
"""Most triples that a model scores at once: on the CPU, where they should fit the cache, and on other devices."""
_CHANNEL_BYTES = 48
"""Bytes per scored triple and hidden channel: embeddings and intermediate results of RotatE, which needs the most."""
_MAX_RELATIONS = 2**20
"""Most groups of relations; ids with gaps would make a group of every number in between."""


@torch.no_grad()
def evaluate_triples(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module | Mapping[Side, ScoreEntities],
    head: Tensor,
    relation: Tensor,
    tail: Tensor,
    *,
    known: Tensor | Sequence[Tensor] | None = None,
    sides: Side | Sequence[Side] = ("head", "tail"),
    groups: Literal["side", "relation"] | None = "side",
    relation_names: Sequence[str] | None = None,
    num_entities: int | None = None,
    k: int | Iterable[int] | None = None,
    batch_size: int | None = None,
    keep_rows: bool = False,
    progress: bool | Progress = False,
    **options: Unpack[MetricOptions],
) -> Evaluation:
    """Rank the tail of each triple among all entities as the tail of (head, relation, ?), and its head likewise.

    Each triple and side is one row. Entities that make another known triple leave the candidates (the filtered
    setting); the tested triple stays, whether it is known or not. Scores are made for a batch of rows at a time.

    Args:
        metrics: as in `torchrecmetrics.evaluate`, such as ["MRR", "HR@10", "MeanRank", "AMRI"].
        model: a `torch_geometric.nn.kge.KGEModel`, or any module whose `forward(head, relation, tail)` scores triples,
            [n] -> [n], higher is better; or functions that score all entities, {"tail": function of (head, relation),
            "head": function of (relation, tail)}, [b] -> [b, entities], called with tensors on the device of `head`.
            Modules, and modules whose methods are given, are in eval mode meanwhile.
        head: integers [n], entities of the test triples.
        relation: integers [n].
        tail: integers [n].
        known: all known triples, of training, validation and test: integers [3, M] (heads, relations, tails), or a
            tuple of these. Repeated triples count once. None = the raw setting: other true triples compete.
        sides: "tail", "head" or both.
        groups: values of each "side" (keys like `MRR/tail`), of each "relation" (`MRR/relation 3`), or None.
        relation_names: with groups="relation", names of all relations in the order of their ids.
        num_entities: number of entities, needed for modules without `num_nodes`. For functions it is the width of their
            scores; without it, the first triple is scored alone to find the width.
        k: cut-off or cut-offs for names of metrics.
        batch_size: most rows that are scored together; default: as memory allows, as in `torchrecmetrics.evaluate`.
        keep_rows: keep per-row values, for `trm.compare`: row i is the head of triple i, row n + i its tail, and both
            are one cluster.
        progress: True shows a bar of tqdm, a function is called with (rows done, rows in all).
        options: keywords of all metrics (`ties`: PyKEEN's "realistic"), see `RankingMetric`; `overlap` is "keep".

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
    _check_options(options)
    triples = _Triples.read("test", (head, relation, tail))
    facts = None if known is None else _Triples.read("known", known)
    sides, num_triples = _read_sides(sides), len(triples.head)
    if not num_triples:
        raise ValueError("there is no test triple: head, relation and tail are empty")
    scorer = _Scorer(model, sides, num_entities, batch_size, triples.head.device)
    names, num_relations = _read_groups(groups, sides, relation_names, model, [triples, *([facts] if facts else [])])
    for name, read in (("test", triples), ("known", facts)):
        if read is not None and len(read.head):
            read.check_range(name, scorer.num_entities, num_relations, has_codes=facts is not None)
    triples, facts = triples.to(scorer.device), None if facts is None else facts.to(scorer.device)
    accumulators: list[Accumulator] = [] if names is None else [ByGroup(*names)]
    if keep_rows:
        accumulators.append(KeptRows())
    collection = RecMetricCollection.fresh(metrics, k, options, accumulators=accumulators).to(scorer.device)
    evaluator = collection.evaluator
    evaluator.set_sync_on_compute(options.get("sync_on_compute", False))
    if evaluator.rules.overlap not in (None, "keep"):
        raise ValueError(
            f"a tested triple that is known stays: overlap must be 'keep', got {evaluator.rules.overlap!r}"
        )
    evaluator.rules = replace(evaluator.rules, overlap="keep")
    with evaluating(scorer.modules), ProgressBar(progress, num_triples * len(sides), unit="triple") as bar:
        for side in sides:
            others = None if facts is None else _KnownTriples(facts, side, num_relations)
            for batch in scorer.batches(num_triples):
                tested = _Triples(*(column[batch] for column in triples))
                scores = scorer.score(tested, side)
                exclude = None if others is None else others.spans(tested)
                columns: dict[str, Any] = {}
                if names is not None:
                    codes = tested.relation if groups == "relation" else torch.full_like(batch, sides.index(side))
                    columns["groups"] = codes
                if collection.keep_rows:
                    columns |= {"row_ids": batch + num_triples * (side == "tail"), "clusters": batch}
                evaluator.update(Scores(scores, tested.side(side), exclude=exclude), **columns)
                bar.advance(batch, collection)
    return Evaluation(collection, "eager")


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse keywords that are no options of metrics."""
    check_spelling(options)
    known = [name for name in inspect.signature(evaluate_triples).parameters if name != "options"]
    for name in options:
        if name not in METRIC_OPTIONS:
            raise TypeError(f"evaluate_triples has no argument {name!r}{nearest(name, [*known, *METRIC_OPTIONS])}")


def _read_sides(sides: Any) -> tuple[Side, ...]:
    chosen = (sides,) if isinstance(sides, str) or not isinstance(sides, Iterable) else tuple(sides)
    for side in chosen:
        check_choice("sides", side, get_args(Side))
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"sides must be 'head', 'tail' or both, got {sides!r}")
    return chosen


def _read_groups(
    groups: Any, sides: Sequence[Side], relation_names: Any, model: Any, parts: Sequence[_Triples]
) -> tuple[Sequence[str] | None, int]:
    """Return the names of the groups (None = no groups) and the number of relations."""
    check_choice("groups", groups, ("side", "relation", None))
    num_relations = getattr(model, "num_relations", None)
    if relation_names is not None:
        if groups != "relation":
            raise ValueError(f'relation_names are for groups="relation", got groups={groups!r}')
        relation_names = check_group_names(relation_names)
        if isinstance(num_relations, int) and num_relations != len(relation_names):
            raise ValueError(f"relation_names must name {num_relations} relations, got {len(relation_names)}")
        num_relations = len(relation_names)
    if not isinstance(num_relations, int):
        num_relations = 1 + max(int(part.relation.max()) for part in parts if len(part.relation))
    if groups == "relation":
        if num_relations > _MAX_RELATIONS:
            raise ValueError(
                f'groups="relation" makes a group of each id up to {num_relations - 1}: number relations from 0, as '
                "Vocabulary does"
            )
        return relation_names or [f"relation {number}" for number in range(num_relations)], num_relations
    return sides if groups == "side" else None, num_relations


class _Triples(NamedTuple):
    head: Tensor  # int64 [n]
    relation: Tensor
    tail: Tensor

    @classmethod
    def read(cls, name: str, triples: Any) -> _Triples:
        """Return the triples as three columns int64 [n], checked."""
        accepted = f"{name} triples must be (head, relation, tail), integers of one length [n], or a tensor [3, n]"
        if not isinstance(triples, (Tensor, tuple, list)):
            raise TypeError(f"{accepted}, got {describe(triples)}")
        if isinstance(triples, Tensor) and (triples.dim() != 2 or len(triples) != 3):
            cure = f": pass {name}.T" if triples.dim() == 2 and triples.shape[1] == 3 else ""
            raise ValueError(f"{accepted}, got {list(triples.shape)}{cure}")
        if len(triples) != 3:
            raise ValueError(f"{accepted}, got a {type(triples).__name__} of {len(triples)}")
        for column, ids in zip(cls._fields, triples, strict=True):
            check_ids(f"{column} of the {name} triples", ids)
        if triples[0].dim() != 1 or any(ids.shape != triples[0].shape for ids in triples):
            raise ValueError(f"{accepted}, got {', '.join(str(list(ids.shape)) for ids in triples)}")
        for column, ids in zip(cls._fields, triples, strict=True):
            if len(ids) and int(ids.min()) < 0:
                raise ValueError(f"{column} of the {name} triples must be ids from 0, got {int(ids.min())}")
        return cls(*(ids.long() for ids in triples))

    def check_range(self, name: str, num_entities: int | None, num_relations: int, has_codes: bool) -> None:
        """Refuse ids that the model does not have; with `has_codes` also ids whose codes would exceed int64."""
        entity, relation = int(torch.maximum(self.head, self.tail).max()), int(self.relation.max())
        for kind, highest, number in (("entity", entity, num_entities), ("relation", relation, num_relations)):
            if number is not None and highest >= number:
                raise ValueError(f"{name} triples hold {kind} {highest}; the model has {number}, 0..{number - 1}")
        if has_codes and (entity + 1) * num_relations > torch.iinfo(torch.int64).max:
            raise ValueError(
                f"{name} triples hold entity {entity}, and there are {num_relations} relations: their product exceeds "
                "int64; number both from 0, as Vocabulary does"
            )

    def side(self, side: Side) -> Tensor:
        """Return the heads or the tails, int64 [n]."""
        return self.head if side == "head" else self.tail

    def to(self, device: torch.device) -> _Triples:
        return _Triples(*(part.to(device) for part in self))


class _KnownTriples:
    """Index of the known triples by (entity that is given, relation), for look-ups of the entities to be ranked."""

    def __init__(self, facts: _Triples, side: Side, num_relations: int) -> None:
        self._given: Side = "tail" if side == "head" else "head"
        self._num_relations = num_relations
        self._codes, order = self._code(facts).sort(stable=True)
        self._entities = facts.side(side)[order]

    def _code(self, triples: _Triples) -> Tensor:
        return triples.side(self._given) * self._num_relations + triples.relation

    def spans(self, triples: _Triples) -> Spans:
        """Return, for each triple, the entities that make a known triple on the ranked side, as `Spans` of n rows."""
        codes = self._code(triples)
        start, stop = torch.searchsorted(self._codes, codes), torch.searchsorted(self._codes, codes, right=True)
        return Spans(self._entities, start, stop, int((stop - start).max()), torch.zeros_like(codes, dtype=torch.bool))


class _Scorer:
    """Scorer of all entities for a batch of triples, with a module or with functions."""

    def __init__(
        self, model: Any, sides: Sequence[Side], num_entities: int | None, batch_size: int | None, device: torch.device
    ) -> None:
        given = None if num_entities is None else check_k(num_entities, "num_entities")
        own = getattr(model, "num_nodes", None)
        self._model, self._batch_size = model, batch_size
        self.num_entities: int | None = own if isinstance(own, int) else given
        """Number of entities; None until functions have scored the first triple."""
        self.device: torch.device = device
        if isinstance(model, Mapping):
            if missing := [side for side in sides if not callable(model.get(side))]:
                raise TypeError(f"model has no function {missing[0]!r}: functions are given by side, one for each")
            owners = (getattr(function, "__self__", function) for function in model.values())
            self.modules: nn.Module = nn.ModuleList(owner for owner in owners if isinstance(owner, nn.Module))
            return
        if not isinstance(model, nn.Module) or self.num_entities is None:
            raise TypeError(
                "model must be a KGEModel, a module with num_nodes (or num_entities=) and forward(head, relation, "
                f'tail), or functions {{"tail": ..., "head": ...}}, got {describe(model)}'
            )
        if given not in (None, self.num_entities):
            raise ValueError(f"num_entities is {given}, the model has {self.num_entities} (num_nodes)")
        self.modules = model
        self.device = next((parameter.device for parameter in model.parameters()), device)

    def batches(self, num_triples: int) -> Iterator[Tensor]:
        """Yield the row numbers of triples that are scored together, int64 [b], as many as memory allows."""
        rows, most = torch.arange(num_triples, device=self.device), self._batch_size
        most = num_triples if most is None else check_k(most, "batch_size")
        while len(rows):
            fitting = 1
            if self.num_entities is not None:
                fitting = max(1, memory_on(self.device) // (8 * self.num_entities))
            yield rows[: min(fitting, most)]
            rows = rows[min(fitting, most) :]

    def score(self, triples: _Triples, side: Side) -> Tensor:
        """Return the scores of all entities on one side of the triples, [b, entities]."""
        if not isinstance(self._model, Mapping):
            return self._score_pairs(triples, side)
        given = (triples.head, triples.relation) if side == "tail" else (triples.relation, triples.tail)
        scores, rows, width = self._model[side](*given), len(triples.head), self.num_entities
        if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape != (rows, width or scores.shape[1]):
            raise ValueError(
                f"the function of the {side} must return scores [{rows}, {width or 'entities'}], got {describe(scores)}"
            )
        self.num_entities = scores.shape[1]
        return scores

    def _score_pairs(self, triples: _Triples, side: Side) -> Tensor:
        """Return scores [b, entities] of a model that scores triples, as many triples at once as the memory allows."""
        assert self.num_entities is not None
        total = len(triples.head) * self.num_entities
        pair_bytes = _CHANNEL_BYTES * getattr(self._model, "hidden_channels", 256)
        most = _MAX_PAIRS_CPU if self.device.type == "cpu" else _MAX_PAIRS
        at_once = min(most, max(1, memory_on(self.device) // pair_bytes))
        parts = []
        for start in range(0, total, at_once):
            pair = torch.arange(start, min(start + at_once, total), device=self.device)
            row, entity = pair // self.num_entities, pair % self.num_entities
            head, tail = (triples.head[row], entity) if side == "tail" else (entity, triples.tail[row])
            scores = self._model(head, triples.relation[row], tail)
            if not isinstance(scores, Tensor) or scores.numel() != len(pair):
                raise ValueError(f"the model must return a score per triple, [{len(pair)}], got {describe(scores)}")
            parts.append(scores.flatten())
        return torch.cat(parts).view(-1, self.num_entities)
