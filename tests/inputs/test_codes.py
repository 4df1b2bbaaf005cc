"""`SemanticIds`: beams against all orders of items that share a code, `Lists`, and repositories' formulas."""

import itertools
import math
from dataclasses import replace
from statistics import fmean

import hypothesis.strategies as st
import pytest
import reference
import reference_beyond
import torch
from hypothesis import given, settings
from sizes import examples
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.inputs import codes as codes_module

INF = math.inf
CODES = [(a, b) for a in range(2) for b in range(3)]


@st.composite
def problems(draw):
    """Draw items' codes, some shared; beams with repeats, invalid codes and an early end; targets; excluded items."""
    codes = draw(st.lists(st.sampled_from(CODES), min_size=2, max_size=6))
    depth = draw(st.integers(1, 5))
    beams = draw(st.lists(st.sampled_from(CODES), min_size=1, max_size=depth))
    items = list(range(len(codes)))
    target = draw(st.lists(st.sampled_from(items), min_size=1, max_size=3, unique=True))
    exclude = draw(st.lists(st.sampled_from(items), max_size=3))
    return codes, beams, depth, target, exclude


def left_out(problem, overlap):
    """Return the items of one row that are no candidates."""
    *_, target, exclude = problem
    return set(exclude) - (set(target) if overlap == "keep" else set())


def plain(problem, shared, duplicates, invalid, overlap):
    """Return one row's places, each a list of tied items or None if no item can hit it."""
    places = []
    for beam, repeated, items, left in beams_of(problem, shared, left_out(problem, overlap)):
        if not items:
            places += [None] * (invalid == "keep" and (not repeated or duplicates == "keep_place"))
        elif left and repeated:
            places += [None] * (duplicates == "keep_place")
        elif left:
            places.append([beam] if shared == "code" else left)
    return places


def beams_of(problem, shared, out):
    """Yield each beam, whether it repeats an earlier one, all items of its code, and those that are candidates."""
    codes, beams, *_ = problem
    for place, beam in enumerate(beams):
        items = [item for item, code in enumerate(codes) if code == beam]
        left = [item for item in (items[:1] if shared == "first" else items) if item not in out]
        yield beam, beam in beams[:place], items, left


def ranks_of_orders(problem, overlap, **options):
    """Return the ranks of the relevant items that are listed, ascending, for each order of tied items."""
    codes, _, _, target, _ = problem
    places = plain(problem, overlap=overlap, **options)
    relevant = [item for item in target if item not in left_out(problem, overlap)]
    if options["shared"] == "code":
        relevant = {codes[item] for item in relevant}
    orders = []
    for order in itertools.product(*(itertools.permutations(group) if group else [(None,)] for group in places)):
        flat = [item for group in order for item in group]
        orders.append(sorted(flat.index(item) + 1 for item in relevant if item in flat))
    return orders


def user_of(ranks, num_relevant):
    """Return a user of reference.py whose relevant items have these ranks."""
    hits, gains = [(rank, 1) for rank in ranks], [1] * num_relevant
    return reference.User(hits, [], gains, num_ranked=0, num_recommended=0, tied=False, unreachable=False)


def plain_list(problem, shared, duplicates, invalid, overlap):
    """Return the items at one row's places, those of a code in ascending order; -1 for a code of no item."""
    listed = []
    for _, repeated, items, left in beams_of(problem, shared, left_out(problem, overlap)):
        if not items and invalid == "keep" and (not repeated or duplicates == "keep_place"):
            listed.append(-1)
        elif not repeated:
            listed += left[:1] if shared == "code" else left
        elif duplicates == "keep_place":
            listed += left[:1]
    return listed


def ranking_of(problem, depth=None, items=False, **options):
    codes, beams, width, target, exclude = problem
    beams = torch.tensor([[*beams, *[(-1, -1)] * (width - len(beams))]])
    exclude = torch.tensor([[*exclude, -1]]) if exclude else None
    index, chosen = trm.SemanticIds(torch.tensor(codes)), {name: options.pop(name) for name in ("ties", "overlap")}
    given = index.beams(beams, torch.tensor([target]), exclude=exclude, **options)
    return given.ranking(depth, items=items, **chosen)


