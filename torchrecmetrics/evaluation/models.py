"""`evaluate` and `recommend`: rank the whole catalogue by embeddings or a score function."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator, ByGroup
from torchrecmetrics.core.checks import VIOLATIONS, as_interactions, check_choice, check_k, describe, in_words
from torchrecmetrics.core.distributed import fingerprint, raise_on_all_ranks
from torchrecmetrics.core.kept_rows import KeptRows
from torchrecmetrics.core.options import Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.signature import MetricOptions
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.candidates import CandidateScorer, check_embeddings
from torchrecmetrics.evaluation.item_pieces import is_in_pieces
from torchrecmetrics.evaluation.item_shards import (
    SharedItems,
    evaluate_item_shards,
    group_of,
    on_all,
    recommend_item_shards,
)
from torchrecmetrics.evaluation.progress import Progress, ProgressBar
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import (
    Budget,
    EmbeddingScorer,
    FunctionScorer,
    Histories,
    History,
    ScoreFunction,
    ScoreOptions,
    Scorer,
    TargetDevice,
    batches,
    evaluating,
    histories,
    no_users,
    scorer_of,
)
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.candidates import Candidates
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.names import Metrics, check_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EvaluateOptions(MetricOptions, total=False):
    """Keyword arguments of `evaluate` that its callers in this package pass on."""

    k: int | Iterable[int] | None
    user_ids: Any
    item_bias: Tensor | None
    similarity: Literal["dot", "cosine"]
    items_allowed: Tensor | None
    batch_size: int | None
    memory_budget: int | None
    device: str | torch.device | None
    progress: bool | Progress
    shard: Literal["users", "items", "both"] | None
    keep_rows: bool
    all_users: bool
    groups: Groups | None
    candidates: Interactions | None


def check_target(target: Any, name: str = "target") -> None:
    """Refuse a ground truth, or a history, that is not `Interactions`."""
    if not isinstance(target, Interactions):
        hint = as_interactions(name, target) or "Interactions.from_edge_index(edges, num_users, num_items)"
        if isinstance(target, SelectedItems):
            hint = "pass the Interactions whole, without select"
        elif isinstance(target, list):
            hint = "Interactions.from_columns(users, items), one entry per pair, or from_jagged(items, offsets)"
        elif hasattr(target, "test"):
            hint = "pass split.test"
        elif hasattr(target, "to_interactions"):
            hint = "target.to_interactions()"
        raise TypeError(f"{name} must be Interactions, got {describe(target)}: {hint}")


@overload
def evaluate(
    metrics: Metrics | RecMetricCollection,
    users: Tensor | ScoreFunction | None = None,
    items: Tensor | None = None,
    *,
    target: Interactions | Tensor,
    exclude: Histories | None = None,
    **options: Unpack[EvaluateOptions],
) -> Evaluation: ...
@overload
def evaluate(
    metrics: Metrics | RecMetricCollection,
    users: Tensor | ScoreFunction | None = None,
    items: Tensor | None = None,
    *,
    target: Mapping[str, Interactions | Tensor],
    exclude: Histories | None = None,
    **options: Unpack[EvaluateOptions],
) -> dict[str, Evaluation]: ...
@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    users: Tensor | ScoreFunction | None = None,
    items: Tensor | None = None,
    *,
    target: Interactions | Tensor | Mapping[str, Interactions | Tensor],
    exclude: Histories | None = None,
    k: int | Iterable[int] | None = None,
    user_ids: Any = None,
    item_bias: Tensor | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    items_allowed: Tensor | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Progress = False,
    shard: Literal["users", "items", "both"] | None = None,
    keep_rows: bool = False,
    all_users: bool = False,
    groups: Groups | None = None,
    candidates: Interactions | None = None,
    **options: Unpack[MetricOptions],
) -> Evaluation | dict[str, Evaluation]:
    """Rank the whole catalogue for every user with ground truth and return the metrics.

    Args:
        metrics: as for `RecMetricCollection`, or a collection, of which a fresh clone is used.
        users: embeddings [U, d], or a function of user ids (int64 [b] on `device`) that returns scores [b, I]; a module
            is in eval mode during the evaluation; None: `item_bias` alone gives all users the same ranking.
        items: embeddings [I, d]; None with a function. If larger than memory, an array, such as `numpy.memmap`, or a
            sequence of tensors [n, d]: read twice, a piece at a time. With `shard` also a row-sharded DTensor.
        target: ground truth [U, I]; with embeddings also its edges, int64 [2, E], users in row 0 and items in row 1,
            both numbered from 0; or a dict of several ground truths, such as `slice_targets` gives, each evaluated by
            itself and returned under its name.
        exclude: items removed from a user's candidates: `Interactions` (train items), with embeddings also edges as for
            `target`, bool [I], or a tuple of these. Interactions whose vocabularies differ from those of `target` are
            matched by id.
        k: cut-offs, if `metrics` are names.
        user_ids: evaluate only these users (row numbers without repeats).
        item_bias: float or whole numbers [I], added to the scores; `train.popularity` without users and items is the
            baseline to beat.
        similarity: "dot" or "cosine" of the embeddings.
        items_allowed: bool [I]: only these items are candidates (released, in stock). A relevant item that is not
            allowed is a miss.
        batch_size: largest number of users scored together; default: as `memory_budget` allows.
        memory_budget: bytes for scores and the kernel's working memory; default at most 256 MB on the CPU, half
            of the free memory of a GPU.
        device: device to which everything is moved first; default: the device of the embeddings (or of `target`).
        progress: show a bar with users per second and the running value of the first metric (needs tqdm); or a function
            of (users done, users in all) that shows progress elsewhere. Of several processes, the first shows its own.
        shard: "users": every process of the default group evaluates its share of the users, and all processes get the
            result. None: nothing is communicated. "items": `items`, `item_bias` and `items_allowed` are this process's
            part, numbered in the order of the processes; users, target and exclude are complete on each process. Counts
            are added up (`ItemShard`), so the value is exact. "both": `users` are the users of this process, too.
        keep_rows: keep per-user values, by id, as `Evaluation.rows`: for `compare`. On other devices
            than the CPU rows beyond `memory_budget` go to the host.
        all_users: make lists also for users without ground truth: metrics beyond accuracy count these users, accuracy
            metrics do not.
        groups: the group of each user: `group_users(train)`, or `Groups` of any column. Each group gets its own value
            of every metric that is a mean over users.
        candidates: `Interactions` of the items that compete for each user, in place of the whole catalogue:
            impressions, or negatives of your own; matched by id as `exclude`. Needs embeddings of users and items, all
            in memory. Other relevant items are misses (`num_unreachable`).
        options: keyword options for metrics given by name. `catalogue` is for metrics beyond accuracy; metrics that
            compare lists with the history read it from `Catalogue.from_interactions(train)`.

    Scores are computed and stored in float32 (float64 for float64 embeddings), also under autocast. Users without
    ground truth are not scored, except with `all_users`. A batch is halved and repeated if a GPU runs out of memory.
    With `kernels="triton"`, scores of embeddings are counted as they are computed and never stored, unless a metric
    reads the listed items; bfloat16 and float16 embeddings are then multiplied as they are, float32 embeddings as
    `torch.get_float32_matmul_precision()` says.

    Warns:
        UserWarning: if ids seem to start at 1: nothing has item 0, and the number of items was not given.

    Raises:
        ValueError: for shapes, devices, ids or values that do not fit, kernels that cannot run on the device, and if
            only one of `target` and `exclude` has a vocabulary.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> users, items = torch.eye(2, 3), torch.eye(4, 3)
        >>> test = trm.Interactions.from_edge_index(torch.tensor([[0, 1], [0, 2]]), num_users=2, num_items=4)
        >>> print(trm.evaluate(["HR", "MRR"], users, items, target=test, k=1))
        HR@1   0.5000 ± 0.5000
        MRR@1  0.5000 ± 0.5000
        2 users
        ± standard error; no interval for fewer than 10 users
    """
    check_choice("shard", shard, (None, "users", "items", "both"))
    score_options, budget = ScoreOptions(item_bias, similarity, items_allowed), Budget(batch_size, memory_budget)
    if shard == "items" or shard == "both" or is_in_pieces(items) or hasattr(items, "device_mesh"):
        group = group_of(items, options.get("process_group"))
        with on_all(shard, group):
            check_options("evaluate", options, ["target", "exclude", *EvaluateOptions.__annotations__])
            collection = RecMetricCollection.fresh(metrics, k, options)
            given: dict[str, Any] = {"groups": groups or collection.groups or None}
            given |= {"keep_rows": keep_rows or collection.keep_rows, 'shard="users"': shard == "users"}
            given |= {"all_users": all_users, "candidates": candidates, "a dict target": isinstance(target, Mapping)}
            how = f'shard="{shard}"' if shard in ("items", "both") else "items in pieces"
            _refuse(how, given)
            shared = SharedItems(users, items, score_options, budget, device, shard, group)
            data, sizes = _read_shared(collection, shared, cast(Any, target), exclude, user_ids, score_options)
            bar = ProgressBar(progress, len(data.ids), shared.rank == 0)
        with bar:
            evaluate_item_shards(collection, shared, data.target, data.history, data.past, data.ids, sizes, bar)
        kernel = kernels.choose(collection.evaluator.rules.kernels, shared.place.device)
        return Evaluation(collection, kernel, data.target.user_ids)
    check_options("evaluate", options, ["target", "exclude", *EvaluateOptions.__annotations__])
    check_groups(groups)
    shape = tuple(len(given) if isinstance(given, Tensor) else None for given in (users, items))
    if isinstance(target, Mapping):
        target = {name: _from_edges(f"target[{name!r}]", part, *shape) for name, part in target.items()}
    else:
        target = _from_edges("target", target, *shape)
    exclude = tuple(_from_edges("exclude", part, *shape) for part in histories(exclude))
    if candidates is not None:
        has_mask = any(isinstance(part, Tensor) and part.dtype == torch.bool for part in exclude)
        _refuse("candidates=", {"items_allowed": items_allowed, "a bool exclude": has_mask})
        check_embeddings(users, items)
    collection = empty_collection(metrics, k, options, groups, keep_rows, memory_budget)
    collection.evaluator.set_sync_on_compute(shard is not None)
    request = _Request(
        users, items, score_options, exclude, candidates, user_ids, groups, all_users, device, budget, shard, progress
    )
    found: Evaluation | dict[str, Evaluation] = _evaluate(request, collection, target)
    return found


def _refuse(how: str, given: Mapping[str, Any]) -> None:
    """Raise if an argument was given that `evaluate` does not take together with `how`."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"evaluate does not take {name} together with {how}")


