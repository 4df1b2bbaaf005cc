"""`SemanticIds`: beams against all orders of items that share a code, `Lists`, and repositories' formulas."""

import itertools
import math
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import reference
import reference_beyond
import torch
from hypothesis import given, settings
from sizes import examples
from torch import tensor
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.inputs import codes as codes_module

INF = math.inf


@pytest.mark.parametrize(("shared", "ranks"), [("tie", [(1 + 2) / 2, 3]), ("first", [2, INF]), ("code", [1, 2])])
def test_items_of_one_code_are_tied_or_only_the_first_is_listed_or_the_code_is(shared, ranks):
    codes = trm.SemanticIds(tensor([[7, 1], [7, 1], [7, 2]]))
    items_1_and_2 = codes.beams(tensor([[[7, 1], [7, 2]]]), tensor([[1, 2]]), shared=shared, complete=True)

    assert items_1_and_2.ranking().ranks.tolist() == [ranks]


def test_a_value_is_the_mean_over_all_orders_of_the_items_of_a_code():
    beams = trm.SemanticIds(tensor([[7], [7]])).beams(tensor([[[7]]]), tensor([1]), complete=True)

    assert trm.MRR()(beams) == (1 / 1 + 1 / 2) / 2


CODES = [(a, b) for a in range(2) for b in range(3)]


class Problem(NamedTuple):
    """One row."""

    codes: list  # of all items, some of them shared
    beams: list  # with repeats and codes of no item
    depth: int  # number of beams and of padding behind them
    target: list
    exclude: list

    def candidates(self, overlap):
        """Return the items that may be listed."""
        out = {*self.exclude} - ({*self.target} if overlap == "keep" else set())
        return {*range(len(self.codes))} - out

    def places_of_beams(self, shared, overlap):
        """Yield each beam, whether it repeats an earlier one, all items of its code, and those that may be listed."""
        for place, beam in enumerate(self.beams):
            items = [item for item, code in enumerate(self.codes) if code == beam]
            left = [item for item in (items[:1] if shared == "first" else items) if item in self.candidates(overlap)]
            yield beam, beam in self.beams[:place], items, left

    def ranking(self, depth=None, items=False, *, ties="expected", overlap, **options):
        padding = [(-1, -1)] * (self.depth - len(self.beams))
        batch = trm.SemanticIds(tensor(self.codes)).beams(
            tensor([[*self.beams, *padding]]),
            tensor([self.target]),
            exclude=tensor([[*self.exclude, -1]]) if self.exclude else None,
            **options,
        )
        return batch.ranking(depth, items=items, ties=ties, overlap=overlap)


@st.composite
def problems(draw):
    codes, depth = draw(st.lists(st.sampled_from(CODES), min_size=2, max_size=6)), draw(st.integers(1, 5))
    item = st.integers(0, len(codes) - 1)
    return Problem(
        codes=codes,
        beams=draw(st.lists(st.sampled_from(CODES), min_size=1, max_size=depth)),
        depth=depth,
        target=draw(st.lists(item, min_size=1, max_size=3, unique=True)),
        exclude=draw(st.lists(item, max_size=3)),
    )


def ranks_of_orders(problem, shared, duplicates, invalid, overlap):
    """Return the ranks of the relevant items that are listed, ascending, for each order of tied items."""
    places = []  # each a list of tied items, or [None] if no item can hit it
    for beam, repeated, items, left in problem.places_of_beams(shared, overlap):
        if not items:
            places += [[None]] * (invalid == "keep" and (not repeated or duplicates == "keep_place"))
        elif left and repeated:
            places += [[None]] * (duplicates == "keep_place")
        elif left:
            places.append([beam] if shared == "code" else left)
    relevant = {*problem.target} & problem.candidates(overlap)
    if shared == "code":
        relevant = {problem.codes[item] for item in relevant}
    orders = []
    for order in itertools.product(*map(itertools.permutations, places)):
        flat = [item for group in order for item in group]
        orders.append(sorted(flat.index(item) + 1 for item in relevant if item in flat))
    return orders


