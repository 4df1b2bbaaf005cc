"""Agreement of two runs: overlap, rank-biased overlap and churn, against plain Python and the package rbo."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from said import agreement
from sizes import examples

import torchrecmetrics as trm

pd = pytest.importorskip("pandas")

BEFORE = [[7, 3, 9], [4, 8, 5], [1, 2, 6]]
AFTER = [[7, 9, 2], [4, 8, 5], [5, 4, 3]]


def padded(lists, width):
    return torch.tensor([[*items, *[-1] * (width - len(items))] for items in lists])


def overlap(a, b, k):
    """Return the share of common items, of k or of the longer list."""
    a, b = a[:k], b[:k]
    return len({*a} & {*b}) / max(len(a), len(b)) if a and b else math.nan


def rbo_ext(a, b, k, p):
    """Return equation 32 of Webber, Moffat & Zobel (2010), for lists of k items at most."""
    shorter, longer = sorted((a[:k], b[:k]), key=len)
    s, l = len(shorter), len(longer)  # noqa: E741
    if not s:
        return math.nan
    x = [0, *(len({*shorter[:d]} & {*longer[:d]}) for d in range(1, l + 1))]
    seen = sum(x[d] / d * p**d for d in range(1, l + 1))
    unseen = sum(x[s] * (d - s) / (s * d) * p**d for d in range(s + 1, l + 1))
    return (1 - p) / p * (seen + unseen) + ((x[l] - x[s]) / l + x[s] / s) * p**l


def test_by_hand():
    """Three users of whom one has other items, one the same list, and one nothing in common."""
    p = 0.5
    first = (1 - p) * (1 / 1 + p * 1 / 2 + p**2 * 2 / 3) + p**3 * 2 / 3
    found = agreement(torch.tensor(BEFORE), torch.tensor(AFTER), k=[1, 3], p=p)
    assert found.floats() == pytest.approx(
        {
            "Overlap@1": 2 / 3,
            "RBO-p0_5@1": 2 / 3,
            "Churn@1": 1 / 3,
            "Overlap@3": (2 / 3 + 1 + 0) / 3,
            "RBO-p0_5@3": (first + 1 + 0) / 3,
            "Churn@3": (1 / 3 + 0 + 1) / 3,
        }
    )
    assert found.num_users == 3
    spread = [1 / 3 - 4 / 9, 0 - 4 / 9, 1 - 4 / 9]
    error = math.sqrt(sum(value**2 for value in spread) / 2 / 3)
    assert found.standard_errors["Churn@3"].item() == pytest.approx(error)
    low, high = found.confidence_intervals["Churn@3"]
    assert 0 <= low < 4 / 9 < high <= 1
    assert [*agreement(torch.tensor(BEFORE), torch.tensor(AFTER))] == ["Overlap@10", "RBO@10", "Churn@10"]


RUN = st.lists(st.lists(st.integers(0, 8), unique=True, max_size=6), min_size=4, max_size=4)


@settings(max_examples=examples(150), deadline=None)
@given(RUN, RUN, st.integers(1, 8), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
@pytest.mark.filterwarnings("ignore:.* users have a list in only one run")
def test_equals_plain_python(a, b, k, p):
    """Values of full, short and uneven lists equal the definitions, user by user."""
    a, b = [[1, 2], *a], [[2, 1], *b]  # so that one user has two lists
    found = agreement(padded(a, 6), padded(b, 7), k=k, p=p).floats()
    overlaps = [overlap(x, y, k) for x, y in zip(a, b, strict=True)]
    biased = [rbo_ext(x, y, k, p) for x, y in zip(a, b, strict=True)]
    values = overlaps, biased, [1 - value for value in overlaps]
    kept = [[value for value in column if not math.isnan(value)] for column in values]
    assert [*found.values()] == pytest.approx([sum(column) / len(column) for column in kept], abs=1e-12)


def test_equals_the_package_rbo():
    """The extrapolated overlap of full lists is that of the package rbo."""
    rbo = pytest.importorskip("rbo")
    a, b = torch.rand(2, 20, 12, generator=torch.Generator().manual_seed(0)).argsort(2)[:, :, :8]
    theirs = [rbo.RankingSimilarity(x, y).rbo_ext(p=0.8) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert agreement(a, b, k=8, p=0.8)["RBO-p0_8@8"].item() == pytest.approx(sum(theirs) / 20, abs=1e-12)


def test_order_gaps_and_lengths():
    """Only RBO depends on the order, runs can be swapped, gaps hold no rank, and equal short lists agree fully."""
    whole = {"Overlap@4": 1, "RBO@4": 1, "Churn@4": 0}
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 3, 2, 1]])
    assert agreement(a, a, k=4).floats() == whole
    expected = whole | {"RBO@4": pytest.approx(rbo_ext([1, 2, 3, 4], [4, 3, 2, 1], 4, 0.9))}
    gaps, full = torch.tensor([[-1, 5, -1, 6]]), torch.tensor([[5, 6]])
    for pair, values in (((a, b), expected), ((b, a), expected), ((gaps, full), whole), ((full, gaps), whole)):
        assert agreement(*pair, k=4).floats() == values
    a, b = torch.tensor([[-1, -1, 1, 2, 3]]), torch.tensor([[2, -1, 4, 1, -1]])
    for k in (1, 2, 3):
        expected = [overlap([1, 2, 3], [2, 4, 1], k), rbo_ext([1, 2, 3], [2, 4, 1], k, 0.9)]
        assert [*agreement(a, b, k=k).floats().values()][:2] == pytest.approx(expected)


def test_recommendations_are_matched_by_row_or_id():
    """Results of `recommend` are matched by row numbers, or by the ids they have, with users that only one run has."""
    torch.manual_seed(0)
    users, items = torch.rand(5, 4), torch.rand(2, 20, 4)
    a, b = (trm.recommend(users, each, k=5) for each in items)
    expected = agreement(a.ids, b.ids, k=5).floats()
    assert agreement(a, b, k=5).floats() == expected
    assert agreement(a, dict(enumerate(b.ids.tolist())), k=5).floats() == expected
    names, titles = list("vwxyz"), [f"i{item}" for item in range(20)]
    a, b = (run.with_ids(user_ids=names, item_ids=titles) for run in (a, b))
    assert agreement(a, b, k=5).floats() == expected
    few = trm.recommend(users[:3], items[0], k=5)
    for pair in ((few, trm.recommend(users, items[1], k=5)), (trm.recommend(users, items[1], k=5), few)):
        with pytest.warns(UserWarning, match="2 of 5 users have a list in only one run"):
            found = agreement(*pair, k=5)
        assert found.floats() == agreement(few.ids, b.ids[:3], k=5).floats()


def test_many_lists_are_compared_in_several_batches(monkeypatch):
    """The number of rows at once changes nothing, and a bad list of a later batch is refused."""
    torch.manual_seed(0)
    a, b = (torch.rand(50, 9).argsort(1)[:, :5] for _ in range(2))
    whole = agreement(a, b, k=5).floats()
    monkeypatch.setattr("torchrecmetrics.evaluation.agreement._ROWS", 7)
    assert agreement(a, b, k=5).floats() == pytest.approx(whole)
    b[30, 1] = b[30, 0]
    with pytest.raises(ValueError, match="lists_b holds an item twice in the list of row 30"):
        agreement(a, b, k=5)


RUN_A = {f"u{user}": [f"i{item}" for item in items] for user, items in enumerate(BEFORE)}
RUN_B = {f"u{user}": [f"i{item}" for item in items] for user, items in reversed([*enumerate(AFTER)])}
EXPECTED = agreement(torch.tensor(BEFORE), torch.tensor(AFTER), k=3).floats()


def as_frame(lists):
    rows = [(user, item, rank) for user, items in lists.items() for rank, item in enumerate(items, start=1)]
    return pd.DataFrame(rows, columns=["user", "item", "rank"]).sample(frac=1, random_state=0)


@pytest.mark.parametrize("form", ["dicts", "frames", "a file", "a tuple"])
def test_tables_are_matched_by_id(form, tmp_path):
    """Whatever the order of users and rows, the value is that of tensors."""
    as_frame(RUN_B).to_csv(tmp_path / "b.csv", index=False)
    a, b, options = {
        "dicts": (RUN_A, RUN_B, {}),
        "frames": (as_frame(RUN_A), as_frame(RUN_B), {"rank": "rank"}),
        "a file": (as_frame(RUN_A), tmp_path / "b.csv", {"rank": "rank"}),
        "a tuple": (RUN_A, ([*RUN_B.values()], [*RUN_B]), {}),
    }[form]

    assert agreement(a, b, k=3, **options).floats() == EXPECTED


@pytest.mark.parametrize(("score", "overlap_at_1"), [("score", 1), (None, 0)])
def test_a_score_orders_the_rows_if_it_is_said(score, overlap_at_1):
    only_y = {"user": ["al"], "item": ["y"], "score": [0.5]}

    assert agreement(SCORED, only_y, k=1, score=score)["Overlap@1"] == overlap_at_1


def test_users_of_one_run_are_left_out_with_a_warning():
    message = "3 of 6 users have a list in only one run, .* such as .* of lists_a and .* of lists_b"
    with pytest.warns(UserWarning, match=message):
        found = agreement({"new": ["i1"], **RUN_A}, {**RUN_B, "late": ["i2"], "gone": ["i3"]}, k=3)

    assert (found.floats(), found.num_users) == (EXPECTED, 3)


A, B = torch.tensor(BEFORE), torch.tensor(AFTER)
SCORED = {"user": ["al", "al"], "item": ["x", "y"], "score": [0.1, 0.9]}
UNREAD = {"user": ["al", "al"], "item": ["x", "y"], "p": [0.1, 0.9]}
FOUND = trm.recommend(torch.eye(2, 3), torch.eye(9, 3), k=2)
BETWEEN_0_AND_1 = "p, the probability of going on to the next rank, must be between 0 and 1"


@pytest.mark.parametrize(
    ("lists_a", "lists_b", "options", "message"),
    [
        (A, B[:2], {}, "lists_a has 3 rows, lists_b 2: a row is one user in both"),
        (A, {0: [1]}, {}, r"to say who the users are, pass \(lists_a, users\)"),
        (A, B.float(), {}, "lists_b must hold int64, int32 or int16"),
        (A[0], B, {}, r"lists_a must be item ids \[B, K\], best first, got shape \[3\]"),
        ({"al": ["x", "x"]}, {"al": ["x", "y"]}, {}, "lists_a holds an item twice in the list of user 'al'"),
        (
            {"al": ["x"]},
            {"bo": ["x"]},
            {},
            "none of 2 users has a list in both runs, such as user 'al' of lists_a and user 'bo' of lists_b",
        ),
        (
            {1: [1]},
            {"2": [1]},
            {},
            r"the users of lists hold text \('2'\), the users of lists hold whole numbers \(1\)",
        ),
        (UNREAD, UNREAD, {}, "lists_a has a column that is not read: 'p'.*\nlists_b has a column"),
        (FOUND, {"u1": [1]}, {}, "the users of the recommendations hold whole numbers"),
        (
            FOUND.with_ids(user_ids=["u", "v"]),
            FOUND,
            {},
            r"lists_a has user_ids, lists_b has none: .*lists_b.with_ids\(user_ids=...\)",
        ),
        *((A, B, {"p": p}, BETWEEN_0_AND_1) for p in (0, 1, True, "0.9")),
        (A, B, {"k": 0}, "k must be"),
    ],
)
def test_bad_lists_are_refused(lists_a, lists_b, options, message):
    """Messages name the list and the row, and say what is accepted; none speaks of a ground truth."""
    with pytest.raises((TypeError, ValueError), match=message):
        agreement(lists_a, lists_b, **options)


def test_processes_compare_their_own_lists(monkeypatch):
    """The values are those of this process, as with `evaluate_lists`."""
    syncs = []
    monkeypatch.setattr(trm.RecMetricCollection, "result", lambda self: syncs.append(self.evaluator.sync_on_compute))
    agreement(A, B)
    assert syncs == [False]