def _from_edges(name: str, given: Any, num_users: int | None, num_items: int | None) -> Any:
    """Return the `Interactions` of an edge_index, int64 [2, E], between embedded users and items; else the argument.

    Raises:
        TypeError: for an edge_index without both embeddings, which tell how many users and items there are.
        ValueError: for ids beyond the embeddings.
    """
    if not isinstance(given, Tensor) or given.is_nested or given.layout != torch.strided:
        return given
    if given.dtype != torch.int64 or given.dim() != 2 or len(given) != 2:
        return given
    if num_users is None or num_items is None:
        raise TypeError(
            f"{name} is an edge_index, which needs embeddings of both to know how many there are: pass "
            "Interactions.from_edge_index(edge_index, num_users, num_items)"
        )
    if given.shape[1] and int(given[1].min()) >= num_users:
        raise ValueError(
            f"{name}: all items (edge_index[1]) are {num_users} or more, the number of users, as PyG numbers items. "
            "Pass Interactions.from_edge_index(edge_index, num_users, num_items), with item_offset=num_users if so"
        )
    try:
        return Interactions.from_edge_index(given, num_users, num_items)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


class _Request(NamedTuple):
    """The arguments of `evaluate` that several targets share."""

    users: Tensor | ScoreFunction | None
    items: Tensor | None
    score_options: ScoreOptions
    exclude: Histories | None
    candidates: Interactions | None
    user_ids: Any
    groups: Groups | None
    all_users: bool
    device: str | torch.device | None
    budget: Budget
    shard: str | None
    progress: bool | Progress