def plain_list(problem, shared, duplicates, invalid, overlap):
    """Return the items at the places, those of a code in ascending order; -1 for a code of no item."""
    listed = []
    for _, repeated, items, left in problem.places_of_beams(shared, overlap):
        if not items and invalid == "keep" and (not repeated or duplicates == "keep_place"):
            listed.append(-1)
        elif not repeated:
            listed += left[:1] if shared == "code" else left
        elif duplicates == "keep_place":
            listed += left[:1]
    return listed


OPTIONS = st.fixed_dictionaries(
    {
        "shared": st.sampled_from(["tie", "first", "code"]),
        "duplicates": st.sampled_from(["first", "keep_place"]),
        "invalid": st.sampled_from(["keep", "drop"]),
        "overlap": st.sampled_from(["keep", "miss"]),
    }
)


@pytest.mark.parametrize(("ties", "rank_of_orders"), [("realistic", fmean), ("optimistic", min), ("pessimistic", max)])
@settings(max_examples=examples(200), deadline=None)
@given(problem=problems(), options=OPTIONS)
def test_ranks_of_random_beams_are_the_mean_best_or_worst_over_all_orders(ties, rank_of_orders, problem, options):
    ranking = problem.ranking(ties=ties, **options)
    expected = [rank_of_orders(ranks) for ranks in zip(*ranks_of_orders(problem, **options), strict=True)]
    relevant = {problem.codes[item] for item in problem.target} if options["shared"] == "code" else problem.target

    assert [rank for rank in ranking.ranks[0].tolist() if rank < INF] == pytest.approx(
        [rank for rank in expected if rank <= problem.depth]
    )
    assert ranking.num_relevant.item() == len(relevant)


FORMULAS = {
    "HR": reference.hit_rate,
    "Precision": reference.precision,
    "Recall": reference.recall,
    "MRR": reference.reciprocal_rank,
    "NDCG": reference.ndcg,
    "MAP": reference.average_precision,
}


def user_of(ranks, num_relevant):
    """Return a user of reference.py whose relevant items have these ranks."""
    hits, gains = [(rank, 1) for rank in ranks], [1] * num_relevant
    return reference.User(hits, [], gains, num_ranked=0, num_recommended=0, tied=False, unreachable=False)


@settings(max_examples=examples(300), deadline=None)
@given(problem=problems(), options=OPTIONS)
def test_values_of_random_beams_are_means_over_all_orders(problem, options):
    ranking = problem.ranking(complete=True, **options)
    metrics = trm.RecMetricCollection(list(FORMULAS), k=[1, 2, 7], overlap=options["overlap"])
    metrics.update(ranking)
    num_relevant = int(ranking.num_relevant)
    orders = [user_of(ranks, num_relevant) for ranks in ranks_of_orders(problem, **options)]
    user = replace(user_of([], num_relevant), orders=orders)
    expected = {f"{name}@{k}": formula(user, k) for k in (1, 2, 7) for name, formula in FORMULAS.items()}

    assert numbers(metrics.compute()) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=examples(300), deadline=None)
@given(problem=problems(), options=OPTIONS, depth=st.integers(1, 9))
def test_lists_of_random_beams_hold_the_items_that_stay_and_their_relevant_ones(problem, options, depth):
    """Items of a code are listed in ascending order; where codes are compared, an item is relevant as its code is."""
    ranking, listed = problem.ranking(depth, True, complete=True, **options), plain_list(problem, **options)
    items = ranking.items[0].tolist()
    relevant = {*problem.target} & problem.candidates(options["overlap"])
    if options["shared"] == "code":
        codes = {problem.codes[item] for item in relevant}
        relevant = {item for item, code in enumerate(problem.codes) if code in codes}

    assert items == (listed + [-1] * depth)[: len(items)]
    assert len(items) >= min(depth, len(listed))
    assert {*items} & {*ranking.relevant_items[0].tolist()} - {-1} == {*listed[:depth]} & relevant


