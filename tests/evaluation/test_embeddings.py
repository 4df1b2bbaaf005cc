"""`Embeddings(allowed=)` of each user against full scores with -inf elsewhere; gathered products, batches, errors."""

import pytest
import torch
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions

USERS, ITEMS, WIDTH = 40, 60, 8
GENERATOR = torch.Generator().manual_seed(0)
NAMES = ["NDCG", "HR", "AUROC", "MAP"]


def pairs(share):
    return Interactions.from_dense(torch.rand(USERS, ITEMS, generator=GENERATOR) < share)


TARGET, EXCLUDE, CANDIDATES = pairs(0.05), pairs(0.1), pairs(0.4)
BIAS = torch.randint(-3, 4, (ITEMS,), generator=GENERATOR).float()
WHOLE = [torch.randint(-3, 4, (n, WIDTH), generator=GENERATOR).float() for n in (USERS, ITEMS)]
"""Small whole numbers, whose products are exact, and often equal."""
FRACTIONS = [torch.rand(n, WIDTH, generator=GENERATOR, dtype=torch.float64) - 0.5 for n in (USERS, ITEMS)]
"""Without ties, which rounding would break."""


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize(
    ("similarity", "vectors", "as_products"),
    [("dot", WHOLE, torch.Tensor.clone), ("cosine", FRACTIONS, torch.nn.functional.normalize)],
    ids=["dot", "cosine"],
)
def test_candidates_have_the_values_of_scores_with_minus_infinity_elsewhere(
    similarity, vectors, as_products, batch_size
):
    embeddings, options = trm.Embeddings(*vectors, BIAS, similarity, CANDIDATES), {"overlap": "miss", "k": [1, 5]}
    result = trm.evaluate(NAMES, embeddings, target=TARGET, exclude=EXCLUDE, batch_size=batch_size, **options)
    users, items = map(as_products, vectors)
    is_candidate = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    is_candidate[CANDIDATES.users, CANDIDATES.items] = True
    scores = ((users[:, None] * items).sum(-1) + BIAS).masked_fill(~is_candidate, -torch.inf)
    full, ids = trm.RecMetricCollection(NAMES, **options), TARGET.users.unique()
    full.update(scores[ids], TARGET.select(ids), exclude=EXCLUDE.select(ids))

    assert numbers(result) == near(full.compute())
    assert (result.num_users, result.num_unreachable) == (full["HR@1"].num_users, full["HR@1"].num_unreachable)


VECTORS = {"users": torch.ones(2, 1), "items": torch.ones(4, 1)}
POPULARITY = {"bias": torch.tensor([9, 1, 2, 5])}
ITEM_2_AND_3 = Interactions.from_columns([0, 1], [2, 3], num_users=2, num_items=4)


@pytest.mark.parametrize("scored", [VECTORS, POPULARITY], ids=["vectors", "bias"])
def test_a_user_without_candidates_is_a_miss(scored):
    """User 0 has two candidates, user 1 none."""
    allowed = Interactions.from_columns([0, 0], [2, 1], num_users=2, num_items=4)
    result = trm.evaluate("HR@5", trm.Embeddings(allowed=allowed, **scored), target=ITEM_2_AND_3)

    assert (result["HR@5"], result.num_users, result.num_unreachable) == (1 / 2, 2, 1)


def test_a_bias_ranks_the_candidates_of_each_user():
    """Item 2 is before item 1 for user 0, item 3 behind item 0 for user 1."""
    allowed = Interactions.from_columns([0, 0, 1, 1], [2, 1, 3, 0], num_users=2, num_items=4)

    result = trm.evaluate("MRR", trm.Embeddings(allowed=allowed, **POPULARITY), target=ITEM_2_AND_3)
    assert result["MRR"] == (1 + 1 / 2) / 2


OWN = Interactions.from_columns([0, 1, 1], [1, 2, 0], num_users=2, num_items=3)


def test_recommend_lists_each_users_own_candidates():
    ids, scores = trm.recommend(trm.Embeddings(torch.eye(2, 3), torch.eye(3), allowed=OWN), k=2)

    assert ids.tolist() == [[1, -1], [0, 2]]
    assert scores.tolist() == [[0, -torch.inf], [0, 0]]