def _evaluate(request: _Request, collection: RecMetricCollection, target: Any) -> Any:
    """Return the `Evaluation` of a target, or a dict of evaluations for a dict of targets."""
    if isinstance(target, Mapping):
        if not target:
            raise ValueError("target is an empty dict")
        return {name: _evaluate(request, deepcopy(collection), part) for name, part in target.items()}
    inputs, evaluator = _Inputs.read(request, collection, target), collection.evaluator
    data = inputs.data
    rank, world = _my_share(request.shard)
    with nullcontext() if request.shard is None else raise_on_all_ranks(inputs.device):
        data.check(evaluator.rules, request.score_options.items_allowed, rank == 0 and request.candidates is None)
        sizes = inputs.num_entries()
        ids, without_target = (data.ids, data.ids[:0]) if request.all_users else data.split_ids()
        if evaluator.device != inputs.device:
            collection.to(inputs.device)
        if len(without_target) and (rank == 0 or evaluator.empty_target_action == "error"):
            add_without_target(collection, data.target, without_target, inputs.columns(without_target))
        inputs, kernel = inputs.with_kernel(ids)
        ids = ids[sizes.index_select(0, ids).argsort(stable=True)][rank::world]
        with evaluating(request.users), ProgressBar(request.progress, len(ids), rank == 0) as bar:
            for batch in batches(cast(Any, inputs.scorer), ids, sizes, inputs.update, request.budget):
                bar.advance(batch, collection)
    return Evaluation(collection, kernel, data.target.user_ids)


