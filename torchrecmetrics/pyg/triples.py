"""`pyg.evaluate_triples`: rank the head and the tail of each triple of a knowledge graph among all entities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from torchrecmetrics.collection.by_group import ByGroup
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, check_ids, check_k, describe
from torchrecmetrics.evaluation.evaluate import Progress, ProgressBar
from torchrecmetrics.evaluation.scorers import evaluating, memory_on
from torchrecmetrics.inputs.jagged import Spans
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.metrics.description import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.results.evaluation import Evaluation

if TYPE_CHECKING:
    from typing_extensions import Unpack

Side: TypeAlias = Literal["head", "tail"]
"""The entity of a triple that is ranked."""
ScoreEntities: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of (head, relation) or of (relation, tail), each [b], that scores all entities: [b, entities]."""

_ROW: dict[Side, int] = {"head": 0, "tail": 2}
"""Row of each side in a tensor of triples, int64 [3, n]: heads, relations, tails."""
_MAX_PAIRS_CPU, _MAX_PAIRS = 2**14, 2**17
"""Maximum number of triples to score at once: on the CPU, where they should fit the cache, and on other devices."""
_CHANNEL_BYTES = 48
"""Bytes per scored triple and hidden channel: embeddings and intermediate results of RotatE, which needs the most."""
_MAX_RELATIONS = 2**20
"""Maximum number of relations of a model without `num_relations`: each number below the largest id is a group."""
_ARGUMENTS = ("known", "sides", "groups", "num_entities", "k", "batch_size", "progress")