IDS = {"user_ids": ["al", "bo"], "item_ids": ["x", "y", "z"]}
BY_ID = Interactions.from_columns(["al", "bo"], ["y", "z"], user_ids=["bo", "al"], item_ids=["z", "y", "x"])
"""Candidates in another order of users and items."""


def test_candidates_are_matched_by_id_with_a_target():
    target = Interactions.from_columns(["al", "bo"], ["y", "z"], **IDS)
    result = trm.evaluate("HR@1", trm.Embeddings(torch.eye(2, 3), torch.eye(3), allowed=BY_ID), target=target)

    assert (result["HR@1"], result.num_unreachable) == (1, 0)


def test_candidates_are_matched_by_id_with_a_history():
    had = Interactions.from_columns(["al"], ["x"], **IDS)
    lists = trm.recommend(trm.Embeddings(torch.eye(2, 3), torch.eye(3), allowed=BY_ID), k=1, exclude=had)

    assert lists.to_dict()["item"] == ["y", "z"]


BOTH = Interactions.from_dense(torch.ones(1, 2, dtype=torch.bool))
LARGE = torch.tensor([2**24, 2**24 + 1])  # float32 would make them equal
CLOSE = torch.tensor([[1.0, 0]]), torch.tensor([[1.0, 0], [1.0001, 0]])  # bfloat16 would


@pytest.mark.parametrize(
    "embeddings",
    [
        trm.Embeddings(bias=LARGE),
        trm.Embeddings(torch.zeros(1, 2), torch.zeros(2, 2), LARGE),
        trm.Embeddings(torch.zeros(1, 2), torch.zeros(2, 2), LARGE, allowed=BOTH),
        trm.Embeddings(*CLOSE, allowed=BOTH),
    ],
    ids=["bias", "vectors and bias", "candidates and bias", "candidates"],
)
def test_scores_are_exact_under_autocast(embeddings):
    """Item 1 is first."""
    with torch.autocast("cpu", torch.bfloat16):
        result = trm.evaluate("MRR", embeddings, target=Interactions.from_columns([0], [1], num_items=2))

    assert result["MRR"] == 1


TRUTH = Interactions.from_padded(torch.tensor([[0], [1], [-1]]), 3)  # the third user has no item
ALL = Interactions.from_dense(torch.ones(3, 3, dtype=torch.bool))


def of_three(allowed, metrics="HR@1", **options):
    return trm.evaluate(metrics, trm.Embeddings(torch.eye(3), torch.eye(3), allowed=allowed), target=TRUTH, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"keep_rows": True},
        {"device": "cpu"},
        {"shard": "users"},
        {"groups": trm.Groups(torch.tensor([0, 1, 1]), ["north", "south"])},
        {"catalogue": trm.Catalogue.from_interactions(ALL), "all_users": True, "metrics": ["HR@1", "Seen@2"]},
        *({"empty_target_action": action, "user_ids": [2, 1]} for action in ("skip", "neg", "pos")),
    ],
    ids=str,
)
def test_candidates_that_are_all_items_change_nothing(options):
    """Texts are compared, where nan is nan."""
    result, expected = (of_three(allowed, **options) for allowed in (ALL, None))

    assert str(result.to_dict()) == str(expected.to_dict())
    assert result.counts() == expected.counts()


NAMED = Interactions.from_columns(["a"], ["x"], user_ids=["a", "b", "c"], item_ids=["x", "y", "z"])


@pytest.mark.parametrize(
    ("allowed", "options", "message"),
    [
        (torch.ones(3, 3) > 0, {}, r"allowed must be bool \[3\], got torch.bool \[3, 3\]"),
        (Interactions.from_columns([0], [0], num_users=3, num_items=4), {}, "is 3 x 4"),
        (NAMED, {}, "allowed has user_ids, target has none: row 5 could mean two users"),
        (ALL, {"exclude": NAMED}, "exclude has user_ids, target has none: row 5 could mean two users"),
        (ALL, {"exclude": torch.ones(3).bool()}, r"cannot be combined with exclude of bool \[I\]"),
        (ALL, {"empty_target_action": "error"}, "without a relevant item"),
    ],
)
def test_bad_candidates_are_refused(allowed, options, message):
    with pytest.raises(ValueError, match=message):
        of_three(allowed, **options)