OPTIONS = {
    "problem": problems(),
    "duplicates": st.sampled_from(["first", "keep_place"]),
    "invalid": st.sampled_from(["keep", "drop"]),
    "overlap": st.sampled_from(["keep", "miss"]),
}


RANK_OF_ORDERS = {"realistic": fmean, "optimistic": min, "pessimistic": max}


@pytest.mark.parametrize("shared", ["tie", "first", "code"])
@settings(max_examples=examples(200), deadline=None)
@given(ties=st.sampled_from(list(RANK_OF_ORDERS)), **OPTIONS)
def test_equals_all_orders(shared, ties, problem, duplicates, invalid, overlap):
    """Ranks are the mean, best or worst over every order of items that share a code; codes and items are counted."""
    codes, beams, depth, target, _ = problem
    options = {"shared": shared, "duplicates": duplicates, "invalid": invalid, "overlap": overlap}
    ranking = ranking_of(problem, ties=ties, **options)
    expected = [RANK_OF_ORDERS[ties](ranks) for ranks in zip(*ranks_of_orders(problem, **options), strict=True)]
    found = [rank for rank in ranking.ranks[0].tolist() if rank < INF]
    assert found == pytest.approx([rank for rank in expected if rank <= depth])
    assert ranking.num_invalid.item() == sum(beam not in codes for beam in beams)
    assert ranking.num_repeated.item() == len(beams) - len(set(beams))
    assert ranking.num_relevant.item() == len({codes[item] for item in target} if shared == "code" else target)


FORMULAS = {
    "HR": reference.hit_rate,
    "Precision": reference.precision,
    "Recall": reference.recall,
    "MRR": reference.reciprocal_rank,
    "NDCG": reference.ndcg,
    "MAP": reference.average_precision,
}


@pytest.mark.parametrize("shared", ["tie", "first", "code"])
@settings(max_examples=examples(100), deadline=None)
@given(**OPTIONS)
def test_values_are_means_over_all_orders(shared, problem, duplicates, invalid, overlap):
    """By default, metrics are the mean of their values over every order of items that share a code."""
    options = {"shared": shared, "duplicates": duplicates, "invalid": invalid, "overlap": overlap}
    ranking = ranking_of(problem, ties="expected", complete=True, **options)
    metrics = trm.RecMetricCollection(list(FORMULAS), k=[1, 2, 7], overlap=overlap)
    metrics.update(ranking)
    num_relevant = int(ranking.num_relevant)
    orders = [user_of(ranks, num_relevant) for ranks in ranks_of_orders(problem, **options)]
    user = replace(user_of([], num_relevant), orders=orders)
    expected = {f"{name}@{k}": formula(user, k) for k in (1, 2, 7) for name, formula in FORMULAS.items()}
    assert numbers(metrics.compute()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shared", ["tie", "first", "code"])
@settings(max_examples=examples(200), deadline=None)
@given(**OPTIONS, depth=st.integers(1, 9))
def test_lists_of_beams(shared, problem, duplicates, invalid, overlap, depth):
    """The first ranks hold the items of each code that stay, in ascending order, and repeats as options say."""
    options = {"shared": shared, "duplicates": duplicates, "invalid": invalid, "overlap": overlap}
    ranking = ranking_of(problem, depth, True, ties="expected", complete=True, **options)
    listed = plain_list(problem, **options)
    items = ranking.items[0].tolist()
    assert items == (listed + [-1] * depth)[: len(items)]
    assert len(items) >= min(depth, len(listed))
    codes, beams, width, target, _ = problem
    reached = [item for item in target if item not in left_out(problem, overlap)]
    hits = {item for item in listed[:depth] if item in reached}
    if shared == "code":
        hits = {item for item in listed[:depth] if item >= 0 and codes[item] in {codes[hit] for hit in reached}}
    assert set(items) & set(ranking.relevant_items[0].tolist()) - {-1} == hits
    assert ranking.entries[0].tolist() == [place < len(beams) for place in range(width)]
    repeated = [beam in beams[:place] for place, beam in enumerate(beams)]
    assert ranking.repeated[0].tolist() == repeated + [False] * (width - len(beams))


@pytest.mark.filterwarnings("ignore:no row to average over")
@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from(CODES), max_size=5), min_size=1, max_size=4), k=st.integers(1, 6))
def test_metrics_of_lists(rows, k):
    """Metrics of lists equal plain Python on the items of the first k ranks, or on the first k beams."""
    codes = [(0, 0), (0, 1), (0, 0), (1, 1), (0, 1), (0, 0)]
    beams = torch.tensor([[*beams, *[(-1, -1)] * (5 - len(beams))] for beams in rows])
    metrics = trm.RecMetricCollection(
        ["Missing", "Repeats", "Invalid", "Coverage", "Personalization"], k=k, catalogue=trm.Catalogue(6)
    )
    metrics.update(trm.SemanticIds(torch.tensor(codes)).beams(beams, complete=True))
    places = [plain_list((codes, row, 5, [], []), "tie", "first", "keep", "miss")[:k] for row in rows]
    lists = [[item for item in row if item >= 0] for row in places]

    def mean(values):
        return reference_beyond.mean(value for value in values if not math.isnan(value))

    expected = {
        f"Missing@{k}": mean(reference_beyond.missing(items, k) for items in lists),
        f"Repeats@{k}": mean(reference_beyond.repeats(row, k) for row in rows),
        f"Invalid@{k}": mean(reference_beyond.invalid(row, k, codes) for row in rows),
        f"Coverage@{k}": reference_beyond.coverage(lists, k, 6),
        f"Personalization@{k}": reference_beyond.personalization(lists, k),
    }
    assert numbers(metrics.compute()) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_lists_of_beams_beside_a_history_and_a_smaller_catalogue():
    """A history is compared with the items of beams; a catalogue of fewer items refuses others, and moves none up."""
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [1, 0]]))
    beams, history = torch.tensor([[[1, 1], [0, 1]]]), torch.tensor([[1, 2]])
    metrics = trm.RecMetricCollection(["Seen", "Coverage"], k=[1, 2], catalogue=trm.Catalogue(2))
    metrics.update(codes.beams(beams, history=history[:, :1]))
    expected = {"Seen@1": math.nan, "Seen@2": 1, "Coverage@1": math.nan, "Coverage@2": 0.5}
    assert numbers(metrics.compute()) == pytest.approx(expected, nan_ok=True)
    with pytest.raises(ValueError, match=r"row 0 lists \[-1, 2\] of 2 items"):
        metrics.update(codes.beams(torch.tensor([[[1, 1], [1, 0]]]), history=history[:, :1]))


