"""`SemanticIds`: beams against all orders of items that share a code, `Lists`, and repositories' formulas."""

import itertools
import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

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


def plain(problem, shared, duplicates, invalid, overlap):
    """Return one row's places, each a list of tied items or None if no item can hit it, and the items left out."""
    codes, beams, _, target, exclude = problem
    out = set(exclude) - (set(target) if overlap == "keep" else set())
    places, seen = [], set()
    for beam in beams:
        items = [item for item, code in enumerate(codes) if code == beam]
        left = [item for item in (items[:1] if shared == "first" else items) if item not in out]
        if not items:
            places += [None] * (invalid == "keep" and (beam not in seen or duplicates == "keep_place"))
        elif left and beam in seen:
            places += [None] * (duplicates == "keep_place")
        elif left:
            places.append([beam] if shared == "code" else left)
        seen.add(beam)
    return places, out


def expected_ranks(problem, ties, overlap, **options):
    """Return the mean, best or worst rank of the first, second, ... relevant item over all orders of tied items."""
    codes, _, depth, target, _ = problem
    places, out = plain(problem, overlap=overlap, **options)
    relevant = [item for item in target if item not in out]
    if options["shared"] == "code":
        relevant = {codes[item] for item in relevant}
    orders = []
    for order in itertools.product(*(itertools.permutations(group) if group else [(None,)] for group in places)):
        flat = [item for group in order for item in group]
        orders.append(sorted(flat.index(item) + 1 for item in relevant if item in flat))
    columns = list(zip(*orders, strict=True))
    pick = {"realistic": lambda ranks: Fraction(sum(ranks), len(ranks)), "optimistic": min, "pessimistic": max}[ties]
    ranks = [float(pick(ranks)) for ranks in columns]
    return [rank if rank <= depth else INF for rank in ranks]


def ranking_of(problem, **options):
    codes, beams, depth, target, exclude = problem
    beams = torch.tensor([[*beams, *[(-1, -1)] * (depth - len(beams))]])
    exclude = torch.tensor([exclude or [-1]])
    index, chosen = trm.SemanticIds(torch.tensor(codes)), {name: options.pop(name) for name in ("ties", "overlap")}
    return index.beams(beams, torch.tensor([target]), exclude=exclude, **options).ranking(**chosen)