@pytest.mark.filterwarnings("ignore:no row to average over")
@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from(CODES), max_size=5), min_size=1, max_size=4), k=st.integers(1, 6))
def test_metrics_of_lists_of_random_beams_equal_plain_python(rows, k):
    codes = [(0, 0), (0, 1), (0, 0), (1, 1), (0, 1), (0, 0)]
    beams = tensor([[*beams, *[(-1, -1)] * (5 - len(beams))] for beams in rows])
    metrics = trm.RecMetricCollection(
        ["Missing", "Repeats", "Invalid", "Coverage", "Personalization"], k=k, catalogue=trm.Catalogue(6)
    )
    metrics.update(trm.SemanticIds(tensor(codes)).beams(beams, complete=True))
    places = [plain_list(Problem(codes, row, 5, [], []), "tie", "first", "keep", "miss")[:k] for row in rows]
    lists = [[item for item in row if item >= 0] for row in places]

    def mean(values):
        return reference_beyond.mean(value for value in values if not math.isnan(value))

    assert numbers(metrics.compute()) == pytest.approx(
        {
            f"Missing@{k}": mean(reference_beyond.missing(items, k) for items in lists),
            f"Repeats@{k}": mean(reference_beyond.repeats(row, k) for row in rows),
            f"Invalid@{k}": mean(reference_beyond.invalid(row, k, codes) for row in rows),
            f"Coverage@{k}": reference_beyond.coverage(lists, k, 6),
            f"Personalization@{k}": reference_beyond.personalization(lists, k),
        },
        abs=1e-12,
        nan_ok=True,
    )


TWO_ITEMS = trm.SemanticIds(tensor([[0, 0], [0, 1]]))
NO_ITEM_THEN_ITEM_1 = tensor([[[1, 1], [0, 1]]])


def test_invalid_and_repeated_beams_are_counted_among_beams_and_coverage_among_items():
    metrics = trm.RecMetricCollection(["Invalid", "Repeats", "Coverage"], k=4, catalogue=trm.Catalogue(2))
    metrics.update(TWO_ITEMS.beams(tensor([[[1, 1], [0, 1], [0, 1], [0, 1]]]), complete=True))

    assert numbers(metrics.compute()) == {"Invalid@4": 1 / 4, "Repeats@4": 2 / 4, "Coverage@4": 1 / 2}


def test_a_history_is_compared_with_the_items_of_beams():
    assert trm.Seen(2)(TWO_ITEMS.beams(NO_ITEM_THEN_ITEM_1, history=tensor([[1]]))) == 1


def test_an_item_beyond_a_smaller_catalogue_is_refused():
    beams = TWO_ITEMS.beams(NO_ITEM_THEN_ITEM_1)

    with pytest.raises(ValueError, match=r"row 0 lists \[-1, 1\] of 1 items"):
        trm.Coverage(2, catalogue=trm.Catalogue(1)).update(beams)


def test_a_compared_code_lists_its_first_item_though_it_is_excluded_and_kept():
    codes = trm.SemanticIds(tensor([[0, 2], [0, 2]]))
    beams = codes.beams(tensor([[[0, 2]]]), tensor([[1, 0]]), exclude=tensor([[0]]), shared="code")

    assert beams.ranking(1, items=True, overlap="keep").items.tolist() == [[0]]


def test_a_target_code_of_no_item_is_no_listed_item():
    beams = TWO_ITEMS.beams(tensor([[[0, 0], [0, 1]]]), target_codes=tensor([[5, 5]]))
    ranking = beams.ranking(2, items=True)

    assert (ranking.items.tolist(), ranking.relevant_items.tolist()) == ([[0, 1]], [[-1]])


@pytest.mark.parametrize("padding_idx", [None, 0, 1])
@pytest.mark.parametrize("shared", ["tie", "first", "code"])
def test_a_target_code_of_no_item_is_a_miss_and_unreachable(shared, padding_idx):
    codes, metric = trm.SemanticIds(tensor([[1], [0], [2]])), trm.HR(2, padding_idx=padding_idx)
    beams, target_codes = tensor([[[2], [5]]] * 2), tensor([[5], [2]])
    metric.update(codes.beams(beams, target_codes=target_codes, shared=shared, complete=True))

    assert (metric.compute(), metric.num_users, metric.num_unreachable) == ((0 + 1) / 2, 2, 1)