@torch.no_grad()
def evaluate_triples(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module | Mapping[Side, ScoreEntities],
    head: Tensor,
    relation: Tensor,
    tail: Tensor,
    *,
    known: Tensor | Sequence[Tensor] | None = None,
    sides: Literal["both", "head", "tail"] = "both",
    groups: Literal["side", "relation"] | None = "side",
    num_entities: int | None = None,
    k: int | Iterable[int] | None = None,
    batch_size: int | None = None,
    progress: bool | Progress = False,
    **options: Unpack[MetricOptions],
) -> Evaluation:
    """Rank the tail of each triple among all entities, as the answer to (head, relation, ?), and its head likewise.

    Each triple and side is one row: row i is the head of triple i, row n + i its tail, and both are one cluster.
    Entities that make another known triple are not candidates (the filtered setting); the tested triple always is.
    Scores are computed for a batch of rows at a time.

    Args:
        metrics: as in `torchrecmetrics.evaluate`, such as ["MRR", "HR@10", "MeanRank", "AMRI"]; a collection with the
            accumulator `KeptRows` keeps per-row values, for `trm.compare`.
        model: a `torch_geometric.nn.kge.KGEModel`, or any module whose `forward(head, relation, tail)` scores triples,
            [n] -> [n], higher is better; or functions that score all entities, {"tail": function of (head, relation),
            "head": function of (relation, tail)}, [b] -> [b, entities], called with tensors on the device of `head`.
            Modules, also those whose methods are given, are in eval mode during the evaluation.
        head: integers [n], entities of the test triples.
        relation: integers [n].
        tail: integers [n].
        known: all known triples, of training, validation and test: integers [3, M] (heads, relations, tails), or a
            tuple of these. Repeated triples count once. None = the raw setting: other true triples compete.
        sides: rank "both" sides, or the "head" or the "tail" alone.
        groups: values of each "side" (keys like `MRR/tail`), of each "relation" (`MRR/relation 3`, or the names of
            `ByGroup` in a collection, in the order of their ids), or None.
        num_entities: number of entities; not needed for modules with `num_nodes`.
        k: cut-off or cut-offs for names of metrics.
        batch_size: maximum number of rows scored together; default: as memory allows, as in `torchrecmetrics.evaluate`.
        progress: True shows a bar of tqdm, a function is called with (rows done, rows in all).
        options: keywords of all metrics (`ties`: PyKEEN's "realistic"), see `RankingMetric`; `overlap` is "keep".

    Raises:
        TypeError: for ids of another dtype, a model that cannot score.
        ValueError: for shapes that do not fit, ids outside the model's, and scores that are NaN.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import pyg
        >>> likes = torch.tensor([[1.0, 9, 5], [2, 8, 3], [5, 4, 6]])  # one relation
        >>> functions = {
        ...     "tail": lambda head, relation: likes[head],
        ...     "head": lambda relation, tail: likes.T[tail],
        ... }
        >>> test, known = torch.tensor([[0], [0], [2]]), torch.tensor([[0, 0], [0, 0], [1, 2]])
        >>> result = pyg.evaluate_triples("MRR", functions, *test, known=known, num_entities=3)
        >>> result.floats()  # entity 1 is a known tail
        {'MRR': 0.75, 'MRR/head': 0.5, 'MRR/tail': 1.0}
    """
    check_options("evaluate_triples", options, [*_ARGUMENTS, *METRIC_OPTIONS])
    check_choice("sides", sides, ("both", *_ROW))
    check_choice("groups", groups, ("side", "relation", None))
    ranked: list[Side] = [side for side in _ROW if sides in ("both", side)]
    num_entities = _check_model(model, ranked, num_entities)
    num_relations = getattr(model, "num_relations", _MAX_RELATIONS)
    test = _read_triples("test", (head, relation, tail), num_entities, num_relations)
    known_triples = test[:, :0] if known is None else _read_triples("known", known, num_entities, num_relations)
    num_triples = test.shape[1]
    if not num_triples:
        raise ValueError("there is no test triple: head, relation and tail are empty")
    if not hasattr(model, "num_relations"):
        num_relations = 1 + max(int(triples[1].max()) for triples in (test, known_triples) if triples.shape[1])
    modules = _modules(model)
    parameter = None if isinstance(model, Mapping) else next(modules.parameters(), None)
    device = test.device if parameter is None else parameter.device
    test, known_triples = test.to(device), known_triples.to(device)

    names = ranked if groups == "side" else [f"relation {number}" for number in range(num_relations)]
    is_named = groups == "relation" and isinstance(metrics, RecMetricCollection) and bool(metrics.groups)
    accumulators = [] if groups is None or is_named else [ByGroup(*names)]
    collection = RecMetricCollection.fresh(metrics, k, options, accumulators=accumulators).to(device)
    by_group = next((accumulator for accumulator in collection.accumulators if accumulator.row_groups), None)
    if groups is None and by_group is not None:
        raise ValueError(f'the collection has {by_group.option}: pass groups="side" or groups="relation"')
    evaluator = collection.evaluator
    evaluator.set_sync_on_compute(options.get("sync_on_compute", False))
    if evaluator.ranking_options.overlap not in (None, "keep"):
        raise ValueError(
            f"tested triples are always candidates: overlap must be 'keep', got {evaluator.ranking_options.overlap!r}"
        )
    evaluator.set_ranking_options(overlap="keep")
    at_once = max(1, memory_on(device) // (8 * num_entities))
    at_once = at_once if batch_size is None else min(at_once, check_k(batch_size, "batch_size"))
    score = _score_by_function if isinstance(model, Mapping) else _score_by_module
    with evaluating(modules), ProgressBar(progress, num_triples * len(ranked), unit="triple") as bar:
        for side in ranked:
            known_entities = _KnownEntities(known_triples, side, num_relations)
            for batch in torch.split(torch.arange(num_triples, device=device), at_once):
                triples = test[:, batch]
                exclude = known_entities.spans(triples) if known_triples.shape[1] else None
                columns: dict[str, Any] = {}
                if by_group is not None:
                    in_side = torch.full_like(batch, ranked.index(side))
                    columns[by_group.columns[0]] = in_side if groups == "side" else triples[1]
                if collection.keep_rows:
                    columns |= {"row_ids": batch + num_triples * (side == "tail"), "clusters": batch}
                scores = score(model, triples, side, num_entities)
                evaluator.update(Scores(scores, triples[_ROW[side]], exclude=exclude), **columns)
                bar.advance(batch, collection)
    return collection.evaluation("eager")


def _check_model(model: Any, sides: Sequence[Side], num_entities: int | None) -> int:
    """Return the number of entities; refuse a model that cannot score them."""
    num_nodes = getattr(model, "num_nodes", None)
    number = num_entities if num_nodes is None else num_nodes
    if isinstance(model, Mapping):
        if missing := [side for side in sides if not callable(model.get(side))]:
            raise TypeError(f"model has no function {missing[0]!r}: pass one function per side")
    elif not isinstance(model, nn.Module):
        raise TypeError(
            "model must be a KGEModel, a module with forward(head, relation, tail), or functions "
            f'{{"tail": ..., "head": ...}}, got {describe(model)}'
        )
    if number is None:
        raise ValueError("the model has no num_nodes: pass num_entities=")
    if num_entities not in (None, number):
        raise ValueError(f"num_entities is {num_entities}, but the model has {number} (num_nodes)")
    return check_k(number, "num_entities")


def _modules(model: Any) -> nn.Module:
    """Return the model, or the modules that are its functions or own them as methods."""
    if isinstance(model, nn.Module):
        return model
    owners = (getattr(function, "__self__", function) for function in model.values())
    return nn.ModuleList(owner for owner in owners if isinstance(owner, nn.Module))


def _read_triples(name: str, triples: Any, num_entities: int, num_relations: int) -> Tensor:
    """Return triples as int64 [3, n], checked."""
    accepted = f"{name} triples must be (head, relation, tail), integers of one length [n], or a tensor [3, n]"
    if not isinstance(triples, (Tensor, tuple, list)):
        raise TypeError(f"{accepted}, got {describe(triples)}")
    if len(triples) != 3:
        cure = f": pass {name}.T" if isinstance(triples, Tensor) and triples.shape[1:] == (3,) else ""
        raise ValueError(f"{accepted}, got {len(triples)} rows{cure}")
    for ids in triples:
        check_ids(f"{name} triples", ids)
    if triples[0].dim() != 1 or any(ids.shape != triples[0].shape for ids in triples):
        raise ValueError(f"{accepted}, got {', '.join(str(list(ids.shape)) for ids in triples)}")
    read = torch.stack([ids.long() for ids in triples])
    for kind, ids, number in (("entity", read[::2], num_entities), ("relation", read[1], num_relations)):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < number:
            raise ValueError(f"{name} triples hold {kind} {int(ids.min())}..{int(ids.max())}, expected 0..{number - 1}")
    return read


class _KnownEntities:
    """Index of the known triples by (entity that is given, relation), for look-ups of the entities to be ranked."""

    def __init__(self, known_triples: Tensor, side: Side, num_relations: int) -> None:
        self._other_row, self._num_relations = 2 - _ROW[side], num_relations
        self._codes, order = self._code(known_triples).sort(stable=True)
        self._entities = known_triples[_ROW[side]][order]

    def _code(self, triples: Tensor) -> Tensor:
        return triples[self._other_row] * self._num_relations + triples[1]

    def spans(self, triples: Tensor) -> Spans:
        """Return, for each triple, the entities that make a known triple on the ranked side, as `Spans` of n rows."""
        codes = self._code(triples)
        start, stop = torch.searchsorted(self._codes, codes), torch.searchsorted(self._codes, codes, right=True)
        longest, broken = int((stop - start).max()), torch.zeros_like(codes, dtype=torch.bool)
        return Spans(values=self._entities, start=start, stop=stop, longest=longest, broken=broken)


def _score_by_function(functions: Any, triples: Tensor, side: Side, num_entities: int) -> Tensor:
    """Return the scores of all entities on one side of the triples, [b, entities]."""
    scores, shape = functions[side](*(triples[:2] if side == "tail" else triples[1:])), (triples.shape[1], num_entities)
    if not isinstance(scores, Tensor) or scores.shape != shape:
        raise ValueError(f"the function of the {side} must return scores {list(shape)}, got {describe(scores)}")
    return scores


def _score_by_module(model: Any, triples: Tensor, side: Side, num_entities: int) -> Tensor:
    """Return the scores of all entities by a module that scores triples, as many at once as the memory allows."""
    total, device = triples.shape[1] * num_entities, triples.device
    pair_bytes = _CHANNEL_BYTES * getattr(model, "hidden_channels", 256)
    at_once = min(_MAX_PAIRS_CPU if device.type == "cpu" else _MAX_PAIRS, max(1, memory_on(device) // pair_bytes))
    chunks = []
    for start in range(0, total, at_once):
        pair = torch.arange(start, min(start + at_once, total), device=device)
        columns = [*triples[:, pair // num_entities]]
        columns[_ROW[side]] = pair % num_entities
        scores = model(*columns)
        if not isinstance(scores, Tensor) or scores.numel() != len(pair):
            raise ValueError(f"the model must return a score per triple, [{len(pair)}], got {describe(scores)}")
        chunks.append(scores.flatten())
    return torch.cat(chunks).view(-1, num_entities)