def test_a_kept_target_of_a_compared_code_is_listed():
    """Of two targets of one code, one excluded and kept, the code still lists its first item, as if none were."""
    codes = trm.SemanticIds(torch.tensor([[0, 2], [0, 2]]))
    given = codes.beams(torch.tensor([[[0, 2]]]), torch.tensor([[1, 0]]), exclude=torch.tensor([[0]]), shared="code")
    assert given.ranking(1, items=True, overlap="keep").items.tolist() == [[0]]


def test_an_unknown_target_code_is_no_listed_item():
    """A target code of no item is relevant, cannot be found, and is none of the listed items."""
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1]]))
    beams = torch.tensor([[[0, 0], [0, 1]]] * 2)
    ranking = codes.beams(beams, target_codes=torch.tensor([[5, 5], [0, 1]])).ranking(2, items=True)
    assert (ranking.items.tolist(), ranking.relevant_items.tolist()) == ([[0, 1]] * 2, [[-1], [1]])
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[INF], [2]], [1, 1])


@pytest.mark.parametrize("padding_idx", [None, 0, 1])
@pytest.mark.parametrize("shared", ["tie", "first", "code"])
def test_an_unknown_target_code_is_unreachable(shared, padding_idx):
    """A row whose target code no item has counts as a miss, and as unreachable, whichever item is padding."""
    codes = trm.SemanticIds(torch.tensor([[1], [0], [2]]))
    metric = trm.HR(2, padding_idx=padding_idx)
    target_codes = torch.tensor([[5], [2]])
    metric.update(codes.beams(torch.tensor([[[2], [5]]] * 2), target_codes=target_codes, shared=shared, complete=True))
    assert (metric.compute(), metric.num_users, metric.num_unreachable) == (1 / 2, 2, 1)


LEVELS = st.sampled_from([-1, -1, -2, 0, 1])


