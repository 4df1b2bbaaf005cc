"""`UpdateArgs`: the arguments of `update` (scores and target, ranks, or a ranking), their names, and `to_ranking`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.checks import Checks, check_device, check_ids, check_tensor, describe, nearest
from torchrecmetrics.data.interactions import Batch
from torchrecmetrics.data.jagged import Spans, as_jagged, as_spans
from torchrecmetrics.ranking import Exclude, Gains, Ranking, Target
from torchrecmetrics.ranking.candidates import MissingTarget, rank_candidates
from torchrecmetrics.ranking.data import Depth
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.shards import ItemShard, rank_shard

_FLAT = "flat rows, an entry per (session, candidate), are update(scores, target, indexes=session_ids)"
#: Names that other libraries, and torchmetrics, give to the arguments of `update`.
_OTHER_NAMES = {
    **dict.fromkeys(("preds", "pred", "y_pred", "y_score", "input", "logits", "predictions"), "scores"),
    **dict.fromkeys(("y_true", "targets", "labels", "ground_truth"), "target"),
    **dict.fromkeys(("weight", "sample_weight"), "weights"),
    **dict.fromkeys(("query_ids", "query_id", "qid", "session_ids", "group_ids", "group_id"), "indexes"),
}
#: Arguments that `update` does not take, and where they go.
_OTHER_CALLS = {
    **dict.fromkeys(
        ("edge_index", "edge_label_index"), "graphs are evaluated by pyg.evaluate(metrics, model, edge_index, ...)"
    ),
    **dict.fromkeys(
        ("embeddings", "users", "items"), "embeddings are evaluated by trm.evaluate(metrics, users, items, target=...)"
    ),
    **dict.fromkeys(
        ("positive", "negative", "negatives", "y_pred_pos", "y_pred_neg"),
        "positives and their negatives are update(Ranking.from_negatives(positive, negative))",
    ),
    **dict.fromkeys(
        Rules.__dataclass_fields__, "options are given where the metric is made, such as HR(10, overlap='keep')"
    ),
}


class UpdateArgs(NamedTuple):
    """The arguments of one call of `update`."""

    scores: Tensor | Ranking | None = None  # the first argument, whatever it is
    target: Target | None = None
    gains: Gains | None = None
    exclude: Exclude | None = None
    ranks: Tensor | None = None
    ranking: Ranking | None = None
    depth: int | None = None
    history: Target | Spans | None = None
    indexes: Tensor | None = None
    lengths: Tensor | None = None
    candidates: Tensor | None = None
    missing_target: MissingTarget = "unreachable"
    shard: ItemShard | None = None

    @property
    def is_flat(self) -> bool:
        """True for flat rows, one entry per (session, candidate)."""
        return self.indexes is not None or self.lengths is not None


def _warn_of_lists(ranks: Tensor, k: int) -> None:
    """Warn if ranks on the CPU look like lists of item ids: large, k or more in each row, and without padding."""
    if ranks.device.type != "cpu" or ranks.dim() != 2 or not len(ranks) or ranks.shape[1] < max(k, 5):
        return
    # a list has item 0 at most once, while padded ranks have many zeros
    if int(ranks.max()) > 10 * ranks.shape[1] and not hasattr(ranks, "depth") and int((ranks <= 0).sum(1).max()) < 2:
        warnings.warn(
            f"integers without a target are ranks, and these, up to {int(ranks.max())}, look like item ids: lists of "
            "item ids are Ranking.from_topk(item_ids, target), ranks of the whole list Ranking.from_ranks(ranks)",
            UserWarning,
            stacklevel=5,  # past `update`
        )


def unknown_argument(name: str, known: Sequence[str]) -> TypeError:
    """Return the error for a keyword that `update` and `forward` do not have."""
    if name in _OTHER_NAMES:
        return TypeError(f"{name}= is called {_OTHER_NAMES[name]} here: update(scores, target), or by these names")
    if name in _OTHER_CALLS:
        return TypeError(f"update has no argument {name!r}; {_OTHER_CALLS[name]}")
    return TypeError(f"update has no argument {name!r}{nearest(name, known)}")


def too_many_arguments(value: object) -> TypeError:
    """Return the error for a third positional argument of `update` and `forward`."""
    return TypeError(
        f"update takes two positional arguments, scores and target, got {describe(value)} as the third: what follows "
        f"is given by name, such as weights=; {_FLAT}"
    )


def to_ranking(args: UpdateArgs, needs: Needs, rules: Rules) -> Ranking:
    """Return the ranking of the arguments of `update`, as deep as `needs` says."""
    if args.history is not None and args.target is not None and args.exclude is None and not needs.history:
        warnings.warn(
            "this metric or collection does not read history=, which removes no item; exclude= takes a user's earlier "
            "items out of the candidates",
            UserWarning,
            stacklevel=6,  # the caller of a collection's update
        )
    found = _ranking(args, needs, rules)
    if args.history is None or found.lists is None:
        return found
    rows, device = len(found.lists.ids), found.lists.ids.device
    history: Any = args.history.items if isinstance(args.history, Batch) else args.history
    if (jagged := as_jagged("history", history)) is not None:
        history = as_spans("history", jagged, Checks(True, device, rows))
    if isinstance(history, Spans):
        history = history.padded(-1)
    check_ids("history", history)
    check_device("history", history, device)
    if history.dim() not in (1, 2) or len(history) != rows:
        raise ValueError(f"history ids must be [{rows}] or [{rows}, H], got {list(history.shape)}")
    history = (history[:, None] if history.dim() == 1 else history).long()
    return found.with_lists(found.lists._replace(history=history))


def _ranking(args: UpdateArgs, needs: Needs, rules: Rules) -> Ranking:
    scores, target, gains, exclude, ranks, ranking, depth, *_ = args
    if isinstance(scores, Ranking):
        if ranking is not None:
            raise ValueError("two rankings given, positional and by keyword: pass one")
        scores, ranking = None, scores
    elif isinstance(scores, Tensor) and target is None and not scores.is_floating_point():
        if ranks is not None:
            raise ValueError("ranks given twice, positional and by keyword: pass one")
        scores, ranks = None, scores
    if args.candidates is None and args.missing_target != "unreachable":
        raise ValueError(
            f"missing_target={args.missing_target!r} belongs to candidates=, without which all items are candidates: "
            "leave it out, or name the candidates"
        )
    if args.candidates is not None and (scores is None or target is None):
        raise ValueError("candidates name the columns of scores, and target the relevant items: give both with them")
    given = [name for name, value in (("scores", scores), ("ranks", ranks), ("ranking", ranking)) if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"update takes scores with target, or ranks, or a ranking; got {' and '.join(given) or 'none'}"
            + ("" if given else " (a torchmetrics.MetricCollection passes on these names alone, not preds=)")
        )
    if scores is not None and target is None and not needs.target and isinstance(scores, Tensor):
        target = torch.full((len(scores), 1), -1, dtype=torch.int64, device=scores.device)
    if scores is not None and target is None:
        check_tensor("scores", scores)
        raise ValueError("scores were given without target; ranks are integers, or Ranking.from_ranks(ranks)")
    if args.shard is not None:
        if scores is None or target is None or args.candidates is not None or depth is not None:
            raise ValueError("shard= says which items the columns of scores are: give scores and target with it alone")
        return rank_shard(scores, target, gains, exclude, args.shard, needs, rules)
    if scores is not None and target is not None and args.candidates is not None:
        return rank_candidates(
            scores,
            target,
            gains,
            exclude,
            args.candidates,
            args.missing_target,
            needs,
            rules,
        )
    if scores is not None and target is not None:
        if depth is not None:
            raise ValueError("depth belongs to ranks; the depth of scores follows from the metrics' k")
        return Ranking.rank(scores, target, gains, exclude, needs, rules)
    for name, value in (("target", target), ("gains", gains), ("exclude", exclude)):
        if value is not None:
            raise ValueError(
                f"{name} was given beside {given[0]}, made already: give it where they are made "
                "(get_topk_ranks, Ranking.from_scores, Ranking.from_topk)"
            )
    if ranking is not None:
        if not isinstance(ranking, Ranking):
            raise TypeError(f"ranking must be a Ranking, got {type(ranking).__name__}")
        if depth is not None:
            raise ValueError("depth was given beside a Ranking, which knows its own")
        return ranking
    if not isinstance(ranks, Tensor) or ranks.is_floating_point():
        cure = "for float ranks use Ranking.from_ranks" if isinstance(ranks, Tensor) else "torch.as_tensor(ranks)"
        raise TypeError(f"ranks must be an integer tensor, got {describe(ranks)}; {cure}")
    # at most k items are in the top k
    columns = None if needs.depth_is_num_relevant or not needs.depth else needs.depth
    made = Ranking._from_ranks(ranks, Depth(depth, known=False), None, rules, columns)
    if columns is not None and depth is None and rules.validate_args is True:
        _warn_of_lists(ranks, columns)
    return made
