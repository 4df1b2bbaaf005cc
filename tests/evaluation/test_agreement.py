"""Agreement of two runs: overlap, rank-biased overlap and churn, against plain Python and the package rbo."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm

pd = pytest.importorskip("pandas")

BEFORE = [[7, 3, 9], [4, 8, 5], [1, 2, 6]]
AFTER = [[7, 9, 2], [4, 8, 5], [5, 4, 3]]
"""Lists of three users, of whom one has another item, one the same list, and one nothing in common."""
A, B = torch.tensor(BEFORE), torch.tensor(AFTER)


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


def test_overlap_and_churn_are_shares_of_the_first_k_items():
    result = trm.agreement(A, B, k=[1, 3])

    assert [result["Overlap@1"].item(), result["Overlap@3"].item()] == pytest.approx(
        [(1 + 1 + 0) / 3, (2 / 3 + 1 + 0) / 3]
    )
    assert [result["Churn@1"].item(), result["Churn@3"].item()] == pytest.approx([(0 + 0 + 1) / 3, (1 / 3 + 0 + 1) / 3])


def test_rank_biased_overlap_weighs_the_first_ranks_most():
    """The first user's lists share 1, 1 and 2 items at depths 1, 2 and 3; the last share stays the same beyond."""
    p = 0.5
    first = (1 - p) * (1 / 1 + p * 1 / 2 + p**2 * 2 / 3) + p**3 * 2 / 3

    assert trm.agreement(A, B, k=3, p=p)["RBO-p0_5@3"].item() == pytest.approx((first + 1 + 0) / 3)


def test_the_cutoff_is_10_unless_it_is_said():
    assert [*trm.agreement(A, B)] == ["Overlap@10", "RBO@10", "Churn@10"]


RUN = st.lists(st.lists(st.integers(0, 8), unique=True, max_size=6), min_size=4, max_size=4)


def padded(lists, width):
    return torch.tensor([[*items, *[-1] * (width - len(items))] for items in lists])


@settings(max_examples=examples(150), deadline=None)
@given(RUN, RUN, st.integers(1, 8), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
@pytest.mark.filterwarnings("ignore:.* users have a list in only one run")
def test_full_short_and_uneven_lists_have_the_values_of_plain_python(a, b, k, p):
    a, b = [[1, 2], *a], [[2, 1], *b]  # so that one user has two lists
    result = trm.agreement(padded(a, 6), padded(b, 7), k=k, p=p).floats()
    overlaps = [overlap(x, y, k) for x, y in zip(a, b, strict=True)]
    biased = [rbo_ext(x, y, k, p) for x, y in zip(a, b, strict=True)]
    values = overlaps, biased, [1 - value for value in overlaps]
    defined = [[value for value in column if not math.isnan(value)] for column in values]

    assert [*result.values()] == pytest.approx([sum(column) / len(column) for column in defined], abs=1e-12)


def test_rbo_of_full_lists_is_that_of_the_package_rbo():
    rbo = pytest.importorskip("rbo")
    a, b = torch.rand(2, 20, 12, generator=torch.Generator().manual_seed(0)).argsort(2)[:, :, :8]
    theirs = [rbo.RankingSimilarity(x, y).rbo_ext(p=0.8) for x, y in zip(a.tolist(), b.tolist(), strict=True)]

    assert trm.agreement(a, b, k=8, p=0.8)["RBO-p0_8@8"].item() == pytest.approx(sum(theirs) / 20, abs=1e-12)


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    ("a", "b", "rbo"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], 0.1 * (0.9**2 * 2 / 3 + 0.9**3) + 0.9**4),  # shares 0, 0, 2 / 3, 1
        ([-1, 5, -1, 6], [5, 6], 1),  # gaps hold no rank
        ([-1, -1, 1, 2, 3], [2, -1, 4, 1, -1], rbo_ext([1, 2, 3], [2, 4, 1], 4, 0.9)),
    ],
)
def test_rank_biased_overlap_is_that_of_swapped_runs_and_of_lists_without_gaps(a, b, rbo, is_swapped):
    runs = [torch.tensor([items]) for items in ((b, a) if is_swapped else (a, b))]

    assert trm.agreement(*runs, k=4)["RBO@4"].item() == pytest.approx(rbo)


def recommended(lists):
    ids = torch.tensor(lists)
    return trm.Recommendations(ids, torch.tensor([3.0, 2.0, 1.0]).expand(ids.shape), torch.arange(len(ids)))


USER_IDS, ITEM_IDS = ["u", "v", "w"], [f"i{item}" for item in range(10)]
BY_ID_A = {user: [ITEM_IDS[item] for item in items] for user, items in zip(USER_IDS, BEFORE, strict=True)}
BY_ID_B = {user: [ITEM_IDS[item] for item in items] for user, items in zip(USER_IDS[::-1], AFTER[::-1], strict=True)}


