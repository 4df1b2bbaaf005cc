"""Metrics of one list, and their base class: popularity, novelty, diversity and others; formulas: `list_formulas`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from torchrecmetrics.core.options import Needs
from torchrecmetrics.metrics import list_formulas
from torchrecmetrics.metrics.description import Kind, MetricOptions
from torchrecmetrics.metrics.list_formulas import Divergence, Likeness
from torchrecmetrics.metrics.ranking_metric import RankingMetric

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "AveragePopularity",
    "Calibration",
    "CategoryShare",
    "IntraListDiversity",
    "Invalid",
    "Missing",
    "Novelty",
    "PopularityLift",
    "Repeats",
    "Seen",
    "Serendipity",
    "TailShare",
]


class ListMetric(RankingMetric):
    """Base class of metrics of lists: the weighted mean over rows of a function of the items in the first `k` ranks.

    Rows without a relevant item count, since they have a list: `empty_target_action` applies to accuracy metrics only.
    Rows whose value is NaN, such as rows with an empty list, are left out. The target may be omitted, `update(scores)`,
    unless another metric of the collection reads it.

    The formula reads `Ranking.items`, and `history` or `relevant_items` if the attributes below say so; a parameter
    `catalogue` receives the metric's `Catalogue`. Items with equal scores are listed in the order of their ids. A list
    of fewer than `k` items counts with the items that it has.

    Args:
        k: cut-off, >= 1.
        options: `catalogue`, if the metric reads popularity, categories or embeddings, options of the formula, and
            keyword options of every metric; see `RankingMetric`. The history comes with each batch, or from a
            `Catalogue.from_interactions(train)`.

    Attributes:
        reads_history: True if the formula reads `Ranking.history`.
        reads_target: True if the formula reads `Ranking.relevant_items`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def even(ranking, k):
        ...     return (ranking.items[:, :k] % 2 == 0).double().mean(1)
        >>> class Even(trm.ListMetric):
        ...     formula = staticmethod(even)
        >>> metric = Even(2)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]))  # lists the items 1 and 2
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    reads_history: ClassVar[bool] = False
    reads_target: ClassVar[bool] = False
    _kind: ClassVar[Kind] = "lists"

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the first `k` items; metrics of history drop ids beyond their catalogue."""
        needs = super().needs
        if self.reads_history and self.catalogue is not None:
            needs = needs._replace(num_items=self.catalogue.num_items)
        return needs._replace(target=self.reads_target, list_depth=self.k or 0, history=self.reads_history)


class _MetricOfLists(ListMetric, bounds=(0.0, 1.0), many_cutoffs=True):
    """Base class of the metrics of one list: their formulas take several cut-offs."""


class _ListAtK(_MetricOfLists):
    """Base class of metrics of one list without options of their own."""

    def __init__(self, k: int, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, **options)


class AveragePopularity(
    _ListAtK, formula=list_formulas.average_popularity, bounds=(0.0, math.inf), higher_is_better=None
):
    """Average popularity at k: mean over rows of the mean popularity of the items in the first `k` ranks.

    Reads the popularity. Range: from 0; neither high nor low is better. Rows with an empty list are left out; shorter
    lists count with the items that they have. Ties: equal scores are listed in the order of their ids.

    Also called ARP, average recommendation popularity: PyG's LinkPredAveragePopularity, RecTools' AvgRecPopularity and
    RecBole's AveragePopularity are the same number. Source: Yin et al., Challenging the long tail recommendation, 2012.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]), num_users=8)
        >>> metric = trm.AveragePopularity(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # ((8 + 4) / 2 + (4 + 2) / 2 + (4 + 8) / 2) / 3
        tensor(5., dtype=torch.float64)
    """


class PopularityLift(
    _ListAtK, formula=list_formulas.popularity_lift, bounds=(-1.0, math.inf), higher_is_better=None, reads_history=True
):
    """Popularity lift at k: mean over rows of (mean popularity of the list / mean popularity of the row's history) - 1.

    Reads the popularity and the history, each item of which counts once. Range: from -1; 0.5 if the list is 50 % more
    popular, 0 if as popular as the history; neither high nor low is better. A row whose history is empty, or has a mean
    popularity of 0, is left out. Rows with an empty list are left out; shorter lists count with the items that they
    have. Ties: equal scores are listed in the order of their ids.

    Source: Abdollahpouri et al., The unfairness of popularity bias in recommendation, 2019, which takes the ratio of
    means over a group of users; here it is the mean of each user's ratio.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]), num_users=8)
        >>> history = torch.tensor([1, 0, 2])  # one item per user
        >>> metric = trm.PopularityLift(2, catalogue=catalogue)
        >>> metric.update(trm.Scores(scores, history=history))  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # ((6 / 4 - 1) + (3 / 8 - 1) + (6 / 2 - 1)) / 3
        tensor(0.6250, dtype=torch.float64)
    """


class Novelty(_MetricOfLists, formula=list_formulas.novelty, bounds=(0.0, math.inf)):
    """Novelty at k: mean over rows of the mean of -log2(users of the item / all users) in the first `k` ranks.

    Reads the popularity and the number of users. Range: 0 to log2(all users) bits; an item without users counts as an
    item of one user. Rows with an empty list are left out; shorter lists count with the items that they have. Ties:
    equal scores are listed in the order of their ids.

    Also called self-information, surprisal, mean inverse user frequency. RecTools' MeanInvUserFreq is the same number;
    RePlay's Surprisal is the number of `normalize=True` where lists are full (it divides by k). RePlay's Novelty is 1 -
    `Seen`. Source: Zhou et al., Solving the apparent diversity-accuracy dilemma of recommender systems, 2010.

    Args:
        k: cut-off, >= 1.
        normalize: divide by log2(all users), for a range of 0 to 1.
        options: `catalogue`, and keywords of every metric; see `ListMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]), num_users=8)
        >>> metric = trm.Novelty(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # ((0 + 1) / 2 + (1 + 2) / 2 + (1 + 0) / 2) / 3 bits
        tensor(0.8333, dtype=torch.float64)
        >>> trm.Novelty(2, normalize=True, catalogue=catalogue)(scores)  # divided by log2(8)
        tensor(0.2778, dtype=torch.float64)
    """

    def __init__(self, k: int, *, normalize: bool = False, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, normalize=normalize, **options)


class TailShare(_MetricOfLists, formula=list_formulas.tail_share):
    """Tail share at k: mean over rows of the share of the list that is outside the head of the catalogue.

    Reads the popularity: the head is the fewest items that hold a share `head` of all interactions; among equally
    popular items, lower ids come first. Range: 0 to 1. Rows with an empty list are left out; shorter lists count with
    the items that they have. Ties: equal scores are listed in the order of their ids.

    Also called APLT, average percentage of long-tail items: Elliot's APLT is the same number. RecBole's TailPercentage
    is another number: its tail is a share of the *items* that occur in the training data. Source: Abdollahpouri et al.,
    Managing popularity bias in recommender systems with personalized re-ranking, 2019.

    Args:
        k: cut-off, >= 1.
        head: share of all interactions, between 0 and 1.
        options: `catalogue`, and keywords of every metric; see `ListMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]), num_users=8)
        >>> metric = trm.TailShare(2, head=0.75, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # (0/2 + 1/2 + 0/2) / 3: the head, 0 and 1, has 12 of 15
        tensor(0.1667, dtype=torch.float64)
    """

    def __init__(self, k: int, *, head: float = 0.8, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, head=head, **options)


class IntraListDiversity(_MetricOfLists, formula=list_formulas.intra_list_diversity, bounds=(0.0, 2.0)):
    """Intra-list diversity at k: mean over rows of 1 - the mean similarity of all pairs of items in the list.

    The similarity of two items is 1 for the same category and else 0 (codes), the product of their shares of
    categories, or the cosine of their embeddings. Range: 0 to 1, with embeddings to 2. A row whose list has fewer than
    two items is left out. Ties: equal scores are listed in the order of their ids.

    Also called ILD; 1 - ILS, intra-list similarity. With codes it is PyG's LinkPredDiversity (which divides by zero at
    k = 1), and half of RecTools' Hamming distance of one-hot columns; with embeddings jurity's, and 1 - LensKit's ILS.
    Sources: Zhang & Hurley, Avoiding monotony: improving the diversity of recommendation lists, RecSys 2008; Ziegler et
    al., Improving recommendation lists through topic diversification, 2005, sum similarities.

    Args:
        k: cut-off, >= 1.
        of: "categories" or "embeddings"; required if the catalogue has both.
        options: `catalogue`, and keywords of every metric; see `ListMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, categories=torch.tensor([0, 0, 1, 1]))
        >>> metric = trm.IntraListDiversity(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # (0 + 1 + 0) / 3: items 1 and 2 differ
        tensor(0.3333, dtype=torch.float64)
    """

    def __init__(self, k: int, *, of: Likeness | None = None, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, of=of, **options)


class CategoryShare(_ListAtK, formula=list_formulas.category_share, bounds=(0.0, math.inf)):
    """Category share at k: mean over rows of the number of distinct categories in the list / its length.

    Reads the categories. Range: above 0; at most 1 if every item has a single category, and more if items have shares
    of several, since any share counts. Rows with an empty list are left out; shorter lists count with the items that
    they have. Ties: equal scores are listed in the order of their ids.

    Also called categorical diversity: RePlay's CategoricalDiversity is the same number where lists are full (it divides
    by k).

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, categories=torch.tensor([0, 0, 1, 1]))
        >>> metric = trm.CategoryShare(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # (1/2 + 2/2 + 1/2) / 3
        tensor(0.6667, dtype=torch.float64)
    """


class Serendipity(_ListAtK, formula=list_formulas.serendipity, reads_target=True):
    """Serendipity at k: mean over rows and ranks of max(p - p', 0) for relevant items and 0 for other items.

    p = (I + 1 - rank) / I is the item's likelihood by its rank in the list; p' is the same by its rank in popularity,
    which equally popular items share (the next ones have the next rank), and 0 for items without users. Reads the
    popularity. Range: 0 to 1. A row without a relevant item counts 0. Rows with an empty list are left out; shorter
    lists count with the items that they have. Ties: equal scores are listed in the order of their ids.

    Same number as RecTools 0.19 (the source), whose code divides by the length of the list, whereas its documentation
    says k.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]), num_users=8)
        >>> metric = trm.Serendipity(2, catalogue=catalogue)
        >>> metric.update(scores, torch.tensor([0, 2, 2]))  # lists 0 1; 1 2; 1 0
        >>> # the second user's hit, item 2, has rank 2 in the list and rank 3 in popularity
        >>> metric.compute()  # (0 + (3/4 - 2/4) / 2 + 0) / 3
        tensor(0.0417, dtype=torch.float64)
    """


class Calibration(
    _MetricOfLists,
    formula=list_formulas.calibration,
    bounds=(0.0, math.log(100)),
    higher_is_better=False,
    reads_history=True,
):
    """Miscalibration at k: mean over rows of the divergence of the list's categories q from the history's categories p.

    "kl": sum of p ln(p / q') with q' = 0.99 q + 0.01 p, range 0 to ln 100; "js": mean of the KL divergences of p and of
    q from (p + q) / 2, range 0 to ln 2. Lower is better. Reads the categories and the history, each item of which
    counts once; a row with an empty history is left out. Rows with an empty list are left out; shorter lists count with
    the items that they have. Ties: equal scores are listed in the order of their ids.

    Also called C_KL, MRMC's base. "js" is the square of SciPy's `jensenshannon`. Source: Steck, Calibrated
    recommendations, 2018.

    Args:
        k: cut-off, >= 1.
        divergence: "kl" or "js".
        options: `catalogue`, and keywords of every metric; see `ListMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, categories=torch.tensor([0, 0, 1, 1]))
        >>> history = torch.tensor([1, 0, 2])  # one item per user
        >>> metric = trm.Calibration(2, catalogue=catalogue)
        >>> metric.update(trm.Scores(scores, history=history))  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # (ln 1 + ln(1 / (0.99 * 1/2 + 0.01)) + ln 100) / 3
        tensor(1.7628, dtype=torch.float64)
        >>> metric = trm.Calibration(2, divergence="js", catalogue=catalogue)
        >>> metric(trm.Scores(scores, history=history))  # (0 + 0.2158 + ln 2) / 3
        tensor(0.3030, dtype=torch.float64)
    """

    def __init__(self, k: int, *, divergence: Divergence = "kl", **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, divergence=divergence, **options)


class Seen(_ListAtK, formula=list_formulas.seen, higher_is_better=None, reads_history=True):
    """Seen at k: mean over rows of the share of the items in the list that are also in the row's history.

    Range: 0 to 1; neither high nor low is better: 0 if the history is empty or excluded, else the share recommended
    again. Rows with an empty list are left out; shorter lists count with the items that they have. Ties: equal scores
    are listed in the order of their ids.

    RePlay's Novelty is 1 - Seen (and 1 for empty lists).

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> history = torch.tensor([1, 0, 2])  # one item per user
        >>> metric = trm.Seen(2)
        >>> metric.update(trm.Scores(scores, history=history))  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # (1/2 + 0/2 + 0/2) / 3
        tensor(0.1667, dtype=torch.float64)
    """


class Repeats(_ListAtK, formula=list_formulas.repeats, higher_is_better=False):
    """Repeats at k: mean over rows of the share of the first `k` entries passed in that repeat an earlier entry.

    Range: 0 to 1; lower is better. 0 for lists made from scores. Reads the lists as passed in, with the repeats that
    `Lists(..., duplicates="first")` allows; the entries of generated codes are the beams. A row without an entry is
    left out.

    It is 1 - RecTools' UnrepeatedReco(deep=True).

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> lists = torch.tensor([[7, 3, 7], [1, 2, 3], [5, 5, 5]])
        >>> metric = trm.Repeats(3)
        >>> metric.update(trm.Lists(lists, duplicates="first", complete=True))
        >>> metric.compute()  # (1/3 + 0/3 + 2/3) / 3
        tensor(0.3333, dtype=torch.float64)
    """


class Invalid(_ListAtK, formula=list_formulas.invalid, higher_is_better=False):
    """Invalid at k: mean over rows of the share of the first `k` generated codes, repeats included, that no item has.

    Range: 0 to 1; lower is better. 0 for lists of items. Reads the beams of `SemanticIds`, without padding; a row
    without a beam is left out.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [1, 1]]))  # of three items
        >>> beams = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [1, 1]], [[1, 0], [2, 2]]])
        >>> metric = trm.Invalid(2)
        >>> metric.update(codes.beams(beams))
        >>> metric.compute()  # (1/2 + 0/2 + 2/2) / 3: no item has the code 1 0 or 2 2
        tensor(0.5000, dtype=torch.float64)
    """


class Missing(_ListAtK, formula=list_formulas.missing, higher_is_better=False):
    """Missing at k: mean over rows of 1 - l / k, the share of the first `k` ranks that hold no item (l: list length).

    Range: 0 to 1; lower is better. An empty list counts 1. The rank of an invalid code (`Invalid`) holds no item.

    It is 1 - RecTools' SufficientReco(deep=True).

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.Missing(2)
        >>> metric.update(trm.Lists(torch.tensor([[7, 3], [9, -1], [-1, -1]])))
        >>> metric.compute()  # (0/2 + 1/2 + 2/2) / 3
        tensor(0.5000, dtype=torch.float64)
    """
