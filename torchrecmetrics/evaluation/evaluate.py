"""`evaluate`: rank the whole catalogue by embeddings or a score function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, check_k, extra, warn_caller
from torchrecmetrics.core.distributed import agreement, fingerprint, is_distributed
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.scorers import (
    ENTRY_BYTES,
    MIN_ROWS,
    BiasScorer,
    CandidateScorer,
    Embeddings,
    EmbeddingScorer,
    FunctionScorer,
    RankingSource,
    ScoreFunction,
    Scorer,
    ShardScorer,
    evaluating,
)
from torchrecmetrics.evaluation.test_set import (
    Histories,
    Matrix,
    TargetDevice,
    TestSet,
    Users,
    check_catalogue,
    check_target,
    empty_collection,
    exclude_entries,
    from_edges,
    from_matrix,
    listed_with_target,
    numbered_as,
    user_rows,
    warn_of_item_0,
    warn_of_rows,
)
from torchrecmetrics.inputs.as_input import errors_of_all_processes
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.results.result_table import decimals

if TYPE_CHECKING:
    from typing_extensions import Unpack


FEW = 10
"""Minimum number of users for questions about a lack of hits, which is likely by chance for fewer users."""
Progress: TypeAlias = Callable[[int, int], None]
"""A function of (users done, users in all)."""


class ProgressBar:
    """Display of progress: a tqdm bar, a function of the caller, or nothing."""

    def __init__(self, shown: bool | Progress, total: int, on_this_process: bool = True, unit: str = "user") -> None:
        if not isinstance(shown, bool) and not callable(shown):
            what = "True, False or a function of (users done, users in all)"
            raise TypeError(f"progress must be {what}, got {shown!r} ({type(shown).__name__})")
        self._bar: Any = None
        self._tell = shown if callable(shown) and on_this_process else None
        self._done, self._total = 0, total
        if shown is True and on_this_process:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError(f"progress=True needs tqdm: {extra('progress')}") from error
            self._bar = tqdm(total=total, unit=unit)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, batch: Tensor, collection: RecMetricCollection | None) -> None:
        """Count a batch of users as done, and show the running value of a collection's leading metric."""
        self._done += len(batch)
        if self._tell is not None:
            self._tell(self._done, self._total)
        if self._bar is None:
            return
        self._bar.update(len(batch))
        if collection is not None:
            leading = collection.leading
            result = collection.evaluator.local_results()[leading.key]
            self._bar.set_postfix({leading.label: decimals(result.value)})


_BUFFER_BYTES = 64 * 2**20
"""Bytes of the buffer to which the CPU writes products: smaller chunks cost more calls."""
_SMALL_BUFFER_BYTES, _FEW_BYTES = 31 * 2**20, 256 * 2**20
"""Bytes of the buffer if all scores take at most `_FEW_BYTES`: from 32 MB on the C library maps new pages, which then
costs more than additional chunks.
"""
_MAX_USERS = 4096
"""Maximum number of users in a batch whose scores are made in chunks; other steps run for all of them at once."""