@pytest.mark.fixed
@pytest.mark.parametrize("ties", ["realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("shared", ["tie", "first", "code"])
@settings(max_examples=examples(200), deadline=None)
@given(
    problem=problems(),
    duplicates=st.sampled_from(["first", "keep_place"]),
    invalid=st.sampled_from(["keep", "drop"]),
    overlap=st.sampled_from(["keep", "miss"]),
)
def test_equals_all_orders(ties, shared, problem, duplicates, invalid, overlap):
    """Ranks of the relevant items are taken over every order of items that share a code."""
    options = {"shared": shared, "duplicates": duplicates, "invalid": invalid}
    ranking = ranking_of(problem, ties=ties, overlap=overlap, **options)
    found = [rank for rank in ranking.ranks[0].tolist() if rank < INF]
    expected = [rank for rank in expected_ranks(problem, ties, overlap, **options) if rank < INF]
    assert found == pytest.approx(expected)
    codes, beams, *_ = problem
    assert ranking.num_invalid.item() == sum(beam not in codes for beam in beams)
    assert ranking.num_repeated.item() == len(beams) - len(set(beams))
    target = problem[3]
    assert ranking.num_relevant.item() == len({codes[item] for item in target} if shared == "code" else target)


@pytest.mark.fixed
@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**20), duplicates=st.sampled_from(["first", "keep_place"]))
def test_unique_codes_are_item_ids(seed, duplicates):
    """If no code is shared, `Lists` of the items gives the same ranking, and an invalid code is an unknown id."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.cartesian_prod(*[torch.arange(4)] * 3)[torch.randperm(64, generator=generator)[:40]]
    lists = torch.randint(40, (5, 8), generator=generator)
    target = torch.rand(5, 40, generator=generator).argsort(1)[:, :3]
    exclude = torch.rand(5, 40, generator=generator).argsort(1)[:, :2]
    beams = codes[lists]
    unknown = torch.rand(5, 8, generator=generator) < 0.1
    new = torch.randint(3, (5, 8), generator=generator)
    beams = torch.where(unknown[..., None], 9 + new[..., None], beams)
    lists = torch.where(unknown, 100 + new, lists)
    options = {"exclude": exclude, "duplicates": duplicates, "complete": True}
    made = trm.SemanticIds(codes).beams(beams, target, **options).ranking(overlap="miss")
    same = trm.Lists(lists, target, **options).ranking(overlap="miss")
    for name in ("ranks", "num_relevant", "num_repeated", "unreachable"):
        assert getattr(made, name).equal(getattr(same, name)), name


@pytest.mark.fixed
def test_codes_of_repositories():
    """Options give the values of other repositories for a list with a repeated and an invalid code.

    RQ-VAE-Recommender (modules/metrics) and TIGER's reimplementations compare tuples in the beams as they are; LC-Rec
    (utils.get_topk_results) gives codes of no item the score -1000, which drops them, and counts each match.
    """
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [0, 1], [1, 1]]))
    beams = torch.tensor([[[1, 0], [0, 0], [0, 0], [0, 1]]])
    tuples = [tuple(beam) for beam in beams[0].tolist()]
    actual = (0, 1)
    as_tuples = sum((beam == actual) / math.log2(rank + 2) for rank, beam in enumerate(tuples))
    known = [beam for beam in tuples if beam in {(0, 0), (0, 1), (1, 1)}]
    without_invalid = sum((beam == actual) / math.log2(rank + 2) for rank, beam in enumerate(known))
    found = []
    for invalid in ("keep", "drop"):
        metric = trm.NDCG(4)
        options = {"shared": "code", "duplicates": "keep_place", "invalid": invalid, "complete": True}
        metric.update(codes.beams(beams, torch.tensor([2]), **options))
        found.append(metric.compute().item())
    assert found == pytest.approx([as_tuples, without_invalid])
    ranks = {
        shared: codes.beams(beams, torch.tensor([1, 2])[:, None][:1].expand(1, 1), shared=shared).ranking().ranks.item()
        for shared in ("tie", "first", "code")
    }
    assert ranks == {"tie": 3.5, "first": 3, "code": 3}
    assert codes.beams(beams, torch.tensor([2]), shared="first").ranking().ranks.item() == INF


@pytest.mark.fixed
def test_what_a_catalogue_of_codes_tells():
    """`SemanticIds` tells its size, shared codes and items of a code, and ranks prefixes and targets given as codes."""
    codes = trm.SemanticIds(
        torch.tensor([[5, 1], [5, 2], [5, 1], [7, 1]], dtype=torch.int32), item_ids=["a", "b", "c", "d"]
    )
    assert repr(codes) == "SemanticIds(4 items, 3 codes of 2 levels, 2 items share one)"
    assert (len(codes), codes.num_codes, codes.num_shared, codes.collision_rate) == (4, 3, 2, 0.5)
    assert codes.items_of(torch.tensor([5, 1])) == ["a", "c"]
    assert codes.items_of(torch.tensor([1, 5])) == []
    beams = torch.tensor([[[7, 2], [5, 9], [5, 2], [7, 1]]])
    assert codes.beams(beams, target_codes=torch.tensor([[7, 1]])).ranking().ranks.tolist() == [[4]]
    assert codes.beams(beams, torch.tensor([3]), prefix=1).ranking().ranks.tolist() == [
        [1]
    ]  # 7, then 5: repeats are dropped
    assert codes.beams(beams, torch.tensor([1]), prefix=1).ranking().ranks.tolist() == [[2]]
    nowhere = codes.beams(beams, target_codes=torch.tensor([[8, 8]])).ranking()
    assert (nowhere.ranks.tolist(), nowhere.num_relevant.tolist()) == ([[INF]], [1])
    unshared = trm.SemanticIds(torch.tensor([[5, 1], [5, 2]]))
    assert "no item shares one" in repr(unshared)
    assert unshared.to("cpu").items_of(torch.tensor([5, 2])) == [1]


@pytest.mark.fixed
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
    assert (later.valid.tolist(), later.num_relevant[1]) == ([False, True], 2)
    excluded = torch.tensor([[0], [2]])
    left = codes.beams(beams, target, exclude=excluded, **options).ranking(overlap="miss")
    assert (left.ranks[:, 0].tolist(), left.unreachable.tolist()) == ([1, 1], [False, True])


@pytest.mark.fixed
def test_padding_is_negative_in_all_levels():
    """A beam with some negative levels is a code of no item, at every prefix; padding has none but negative levels."""
    codes = trm.SemanticIds(torch.tensor([[0, 1], [1, 0]]))
    beams = torch.tensor([[[0, -1], [-1, 1], [-1, -1], [0, 1]], [[0, 1], [-1, -1], [-1, -1], [-1, -1]]])
    ranking = codes.beams(beams, torch.tensor([0, 0])).ranking()
    assert (ranking.ranks.tolist(), ranking.num_invalid.tolist()) == ([[3], [1]], [2, 0])
    first = codes.beams(beams, torch.tensor([1, 0]), prefix=1).ranking()
    assert (first.ranks.tolist(), first.num_invalid.tolist(), first.num_recommended.tolist()) == (
        [[INF], [1]],
        [1, 0],
        [2, 1],
    )


@pytest.mark.fixed
def test_prefix_of_all_levels_compares_codes():
    """A prefix of L levels compares codes, as shorter ones do."""
    codes, beams = trm.SemanticIds(torch.tensor([[0, 0], [0, 0], [1, 1]])), torch.tensor([[[0, 0], [1, 1]]])
    assert [codes.beams(beams, torch.tensor([0]), prefix=prefix).ranking().ranks.item() for prefix in (1, 2)] == [1, 1]


def test_equal_hashes_of_different_codes(monkeypatch):
    """Other hashes are tried until equal hashes mean equal codes."""
    strong = codes_module._hash
    monkeypatch.setattr(codes_module, "_hash", lambda codes, seed: strong(codes, seed) % (2 if seed < 2 else 2**60))
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
    assert (codes._seed, codes.num_shared) == (2, 0)


def test_never_waits_for_the_device():
    """Rankings and updates work on the "meta" device, where there are no values to read."""
    codes = trm.SemanticIds(torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
    for name in ("codes", "_keys", "_order", "_sizes"):
        setattr(codes, name, getattr(codes, name).to("meta"))
    beams = torch.empty(3, 4, 2, dtype=torch.int64, device="meta")
    target, exclude = (torch.empty(3, 2, dtype=torch.int64, device="meta") for _ in range(2))
    for shared in ("tie", "first", "code"):
        ranking = codes.beams(beams, target, exclude=exclude, shared=shared).ranking(overlap="keep")
        trm.RecMetricCollection(["NDCG", "Recall"], k=2).to("meta").update(ranking)


ONE = trm.SemanticIds(torch.tensor([[0, 0], [0, 1]]))
BEAMS = torch.tensor([[[0, 0], [0, 1]]])
BAD = [
    (lambda: trm.SemanticIds(torch.rand(2, 2)), TypeError, "codes must hold int64"),
    (lambda: trm.SemanticIds(torch.arange(3)), ValueError, r"codes must be \[items, levels\], got \[3\]"),
    (lambda: trm.SemanticIds(torch.tensor([[0, -1]])), ValueError, r"codes must be 0 or more; item 0 has \[0, -1\]"),
    (lambda: trm.SemanticIds(torch.tensor([[0, 1]]), item_ids=["a", "b"]), ValueError, "item_ids holds 2 ids"),
    (
        lambda: ONE.beams(BEAMS[..., :1], torch.tensor([0])).ranking(),
        ValueError,
        r"beams must be \[rows, beams, levels\] with 2",
    ),
    (lambda: ONE.beams(BEAMS, torch.tensor([2])).ranking(), ValueError, "target id beyond the last item"),
    (
        lambda: ONE.beams(BEAMS, target_codes=BEAMS[:, 0], exclude=torch.tensor([[0]])).ranking(),
        ValueError,
        "exclude= removes items, which target_codes= do not name",
    ),
    (lambda: ONE.beams(BEAMS).ranking(), ValueError, "give target, item row numbers, or target_codes, one of the two"),
    (
        lambda: ONE.beams(BEAMS, target_codes=BEAMS[0]).ranking(),
        ValueError,
        r"target_codes must be \[1, 2\], got \[2, 2\]",
    ),
    (lambda: ONE.items_of(BEAMS[0]), ValueError, r"code must be \[levels\] with 2 levels, got \[2, 2\]"),
    (lambda: ONE.beams(BEAMS.to("meta"), torch.tensor([0])).ranking(), ValueError, "beams is on meta"),
    (lambda: ONE.beams(BEAMS, torch.tensor([0]), shared="all").ranking(), ValueError, "shared must be one of"),
    (
        lambda: ONE.beams(BEAMS, torch.tensor([0]), prefix=3).ranking(),
        ValueError,
        "prefix must be 1 to 2 levels, got 3",
    ),
    (
        lambda: trm.HR(2).update(ONE.beams(BEAMS[:, [0, 0]], torch.tensor([0]))),
        ValueError,
        "known to fewer than k places",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    """Each error names what was given and what is accepted."""
    with pytest.raises(error, match=message):
        call()