@pytest.mark.parametrize("prefix", [None, 1])
@pytest.mark.parametrize(
    ("options", "rank"), [({}, 3), ({"invalid": "drop"}, 2), ({"duplicates": "keep_place"}, 5)], ids=str
)
def test_a_beam_is_padding_if_all_its_levels_are_negative_and_of_no_item_if_some_are(options, rank, prefix):
    codes, item_1, no_item, item_0 = trm.SemanticIds(tensor([[0, 0], [1, 0], [0, 1]])), [1, 0], [-1, 0], [0, 0]
    beams = tensor([[[-1, -1], item_1, no_item, [-1, -1], [-2, -1], item_1, item_1, item_0]])
    ranking = codes.beams(beams, tensor([0]), prefix=prefix, shared="code", complete=True, **options).ranking()

    assert (ranking.ranks.tolist(), ranking.num_recommended.tolist()) == ([[rank]], [rank])
    assert (ranking.num_repeated.tolist(), ranking.num_invalid.tolist()) == ([2], [1])


ITEMS_0_AND_2_SHARE = trm.SemanticIds(tensor([[5, 1], [5, 2], [5, 1], [7, 1]], dtype=torch.int32))


def test_a_catalogue_of_codes_tells_its_size_and_shared_codes():
    codes = ITEMS_0_AND_2_SHARE

    assert repr(codes) == "SemanticIds(4 items, 3 codes of 2 levels, 2 items share one)"
    assert repr(TWO_ITEMS) == "SemanticIds(2 items, 2 codes of 2 levels, no item shares one)"
    assert (len(codes), codes.num_codes, codes.num_shared) == (4, 3, 2)


@pytest.mark.parametrize(
    ("target", "rank"),
    [
        ({"target": tensor([3]), "prefix": 1}, 1),  # 7, then 5: repeats are dropped
        ({"target": tensor([1]), "prefix": 1}, 2),
        ({"target_codes": tensor([[7, 1]])}, 4),
        ({"target_codes": tensor([[8, 8]])}, INF),
    ],
)
def test_prefixes_and_codes_of_targets_are_ranked(target, rank):
    ranking = ITEMS_0_AND_2_SHARE.beams(tensor([[[7, 2], [5, 9], [5, 2], [7, 1]]]), **target).ranking()

    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[rank]], [1])


ITEMS_0_AND_1_SHARE = pytest.mark.parametrize(
    ("codes", "options"), [([[2], [2], [1]], {"shared": "code"}), ([[0, 0], [0, 1], [1, 0]], {"prefix": 1})]
)


def beams_of_items_0_and_2(codes, target, **options):
    rows = len(target)
    return trm.SemanticIds(tensor(codes)).beams(tensor([[codes[0], codes[2]]] * rows), tensor(target), **options)


@ITEMS_0_AND_1_SHARE
def test_targets_that_share_a_compared_code_are_one_relevant_item(codes, options):
    ranking = beams_of_items_0_and_2(codes, [[0, 1], [1, 2]], **options).ranking()

    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1, INF], [1, 2]], [1, 2])


@ITEMS_0_AND_1_SHARE
def test_a_compared_code_is_found_until_its_last_item_is_excluded(codes, options):
    beams = beams_of_items_0_and_2(codes, [[0, 1], [1, 2]], exclude=tensor([[0], [2]]), **options)
    ranking = beams.ranking(overlap="miss")

    assert (ranking.ranks[:, 0].tolist(), ranking.unreachable.tolist()) == ([1, 1], [False, True])


@ITEMS_0_AND_1_SHARE
def test_gains_of_two_items_of_one_compared_code_are_refused(codes, options):
    beams = beams_of_items_0_and_2(codes, [[0, 1], [1, 2]], gains=torch.ones(2, 2), **options)

    with pytest.raises(ValueError, match=r"1 of 2 rows .* row 0 has gains for item 1 and for another one of the same"):
        beams.ranking()
    assert beams.ranking(validate_args="deferred").rows.valid.tolist() == [False, True]