class _Data(NamedTuple):
    """Ground truth and histories, on one device and with the row numbers of the ground truth."""

    target: Interactions
    history: History
    past: Interactions | None
    """Earlier items of the users; None = no metric reads them."""
    ids: Tensor
    """Users to evaluate, int64 [n] on the host."""

    @classmethod
    def read(
        cls, collection: RecMetricCollection, target: Interactions, exclude: Any, user_ids: Any, place: TargetDevice
    ) -> _Data:
        """Check the arguments and move them to one device."""
        if not len(target):
            raise ValueError(f"target holds no interactions, there is nothing to evaluate: {target}")
        ids = _ids(user_ids, target.num_users)
        if user_ids is not None and int(torch.bincount(ids, minlength=1).max()) > 1:
            raise ValueError("user_ids hold a user twice")
        target = place.move("target", target)
        history = History(_numbered_as(target, exclude), target.num_items, place)
        _check_catalogue(collection.catalogue, target)
        past = past_of(collection, target)
        past = None if past is None else place.move("the catalogue's interactions", past)
        return cls(target, history, past, ids)

    def check(self, rules: Options, items_allowed: Tensor | None, is_first: bool) -> None:
        """Refuse relevant items that are excluded; the first process warns of ids that seem to start at 1."""
        if rules.padding_idx is None and is_first:
            parts = [self.target, *self.history.parts]
            _warn_of_item_0(parts, self.history.masks, items_allowed, "padding_idx=0", stacklevel=6)
        if rules.overlap_rule == "error":
            self.history.check_overlap(self.target, self.ids, rules.padding_idx)

    def num_entries(self) -> Tensor:
        """Return the number of relevant, excluded and earlier items of every user, int64 [U] on the host."""
        number = self.history.lengths(self.target.host_degree)
        return number if self.past is None else number + self.past.host_degree

    def split_ids(self) -> tuple[Tensor, Tensor]:
        """Return the ids of users with ground truth, and of users without, among the users to evaluate; on the host."""
        has_relevant = self.target.host_degree.index_select(0, self.ids) > 0
        return self.ids[has_relevant], self.ids[~has_relevant]


class _Inputs(NamedTuple):
    """The inputs of an evaluation, on one device."""

    collection: RecMetricCollection
    scorer: Scorer | CandidateScorer
    data: _Data
    columns: Callable[[Tensor], dict[str, Any]]
    """Function of user ids [b] that returns the columns of these users for accumulators."""

    @classmethod
    def read(cls, request: _Request, collection: RecMetricCollection, target: Interactions) -> _Inputs:
        """Check the arguments and move them to one device."""
        check_target(target)
        place = TargetDevice.of(request.device, request.users, target)
        shape = (target.num_users, target.num_items)
        scorer: Any = scorer_of(request.users, request.items, shape, request.score_options, place)
        data = _Data.read(collection, target, request.exclude, request.user_ids, place)
        if request.candidates is not None:
            check_target(request.candidates, "candidates")
            candidates = place.move("candidates", request.candidates.numbered_as(data.target, "candidates"))
            if (candidates.num_users, candidates.num_items) != shape:
                has = f"{candidates.num_users} x {candidates.num_items}"
                raise ValueError(f"candidates is {has}, target is {shape[0]} x {shape[1]}")
            scorer = CandidateScorer(scorer, candidates)
        return cls(collection, scorer, data, columns_of(collection, request.groups, data.target))

    @property
    def device(self) -> torch.device:
        """The device on which scores are computed."""
        return self.scorer.device

    def num_entries(self) -> Tensor:
        """Return the size of every user's lists, candidates too, int64 [U] on the host."""
        number = self.data.num_entries()
        return number + self.scorer.sizes if isinstance(self.scorer, CandidateScorer) else number

    def with_kernel(self, ids: Tensor) -> tuple[_Inputs, Literal["eager", "triton"]]:
        """Return the inputs with the scorer of the chosen kernel, and the kernel's name.

        Raises:
            ValueError: if "triton" was asked for and cannot count these scores.
        """
        evaluator, scorer = self.collection.evaluator, self.scorer
        kernel = kernels.choose(evaluator.rules.kernels, self.device)
        if kernel != "triton" or not isinstance(scorer, EmbeddingScorer):
            return self, kernel
        if evaluator.rules.kernels == "auto" and scorer.needs_exact_products:
            return self, kernel  # for many relevant items a matrix product, whose scores are counted, is faster
        if evaluator.batch_needs.list_depth:
            reads = next(key for key, metric in evaluator.metrics.items() if metric.needs.list_depth)
            reason = f"{reads} reads which items stand first, and scores counted so are not kept"
        else:
            without_memory = scorer.without_memory(ids, evaluator.rules.validate_args is not False)
            if not isinstance(without_memory, str):
                return self._replace(scorer=without_memory), kernel
            reason = without_memory
        if evaluator.rules.kernels == "triton":
            raise kernels.refusal(reason)
        return self, kernel

    def update(self, batch: Tensor, at_once: int) -> None:
        """Score a batch of users, `at_once` at a time, and add them to the metrics."""
        data = self.data
        target, exclude = data.target.select(batch), data.history.select(batch)
        history = None if data.past is None else data.past.select(batch).items
        users: Scores | Candidates
        if isinstance(self.scorer, CandidateScorer):
            users = self.scorer.input(batch, target, exclude, history)
        else:
            users = Scores(self.scorer.scores(batch, at_once), target.items, target.values, exclude, history)
        self.collection.update(users, **self.columns(batch))