def evaluate_on(
    collection: RecMetricCollection,
    test: TestSet,
    source: RankingSource,
    users: Users,
    *,
    batch_size: int | None = None,
    bar: ProgressBar | None = None,
    shown_together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Update a collection with the rankings of a source, a batch of users at a time.

    Args:
        collection: the metrics.
        test: the test set.
        source: makes the input of a batch of users.
        users: users to evaluate.
        batch_size: as in `batches`.
        bar: display of progress; None = nothing is shown.
        shown_together: makes the context in which the progress is shown.
    """
    if len(users.unranked):
        threshold, graded = collection.evaluator.formulas.needs.score_threshold, test.target.values is not None
        no_ranking = Ranking.without_relevant(len(users.unranked), test.target.device, threshold, graded)
        collection.update(no_ranking, **test.columns(users.unranked))

    def update(ids: Tensor, at_once: int) -> None:
        batch = test.batch(ids)
        rows = source.input(batch, at_once)
        if not users.for_ranking:
            collection.update(rows, **test.columns(ids))
            return
        with errors_of_all_processes(rows):
            ranking = rows.rank(collection.evaluator.formulas.needs, collection.evaluator.ranking_options)
            collection.update(listed_with_target(ranking, batch.target), **test.columns(ids))

    for batch in batches(source, users.ranked, test.num_entries() + source.num_entries, update, batch_size):
        if bar is not None:
            with shown_together():
                bar.advance(batch, collection)


def batches(
    source: RankingSource, users: Tensor, sizes: Tensor, use: Callable[[Tensor, int], None], batch_size: int | None
) -> Iterator[Tensor]:
    """Apply `use` to batches of users and yield each batch when done; a batch is halved if a GPU runs out of memory.

    Args:
        source: says how much memory the input of a user takes.
        users: row numbers, int64 [n] on the host.
        sizes: target and history entries of every user, int64 [U] on the host.
        use: takes a batch and the number of users to score at once.
        batch_size: largest number of users that are scored at once; None = as memory allows.
    """
    users = users[sizes[users].argsort(stable=True)]  # lists of similar lengths need little padding
    at_once = max(1, len(users)) if batch_size is None else check_k(batch_size, "batch_size")
    together = at_once
    if source.reuses_memory and source.device.type == "cpu":
        if batch_size is None:
            is_small = len(users) * source.row_bytes <= _FEW_BYTES
            at_once = max(MIN_ROWS, (_SMALL_BUFFER_BYTES if is_small else _BUFFER_BYTES) // source.row_bytes)
        together = max(at_once, _MAX_USERS)
    num_done = 0
    while num_done < len(users):
        low, high = 1, min(together, len(users) - num_done)
        while low < high:  # the largest batch whose scores, and lists padded to the longest one, fit
            middle = (low + high + 1) // 2
            entries = middle * int(sizes[users[num_done + middle - 1]])
            fits = min(middle, at_once) * source.row_bytes + ENTRY_BYTES * entries <= source.memory
            low, high = (middle, high) if fits else (low, middle - 1)
        batch = users[num_done : num_done + low]
        try:
            use(batch, min(low, at_once))
        except torch.cuda.OutOfMemoryError:
            if low == 1:
                raise
            at_once = together = low // 2
        else:
            num_done += low
            yield batch
            continue
        torch.cuda.empty_cache()  # after `except`, where the error no longer holds the batch's tensors


Shard = Literal["users", "items", "both"]


class EvaluateOptions(MetricOptions, total=False):
    """Keyword arguments of `evaluate` that `pyg.evaluate` passes on."""

    k: int | Iterable[int] | None
    user_ids: Any
    groups: Groups | None
    keep_rows: bool
    all_users: bool
    batch_size: int | None
    device: str | torch.device | None
    progress: bool | Progress
    shard: Shard | None


@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    users: Tensor | NDArray[Any] | Embeddings | ScoreFunction,
    items: Tensor | NDArray[Any] | None = None,
    *,
    target: Interactions | Matrix,
    exclude: Histories | None = None,
    k: int | Iterable[int] | None = None,
    user_ids: Any = None,
    groups: Groups | None = None,
    keep_rows: bool = False,
    all_users: bool = False,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Progress = False,
    shard: Shard | None = None,
    **options: Unpack[MetricOptions],
) -> Evaluation:
    """Rank the whole catalogue for every user with ground truth and return the metrics.

    Args:
        metrics: as for `RecMetricCollection`, or a collection, which is cloned empty.
        users: embeddings [U, d]; or `Embeddings`, which also hold a bias, cosine similarity, or the items that are
            candidates; or a function of user ids (int64 [b] on `device`, in any order) that returns scores [b, I], or
            an input of b rows such as `Lists`, without target; a module is in eval mode during the evaluation.
        items: embeddings [I, d]; None with `Embeddings` or a function.
        target: ground truth: `Interactions`; or a matrix [U, I], bool, of graded floats, or sparse; with embeddings
            also its edges, int64 [2, E], users in row 0 and items in row 1, both numbered from 0.
        exclude: items removed from a user's candidates: `Interactions` (train items) or as `target`, bool [I], or a
            tuple of these. Interactions whose vocabularies differ from those of `target` are matched by id.
        k: cut-offs, if `metrics` are names.
        user_ids: evaluate only these users (row numbers without repeats).
        groups: the group of each user: `group_users(train)`, or `Groups` of any column. Each group gets its own value
            of every metric that is a mean over users.
        keep_rows: keep the value of each evaluated user as `Evaluation.rows`, in the order of the target's row numbers
            (ids of frames and dicts are sorted), whatever the number of processes; NaN without ground truth.
        all_users: make lists also for users without ground truth: metrics beyond accuracy count these users, accuracy
            metrics do not.
        batch_size: largest number of users scored together; default: as memory allows, 256 MB on the CPU, half of the
            free memory of a GPU.
        device: device to which everything is moved first; default: the device of the embeddings (or of `target`).
        progress: show a bar with users per second and the running value of the first metric (needs tqdm); or a function
            of (users done, users in all) that shows progress elsewhere. Only the first of several processes shows it.
        shard: "users": every process evaluates its share of the users. "items": embeddings of items, their bias and
            `allowed` are this process's part, numbered in the order of the processes; all else is complete on each
            process. "both": the embeddings of users are also a part. All processes get the result, which equals that of
            one process. None: nothing is communicated.
        options: keyword options for metrics given by name. `catalogue` is for metrics beyond accuracy; metrics that
            compare lists with the history read it from `Catalogue.from_interactions(train)`. `process_group` is the
            processes that share the work.

    Scores are computed and stored in float32, also under autocast, and in float64 for embeddings or a bias of float64.
    Users without ground truth are not scored, except with `all_users`, and if their weight depends on their
    candidates (`AUROC(weight="candidates", empty_target_action="neg")`). A batch is halved and repeated if a
    GPU runs out of memory. With `kernels="triton"`, scores of embeddings are counted as they are computed and never
    stored, unless a metric reads the listed items; bfloat16 and float16 embeddings are then multiplied as they are,
    float32 embeddings as `torch.get_float32_matmul_precision()` says.

    Warns:
        UserWarning: if ids seem to start at 1: nothing has item 0, and the number of items was not given; and if the
            rows of embeddings could be those of `exclude`, which has as many users, or items, as `target`, but others.

    Raises:
        ValueError: for shapes, devices, ids or values that do not fit, kernels that cannot run on the device, and if
            only one of `target` and `exclude` has a vocabulary.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> users, items = torch.eye(2, 3), torch.eye(4, 3)
        >>> edges = torch.tensor([[0, 1], [0, 2]])
        >>> test = trm.Interactions.from_edge_index(edges, num_users=2, num_items=4)
        >>> print(trm.evaluate(["HR", "MRR"], users, items, target=test, k=1))
        HR@1   0.5000 ± 0.5000
        MRR@1  0.5000 ± 0.5000
        2 users
        ± standard error; no interval for fewer than 10 users
    """
    check_shard(shard, (None, "users", "items", "both"))
    for name in options.keys() & {field.name for field in fields(Embeddings)}:
        raise ValueError(f"evaluate has no option {name!r}: pass trm.Embeddings(users, items, {name}=...)")
    process_group = options.get("process_group")
    facts: dict[str, Any] = {}
    with agreement(facts, process_group, applies=shard is not None):
        check_options("evaluate", options, ["target", "exclude", *EvaluateOptions.__annotations__])
        if groups is not None:
            check_groups(groups)
        collection = empty_collection(metrics, k, options, groups, keep_rows)
        target = from_matrix("target", target)
        scorer = scorer_of(users, items, target, device, shard, process_group)
        shape, target_device = (scorer.num_users, scorer.num_items), TargetDevice(scorer.device, device is not None)
        target = target_device.move("target", _ground_truth(target, scorer))
        ids = user_rows(user_ids, target.num_users)
        if user_ids is not None and int(torch.bincount(ids, minlength=1).max()) > 1:
            raise ValueError("user_ids repeat a user")
        if collection.catalogue is not None:
            check_catalogue(collection.catalogue, target)
        histories: tuple[Any, ...] = ()
        if exclude is not None:
            entries = [from_edges("exclude", history, *shape) for history in exclude_entries(exclude)]
            histories = numbered_as(target, entries)
        test = TestSet.of(collection, target, histories, groups, target_device)
        if isinstance(scorer, CandidateScorer):
            scorer.number_as(target, test.exclusions)
        rank, world_size = _rank_and_world_size(shard, process_group)
        to_evaluate = test.split_users(ids, collection, all_users)
        if shard is not None:
            sizes = test.num_entries() + scorer.num_entries
            to_evaluate = _of_process(to_evaluate, sizes, rank, world_size if shard == "users" else 1)
        bar = None if progress is False else ProgressBar(progress, len(to_evaluate.ranked), rank == 0)
        if rank == 0:
            _warn_of_numbering(test, scorer, exclude, collection.evaluator.ranking_options.padding_idx)
        if test.exclusions is not None:
            test.exclusions.check_overlap(target, ids, collection.evaluator.ranking_options)
        collection.to(scorer.device).evaluator.set_sync_on_compute(shard is not None)
        scorer, kernel = with_kernel(scorer, collection)
        if shard is not None:
            facts |= {"metrics": list(collection.keys()), "options": collection.evaluator.ranking_options}
            facts |= {"user_ids": fingerprint(ids), "batch_size": batch_size, "all_users": all_users}
            facts |= {"keep_rows": collection.keep_rows} | scorer.facts()
            facts |= test.facts()

    errors = partial(agreement, None, process_group, device=scorer.device)
    together = partial(errors, applies=shard in ("items", "both"))
    with bar or nullcontext(), evaluating(users), errors(applies=shard == "users"):
        evaluate_on(collection, test, scorer, to_evaluate, batch_size=batch_size, bar=bar, shown_together=together)
    return _result(collection, test, ids, kernel, rank)


def _of_process(users: Users, sizes: Tensor, rank: int, num_shares: int) -> Users:
    """Return every `num_shares`-th user in order of size, from user `rank` on; process 0 also gets unranked users."""
    ranked = users.ranked
    if num_shares > 1:
        ranked = ranked[sizes[ranked].argsort(stable=True)][rank::num_shares]
    return users._replace(ranked=ranked, unranked=users.unranked if rank == 0 else users.unranked[:0])


def _ground_truth(target: Any, scorer: Scorer) -> Interactions:
    """Return the ground truth as `Interactions` of the users and items that are scored."""
    truth = from_edges("target", target, scorer.num_users, scorer.num_items)
    check_target(truth)
    if truth.num_items != scorer.num_items or scorer.num_users not in (None, truth.num_users):
        raise ValueError(scorer.misfit(truth))
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    interactions: Interactions = truth
    return interactions


def _warn_of_numbering(test: TestSet, scorer: Scorer, exclude: Any, padding_idx: int | None) -> None:
    """Warn if a model's rows could be those of the history, and if item 0, which no user has, is a candidate."""
    if not isinstance(scorer, FunctionScorer):
        warn_of_rows(test.target, exclude, ("item",) if scorer.num_users is None else ("user", "item"))
    if padding_idx is not None or isinstance(scorer, CandidateScorer):
        return
    masks = [] if test.exclusions is None else test.exclusions.masks
    histories = [] if test.exclusions is None else test.exclusions.interactions
    is_out = scorer.leaves_out_item_0 or any(mask[0] for mask in masks)
    warn_of_item_0([test.target, *histories], is_out, "padding_idx=0")


def _result(
    collection: RecMetricCollection, test: TestSet, ids: Tensor, kernel: Literal["eager", "triton"], rank: int
) -> Evaluation:
    """Return the result for the users `ids`; process 0 warns if ten or more have a relevant item that is no candidate,
    and none has a hit.
    """
    counts = EvaluationCounts(num_without_history=test.num_without_history(ids))
    evaluation = collection.evaluation(kernel, test.target.user_ids, counts, by_id=True)
    has_hit = collection.leading.last_result.value not in (0, torch.inf)
    if rank == 0 and not has_hit and evaluation.num_unreachable == evaluation.num_users >= FEW:
        warn_caller(
            f"each of {evaluation.num_users} users has a relevant item that is no candidate (its score is -inf, or it "
            "is excluded), and none has a hit: are these the scores of a model?"
        )
    return evaluation


def check_shard(shard: Any, choices: tuple[str | None, ...]) -> None:
    """Refuse other words than `choices`, and shards of items without several processes."""
    check_choice("shard", shard, choices)
    if shard in ("items", "both") and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise ValueError(f'shard="{shard}" is for several processes: initialise torch.distributed first')


def _rank_and_world_size(shard: str | None, process_group: Any) -> tuple[int, int]:
    """Return the number of this process, and the number of processes that share the work."""
    if shard is None or not is_distributed():
        return 0, 1
    return torch.distributed.get_rank(process_group), torch.distributed.get_world_size(process_group)


def scorer_of(
    users: Any, items: Any, target: Any, device: str | torch.device | None, shard: str | None, process_group: Any
) -> Scorer:
    """Return the scorer of embeddings, or of a function, whose items are those of `target`."""
    embeddings = Embeddings.of(users, items)
    if embeddings is None:
        if shard in ("items", "both"):
            raise TypeError('shard="items" and "both" take embeddings, not a score function')
        check_target(target)
        target_device = TargetDevice.of(device, target.device)
        return FunctionScorer(users, target.num_items, target_device.device)
    target_device = TargetDevice.of(device, embeddings.device)
    if shard in ("items", "both"):
        return ShardScorer(embeddings, target_device, shard == "both", process_group)
    if isinstance(embeddings.allowed, Interactions):
        return CandidateScorer(embeddings, target_device)
    if embeddings.users is not None:
        return EmbeddingScorer(embeddings, target_device)
    return BiasScorer(embeddings, target_device)


def with_kernel(scorer: Scorer, collection: RecMetricCollection) -> tuple[Scorer, Literal["eager", "triton"]]:
    """Return the scorer that fits the collection's `kernels` option, and the name of the kernel.

    Raises:
        ValueError: if "triton" was asked for and cannot count these scores.
    """
    options = collection.evaluator.ranking_options
    kernel = kernels.choose(options.kernels, scorer.device)
    if kernel != "triton" or type(scorer) is not EmbeddingScorer:
        return scorer, kernel
    if options.kernels == "auto" and scorer.needs_exact_products:
        return scorer, kernel  # a matrix product is faster for many relevant items
    readers_of_items = [key for key, metric in collection.metrics.items() if metric.needs.list_depth]
    if readers_of_items:
        obstacle: str | None = f"{readers_of_items[0]} reads the top items, but this kernel does not store scores"
    else:
        obstacle = scorer.why_stored(check_values=options.validate_args is not False)
    if obstacle is None:
        return scorer.without_storing(), kernel
    if options.kernels == "triton":
        raise kernels.refusal(obstacle)
    return scorer, kernel