def test_hashes_are_tried_until_equal_hashes_mean_equal_codes(monkeypatch):
    strong, number_of_hashes = codes_module._hash, [2, 2] + [2**60] * 6  # with each seed: four codes collide twice
    monkeypatch.setattr(codes_module, "_hash", lambda codes, seed: strong(codes, seed) % number_of_hashes[seed])

    assert trm.SemanticIds(tensor([[0, 0], [0, 1], [1, 0], [1, 1]])).num_shared == 0


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (torch.rand(2, 2), TypeError, "codes must hold int64"),
        (torch.arange(3), ValueError, r"codes must be \[items, levels\], got \[3\]"),
        (tensor([[0, -1]]), ValueError, r"codes must be 0 or more; item 0 has \[0, -1\]"),
    ],
)
def test_what_is_no_matrix_of_codes_is_refused(codes, error, message):
    with pytest.raises(error, match=message):
        trm.SemanticIds(codes)


BEAMS = tensor([[[0, 0], [0, 1]]])
NO_TARGET = {"target": None}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"beams": BEAMS[..., :1]}, {}, r"beams must be \[rows, beams, levels\] with 2"),
        ({"beams": BEAMS.to("meta")}, {}, "beams is on meta"),
        ({"target": tensor([2])}, {}, "target id beyond the last item"),
        (NO_TARGET, {}, "give either target, item row numbers, or target_codes"),
        ({"target_codes": BEAMS[:, 0]}, {}, "give either target, item row numbers, or target_codes"),
        (NO_TARGET | {"target_codes": BEAMS[0]}, {}, r"target_codes must be \[1, 2\], got \[2, 2\]"),
        (NO_TARGET | {"target_codes": BEAMS[:, 0], "exclude": BEAMS[0]}, {}, "exclude= needs target= .* no items"),
        ({"shared": "all"}, {}, "shared must be one of"),
        ({"prefix": 3}, {}, "prefix must be 1 to 2 levels, got 3"),
        ({}, {"padding_idx": 2}, r"padding_idx must be an item id in 0\.\.1, got 2"),
    ],
)
def test_bad_beams_are_refused(change, options, message):
    with pytest.raises(ValueError, match=message):
        TWO_ITEMS.beams(**{"beams": BEAMS, "target": tensor([0])} | change).ranking(**options)


def test_a_list_of_beams_is_known_to_as_many_ranks_as_it_has_beams():
    two_items_of_one_code = trm.SemanticIds(tensor([[7], [7]]))
    ranking = two_items_of_one_code.beams(tensor([[[7]]]), tensor([0])).ranking()

    assert (ranking.depth, ranking.row_depth.tolist()) == (1, [1])


def test_a_list_that_a_repeated_beam_has_left_is_too_short():
    beams = TWO_ITEMS.beams(tensor([[[0, 0], [0, 0]]]), tensor([0]))

    with pytest.raises(ValueError, match="with fewer than k known ranks"):
        trm.HR(2).update(beams)


REPORT = trm.SemanticIds(tensor([[0, 0, 3], [0, 1, 0], [1, 0, 0], [0, 1, 0], [2, 1, 0]])).report()
"""Of five items, of which 1 and 3 share a code, and 0 has the same first level."""


def test_a_report_counts_codes_and_shared_prefixes():
    assert (REPORT.num_items, REPORT.num_codes, REPORT.most_items, REPORT.size) == (5, 4, 2, 4)
    assert REPORT.num_used == [3, 2, 2]
    assert REPORT.num_sharing == [3, 2, 2]


def test_a_report_has_the_entropy_of_each_level():
    first, second = 0.6 * math.log2(5 / 3) + 0.4 * math.log2(5), 0.4 * math.log2(5 / 2) + 0.6 * math.log2(5 / 3)

    assert REPORT.entropy == pytest.approx([first, second, 0.8 * math.log2(5 / 4) + 0.2 * math.log2(5)])


def test_a_report_is_a_table():
    lines = str(REPORT).splitlines()

    assert lines[1].split() == ["1", "3", "of", "4", "1.37", "of", "2.00", "3", "(60.0%)"]
    assert lines[-1] == "1.25 items per code, at most 2; longest shared prefix: 3 levels"


def test_a_report_takes_the_size_of_a_level():
    assert trm.SemanticIds(tensor([[1], [0]])).report(size=256).size == 256


def test_a_size_below_the_largest_value_is_refused():
    with pytest.raises(ValueError, match="size must be at least 2, got 1"):
        trm.SemanticIds(tensor([[1], [0]])).report(size=1)