def empty_collection(
    metrics: Metrics | RecMetricCollection,
    k: int | Iterable[int] | None,
    options: MetricOptions,
    groups: Groups | None = None,
    keep_rows: bool = False,
    memory_budget: int | None = None,
) -> RecMetricCollection:
    """Return an empty collection of the metrics, with accumulators for the groups and for kept rows."""
    accumulators: list[Accumulator] = []
    if groups is not None:
        accumulators.append(ByGroup(*groups.names))
    if keep_rows:
        accumulators.append(KeptRows())
    collection = RecMetricCollection.fresh(metrics, k, options, accumulators=accumulators)
    for accumulator in collection.accumulators:
        if isinstance(accumulator, KeptRows) and memory_budget is not None:
            accumulator.budget = memory_budget
    return collection


def add_without_target(
    collection: RecMetricCollection, target: Interactions, users: Tensor, columns: Mapping[str, Any]
) -> None:
    """Add users without ground truth, who are not scored and have no lists, with their columns for accumulators."""
    threshold, graded = collection.evaluator.batch_needs.score_threshold, target.values is not None
    collection.update(Ranking.without_relevant(len(users), target.device, threshold, graded), **columns)


def _read_shared(
    collection: RecMetricCollection,
    shared: SharedItems,
    target: Any,
    exclude: Any,
    user_ids: Any,
    options: ScoreOptions,
) -> tuple[_Data, Tensor]:
    """Return the data of users with ground truth, and `num_entries`; users without it are added to the collection."""
    facts: dict[str, Any] = {}
    with shared.same(facts):
        shape = shared.num_users, shared.num_items
        target = _from_edges("target", target, *shape)
        check_target(target)
        if (target.num_users, target.num_items) != shape:
            raise ValueError(
                f"target is {target.num_users} x {target.num_items}; there are {shape[0]} users and, on all processes "
                f"together, {shape[1]} items: each process passes its own items, and its own users with "
                'shard="both" alone'
            )
        exclude = tuple(_from_edges("exclude", part, *shape) for part in histories(exclude))
        rules, data = collection.evaluator.rules, _Data.read(collection, target, exclude, user_ids, shared.place)
        data.check(rules, options.items_allowed, shared.rank == 0)
        sizes = data.num_entries()
        if shared.shard is not None:
            facts |= {"metrics": list(collection.keys()), "options": rules, "history": data.history.fingerprint()}
            facts |= {"target": fingerprint(data.target.keys), "values of target": fingerprint(data.target.values)}
            facts["user_ids"] = fingerprint(data.ids)
    collection.to(shared.place.device)
    collection.evaluator.set_sync_on_compute(False)  # every process counts all users
    ids, without_target = data.split_ids()
    if len(without_target):
        add_without_target(collection, data.target, without_target, {})
    return data._replace(ids=ids), sizes