@pytest.mark.parametrize("prefix", [None, 1, 2])
@settings(max_examples=examples(200), deadline=None)
@given(
    beams=st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=6),
    duplicates=OPTIONS["duplicates"],
    invalid=OPTIONS["invalid"],
    item=st.integers(0, 2),
)
def test_padding_is_no_beam(prefix, beams, duplicates, invalid, item):
    """Padding anywhere has no rank, repeats no beam and is repeated by none, whichever levels are compared."""
    matrix, length = [(0, 0), (1, 0), (0, 1)], prefix or 2
    known = {code[:length] for code in matrix}
    rank, ranks, seen, repeated, unknown = 0, [], [], 0, 0
    for beam in beams:
        code = beam[:length]
        if max(beam) < 0:
            continue
        unknown += code not in known
        repeated += code in seen
        rank += (code in known or invalid == "keep") and (code not in seen or duplicates == "keep_place")
        ranks += [rank] * (code == matrix[item][:length] and code not in seen)
        seen.append(code)
    options = {"prefix": prefix, "shared": "code", "duplicates": duplicates, "invalid": invalid, "complete": True}
    codes = trm.SemanticIds(torch.tensor(matrix))
    ranking = codes.beams(torch.tensor([beams]), torch.tensor([item]), **options).ranking()
    assert ranking.ranks.tolist() == [ranks or [INF]]
    assert (ranking.num_repeated.item(), ranking.num_invalid.item()) == (repeated, unknown)
    assert ranking.num_recommended.item() == rank


def test_what_a_catalogue_of_codes_tells():
    """`SemanticIds` tells its size and shared codes, and ranks prefixes and targets given as codes."""
    codes = trm.SemanticIds(torch.tensor([[5, 1], [5, 2], [5, 1], [7, 1]], dtype=torch.int32))
    assert repr(codes) == "SemanticIds(4 items, 3 codes of 2 levels, 2 items share one)"
    assert (len(codes), codes.num_codes, codes.num_shared) == (4, 3, 2)
    beams = torch.tensor([[[7, 2], [5, 9], [5, 2], [7, 1]]])
    for targets, rank in (
        ({"target_codes": torch.tensor([[7, 1]])}, 4),
        ({"target": torch.tensor([3]), "prefix": 1}, 1),  # 7, then 5: repeats are dropped
        ({"target": torch.tensor([1]), "prefix": 1}, 2),
        ({"target_codes": torch.tensor([[8, 8]])}, INF),
    ):
        ranking = codes.beams(beams, **targets).ranking()
        assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[rank]], [1])
    assert "no item shares one" in repr(trm.SemanticIds(torch.tensor([[5, 1], [5, 2]])))


@pytest.mark.parametrize(
    ("matrix", "options"), [([[2], [2], [1]], {"shared": "code"}), ([[0, 0], [0, 1], [1, 0]], {"prefix": 1})]
)
def test_targets_with_one_code(matrix, options):
    """Where codes are compared, targets of a row that share a code are one relevant item, and have no gains."""
    codes = trm.SemanticIds(torch.tensor(matrix))
    beams, target = torch.tensor([[matrix[0], matrix[2]]] * 2), torch.tensor([[0, 1], [1, 2]])
    ranking = codes.beams(beams, target, **options).ranking()
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1, INF], [1, 2]], [1, 2])
    metric = trm.MRR(2)
    metric.update(ranking)
    assert metric.compute() == 1
    gains = torch.ones(2, 2)
    assert codes.beams(beams[:1], target[1:], gains=gains[1:], **options).ranking().gains.tolist() == [[1, 1]]
    with pytest.raises(ValueError, match=r"1 of 2 rows .* row 0 has gains for item 1 and for another one of the same"):
        codes.beams(beams, target, gains=gains, **options).ranking()
    later = codes.beams(beams, target, gains=gains, **options).ranking(validate_args="deferred")
    assert (later.rows.valid.tolist(), later.num_relevant[1]) == ([False, True], 2)
    excluded = torch.tensor([[0], [2]])
    left = codes.beams(beams, target, exclude=excluded, **options).ranking(overlap="miss")
    assert (left.ranks[:, 0].tolist(), left.unreachable.tolist()) == ([1, 1], [False, True])