def as_frame(lists):
    """Return rows in the order of items, with their ranks."""
    rows = [(user, item, rank) for user, items in lists.items() for rank, item in enumerate(items, start=1)]
    return pd.DataFrame(rows, columns=["user", "item", "rank"]).sort_values("item")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (recommended(BEFORE), recommended(AFTER)),
        (recommended(BEFORE), {2: AFTER[2], 0: AFTER[0], 1: AFTER[1]}),
        (recommended(BEFORE).with_ids(USER_IDS, ITEM_IDS), recommended(AFTER).with_ids(USER_IDS, ITEM_IDS)),
        (recommended(BEFORE).with_ids(USER_IDS, ITEM_IDS), BY_ID_B),
        (BY_ID_A, BY_ID_B),
        (as_frame(BY_ID_A), as_frame(BY_ID_B)),
        (BY_ID_A, ([*BY_ID_B.values()], [*BY_ID_B])),
    ],
    ids=["rows", "rows of a dict", "vocabularies", "vocabulary and dict", "dicts", "frames", "a tuple"],
)
def test_users_and_items_are_matched_by_row_or_id(a, b):
    """Users and rows may come in any order."""
    assert trm.agreement(a, b, k=2)["Overlap@2"].item() == pytest.approx((1 / 2 + 1 + 0) / 3)


def test_users_of_one_run_are_left_out_with_a_warning():
    message = "3 of 6 users have a list in only one run, .* such as .*'new'.* of lists_a and .*'late' of lists_b"
    with pytest.warns(UserWarning, match=message):
        result = trm.agreement({"new": ["i1"], **BY_ID_A}, {**BY_ID_B, "late": ["i2"], "last": ["i3"]}, k=1)

    assert (result["Overlap@1"].item(), result.num_users) == (pytest.approx(2 / 3), 3)


SCORED = {"user": ["al", "al"], "item": ["x", "y"], "score": [0.1, 0.9]}


@pytest.mark.parametrize(("lists", "expected"), [(SCORED, 1), (trm.Table(SCORED, score=None), 0)])
def test_scores_order_the_rows_unless_they_are_no_scores(lists, expected):
    assert trm.agreement(lists, {"al": ["y"]}, k=1)["Overlap@1"] == expected


@pytest.fixture
def in_batches(monkeypatch):
    """Let two lists be compared at once."""
    monkeypatch.setattr("torchrecmetrics.evaluation.agreement._ROWS", 2)


@pytest.mark.usefixtures("in_batches")
def test_lists_are_compared_in_batches():
    assert trm.agreement(A, B, k=3)["Overlap@3"].item() == pytest.approx((2 / 3 + 1 + 0) / 3)


@pytest.mark.usefixtures("in_batches")
def test_a_bad_list_of_a_later_batch_is_refused():
    with pytest.raises(ValueError, match="lists_b holds an item twice in the list of row 2"):
        trm.agreement(A, torch.tensor([[7, 9], [4, 8], [5, 5]]))


UNREAD = {"user": ["al", "al"], "item": ["x", "y"], "p": [0.1, 0.9]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trm.agreement(A, B[:2]), "lists_a has 3 rows, lists_b 2: a row is one user in both"),
        (lambda: trm.agreement(A, {0: [1]}), r"to say who the users are, pass \(lists_a, users\)"),
        (lambda: trm.agreement(A, B.float()), "lists_b must hold int64, int32 or int16"),
        (lambda: trm.agreement(A[0], B), r"lists_a must be item ids \[B, K\], best first, got shape \[3\]"),
        (lambda: trm.agreement({"al": ["x", "x"]}, {"al": ["x"]}), "lists_a holds .* twice in the list of user 'al'"),
        (lambda: trm.agreement({"al": ["x"]}, {"bo": ["x"]}), "none of 2 users .*'al' of lists_a.*'bo'"),
        (lambda: trm.agreement({1: [1]}, {"2": [1]}), r"hold text \('2'\), the users of lists hold whole"),
        (lambda: trm.agreement(UNREAD, UNREAD), "lists_a has a column that is not read: 'p'.*\nlists_b has a column"),
        (lambda: trm.agreement(recommended(BEFORE), {"u": [1]}), "users of the recommendations hold whole numbers"),
        (lambda: trm.agreement(recommended(BEFORE).with_ids(USER_IDS), recommended(AFTER)), "lists_b has none"),
        (lambda: trm.agreement(A, B, p=0), "p, the probability of going on to the next rank, must be between 0 and 1"),
        (lambda: trm.agreement(A, B, p=True), "must be between 0 and 1"),
        (lambda: trm.agreement(A, B, p="0.9"), "must be between 0 and 1"),
        (lambda: trm.agreement(A, B, k=0), "k must be"),
    ],
)
def test_bad_lists_are_refused(call, message):
    """None of the messages speaks of a ground truth."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_processes_compare_their_own_lists(monkeypatch):
    """The values are those of this process, as with `evaluate_lists`."""
    syncs = []
    monkeypatch.setattr(trm.RecMetricCollection, "result", lambda self: syncs.append(self.evaluator.sync_on_compute))
    trm.agreement(A, B)

    assert syncs == [False]