def columns_of(
    collection: RecMetricCollection, groups: Groups | None, target: Interactions
) -> Callable[[Tensor], dict[str, Any]]:
    """Return a function from users (row numbers of the ground truth) to the columns that accumulators read of them."""
    if groups is None and collection.groups:
        raise ValueError(f"the collection has the groups {', '.join(collection.groups)}: pass groups=, who is in them")
    codes = None if groups is None else groups.of(target)
    column = next((acc.columns[0] for acc in collection.accumulators if isinstance(acc, ByGroup)), "groups")

    def columns(users: Tensor) -> dict[str, Any]:
        of_users = {} if codes is None else {column: codes[users.cpu()].to(target.device)}
        return of_users | ({"row_ids": users.to(target.device)} if collection.keep_rows else {})

    return columns


def _check_catalogue(catalogue: Catalogue | None, target: Interactions) -> None:
    """Refuse a catalogue whose items are not the items of the target."""
    if catalogue is None:
        return
    if catalogue.num_items != target.num_items:
        raise ValueError(f"the catalogue has {catalogue.num_items} items, target has {target.num_items}")
    check_item_ids(catalogue, target, "target")


def check_item_ids(catalogue: Catalogue, other: Interactions, name: str) -> None:
    """Refuse a catalogue whose item ids differ from the item ids of interactions."""
    if catalogue.item_ids is not None and catalogue.item_ids != other.item_ids:
        has = "none" if other.item_ids is None else "others"
        raise ValueError(
            f"the catalogue has item_ids, {name} has {has}: row 5 could mean two items. Splits of one Log share "
            f"them; Catalogue.from_interactions(train.recode(item_ids={name}.item_ids)) numbers train as {name}"
        )


def past_of(collection: RecMetricCollection, target: Interactions) -> Interactions | None:
    """Return the catalogue's interactions, with the row numbers of the ground truth; None if no metric reads them."""
    catalogue = collection.catalogue
    if catalogue is None or not collection.evaluator.batch_needs.history:
        return None
    if catalogue.interactions is None:
        reads = next(key for key, metric in collection.metrics.items() if metric.needs.history)
        raise ValueError(
            f"{reads} compares lists with the users' histories: make the catalogue from them, "
            "Catalogue.from_interactions(train)"
        )
    past = catalogue.interactions.numbered_as(target, "the catalogue's train")
    if past.num_users != target.num_users:
        raise ValueError(f"the catalogue's train has {past.num_users} users, target has {target.num_users}")
    return past


def _numbered_as(target: Interactions, exclude: Any) -> tuple[Any, ...]:
    """Return the history with the row numbers of the ground truth."""
    return tuple(part.numbered_as(target) if isinstance(part, Interactions) else part for part in histories(exclude))


def _warn_of_item_0(
    parts: Sequence[Interactions], masks: Sequence[Tensor], items_allowed: Tensor | None, cure: str, stacklevel: int
) -> None:
    """Warn if ids seem to start at 1: then item 0, which no user has, competes with all other items."""
    if not any(part.num_items_inferred for part in parts):
        return
    known = any((part.items == 0).any() for part in parts)
    out = any(mask[0] for mask in masks) or (items_allowed is not None and not items_allowed[0])
    if not known and not out:
        warnings.warn(
            "no interaction has item 0, and the number of items was taken from the largest id: if ids start at 1, pass "
            f"{cure} to keep item 0 from being recommended, or a vocabulary (item_ids=), which numbers items from 0; "
            "if item 0 is an item like the others, pass num_items=",
            UserWarning,
            stacklevel=stacklevel,
        )


def _my_share(shard: str | None) -> tuple[int, int]:
    """Return the index of this process's share of the users, and the number of shares."""
    if shard is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