def test_equal_hashes_of_different_codes(monkeypatch):
    """Other hashes are tried until equal hashes mean equal codes."""
    strong = codes_module._hash
    monkeypatch.setattr(codes_module, "_hash", lambda codes, seed: strong(codes, seed) % (2 if seed < 2 else 2**60))
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
    assert (codes._seed, codes.num_shared) == (2, 0)


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (torch.rand(2, 2), TypeError, "codes must hold int64"),
        (torch.arange(3), ValueError, r"codes must be \[items, levels\], got \[3\]"),
        (torch.tensor([[0, -1]]), ValueError, r"codes must be 0 or more; item 0 has \[0, -1\]"),
    ],
)
def test_bad_codes(codes, error, message):
    with pytest.raises(error, match=message):
        trm.SemanticIds(codes)


BEAMS = torch.tensor([[[0, 0], [0, 1]]])
NO_TARGET = {"target": None}
BAD_BEAMS = [
    ({"beams": BEAMS[..., :1]}, {}, r"beams must be \[rows, beams, levels\] with 2"),
    ({"beams": BEAMS.to("meta")}, {}, "beams is on meta"),
    ({"target": torch.tensor([2])}, {}, "target id beyond the last item"),
    (NO_TARGET, {}, "give either target, item row numbers, or target_codes"),
    ({"target_codes": BEAMS[:, 0]}, {}, "give either target, item row numbers, or target_codes"),
    (NO_TARGET | {"target_codes": BEAMS[0]}, {}, r"target_codes must be \[1, 2\], got \[2, 2\]"),
    (
        NO_TARGET | {"target_codes": BEAMS[:, 0], "exclude": torch.tensor([[0]])},
        {},
        "exclude= needs target= .* target_codes= names no items",
    ),
    ({"shared": "all"}, {}, "shared must be one of"),
    ({"prefix": 3}, {}, "prefix must be 1 to 2 levels, got 3"),
    ({}, {"padding_idx": 2}, r"padding_idx must be an item id in 0\.\.1, got 2"),
]


@pytest.mark.parametrize(("change", "options", "message"), BAD_BEAMS)
def test_bad_beams(change, options, message):
    """Each error names what was given and what is accepted."""
    codes = trm.SemanticIds(BEAMS[0])
    with pytest.raises(ValueError, match=message):
        codes.beams(**{"beams": BEAMS, "target": torch.tensor([0])} | change).ranking(**options)


REPORT = trm.SemanticIds(torch.tensor([[0, 0, 3], [0, 1, 0], [1, 0, 0], [0, 1, 0], [2, 1, 0]])).report()
"""Of five items, of which 1 and 3 share a code, and 0 has the same first level."""


def test_a_report_counts_codes_and_shared_prefixes():
    assert (REPORT.num_items, REPORT.num_codes, REPORT.most_items, REPORT.size) == (5, 4, 2, 4)
    assert REPORT.num_used == [3, 2, 2]
    assert REPORT.num_sharing == [3, 2, 2]


def test_a_report_has_the_entropy_of_each_level():
    first, second = 0.6 * math.log2(5 / 3) + 0.4 * math.log2(5), 0.4 * math.log2(5 / 2) + 0.6 * math.log2(5 / 3)

    assert REPORT.entropy == pytest.approx([first, second, 0.8 * math.log2(5 / 4) + 0.2 * math.log2(5)])
    assert trm.SemanticIds(torch.tensor([[0], [0]])).report().entropy == [0]


def test_a_report_is_a_table():
    lines = str(REPORT).splitlines()

    assert lines[1].split() == ["1", "3", "of", "4", "1.37", "of", "2.00", "3", "(60.0%)"]
    assert lines[-1] == "1.25 items per code, at most 2; longest shared prefix: 3 levels"


def test_a_report_takes_the_size_of_a_level():
    codes = trm.SemanticIds(torch.tensor([[1], [0]]))

    assert (codes.report(size=256).entropy, codes.report(size=256).size) == ([1], 256)
    with pytest.raises(ValueError, match="size must be at least 2, got 1"):
        codes.report(size=1)


def test_lists_that_end_before_k():
    """A repeated beam leaves the list, which is then known to fewer ranks."""
    beams = trm.SemanticIds(BEAMS[0]).beams(BEAMS[:, [0, 0]], torch.tensor([0]))
    with pytest.raises(ValueError, match="with fewer than k known ranks"):
        trm.HR(2).update(beams)