@torch.no_grad()
def recommend(
    users: Tensor | ScoreFunction | None = None,
    items: Tensor | None = None,
    k: int = 10,
    *,
    exclude: Histories | None = None,
    user_ids: Any = None,
    num_users: int | None = None,
    num_items: int | None = None,
    item_bias: Tensor | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    items_allowed: Tensor | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Progress = False,
    shard: Literal["items", "both"] | None = None,
    process_group: Any = None,
) -> Recommendations:
    """Return each user's `k` best items and their scores; arguments as in `evaluate`.

    With a score function, pass `num_items` and `num_users` (or `user_ids`), unless a history gives both sizes.
    `item_bias` alone recommends the same items to all users, apart from their histories.

    Returns:
        `Recommendations`, a tuple of ids int64 [users, k] and scores [users, k], best first, ties by lower id; -1 and
        -inf where fewer than `k` candidates exist. Both are on the scores' device, rows in the order of `user_ids`. The
        result has the vocabularies of the first history (other histories are matched by id); its `to_frame()` has a
        row per recommended item, and `evaluate_lists` accepts it as `lists`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> had = trm.Interactions.from_frame({"user": ["al", "bo"], "item": ["x", "y"]})
        >>> found = trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=had)
        >>> ids, scores = found
        >>> ids, found.to_dict()["item"]
        (tensor([[1],
                [0]]), ['y', 'x'])
    """
    check_choice("shard", shard, (None, "items", "both"))
    options, budget = ScoreOptions(item_bias, similarity, items_allowed), Budget(batch_size, memory_budget)
    if shard is not None or is_in_pieces(items) or hasattr(items, "device_mesh"):
        group = group_of(items, process_group)
        facts: dict[str, Any] = {}
        with on_all(shard, group):
            k, (given, exclude) = check_k(k), _one_numbering(exclude)
            shared = SharedItems(users, items, options, budget, device, shard, group)
            with shared.same(facts):
                _check_sizes(num_users, num_items, (shared.num_users, shared.num_items))
                history, ids = History(exclude, shared.num_items, shared.place), _ids(user_ids, shared.num_users)
                sizes = history.lengths(torch.zeros(shared.num_users, dtype=torch.int64, device="cpu"))
                if shard is not None:
                    facts |= {"k": k, "user_ids": fingerprint(ids), "history": history.fingerprint()}
            bar = ProgressBar(progress, len(ids), shared.rank == 0)
        if shared.rank == 0:
            cure = f"items_allowed=torch.arange({shared.num_items}) > 0"
            _warn_of_item_0(history.parts, history.masks, items_allowed, cure, stacklevel=4)
        with bar:
            best = recommend_item_shards(shared, history, ids, sizes, k, bar)
        return Recommendations(*best, ids, *_vocabularies(given))
    k = check_k(k)
    if users is None and item_bias is None:
        raise no_users(users)
    given, exclude = _one_numbering(exclude)
    shape = _catalogue_shape(users, items, item_bias, given, user_ids, num_users, num_items)
    place = TargetDevice.of(device, item_bias if users is None else users)
    scorer = scorer_of(users, items, shape, options, place)
    history = History(exclude, scorer.num_items, place)
    cure = f"items_allowed=torch.arange({scorer.num_items}) > 0"
    _warn_of_item_0(history.parts, history.masks, items_allowed, cure, stacklevel=4)
    ids = _ids(user_ids, shape[0])
    sizes = history.lengths(torch.zeros(shape[0], dtype=torch.int64, device="cpu")).index_select(0, ids)
    rows = sizes.argsort(stable=True)
    top = _TopItems(scorer, history, ids, k)
    with evaluating(users), ProgressBar(progress, len(ids)) as bar:
        for batch in batches(scorer, rows, sizes, top.add, budget):
            bar.advance(batch, None)
    return Recommendations(top.items, top.scores, ids, *_vocabularies(given))


class _TopItems:
    """The `k` best items of each user and their scores, collected batch by batch."""

    def __init__(self, scorer: EmbeddingScorer | FunctionScorer, history: History, ids: Tensor, k: int) -> None:
        self._scorer, self._history, self._ids = scorer, history, ids
        self.items = torch.full((len(ids), k), -1, device=scorer.device)
        """Int64 [n, k], best first; -1 = fewer candidates."""
        self.scores = torch.empty((0, k), dtype=scorer.dtype, device=scorer.device)
        """Float [n, k], -inf = fewer candidates; empty before the first batch."""

    def add(self, batch: Tensor, at_once: int) -> None:
        """Rank the items for the users in a batch of rows of `ids`, `at_once` users at a time."""
        for rows in torch.split(batch, at_once):
            users = self._ids[rows]
            scores = self._checked_scores(users, at_once)
            found = kernels.topk_ids(scores, self.items.shape[1], self._history.masks, self._history.excluded(users))
            if not len(self.scores):  # a function's scores may have another dtype than the scorer expects
                self.scores = scores.new_full(self.items.shape, -torch.inf)
            rows = rows.to(self.items.device)
            self.items[rows, : found.shape[1]] = found
            top = scores.gather(1, found.clamp(min=0))
            self.scores[rows, : found.shape[1]] = top.where(found >= 0, -torch.inf)

    def _checked_scores(self, users: Tensor, at_once: int) -> Tensor:
        """Return the scores [b, I] of users; raise for NaN and infinity."""
        made = self._scorer.scores(users, at_once)
        scores = made if isinstance(made, Tensor) else next(iter(made.parts()))
        wrong = ~(scores.amax(1) < torch.inf)
        if wrong.any():
            user = int(users[wrong.cpu()][0])
            raise ValueError(f"{in_words(int(wrong.sum()), len(wrong))} {VIOLATIONS['scores']}: user {user}")
        return scores


def _catalogue_shape(
    users: Tensor | ScoreFunction | None,
    items: Tensor | None,
    item_bias: Tensor | None,
    given: Sequence[Interactions],
    user_ids: Any,
    num_users: int | None,
    num_items: int | None,
) -> tuple[int, int]:
    """Return the number of users and of items, from embeddings, from the arguments, or from histories.

    Raises:
        ValueError: if no argument gives the numbers, or two arguments disagree.
    """
    if isinstance(users, Tensor) and isinstance(items, Tensor):
        _check_sizes(num_users, num_items, (len(users), len(items)))
        num_users, num_items = len(users), len(items)
    elif given:
        num_users = given[0].num_users if num_users is None else num_users
        num_items = given[0].num_items if num_items is None else num_items
    elif users is None and isinstance(item_bias, Tensor) and num_items is None:
        num_items = item_bias.numel()
    if num_items is None or (num_users is None and user_ids is None):
        what = "item_bias alone" if users is None else "a score function"
        raise ValueError(f"with {what}, recommend needs {'' if num_items else 'num_items and '}num_users or user_ids")
    if num_users is None:
        num_users = 1 + max(_ids(user_ids, None).tolist(), default=-1)
    return check_k(num_users, "num_users", 0), check_k(num_items, "num_items")


def _check_sizes(num_users: int | None, num_items: int | None, sizes: tuple[int, int]) -> None:
    """Refuse a `num_users` or `num_items` that differs from the sizes of the embeddings."""
    for name, number, have in (("num_users", num_users, sizes[0]), ("num_items", num_items, sizes[1])):
        if number is not None and number != have:
            raise ValueError(f"{name}={number!r} was given beside {have} embeddings, which say so themselves")


def _one_numbering(exclude: Histories | None) -> tuple[list[Interactions], tuple[Any, ...]]:
    """Return the `Interactions` in `exclude`, and all of `exclude` with the row numbers of its first `Interactions`."""
    parts = histories(exclude)
    given = [place for place, part in enumerate(parts) if isinstance(part, Interactions)]
    numbered = tuple(
        parts[place].numbered_as(parts[given[0]], f"exclude[{place}]", f"exclude[{given[0]}]")
        if place in given[1:]
        else part
        for place, part in enumerate(parts)
    )
    return [parts[place] for place in given], numbered


def _vocabularies(given: Sequence[Interactions]) -> tuple[Any, Any]:
    """Return the user and item vocabularies of the first history; None without a history."""
    return (given[0].user_ids, given[0].item_ids) if given else (None, None)


def _ids(user_ids: Any, num_users: int | None) -> Tensor:
    """Return user ids as int64 [n] on the host; `num_users` is None if it is not known yet."""
    if user_ids is None:
        return torch.arange(num_users or 0, device="cpu")
    try:
        ids = torch.as_tensor(user_ids, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        what = f"{type(user_ids).__name__} {reprlib.repr(user_ids)}"
        raise TypeError(
            f"user_ids must be row numbers [n] (positions in a vocabulary), not strings or sets, got {what}"
        ) from error
    if ids.dim() != 1:
        raise ValueError(f"user_ids must be row numbers [n], such as [3] for user 3, got {reprlib.repr(user_ids)}")
    if not len(ids):
        return ids.long()
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"user_ids must be whole numbers [n], got {ids.dtype} {list(ids.shape)}")
    if int(ids.min()) < 0 or (num_users is not None and int(ids.max()) >= num_users):
        last = "" if num_users is None else num_users - 1
        raise ValueError(f"user_ids hold {int(ids.min())}..{int(ids.max())}, expected 0..{last}")
    return ids.to(torch.int64, copy=True)  # a copy, since the caller may write into the tensor meanwhile
